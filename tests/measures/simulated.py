"""Simulated measurements whose truth is known: tasks differ in difficulty, simulators may or may not matter."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from unfrozen.core.episodes import Split
from unfrozen.measures import plan
from unfrozen.measures.observations import Observation, Table

RATES = plan.Rates()


def simulated(
    rng: np.random.Generator,
    tasks: int = 40,
    trials: int = 4,
    held_out: int = 1,
    drop: float = 0.0,
    harder: float = 0.0,
    agents: tuple[str, ...] = ("agent",),
    rates: plan.Rates = RATES,
    lost: float = 0.0,
    per_cluster: int = 1,
) -> Table:
    """A measurement with one training simulator. The first agent loses `drop` with held-out simulators; every agent
    loses `harder` with them. `lost` is the share of episodes that fail, for no reason of their own."""
    spread = plan._spread(rates.success, rates.icc)
    own = rates.noise / math.sqrt(2)
    difficulty = math.sqrt(spread**2 - own**2) * rng.standard_normal((tasks, 1))
    success = np.empty((len(agents), tasks, trials, 1 + held_out))
    for a in range(len(agents)):
        for s in range(1 + held_out):
            mean = rates.success - (s > 0) * (harder + (a == 0) * drop)
            logits = plan._level(mean, spread) + difficulty + own * rng.standard_normal((tasks, 1))
            success[a, ..., s] = rng.random((tasks, trials)) < special.expit(logits)
    failed = rng.random(success.shape) < lost
    success[failed] = np.nan
    names = ("own", *(f"other-{i}" for i in range(held_out)))
    roles: tuple[Split, ...] = ("train", *("test",) * held_out)
    return Table(agents, names, roles, names, np.arange(tasks) // per_cluster, success, failed)


def observations(table: Table) -> list[Observation]:
    """The table as observations; what is neither complete nor failed was not played."""
    return [
        Observation(
            table.agents[a],
            table.simulators[s],
            table.roles[s],
            table.families[s],
            f"task-{i:04}",
            f"cluster-{table.clusters[i]:04}",
            t,
            None if table.failed[a, i, t, s] else float(table.success[a, i, t, s]),
        )
        for a, i, t, s in np.ndindex(table.success.shape)
        if table.failed[a, i, t, s] or not np.isnan(table.success[a, i, t, s])
    ]
