"""Small deterministic speakers for tests of the wrappers."""

from __future__ import annotations

from collections.abc import Callable

from unfrozen.core.episodes import SpeakerInfo, Turn
from unfrozen.core.messages import Message
from unfrozen.core.traces import TokenStream
from unfrozen.environments.protocol import Cue, RoleView
from unfrozen.simulators.protocol import View


class Says:
    """Answers with what `answer(view, seed)` returns, and remembers what it was shown."""

    def __init__(self, answer: Callable[[View, int], str], label: str = "says", family: str = "test") -> None:
        self.answer = answer
        self.seen: list[View] = []
        self.info = SpeakerInfo(label, family, "scripted")

    async def reply(self, view: View, seed: int) -> Turn:
        self.seen.append(view)
        return Turn(Message("assistant", self.answer(view, seed)), sampled_tokens=1)


def view(cue: Cue | None = None, *messages: Message, system: str = "you are a user") -> View:
    """A user's view of a conversation."""
    return View("user", RoleView(system), messages, cue or Cue("user"), TokenStream())
