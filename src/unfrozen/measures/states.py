"""Dialogue states: moments at which the user has to speak, and several simulators' replies to the same ones.

How narrow a simulator is shows only where it is asked for the same reply many times. A recorded episode is
replayed through its own scene, so that a state is, message for message, what the user read at that turn; then
every simulator is asked for `replies` independent replies there. No conversation goes on from them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from unfrozen.core.episodes import Episode, SpeakerInfo, Turn
from unfrozen.core.errors import EpisodeError, UsageError
from unfrozen.core.messages import Message, Role
from unfrozen.core.seeds import derive_seed, generator
from unfrozen.core.traces import TokenStream
from unfrozen.environments.human import Keep, corpus_talks
from unfrozen.environments.protocol import Cue, Environment, RoleView
from unfrozen.rollout.conversation import converse
from unfrozen.simulators.protocol import Speaker, View

Replies = Mapping[str, Mapping[str, Sequence[str]]]
"""State id -> simulator -> its replies to that state."""


@dataclass(frozen=True, slots=True)
class DialogueState:
    """One moment at which the user speaks. `id` is "task id/number of the user's turn"; `cluster` the task's."""

    id: str
    cluster: str
    start: RoleView
    messages: tuple[Message, ...]
    """The user's own context, in its perspective, without the system prompt."""
    cue: Cue


@dataclass(frozen=True, slots=True)
class Resampled:
    """What the simulators answered. `failed` counts the replies that could not be had, by simulator."""

    replies: Replies
    units: Mapping[str, str]
    """State id -> cluster of its task: what intervals resample."""
    failed: Mapping[str, int]


async def pick_states(
    environment: Environment, episodes: Sequence[Episode], count: int, seed: int
) -> tuple[DialogueState, ...]:
    """Up to `count` states from recorded episodes, spread over as many tasks as there are.

    A state is a turn of the user's that was free text; a choice among options is none, for it has a distribution
    of its own (`Turn.option_probabilities`). Tasks and turns are drawn by seed: one state a task, then a second
    one, until there are enough. Raises UsageError where an episode cannot be replayed in its environment.
    """
    by_task: dict[str, list[DialogueState]] = {}
    seen: set[tuple[str, tuple[Message, ...]]] = set()
    complete = [episode for episode in episodes if episode.outcome is not None]
    wanted = min(count, len({episode.task.id for episode in complete}))
    order = generator(seed, "episodes").permutation(len(complete))
    for episode in (complete[int(i)] for i in order):
        if len(by_task) >= wanted and (len(seen) >= count or episode.task.id not in by_task):
            continue
        for state in await _states_of(environment, episode):
            if (episode.task.id, state.messages) not in seen:  # simulators that said the same make one state
                seen.add((episode.task.id, state.messages))
                by_task.setdefault(episode.task.id, []).append(state)
    return _spread(by_task, count, seed)


async def human_states(
    environment: Environment, count: int, seed: int, keep: Keep = "first"
) -> tuple[tuple[DialogueState, ...], dict[str, tuple[str, ...]]]:
    """Up to `count` states of the environment's human test talks, and the human's own reply at each (state id ->
    one reply): a reference made of people. Raises UsageError where the environment has no human talks.
    """
    by_task: dict[str, list[DialogueState]] = {}
    said: dict[str, tuple[str, ...]] = {}
    for talk in await corpus_talks(environment, "user", "test", keep):
        start = RoleView(talk.messages[0].content)
        for number, place in enumerate(talk.own_turns()):
            state = DialogueState(f"{talk.id}/{number}", talk.cluster, start, talk.messages[1:place], Cue("user"))
            by_task.setdefault(talk.id, []).append(state)
            said[state.id] = (talk.messages[place].content,)
    states = _spread(by_task, count, seed)
    return states, {state.id: said[state.id] for state in states}


