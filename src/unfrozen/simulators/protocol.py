"""The speaker seam: anything that can answer in a conversation, agent and simulator alike.

A speaker is stateless: all it needs is in the `View`, so one speaker serves many conversations at once.
Wrappers compose: `Verbalized(Persona(ModelSpeaker(...)))`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from unfrozen.core.episodes import SpeakerInfo, Turn
from unfrozen.core.messages import Message, Role
from unfrozen.core.traces import TokenStream
from unfrozen.environments.protocol import Cue, RoleView


@dataclass(frozen=True, slots=True)
class View:
    """One role's side of the conversation at the moment it has to answer.

    `messages` are in its own perspective: its own turns are "assistant". `stream` is where a token model
    records what it read and sampled; the conversation owns it.
    """

    role: Role
    start: RoleView
    messages: tuple[Message, ...]
    cue: Cue
    stream: TokenStream


class Speaker(Protocol):
    """Answers in a conversation."""

    info: SpeakerInfo

    async def reply(self, view: View, seed: int) -> Turn:
        """Answer the cue. Raises EpisodeError where no usable answer could be had."""
        ...
