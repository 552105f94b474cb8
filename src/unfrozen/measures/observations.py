"""Observations: who played what with whom, and whether it succeeded; and the aligned table made of them.

The diagnostic's statistics (`drop`, `verdict`, `plan`, `permutation`) start here and never touch an episode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from unfrozen.core.episodes import Episode, Split

Floats = NDArray[np.float64]
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Observation:
    """One episode as the statistics see it.

    `role` is the simulator's: "train" (the agent was trained against it), "validation" (a checkpoint was chosen
    on it) or "test" (opened once). `trial` numbers the episodes of one task; the same (task, trial) has the same
    seed with every simulator and agent. `success` is in [0, 1], None where the episode failed.
    """

    agent: str
    simulator: str
    role: Split
    family: str
    task: str
    cluster: str
    trial: int
    success: float | None

    def __post_init__(self) -> None:
        if self.success is not None and not 0 <= self.success <= 1:
            raise ValueError(f"{self.agent} with {self.simulator}: success {self.success} is not in [0, 1]")


def from_episodes(episodes: Iterable[Episode], roles: Mapping[str, Split]) -> list[Observation]:
    """Observations of finished episodes. `roles` maps a simulator's label to its role; KeyError for a label
    without one. A failed episode has no success and stays in as missing."""
    return [
        Observation(
            agent=e.agent.label,
            simulator=e.simulator.label,
            role=roles[e.simulator.label],
            family=e.simulator.family,
            task=e.task.id,
            cluster=e.task.cluster,
            trial=e.sample,
            success=None if e.outcome is None else float(e.outcome.success),
        )
        for e in episodes
    ]


@dataclass(frozen=True, slots=True)
class Table:
    """Observations aligned over agents, tasks, trials and simulators.

    `success` is [agents, tasks, trials, simulators], NaN where an episode failed or was never played; `failed`
    (same shape) tells the two apart. `clusters` is [tasks], numbered from 0 without gaps.
    """

    agents: tuple[str, ...]
    simulators: tuple[str, ...]
    roles: tuple[Split, ...]
    families: tuple[str, ...]
    clusters: NDArray[np.intp]
    success: Floats
    failed: NDArray[np.bool_]

    def agent(self, label: str) -> int:
        """Index of an agent; ValueError names the agents that were observed."""
        if label not in self.agents:
            raise ValueError(f"agent {label!r} was not observed; there is: {', '.join(self.agents)}")
        return self.agents.index(label)

    def with_role(self, role: Split) -> list[int]:
        """Indices of the simulators of one role, in the order in which they were observed."""
        return [i for i, r in enumerate(self.roles) if r == role]


def tabulate(observations: Sequence[Observation]) -> Table:
    """Align observations. Raises ValueError for none, for one made twice, and for a label that changes its
    role, family or cluster."""
    if not observations:
        raise ValueError("no observations")
    agents = _index(o.agent for o in observations)
    tasks = _index(sorted({o.task for o in observations}))
    trials = _index(sorted({o.trial for o in observations}))
    simulators = _index(o.simulator for o in observations)
    described = _constant((o.simulator, (o.role, o.family)) for o in observations)
    cluster_of = _constant((o.task, o.cluster) for o in observations)
    cluster_index = _index(cluster_of[task] for task in tasks)
    success = np.full((len(agents), len(tasks), len(trials), len(simulators)), np.nan)
    played = np.zeros(success.shape, dtype=bool)
    for o in observations:
        cell = agents[o.agent], tasks[o.task], trials[o.trial], simulators[o.simulator]
        if played[cell]:
            raise ValueError(f"{o.agent} with {o.simulator} on {o.task}, trial {o.trial}, is there twice")
        played[cell] = True
        success[cell] = np.nan if o.success is None else o.success
    return Table(
        agents=tuple(agents),
        simulators=tuple(simulators),
        roles=tuple(described[s][0] for s in simulators),
        families=tuple(described[s][1] for s in simulators),
        clusters=np.array([cluster_index[cluster_of[task]] for task in tasks]),
        success=success,
        failed=played & np.isnan(success),
    )


def _index(labels: Iterable[K]) -> dict[K, int]:
    return {label: i for i, label in enumerate(dict.fromkeys(labels))}


def _constant(pairs: Iterable[tuple[K, V]]) -> dict[K, V]:
    found: dict[K, V] = {}
    for key, value in pairs:
        if found.setdefault(key, value) != value:
            raise ValueError(f"{key!r} is described as {found[key]} and as {value}")
    return found
