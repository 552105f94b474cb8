"""Scripted speakers of the persuasion environment: exact partners for tests and panels.

They read only what a model would read (their instructions, the messages, the cue), so they are stateless and
serve many talks at once. `by-persona` is a small user model: what convinces it depends on its persona, and
only wording of that kind does. How much it then gives depends on the persona and on the seed of the turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from unfrozen.core.episodes import SpeakerInfo, Turn
from unfrozen.core.messages import Message, Role
from unfrozen.core.seeds import generator
from unfrozen.environments.persuasion.marker import STUDY, read_turn, render_marker
from unfrozen.environments.persuasion.personas import CARING, GIVING, LOW_INCOME, RATIONAL
from unfrozen.environments.protocol import Cue, RoleView


class Context(Protocol):
    """What a scripted speaker reads of a `View` (the speakers' room is above this one)."""

    @property
    def role(self) -> Role: ...
    @property
    def start(self) -> RoleView: ...
    @property
    def messages(self) -> tuple[Message, ...]: ...
    @property
    def cue(self) -> Cue: ...


class ScriptedSpeaker:
    """A speaker whose reply is `rule(context, seed)`; options are answered by one of them."""

    def __init__(self, name: str, rule: Callable[[Context, int], str]) -> None:
        self._rule = rule
        self.info = SpeakerInfo(label=name, family="scripted", kind="scripted")

    async def reply(self, view: Context, seed: int) -> Turn:
        """Answer the cue."""
        text = self._rule(view, seed)
        if view.cue.options and text not in view.cue.options:
            text = _nearest_option(_decided(view.messages) or 0.0, view.cue.options)
        return Turn(Message("assistant", text))


def _decided(messages: Sequence[Message]) -> float | None:
    """The speaker's own last decision, None where it made none."""
    for message in reversed(messages):
        if message.role == "assistant" and (amount := read_turn(message.content).amount) is not None:
            return amount
    return None


def _nearest_option(amount: float, options: Sequence[str]) -> str:
    """The option closest to an amount; options without an amount are passed over."""
    offered = [
        (abs(float(found[1]) - amount), option)
        for option in options
        if (found := re.search(r"\$([0-9]+\.[0-9]{2})", option)) is not None
    ]
    return min(offered)[1] if offered else options[0]


def _spoken_by_other(view: Context) -> list[str]:
    """What the persuader has said, without the scene's own messages."""
    return [m.content for m in view.messages if m.role == "user" and not m.content.startswith(STUDY)]


def _own_turns(view: Context) -> int:
    return sum(message.role == "assistant" for message in view.messages)


def _generous(view: Context, seed: int) -> str:
    if _own_turns(view) == 0:
        return "Hello! I have a little time. What is it about?"
    return f"That is a good cause, I am glad to help. {render_marker(1.0)}"


def _stingy(view: Context, seed: int) -> str:
    if _own_turns(view) < 2:
        return "I see. I am not sure that I want to give money to anybody today."
    return f"No, thank you. I keep what I have earned. {render_marker(0.0)}"


def _undecided(view: Context, seed: int) -> str:
    return ("I have to think about it.", "Maybe, maybe not.", "Tell me a bit more.")[_own_turns(view) % 3]


def _careless(view: Context, seed: int) -> str:
    if view.cue.options:
        return render_marker(0.5)
    return "All right, take three dollars. [DONATE $3]"


_CONVINCES: Mapping[str, re.Pattern[str]] = {
    "facts": re.compile(r"\b(percent|per cent|cents of every|figures?|report|audit\w*|studies|countries)\b|%", re.I),
    "feelings": re.compile(r"\b(child|girl|boy|hungry|hunger|afraid|mother|home|war|story|alone)\b", re.I),
    "small steps": re.compile(r"\b(small|little|few cents|any amount|even (a|ten|fifty)|whatever)\b", re.I),
}
_ASKS_FOR: Mapping[str, str] = {
    "facts": "How much of the money really arrives? I would want to see something solid.",
    "feelings": "Who are the children that this is about? I know nobody there.",
    "small steps": "I do not have much to spare, to be honest.",
}


def wants(system: str) -> str:
    """What convinces the person that a persuadee's instructions describe: a key of the kinds of appeal."""
    if RATIONAL in system:
        return "facts"
    if CARING in system and LOW_INCOME not in system:
        return "feelings"
    return "small steps"


def _by_persona(view: Context, seed: int) -> str:
    kind = wants(view.start.system)
    if not any(_CONVINCES[kind].search(text) for text in _spoken_by_other(view)):
        return _ASKS_FOR[kind]
    warmth = sum(phrase in view.start.system for phrase in GIVING)
    amounts = (0.0, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0)
    step = warmth + int(generator(seed, "persuadee's amount").integers(0, 3))
    amount = amounts[min(step, len(amounts) - 1)]
    if amount == 0:
        return f"I understand, but I will keep the money this time. {render_marker(0.0)}"
    return f"You have convinced me, I will give something. {render_marker(amount)}"


_APPEALS = (
    "Save the Children publishes its figures: most of every dollar goes to its programmes in many countries.",
    "Think of a child who has lost her home to a war and has nobody else to turn to.",
    "Even a small amount helps; whatever you can spare is welcome.",
)


def _persuader(view: Context, seed: int) -> str:
    """A greeting, then the three kinds of appeal in an order that its own first words fix, then a request."""
    turn = _own_turns(view)
    if turn == 0:
        greeting = int(generator(seed, "persuader's greeting").integers(0, len(_GREETINGS)))
        return _GREETINGS[greeting]
    start = next(m.content for m in view.messages if m.role == "assistant")
    shift = _GREETINGS.index(start) if start in _GREETINGS else 0
    if turn <= len(_APPEALS):
        return _APPEALS[(turn - 1 + shift) % len(_APPEALS)]
    return "Would you give part of your two dollars to Save the Children?"


_GREETINGS = ("Hello, how are you today?", "Hi there! Do you have a minute?", "Good day. May I ask you something?")

_RULES: Mapping[str, Callable[[Context, int], str]] = {
    "generous": _generous,
    "stingy": _stingy,
    "undecided": _undecided,
    "careless": _careless,
    "by-persona": _by_persona,
    "persuader": _persuader,
}
SPEAKERS = tuple(_RULES)
"""Names: persuadees that give $1, decline, never decide, write an unusable marker first, or answer by their
persona; and a persuader."""


def scripted_speaker(name: str) -> ScriptedSpeaker:
    """The scripted speaker of one of the `SPEAKERS` names."""
    return ScriptedSpeaker(name, _RULES[name])
