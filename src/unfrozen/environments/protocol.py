"""The environment seam: tasks, and a scene for each conversation.

A scene is a small state machine. The conversation loop asks `next()` who is to speak and to what cue, lets
that role's speaker answer, and hands the turn to `hear()`, which says what the speaker and the other party now
see. Only the scene can end a conversation. Both roles may have tools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from unfrozen.core.episodes import Outcome, Split, Task, Turn
from unfrozen.core.messages import Message, Role


@dataclass(frozen=True, slots=True)
class RoleView:
    """What one role starts with: its system prompt, and its tools as OpenAI function schemas."""

    system: str
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Cue:
    """What the scene wants next.

    `prompt` is a message that only the speaker sees, added to its context before it answers (how a private
    ballot is asked). With `options` the answer is one of them: a token model draws from their normalised
    probabilities, an endpoint answers in JSON. A `private` turn is not shown to the other party. `json_schema` (a
    JSON Schema as text) asks for a reply that follows it, of a model or a server that can hold itself to one.
    """

    speaker: Role
    prompt: str | None = None
    options: tuple[str, ...] = ()
    private: bool = False
    max_tokens: int | None = None
    json_schema: str | None = None


@dataclass(frozen=True, slots=True)
class Heard:
    """What each role's context gains from a turn, beside the speaker's own reply, which is always kept.

    In the listener's context that is usually one "user" message. For a speaker that called tools it is the
    tool results.
    """

    agent: tuple[Message, ...] = ()
    user: tuple[Message, ...] = ()

    def of(self, role: Role) -> tuple[Message, ...]:
        """Messages for one role."""
        return self.agent if role == "agent" else self.user


class Scene(Protocol):
    """One conversation's state. Opened by an environment; single use."""

    def view(self, role: Role) -> RoleView:
        """What `role` starts with. Constant over the conversation."""
        ...

    def next(self) -> Cue | None:
        """Who speaks next and to what cue; None when the talk is over."""
        ...

    async def hear(self, cue: Cue, turn: Turn) -> Heard:
        """Apply a turn. Raises EpisodeError("format", ...) where a rule of the scene makes it unusable."""
        ...

    def outcome(self) -> Outcome:
        """Score the finished talk. Only valid after `next()` returned None."""
        ...


@dataclass(frozen=True, slots=True)
class Probe:
    """A fixed context in which the agent speaks next: what policy entropy and distinct-n are measured on."""

    system: str
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Phrasing:
    """How the simulator wrappers speak in this environment's language.

    `personas` maps a style's name to the text that is appended to the user's system prompt. `verbalize` asks
    for candidate replies; it is formatted with {k}. Environments spoken in plain English use the defaults of
    the wrappers and leave these empty.
    """

    personas: Mapping[str, str] = field(default_factory=dict)
    verbalize: str = ""


class Environment(Protocol):
    """A benchmark. `version` is part of every record: a score names the version that gave it."""

    name: str
    version: str

    def tasks(self, split: Split) -> Sequence[Task]:
        """All tasks of a split, in a fixed order."""
        ...

    def open(self, task: Task, seed: int) -> Scene:
        """Start one conversation."""
        ...

    def probes(self, count: int) -> Sequence[Probe]:
        """Fixed contexts from the validation split in which the agent speaks next."""
        ...

    def phrasing(self) -> Phrasing:
        """How wrappers ask for personas and candidates here."""
        ...

    def human_outcomes(self) -> Mapping[str, Sequence[float]]:
        """What people did, where that is known: outcome metric -> one value per human conversation."""
        ...

    def scripted(self, name: str) -> Any:
        """A scripted speaker that this environment offers by name (a `Speaker`), for panels and tests.

        Raises UsageError that lists the names there are.
        """
        ...


class Ask(Protocol):
    """Asks a model outside of the conversation. `messages` are as in OpenAI's API, the system prompt first."""

    async def __call__(self, messages: Sequence[Message], seed: int) -> str:
        """What the model answers. Raises EpisodeError where it cannot be asked."""
        ...


@runtime_checkable
class Judged(Protocol):
    """An environment whose outcomes a model decides. Which one is the config's affair, and asking it the job's:
    so the judge's calls share engines, budget and cache with all others."""

    @property
    def judge(self) -> str | None:
        """Name of the [models] section of the judge; None where no task needs one."""
        ...

    def connect_judge(self, ask: Ask) -> None:
        """Called once before the first scene is opened."""
        ...
