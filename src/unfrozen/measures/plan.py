"""How many episodes a diagnosis needs: for a drop of x points, from a pilot or from assumed rates."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from unfrozen.measures.drop import MIN_CLUSTERS, POWER, Components
from unfrozen.measures.resampling import LEVEL

MAX_TASKS = 100_000
MAX_TRIALS = 1_000


@dataclass(frozen=True, slots=True)
class More:
    """A larger design: `tasks` x `trials` in every arm, which is `episodes` more than were played."""

    tasks: int
    trials: int
    episodes: int


def enlarge(
    components: Components,
    drop: float,
    arms: int,
    tasks_available: int | None = None,
    level: float = LEVEL,
) -> More | None:
    """The smallest larger design that finds `drop` with 80 % power, given the variance that was seen.

    More tasks come first, then, when `tasks_available` run out, more trials. `arms` is agents x simulators. None
    where neither is enough: variance between tasks or between families of simulators that trials do not lower, or
    tasks played once, from which the effect of trials cannot be told.
    """
    if not math.isfinite(components.task):
        return None
    trials = math.ceil(components.trials)
    most = max(components.tasks, MAX_TASKS if tasks_available is None else tasks_available)

    def first(tasks: np.ndarray, repeats: np.ndarray) -> int | None:
        clusters = tasks * components.clusters / components.tasks
        quantiles = stats.t.ppf((1 + level) / 2, clusters - 1) + stats.t.ppf(POWER, clusters - 1)
        variance = (components.task + (components.trial or 0.0) / repeats) / tasks + components.family
        enough = (quantiles**2 * variance <= drop**2) & (clusters >= MIN_CLUSTERS)
        return int(enough.argmax()) if enough.any() else None

    def more(tasks: int, repeats: int) -> More:
        played = components.tasks * components.trials
        return More(tasks, repeats, max(1, math.ceil((tasks * repeats - played) * arms)))

    candidates = np.arange(components.tasks, most + 1)
    at = first(candidates, np.full(len(candidates), components.trials))
    if at is not None:
        return more(int(candidates[at]), trials)
    repeats = np.arange(trials + 1, MAX_TRIALS + 1)
    at = first(np.full(len(repeats), most), repeats) if components.trial is not None else None
    return None if at is None else more(most, int(repeats[at]))
