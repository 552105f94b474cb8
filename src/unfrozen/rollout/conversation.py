"""One conversation: the single loop that every environment and every method runs through."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeVar

from unfrozen.core.episodes import Outcome, TurnRecord
from unfrozen.core.errors import UsageError
from unfrozen.core.messages import ROLES, Message, Role, other
from unfrozen.core.seeds import derive_seed
from unfrozen.core.traces import TokenStream, TokenTrace
from unfrozen.environments.protocol import Cue, Heard, Scene
from unfrozen.simulators.protocol import Speaker, View

T = TypeVar("T")
MOST_TURNS = 10_000
"""A scene that asks for more will not end: its rules are at fault, and no timeout stops speakers that never wait."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A finished conversation: its turns, its outcome, and the token trace of each role that sampled."""

    turns: tuple[TurnRecord, ...]
    outcome: Outcome
    traces: Mapping[Role, TokenTrace]


async def converse(scene: Scene, speakers: Mapping[Role, Speaker], seed: int) -> Conversation:
    """Run a scene to its end. Only the scene decides who speaks and when the talk is over.

    Each turn's seed derives from (seed, role, number of the turn). Raises EpisodeError where a turn is
    unusable by the scene's rules or a speaker could not answer.
    """
    starts = {role: scene.view(role) for role in ROLES}
    contexts: dict[Role, tuple[Message, ...]] = dict.fromkeys(ROLES, ())
    streams = {role: TokenStream() for role in ROLES}
    turns: list[TurnRecord] = []
    while (cue := scene.next()) is not None:
        _expect(cue, Cue, scene, "next")
        if len(turns) == MOST_TURNS:
            raise UsageError(f"environment: a scene of {type(scene).__name__} did not end within {MOST_TURNS} turns")
        role = cue.speaker
        if cue.prompt is not None:
            contexts[role] += (Message("user", cue.prompt),)
        turn_seed = derive_seed(seed, role, len(turns))
        view = View(role, starts[role], contexts[role], cue, streams[role])
        turn = await speakers[role].reply(view, turn_seed)
        heard = _expect(await scene.hear(cue, turn), Heard, scene, "hear")
        contexts[role] += (turn.message, *heard.of(role))
        listener = heard.of(other(role))
        contexts[other(role)] += listener
        text = " ".join(message.content for message in listener) if listener else None
        turns.append(TurnRecord(role, turn, turn_seed, cue.private, None if text == turn.message.content else text))
    traces = {role: stream.trace() for role, stream in streams.items()}
    return Conversation(tuple(turns), _scored(scene), {role: trace for role, trace in traces.items() if trace.segments})


def _scored(scene: Scene) -> Outcome:
    """The outcome, if its numbers are some: what is not finite would spread through advantages to every weight."""
    outcome = _expect(scene.outcome(), Outcome, scene, "outcome")
    _expect(outcome.state, str, scene, "outcome")
    scored: dict[str, Any] = {**outcome.metrics, "reward": outcome.reward}
    for key, value in scored.items():
        if not isinstance(value, Real) or not math.isfinite(value):
            raise UsageError(f"environment: a {type(scene).__name__} scored {key} = {value!r}; give a finite number")
    return outcome


def _expect(value: T, kind: type[T], scene: Scene, method: str) -> T:
    """Return what a scene gave, or raise UsageError where it is of another kind: scenes are often one's own."""
    if not isinstance(value, kind):
        raise UsageError(
            f"environment: {type(scene).__name__}.{method}() returned {value!r:.60}; it must be of type {kind.__name__}"
        )
    return value
