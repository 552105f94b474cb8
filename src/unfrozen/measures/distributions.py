"""How far two samples of donations lie apart, and how far two human samples of that size do.

A distance means little alone: with few episodes even people would seem to differ from people. So each comes with its
*floor*: the same distance between n people drawn at random and the rest of the human sample. A simulator at its floor
cannot be told from people by that distance at that n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from unfrozen.core.seeds import generator

Array = npt.NDArray[np.float64]

FLOOR_DRAWS = 1000
DONATION_EDGES = (0.0, 0.005, 0.105, 0.255, 0.505, 1.005, 1.505, 2.0)
"""Bins of donations in dollars: nothing, up to 10, 25, 50 cents, $1, $1.50, $2. The amounts that people give
bunch at round sums; the edges lie just above them, so that each sum is in one bin for certain."""


def ks_distance(first: Array, second: Array) -> float:
    """Kolmogorov-Smirnov: the largest difference between the two empirical distribution functions, in [0, 1]."""
    points = np.union1d(first, second)
    return float(np.max(np.abs(_ecdf(first, points) - _ecdf(second, points))))


def wasserstein_distance(first: Array, second: Array) -> float:
    """1-Wasserstein (earth mover's) distance in the unit of the values: the area between the two ECDFs."""
    points = np.union1d(first, second)
    gaps = np.abs(_ecdf(first, points) - _ecdf(second, points))[:-1]
    return float(np.sum(gaps * np.diff(points)))


def histogram_l1(first: Array, second: Array, edges: Sequence[float]) -> float:
    """Sum over bins of the absolute difference of shares, in [0, 2].

    `edges` rise; the last bin includes its upper edge. Raises ValueError where a value lies outside.
    """
    shares = [_shares(values, edges) for values in (first, second)]
    return float(np.abs(shares[0] - shares[1]).sum())


@dataclass(frozen=True, slots=True)
class Distance:
    """A distance, with its human floor: the mean and the 95 % quantile over human samples of the same size."""

    value: float
    floor_mean: float
    floor_95: float

    @property
    def beyond_people(self) -> bool:
        """Whether the distance is larger than 95 % of those between people and people."""
        return self.value > self.floor_95


@dataclass(frozen=True, slots=True)
class DonationComparison:
    """Simulated donations beside human ones. Amounts in dollars, clipped to [0, 2]; rates are shares giving > 0."""

    n: int
    n_human: int
    rate: float
    human_rate: float
    mean: float
    human_mean: float
    ks: Distance
    wasserstein: Distance
    histogram_l1: Distance
    shares: tuple[float, ...]
    """Share of the simulated donations in each bin of `DONATION_EDGES`."""
    human_shares: tuple[float, ...]
    """The same of the human ones."""

    def to_json(self) -> dict[str, Any]:
        """All numbers as plain JSON."""
        return asdict(self)

    def summary(self) -> dict[str, Any]:
        """As summary.json writes it (docs/summary.md)."""
        distances = {"ks": self.ks, "wasserstein": self.wasserstein, "histogram_l1": self.histogram_l1}
        return {
            "simulated": {"mean": self.mean, "rate": self.rate, "n": self.n},
            "human": {"mean": self.human_mean, "rate": self.human_rate, "n": self.n_human},
            **{name: {"value": d.value, "floor": d.floor_mean} for name, d in distances.items()},
            "histogram": {
                "edges": list(DONATION_EDGES),
                "simulated": list(self.shares),
                "human": list(self.human_shares),
            },
        }

    def __str__(self) -> str:
        parts = [
            f"{name} {distance.value:.3f} (people {distance.floor_mean:.3f}, 95 % below {distance.floor_95:.3f})"
            for name, distance in (
                ("KS", self.ks),
                ("Wasserstein $", self.wasserstein),
                ("histogram L1", self.histogram_l1),
            )
        ]
        return (
            f"{self.rate:.1%} give, mean ${self.mean:.2f} (n = {self.n}); people: {self.human_rate:.1%}, "
            f"${self.human_mean:.2f} (n = {self.n_human}); {'; '.join(parts)}"
        )


def compare_donations(
    simulated: Sequence[float] | Array, human: Sequence[float] | Array, seed: int = 0, draws: int = FLOOR_DRAWS
) -> DonationComparison:
    """Compare donations in dollars, each clipped to [0, 2].

    The floor draws `draws` times n people without replacement and measures them against the people left, n
    being the number of simulated donations, at most half of the human ones (beyond that too few are left; the
    floor is then that of the half, and slightly too high). Raises ValueError without values on either side.
    """
    ours, people = (np.clip(np.asarray(values, dtype=np.float64), 0.0, 2.0) for values in (simulated, human))
    if ours.size == 0 or people.size < 2:
        raise ValueError(f"{ours.size} simulated and {people.size} human donations; at least 1 and 2 are needed")
    if not (np.isfinite(ours).all() and np.isfinite(people).all()):
        raise ValueError("a donation is not a finite number")
    measures: dict[str, Callable[[Array, Array], float]] = {
        "ks": ks_distance,
        "wasserstein": wasserstein_distance,
        "histogram_l1": lambda a, b: histogram_l1(a, b, DONATION_EDGES),
    }
    size = min(ours.size, people.size // 2)
    floors: dict[str, list[float]] = {name: [] for name in measures}
    random = generator(seed, "human floor", size)
    for _ in range(draws):
        order = random.permutation(people.size)
        drawn, rest = people[order[:size]], people[order[size:]]
        for name, measure in measures.items():
            floors[name].append(measure(drawn, rest))
    distances = {
        name: Distance(measure(ours, people), float(np.mean(floors[name])), float(np.quantile(floors[name], 0.95)))
        for name, measure in measures.items()
    }
    return DonationComparison(
        n=int(ours.size),
        n_human=int(people.size),
        rate=float((ours > 0).mean()),
        human_rate=float((people > 0).mean()),
        mean=float(ours.mean()),
        human_mean=float(people.mean()),
        **distances,
        shares=tuple(float(x) for x in _shares(ours, DONATION_EDGES)),
        human_shares=tuple(float(x) for x in _shares(people, DONATION_EDGES)),
    )


def _ecdf(values: Array, points: Array) -> Array:
    """Share of values at or below each point."""
    return np.searchsorted(np.sort(values), points, side="right") / values.size


def _shares(values: Array, edges: Sequence[float]) -> Array:
    if values.min() < edges[0] or values.max() > edges[-1]:
        raise ValueError(f"a value lies outside of the bins [{edges[0]}, {edges[-1]}]")
    counts, _ = np.histogram(values, bins=np.asarray(edges))
    return np.asarray(counts / values.size, dtype=np.float64)
