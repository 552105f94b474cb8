"""Success rates with intervals that hold for few tasks and near 0 or 1, and pass^k."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from unfrozen.measures.inference import LEVEL
from unfrozen.measures.intervals import Estimate
from unfrozen.measures.observations import Floats


def success_rate(success: Floats, clusters: NDArray[np.intp], level: float = LEVEL) -> Estimate | None:
    """Mean of `success` [tasks, trials] over tasks with its interval, clustered by `clusters` [tasks].

    Exact binomial limits at the effective number of episodes (Korn and Graubard 1998, Survey Methodology 24):
    p (1 - p) over the cluster-robust variance, reduced for the few clusters that the variance is estimated from.
    NaN is an episode without an outcome; None without any outcome.
    """
    present = ~np.isnan(success)
    tasks = present.any(axis=1)
    if not tasks.any():
        return None
    by_task = np.nansum(success[tasks], axis=1) / present[tasks].sum(axis=1)
    groups = np.unique(clusters[tasks], return_inverse=True)[1]
    mean, count, number = float(by_task.mean()), int(present.sum()), int(groups.max()) + 1
    residuals = np.bincount(groups, weights=by_task - mean)
    effective = float(number)
    if number > 1 and (residuals**2).sum() > 0:
        variance = number / (number - 1) * (residuals**2).sum() / len(by_task) ** 2
        shrink = stats.t.ppf((1 + level) / 2, count - 1) / stats.t.ppf((1 + level) / 2, number - 1)
        effective = min(mean * (1 - mean) / variance * shrink**2, count)
    hits, misses = effective * mean, effective * (1 - mean)
    low = stats.beta.ppf((1 - level) / 2, hits, misses + 1) if hits > 0 else 0.0
    high = stats.beta.ppf((1 + level) / 2, hits + 1, misses) if misses > 0 else 1.0
    return Estimate(mean, float(low), float(high), count, number)


def pass_hat_k(success: Floats, k: int) -> float:
    """Chance that k further trials of a task all succeed, averaged over tasks: C(c, k) / C(n, k), unbiased (Yao et
    al. 2024, arXiv 2406.12045). `success` is [tasks, trials] of 0 and 1, NaN where missing.

    Raises ValueError where a task has fewer than k outcomes: leaving it out would bias the mean.
    """
    trials = (~np.isnan(success)).sum(axis=1)
    if k < 1 or (trials < k).any():
        raise ValueError(f"pass^{k} needs {k} outcomes of every task; one has {trials.min()}")
    passed = np.nansum(success, axis=1)
    return float((special.comb(passed, k) / special.comb(trials, k)).mean())
