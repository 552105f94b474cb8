"""Paired episodes: every agent meets every simulator on the same tasks with the same seeds, and each once only.

What is to be played is a pure function of the config. An episode that stands in the log is not played again, so a
job that was killed goes on where it was and ends with the same result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from unfrozen.core.episodelog import EpisodeLog
from unfrozen.core.episodes import Episode, Task
from unfrozen.core.errors import ResumableError, RunDirectoryError
from unfrozen.core.seeds import derive_seed
from unfrozen.environments.protocol import Environment
from unfrozen.rollout.rollout import Assignment, RolloutSettings, rollout
from unfrozen.simulators.protocol import Speaker

Place = tuple[str, str, str, int]
"""Agent, simulator, task and trial: what an episode is an observation of."""
FEWEST_FOR_A_SHARE = 32
"""So many episodes must have ended before the share of failed ones can stop a job."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One agent and how many episodes it plays of each task with each simulator."""

    agent: Speaker
    trials: int


def pairs(
    arms: Sequence[Arm], simulators: Mapping[str, Speaker], tasks: Sequence[Task], seed: int
) -> dict[Place, Assignment]:
    """Everything that is to be played. The seed of an episode depends on its task and trial only.

    All episodes of a (task, trial) come after each other, so that a job that stops early has whole pairs.
    """
    return {
        (arm.agent.info.label, label, task.id, trial): Assignment(
            task, arm.agent, speaker, derive_seed(seed, "diagnose", task.id, trial), 0, row, trial
        )
        for trial in range(max(arm.trials for arm in arms))
        for row, task in enumerate(tasks)
        for arm in arms
        if trial < arm.trials
        for label, speaker in simulators.items()
    }


def place_of(episode: Episode) -> Place:
    """What an episode is an observation of."""
    return episode.agent.label, episode.simulator.label, episode.task.id, episode.sample


async def play_missing(
    environment: Environment,
    wanted: Mapping[Place, Assignment],
    log: EpisodeLog,
    settings: RolloutSettings,
    max_failures: float,
    on_episode: Callable[[Episode], None] = lambda _: None,
) -> list[Episode]:
    """Play what is not in the log; returns the episodes of `wanted`, in its order.

    Raises ResumableError where more than `max_failures` of what was played now has failed: something is broken that
    is not a conversation's, and going on would only spend; RunDirectoryError where the log is of another version of the
    environment, whose episodes mean something else. Errors that are not an episode's own stop the job too
    (a budget that is used up); what had ended before stays in the log.
    """
    _refuse_other_version(environment, log)
    done = {place_of(episode) for episode in log.episodes}
    missing = [assignment for place, assignment in wanted.items() if place not in done]
    played: list[Episode] = []

    def record(episode: Episode) -> None:
        log.append(episode)
        played.append(episode)
        on_episode(episode)
        _refuse_failures(played, max_failures)

    await rollout(environment, missing, settings, record)
    by_place = {place_of(episode): episode for episode in log.episodes}
    return [by_place[place] for place in wanted]


def causes(episodes: Iterable[Episode], most: int = 3) -> str:
    """Why episodes failed, the most frequent cause first: "infrastructure: ... (12 times)"."""
    counts = Counter(f"{e.failure.cause}: {e.failure.detail}" for e in episodes if e.failure is not None)
    return "; ".join(f"{text} ({count} times)" if count > 1 else text for text, count in counts.most_common(most))


def _refuse_other_version(environment: Environment, log: EpisodeLog) -> None:
    now = f"{environment.name}@{environment.version}"
    for before in {episode.environment for episode in log.episodes} - {now}:
        raise RunDirectoryError(
            f"{log.path} holds episodes of {before}, and the environment is {now} now (its tasks or its rules have "
            "changed); put them back, choose another name (--out), or remove the folder"
        )


def _refuse_failures(played: Sequence[Episode], limit: float) -> None:
    failed = [episode for episode in played if episode.failure is not None]
    if len(played) >= FEWEST_FOR_A_SHARE and len(failed) > limit * len(played):
        raise ResumableError(
            f"{len(failed)} of {len(played)} episodes failed, more than rollout.max_failures = {limit:g} "
            f"({causes(failed)}); mend it and run the same command with --retry-failed"
        )
