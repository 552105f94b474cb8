"""Many conversations at once, with bounded concurrency, retries, and failures that are never rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from unfrozen.core.episodes import Episode, Failure, Task
from unfrozen.core.errors import EpisodeError
from unfrozen.core.messages import Role
from unfrozen.core.seeds import derive_seed
from unfrozen.environments.protocol import Environment
from unfrozen.rollout.conversation import Conversation, converse
from unfrozen.simulators.protocol import Speaker


@dataclass(frozen=True, slots=True)
class Assignment:
    """Who plays which task, at which place of the run."""

    task: Task
    agent: Speaker
    simulator: Speaker
    seed: int
    step: int = 0
    group: int = 0
    sample: int = 0


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """`concurrency` conversations at once; `attempts` tries an episode; `timeout` seconds a try (0: none)."""

    concurrency: int = 64
    attempts: int = 2
    timeout: float = 0.0


async def rollout(
    environment: Environment,
    assignments: Sequence[Assignment],
    settings: RolloutSettings,
    on_episode: Callable[[Episode], None] = lambda _: None,
) -> list[Episode]:
    """Play every assignment and return the episodes in the order of the assignments.

    An episode that fails is tried again with a seed derived from its own, up to `attempts` times, and then
    returned with its failure: it has no reward. Errors that are not an episode's own (a bug, a full disk,
    memory) stop the rollout.
    """
    gate = asyncio.Semaphore(settings.concurrency)

    async def play(assignment: Assignment) -> Episode:
        async with gate:
            episode = await play_episode(environment, assignment, settings)
        on_episode(episode)
        return episode

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(play(assignment)) for assignment in assignments]
    except ExceptionGroup as errors:
        # One conversation met an error that is not an episode's own; the others were cancelled.
        raise errors.exceptions[0] from errors.exceptions[0].__cause__
    return [task.result() for task in tasks]


async def play_episode(environment: Environment, assignment: Assignment, settings: RolloutSettings) -> Episode:
    """Play one assignment, with retries."""
    failure = Failure("infrastructure", "no attempt was made", 0)
    for attempt in range(settings.attempts):
        seed = assignment.seed if attempt == 0 else derive_seed(assignment.seed, "attempt", attempt)
        scene = environment.open(assignment.task, seed)
        speakers: Mapping[Role, Speaker] = {"agent": assignment.agent, "user": assignment.simulator}
        try:
            async with asyncio.timeout(settings.timeout or None):
                talk = await converse(scene, speakers, seed)
        except EpisodeError as error:
            failure = Failure(error.cause, error.detail, attempt + 1)
        except TimeoutError:
            failure = Failure("timeout", f"no end within {settings.timeout:g} s", attempt + 1)
        else:
            return _episode(environment, assignment, seed, talk)
    return _episode(environment, assignment, assignment.seed, failure)


def _episode(environment: Environment, a: Assignment, seed: int, result: Conversation | Failure) -> Episode:
    talk = result if isinstance(result, Conversation) else None
    return Episode(
        id=f"{a.step}-{a.group}-{a.sample}-{a.simulator.info.label}",
        environment=f"{environment.name}@{environment.version}",
        task=a.task,
        step=a.step,
        group=a.group,
        sample=a.sample,
        seed=seed,
        agent=a.agent.info,
        simulator=a.simulator.info,
        turns=talk.turns if talk else (),
        outcome=talk.outcome if talk else None,
        failure=None if isinstance(result, Conversation) else result,
        traces=talk.traces if talk else {},
    )
