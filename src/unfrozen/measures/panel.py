"""A panel: the same agent, tasks and seeds against several simulators, one table of successes.

Episodes are paired: for a task and trial every member meets the same seed. A member is *held out* when no
simulator of its family took part in training.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from unfrozen.core.episodes import Episode, Task
from unfrozen.core.errors import ConfigError
from unfrozen.core.seeds import derive_seed
from unfrozen.environments.protocol import Environment
from unfrozen.measures.intervals import Estimate, cluster_mean
from unfrozen.rollout.rollout import Assignment, RolloutSettings, rollout
from unfrozen.simulators.protocol import Speaker


@dataclass(frozen=True, slots=True)
class Cell:
    """One paired observation: member, task cluster, (task, trial), and what came of it."""

    member: str
    cluster: str
    pair: tuple[str, int]
    success: float
    reward: float


@dataclass(frozen=True, slots=True)
class PanelResult:
    """All episodes of one measurement; `cells` are the complete ones."""

    episodes: tuple[Episode, ...]
    cells: tuple[Cell, ...]

    def success(self, members: Sequence[str] | None = None, seed: int = 0) -> Estimate | None:
        """Success over the given members (None: all), clustered by task; None without complete episodes."""
        cells = [c for c in self.cells if members is None or c.member in members]
        if not cells:
            return None
        return cluster_mean([c.success for c in cells], [c.cluster for c in cells], seed)

    def members(self) -> list[str]:
        """Members in the order in which they were measured."""
        return list(dict.fromkeys(e.simulator.label for e in self.episodes))


async def measure_panel(
    environment: Environment,
    agent: Speaker,
    members: Mapping[str, Speaker],
    tasks: Sequence[Task],
    trials: int,
    seed: int,
    settings: RolloutSettings,
    step: int = 0,
    on_episode: Callable[[Episode], None] = lambda _: None,
) -> PanelResult:
    """Play `trials` episodes of every task against every member."""
    assignments = [
        Assignment(task, agent, speaker, derive_seed(seed, "panel", task.id, trial), step, row, trial)
        for speaker in members.values()
        for row, task in enumerate(tasks)
        for trial in range(trials)
    ]
    return panel_result(await rollout(environment, assignments, settings, on_episode))


def panel_result(episodes: Sequence[Episode]) -> PanelResult:
    """Tabulate episodes; failed ones carry no success and stay out of the cells."""
    cells = tuple(
        Cell(
            e.simulator.label,
            e.task.cluster,
            (e.task.id, e.sample),
            float(e.outcome.success),
            e.outcome.reward,
        )
        for e in episodes
        if e.outcome is not None
    )
    return PanelResult(tuple(episodes), cells)


def paired_successes(first: PanelResult, second: PanelResult) -> tuple[list[float], list[float], list[str]]:
    """Successes of the (member, task, trial) pairs that both results hold, and their clusters."""
    before = {(c.member, c.pair): c.success for c in first.cells}
    rows = [(before[c.member, c.pair], c.success, c.cluster) for c in second.cells if (c.member, c.pair) in before]
    return [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows]


def refuse_mixed_panel(
    training: Mapping[str, str], panel: Mapping[str, str], key: str = "panel.simulators", use: str = "training"
) -> None:
    """Raise ConfigError where a held-out simulator's family is one that `use` has. Both map label -> family.

    Upper and lower case are one: a name may come from a config, a file or a server. `key` is where the held-out ones
    stand in the config.
    """
    families: defaultdict[str, list[str]] = defaultdict(list)
    for label, family in training.items():
        families[family.casefold()].append(label)
    for label, family in panel.items():
        if family.casefold() in families:
            raise ConfigError(
                f"{key}: {label!r} is of family {family!r}, which {use} uses "
                f"({', '.join(sorted(families[family.casefold()]))}); held out means another family: take it out"
            )
