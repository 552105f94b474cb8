"""How much of a reference's replies a simulator reaches, at equal sample sizes.

More replies hit more clusters, and a small sample of the reference itself does not hit them all: so every coverage
is rarefied to a stated number of draws and has the reference's own as its ceiling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from unfrozen.measures.clusters import Counts
from unfrozen.measures.intervals import Estimate
from unfrozen.measures.spread import chamfer_coverage, cosine_distance

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of the reference a simulator reaches, in [0, 1].

    `clusters`: the share of reference replies whose cluster is hit by `draws` replies of the simulator, the mean over
    all its subsets of that size. `ceiling`: the same for `draws` other replies of the reference. `chamfer`: two-sided
    Chamfer coverage of the replies' embeddings, the simulator against half of the reference; `chamfer_ceiling`: that
    half against the other half, as many replies on each side. None where the reference has too few replies.
    """

    clusters: Estimate
    ceiling: float
    draws: int
    chamfer: float | None
    chamfer_ceiling: float | None


def hit_chance(counts: Counts, draws: int) -> npt.NDArray[np.float64]:
    """The chance that each cluster is among `draws` replies taken without replacement, shape (clusters,).

    1 - C(n - x, m) / C(n, m): the terms of Hurlbert's rarefaction (1971). Raises ValueError for more draws than n.
    """
    total = int(counts.sum())
    if draws > total:
        raise ValueError(f"{draws} draws from {total} replies")
    left = total - counts
    possible = np.where(left >= draws, left, draws)
    log_miss = _log_choose(possible, draws) - _log_choose(np.array(total), draws)
    return np.asarray(np.where(left >= draws, 1 - np.exp(log_miss), 1.0), dtype=np.float64)


def cluster_coverage(reference: Counts, simulator: Counts, draws: int) -> float:
    """The share of reference replies whose cluster is hit by `draws` replies of the simulator.

    A simulator with fewer replies in this state is taken with all of them.
    """
    return float(reference @ hit_chance(simulator, min(draws, int(simulator.sum()))) / reference.sum())


def own_coverage(reference: Counts, draws: int) -> float:
    """The ceiling: each reference reply is left out in turn and sought among `draws` of the other ones."""
    cells = np.flatnonzero(reference)
    rest = [reference - (np.arange(len(reference)) == cell) for cell in cells]
    chances = [
        hit_chance(others, min(draws, int(others.sum())))[cell] for cell, others in zip(cells, rest, strict=True)
    ]
    return float(reference[cells] @ np.array(chances) / reference.sum())


def reply_coverage(reference: Sequence[Vectors], simulator: Sequence[Vectors]) -> tuple[float, float] | None:
    """Two-sided Chamfer coverage of sets of unit vectors by cosine distance, and its ceiling: means over the sets.

    Of each reference one half is compared with as many replies of the simulator, and with the other half. None where
    no reference has two halves and some distance within.
    """
    pairs: list[tuple[float, float]] = []
    for r, x in zip(reference, simulator, strict=True):
        half = min(len(r) // 2, len(x))
        within = cosine_distance(r) if half else 0.0
        if within > 0:
            first, second = r[:half], r[half : 2 * half]
            pairs.append((_coverage(first, x[:half], within), _coverage(first, second, within)))
    if not pairs:
        return None
    reached, ceiling = np.mean(pairs, axis=0)
    return float(reached), float(ceiling)


def _coverage(first: Vectors, second: Vectors, within: float) -> float:
    return chamfer_coverage(np.clip(1 - first.astype(np.float64) @ second.astype(np.float64).T, 0, 2), within)


def _log_choose(n: npt.NDArray[np.int64], k: int) -> npt.NDArray[np.float64]:
    return np.asarray(special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1), dtype=np.float64)