async def resample(
    states: Sequence[DialogueState],
    simulators: Mapping[str, Speaker],
    replies: int,
    seed: int,
    concurrency: int = 64,
) -> Resampled:
    """Ask every simulator for `replies` independent replies to every state, `concurrency` at once.

    The seed of a reply derives from (seed, simulator, state, number): simulators that are alike would otherwise say
    the same in step, and their replies not be independent. A reply that fails (EpisodeError) is counted and left
    out; other errors stop.
    """
    gate = asyncio.Semaphore(concurrency)

    async def ask(label: str, state: DialogueState, number: int) -> str | None:
        view = View("user", state.start, state.messages, state.cue, TokenStream())
        async with gate:
            try:
                turn = await simulators[label].reply(view, derive_seed(seed, "reply", label, state.id, number))
            except EpisodeError:
                return None
        return reply_text(turn)

    places = [(label, state, number) for state in states for label in simulators for number in range(replies)]
    answers = await asyncio.gather(*(ask(label, state, number) for label, state, number in places))
    table: dict[str, dict[str, list[str]]] = {state.id: {label: [] for label in simulators} for state in states}
    failed = dict.fromkeys(simulators, 0)
    for (label, state, _), answer in zip(places, answers, strict=True):
        if answer is None:
            failed[label] += 1
        else:
            table[state.id][label].append(answer)
    return Resampled(table, {state.id: state.cluster for state in states}, failed)


def reply_text(turn: Turn) -> str:
    """What was said, with tool calls written out ("name(arguments)"), on one line."""
    calls = [f"{call.name}({call.arguments})" for call in turn.message.tool_calls]
    return " ".join(" ".join([turn.message.content, *calls]).split())


@dataclass(slots=True)
class _Recorded:
    """Plays a role's recorded turns again, and keeps what it was asked."""

    episode: Episode
    role: Role
    info: SpeakerInfo = field(init=False)
    views: list[View] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.info = self.episode.agent if self.role == "agent" else self.episode.simulator

    async def reply(self, view: View, seed: int) -> Turn:
        own = [record.turn for record in self.episode.turns if record.speaker == self.role]
        if len(self.views) >= len(own):
            raise EpisodeError("format", f"the {self.role} is asked for more turns than were recorded")
        self.views.append(view)
        return own[len(self.views) - 1]


async def _states_of(environment: Environment, episode: Episode) -> list[DialogueState]:
    agent, user = _Recorded(episode, "agent"), _Recorded(episode, "user")
    way_out = f"give the environment that it was recorded in ({episode.environment})"
    try:
        scene = environment.open(episode.task, episode.seed)
        again = await converse(scene, {"agent": agent, "user": user}, episode.seed)
    except EpisodeError as error:
        raise UsageError(f"episode {episode.id} cannot be replayed: {error.detail}; {way_out}") from error
    if [(turn.speaker, turn.heard) for turn in again.turns] != [(turn.speaker, turn.heard) for turn in episode.turns]:
        raise UsageError(f"episode {episode.id} goes another way when it is replayed; {way_out}")
    return [
        DialogueState(f"{episode.task.id}/{number}", episode.task.cluster, view.start, view.messages, view.cue)
        for number, view in enumerate(user.views)
        if not view.cue.options
    ]


def _spread(by_task: Mapping[str, Sequence[DialogueState]], count: int, seed: int) -> tuple[DialogueState, ...]:
    """One state of each task in drawn order, then a second one, and so on; ids made unique within a task."""
    tasks = sorted(by_task)
    tasks = [tasks[int(i)] for i in generator(seed, "tasks").permutation(len(tasks))]
    queues = []
    for task in tasks:
        order = generator(seed, "turns", task).permutation(len(by_task[task]))
        queues.append([by_task[task][int(i)] for i in order])
    picked: list[DialogueState] = []
    used: dict[str, int] = {}
    for turn in range(max(map(len, queues), default=0)):
        for queue in queues:
            if turn < len(queue) and len(picked) < count:
                state = queue[turn]
                used[state.id] = used.get(state.id, 0) + 1
                picked.append(state if used[state.id] == 1 else replace(state, id=f"{state.id}#{used[state.id]}"))
    return tuple(picked)
