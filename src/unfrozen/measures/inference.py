"""Means over tasks with intervals and p-values that resample whole clusters of tasks.

Two schemes, each with an interval and a one-sided p-value that always agree with one another:

- *bootstrap* (`FEW` clusters or more): clusters drawn with replacement; percentiles of the resampled means.
- *sign-flip* (fewer): were the true mean c, the sign of a cluster's deviation from c would be a fair coin. Flipping
  the signs of a subset turns the sum of deviations against c exactly where the subset's own mean lies beyond c, so
  the permutation test inverts to quantiles of the means of random subsets (Hartigan 1969, JASA 64, "typical
  values"). Exact for symmetric deviations; with fewer than six clusters the 95 % interval is unbounded.

Percentiles are too narrow for some tens of clusters, and both schemes are where few tasks differ at all. So every
interval is the wider one, on each side, of the resampled and Student's t limits, and p the larger of both p-values.
docs/statistics.md has the coverage that was measured for each.

`two_way` draws families of simulators as well as clusters of tasks (Owen 2007, Ann. Appl. Stat. 1: the pigeonhole
bootstrap), for claims about simulators in general.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special  # its Student's t: scipy.stats has the same, much slower

from unfrozen.measures.observations import Floats

DRAWS = 10_000
LEVEL = 0.95
FEW = 30
"""With fewer clusters signs are flipped; with as many or more, clusters are drawn with replacement."""
TINY = 1e-12
"""A standard error that is rounding: every cluster has the same mean."""

Method = Literal["bootstrap", "sign-flip", "two-way", "bound"]


@dataclass(frozen=True, slots=True)
class Inference:
    """A mean over `count` tasks in `clusters` clusters, with its two-sided interval at `level`.

    `p` is one-sided, against "the mean is not above 0"; it is at most (1 - level) / 2 exactly where `low` is above
    0. `error` is the cluster-robust standard error (CR1). `method` made the interval; "bound": every task has the
    same value, so there is nothing to resample and the interval bounds what unseen tasks may do.
    """

    mean: float
    low: float
    high: float
    p: float
    error: float
    count: int
    clusters: int
    method: Method
    level: float = LEVEL


def one_way(
    values: Floats,
    clusters: NDArray[np.intp],
    limit: float = 1.0,
    seed: int = 0,
    draws: int = DRAWS,
    level: float = LEVEL,
) -> Inference:
    """The mean of `values` [tasks], resampling whole clusters [tasks]. NaN is a task without a value.

    `limit` bounds what a value can be (1 for a difference of two successes, 2 for a difference of differences); an
    interval that the data cannot bound ends there. Raises ValueError without values.
    """
    present = ~np.isnan(values)
    if not present.any():
        raise ValueError("no values")
    x, groups = values[present], np.unique(clusters[present], return_inverse=True)[1]
    sums, sizes = np.bincount(groups, weights=x), np.bincount(groups).astype(np.float64)
    count = len(sums)
    mean, error = float(x.mean()), float(np.sqrt(_variance(sums - x.mean() * sizes, x.size)))
    if error < TINY:
        return _bound(mean, x.size, count, limit, level)
    weights = _weights(count, seed, draws)
    means = (weights @ sums) / (weights @ sizes)
    low, high, p = _read(means, mean, error, count - 1, limit, level)
    return Inference(mean, low, high, p, error, x.size, count, "sign-flip" if count < FEW else "bootstrap", level)


def two_way(
    values: Floats,
    clusters: NDArray[np.intp],
    families: NDArray[np.intp],
    limit: float = 1.0,
    seed: int = 0,
    draws: int = DRAWS,
    level: float = LEVEL,
) -> Inference:
    """The mean of `values` [tasks, simulators], resampling clusters of tasks [tasks] and families [simulators].

    The task and the family dimension are drawn independently, each by the scheme that its number calls for. The
    error is Cameron, Gelbach and Miller's (2011): by cluster plus by family minus by their intersection.
    """
    present = ~np.isnan(values)
    if not present.any():
        raise ValueError("no values")
    mean = float(values[present].mean())
    shape = int(clusters.max()) + 1, int(families.max()) + 1
    cell = np.ravel_multi_index(np.broadcast_arrays(clusters[:, None], families[None, :]), shape)[present]
    sums = np.bincount(cell, weights=values[present], minlength=shape[0] * shape[1]).reshape(shape)
    sizes = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)
    rest, count = sums - mean * sizes, int(present.sum())
    by_task = _variance(rest.sum(1), count)
    if by_task < TINY**2:
        return _bound(mean, len(values), min(shape), limit, level)
    variance = sum(_variance(rest.sum(axis), count) for axis in (0, 1)) - _variance(rest[sizes > 0], count)
    tasks, kinds = _weights(shape[0], seed, draws), _weights(shape[1], seed + 1, draws)
    order = np.random.default_rng(seed + 2).integers(0, len(kinds), size=len(tasks))
    drawn = kinds[order]
    total = ((tasks @ sizes) * drawn).sum(1)
    means = ((tasks @ sums) * drawn).sum(1)[total > 0] / total[total > 0]
    error = float(np.sqrt(max(variance, by_task)))
    low, high, p = _read(means, mean, error, min(shape) - 1, limit, level)
    return Inference(mean, low, high, p, error, len(values), shape[0], "two-way", level)


def _variance(residuals: Floats, count: int) -> float:
    """CR1 variance of a mean over `count` values from residual totals by cluster; infinite for one cluster."""
    groups = residuals.size
    return float(groups / (groups - 1) * (residuals**2).sum() / count**2) if groups > 1 else float("inf")


@functools.lru_cache(maxsize=2)
def _weights(count: int, seed: int, draws: int) -> Floats:
    """[draws, count] how often each unit takes part in each draw, by the scheme for this many units.

    Kept, because every contrast of one diagnosis is drawn alike.
    """
    weights = _subsets(count, seed, draws) if count < FEW else _with_replacement(count, seed, draws)
    weights.setflags(write=False)
    return weights


def _with_replacement(count: int, seed: int, draws: int) -> Floats:
    """[draws, count]: how often each cluster is in each bootstrap sample."""
    rows = np.random.default_rng(seed).integers(0, count, size=(draws, count)) + count * np.arange(draws)[:, None]
    return np.bincount(rows.ravel(), minlength=count * draws).reshape(draws, count).astype(np.float64)


def _subsets(count: int, seed: int, draws: int) -> Floats:
    """[subsets, count] zeros and ones: every non-empty subset where there are at most `draws`, else random ones."""
    if 2**count - 1 <= draws:
        return ((np.arange(1, 2**count)[:, None] >> np.arange(count)) & 1).astype(np.float64)
    chosen = np.random.default_rng(seed).random((draws, count)) < 0.5
    return chosen[chosen.any(axis=1)].astype(np.float64)


def _read(
    means: Floats, mean: float, error: float, freedom: int, limit: float, level: float
) -> tuple[float, float, float]:
    """Interval and p-value: the more cautious of the resampled means and Student's t, on each side.

    The observed arrangement counts as one more draw (Phipson and Smyth 2010), so that few draws keep the level.
    """
    if freedom < 1:
        return -limit, limit, 1.0
    ordered = np.sort(means)
    tail = int((1 - level) / 2 * (len(ordered) + 1) + 1e-9)
    low, high = (float(ordered[tail - 1]), float(ordered[-tail])) if tail else (-limit, limit)
    p = (1 + np.searchsorted(ordered, 0.0, side="right")) / (len(ordered) + 1)
    reach = float(special.stdtrit(freedom, (1 + level) / 2)) * error
    return (
        max(-limit, min(low, mean - reach)),
        min(limit, max(high, mean + reach)),
        max(float(p), float(special.stdtr(freedom, -mean / error))),
    )


def _bound(mean: float, count: int, clusters: int, limit: float, level: float) -> Inference:
    """All of `clusters` clusters show the same value. A share u of all clusters that differ, by as much as `limit`
    allows, would have gone unseen with probability (1 - u)^clusters."""
    unseen = 1 - ((1 - level) / 2) ** (1 / clusters)
    low, high = mean - unseen * (limit + mean), mean + unseen * (limit - mean)
    p = (1 - mean / (limit + mean)) ** clusters if mean > 0 else 1.0
    return Inference(mean, low, high, p, 0.0, count, clusters, "bound", level)
