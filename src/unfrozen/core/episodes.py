"""Tasks, turns, outcomes and episodes: the record of one conversation.

An `Episode` holds all that is needed to replay it alone: the task, the seed, who played, every turn with its
candidates and draw, and the token traces. It either has an `outcome` or a `failure`, never both: an episode
that failed has no reward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from unfrozen.core.errors import FailureCause
from unfrozen.core.messages import Message, Role, ToolCall
from unfrozen.core.traces import TokenTrace

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True, slots=True)
class Task:
    """What one conversation is about. `data` belongs to the environment and is JSON-serialisable.

    `cluster` is the unit that intervals resample: tasks that share a person or a repository share a cluster.
    """

    id: str
    split: Split
    cluster: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One verbalized reply, and its probability after normalisation over the candidates.

    A user with tools may have written a call instead of a message; `text` is "" then.
    """

    text: str
    probability: float
    tool_call: ToolCall | None = None

    def __str__(self) -> str:
        return self.text if self.tool_call is None else f"{self.tool_call.name}({self.tool_call.arguments})"


@dataclass(frozen=True, slots=True)
class Draw:
    """How Verbalized Sampling arrived at a reply.

    `candidates` are merged and normalised; `index` is the one drawn, None when no attempt was readable and
    `fallback` marks a plain single reply. `raw` holds what the model wrote, attempt by attempt.
    """

    candidates: tuple[Candidate, ...]
    index: int | None
    fallback: bool
    raw: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """What a speaker answered to one cue. `message.role` is "assistant": its own side of the conversation."""

    message: Message
    truncated: bool = False
    """The reply was cut by its token limit."""
    sampled_tokens: int = 0
    draw: Draw | None = None
    option_probabilities: Mapping[str, float] | None = None
    """For a choice among fixed options: the normalised probability of each."""
    reasoning: str = ""
    """What the speaker thought before it spoke (reasoning fields, <think> blocks): never part of the dialogue."""
    token_ids: tuple[int, ...] = ()
    """The server's own ids of the reply's tokens, where an endpoint was asked for them and states them."""
    logprobs: tuple[float, ...] = ()
    """Log-probability (nats) of each of the reply's tokens, where an endpoint was asked for them and states them."""


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A turn as it stands in the episode: who spoke, to what cue, and whether the other party heard it."""

    speaker: Role
    turn: Turn
    seed: int
    private: bool = False
    heard: str | None = None
    """What the other party heard, where that differs from the text (a marker removed); None if private."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the environment scored a finished conversation.

    `state` is the environment's own word for it ("donated", "refused"). `reward` is the agent's return.
    `truncated` says that a limit of the environment ended the talk. `metrics` are further numbers, averaged
    over episodes in tables.
    """

    state: str
    reward: float
    success: bool
    truncated: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    violations: Mapping[Role, int] = field(default_factory=dict)
    """Turns of a role that broke the scene's rules (unreadable, a malformed tool call), where the talk went on."""
    note: str = ""
    """Why it was scored so, in a judge's own words; for readers, not for statistics."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an episode has no outcome, after `attempts` tries."""

    cause: FailureCause
    detail: str
    attempts: int


@dataclass(frozen=True, slots=True)
class SpeakerInfo:
    """Who played a role.

    `label` is the name in the config, `family` the model family (held out means another family), `kind` the
    composition ("verbalized(persona(frozen))"), `adapter` the published version that spoke ("sim-0@3").
    """

    label: str
    family: str
    kind: str
    adapter: str | None = None
    persona: str | None = None


@dataclass(frozen=True, slots=True)
class Episode:
    """One conversation, complete or failed."""

    id: str
    environment: str
    """Name and version of the environment that scored it ("lab@1")."""
    task: Task
    step: int
    group: int
    """Episodes of one group share the task; the group baseline is taken over them."""
    sample: int
    seed: int
    agent: SpeakerInfo
    simulator: SpeakerInfo
    turns: tuple[TurnRecord, ...]
    outcome: Outcome | None
    failure: Failure | None = None
    traces: Mapping[Role, TokenTrace] = field(default_factory=dict)
    """Traces of the roles that were played by token models."""

    def __post_init__(self) -> None:
        if (self.outcome is None) == (self.failure is None):
            raise ValueError(f"episode {self.id}: exactly one of outcome and failure must be given")
