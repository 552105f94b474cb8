"""Persona-guided simulation: the same model, told how to behave for one conversation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from unfrozen.core.episodes import Turn
from unfrozen.simulators.protocol import Speaker, View

PERSONAS: Mapping[str, str] = {
    "guarded": "Your manner: wary. You give little away until you are given a reason to trust, and you ask why.",
    "hurried": "Your manner: short of time. You answer in a few words and want to get to the point.",
    "talkative": "Your manner: chatty. You stray into stories of your own and come back to the matter late.",
    "doubtful": "Your manner: sceptical. You question claims and figures, and want to know how they are known.",
    "warm": "Your manner: warm. You meet people with goodwill and say so, but you still make up your own mind.",
    "grumpy": "Your manner: in a bad mood. You are curt, easily annoyed, and slow to be won over.",
    "thrifty": "Your manner: careful with money. You weigh every cost and say what else it could be spent on.",
    "unsure": "Your manner: hesitant. You change your mind, hedge, and ask to have things explained again.",
    "blunt": "Your manner: direct. You say at once what you think, agree or disagree plainly, and do not soften it.",
    "distracted": "Your manner: half attentive. You miss details, answer a part of what was asked, and need reminders.",
}
"""Ten ways to behave, written for this project: they vary mood, length, trust and cooperation, not the goal."""


class Persona:
    """Appends a manner to the user's system prompt for one conversation."""

    def __init__(self, inner: Speaker, name: str, text: str) -> None:
        self.inner = inner
        self.text = text
        self.info = replace(inner.info, kind=f"persona({inner.info.kind})", persona=name)

    async def reply(self, view: View, seed: int) -> Turn:
        """Answer as the inner speaker does when told its manner."""
        start = replace(view.start, system=f"{view.start.system}\n{self.text}".strip())
        return await self.inner.reply(replace(view, start=start), seed)
