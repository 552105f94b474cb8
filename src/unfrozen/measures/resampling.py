"""Estimates of replies and behaviour with 95 % percentile intervals that resample units (tasks) whole.

For quantities that are no yes-or-no: where all values are equal the interval has no width (`intervals.cluster_mean`
would take values of 0 or 1 for a proportion).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np
import numpy.typing as npt

from unfrozen.core.seeds import generator
from unfrozen.measures.clusters import Counts
from unfrozen.measures.intervals import DRAWS, Estimate

_POOLED_DRAWS = 500

CountMeasure = Callable[[Counts, Counts], float]
"""Cluster counts of the reference and of the simulator -> a number."""


def unit_mean(values: Sequence[float], units: Sequence[Hashable], seed: int) -> Estimate:
    """The mean of `values`. Raises ValueError without values."""
    if not values or len(values) != len(units):
        raise ValueError(f"{len(values)} values with {len(units)} units; both must be equal and not empty")
    weights = unit_weights(units, seed)
    low, high = np.quantile(weights @ np.asarray(values) / weights.sum(axis=1), [0.025, 0.975])
    return Estimate(float(np.mean(values)), float(low), float(high), len(values), len(set(units)))


def unit_weights(units: Sequence[Hashable], seed: int) -> npt.NDArray[np.int64]:
    """How often each value is in each bootstrap sample of whole units, shape (draws, values)."""
    names = _numbers(units)
    return _resampled(len(names), DRAWS, seed)[:, [names[unit] for unit in units]]


def mean_estimate(
    measure: CountMeasure,
    reference: Sequence[Counts],
    simulator: Sequence[Counts],
    units: Sequence[Hashable],
    seed: int,
) -> Estimate:
    """The mean over states of a measure of their counts."""
    return unit_mean([measure(r, x) for r, x in zip(reference, simulator, strict=True)], units, seed)


def pooled_estimate(
    measure: CountMeasure,
    reference: Sequence[Counts],
    simulator: Sequence[Counts],
    units: Sequence[Hashable],
    seed: int,
) -> Estimate:
    """A measure of the counts summed over all states."""
    names = _numbers(units)
    sums = np.zeros((2, len(names), len(reference[0])), dtype=np.int64)
    for r, x, unit in zip(reference, simulator, units, strict=True):
        sums[:, names[unit]] += (r, x)
    drawn = [measure(w @ sums[0], w @ sums[1]) for w in _resampled(len(names), _POOLED_DRAWS, seed)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(measure(*sums.sum(axis=1)), float(low), float(high), int(sums.sum()), len(names))


def _numbers(units: Sequence[Hashable]) -> dict[Hashable, int]:
    return {unit: i for i, unit in enumerate(dict.fromkeys(units))}


def _resampled(units: int, draws: int, seed: int) -> npt.NDArray[np.int64]:
    """[draws, units]: how often each unit is in each bootstrap sample."""
    return generator(seed, "units").multinomial(units, np.full(units, 1 / units), size=draws)
