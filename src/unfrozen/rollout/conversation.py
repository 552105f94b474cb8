"""One conversation: the single loop that every environment and every method runs through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unfrozen.core.episodes import Outcome, TurnRecord
from unfrozen.core.messages import ROLES, Message, Role, other
from unfrozen.core.seeds import derive_seed
from unfrozen.core.traces import TokenStream, TokenTrace
from unfrozen.environments.protocol import Scene
from unfrozen.simulators.protocol import Speaker, View


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
        role = cue.speaker
        if cue.prompt is not None:
            contexts[role] += (Message("user", cue.prompt),)
        turn_seed = derive_seed(seed, role, len(turns))
        view = View(role, starts[role], contexts[role], cue, streams[role])
        turn = await speakers[role].reply(view, turn_seed)
        heard = await scene.hear(cue, turn)
        contexts[role] += (turn.message, *heard.of(role))
        listener = heard.of(other(role))
        contexts[other(role)] += listener
        text = " ".join(message.content for message in listener) if listener else None
        turns.append(TurnRecord(role, turn, turn_seed, cue.private, None if text == turn.message.content else text))
    traces = {role: stream.trace() for role, stream in streams.items()}
    return Conversation(
        tuple(turns), scene.outcome(), {role: trace for role, trace in traces.items() if trace.segments}
    )
