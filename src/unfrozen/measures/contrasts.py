"""Arms against each other on the same held-out tasks, members and seeds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unfrozen.measures.intervals import Estimate, paired_difference
from unfrozen.measures.panel import PanelResult, paired_successes


@dataclass(frozen=True, slots=True)
class Contrast:
    """How much more often `first` succeeds than `second` with held-out simulators."""

    first: str
    second: str
    difference: Estimate

    @property
    def holds(self) -> bool | None:
        """True where the interval lies above 0, False below, None where it covers 0."""
        if self.difference.low > 0:
            return True
        return False if self.difference.high < 0 else None


def contrast(first: str, second: str, results: Mapping[str, Mapping[int, PanelResult]]) -> Contrast | None:
    """Compare two arms over the training seeds that both have; None where nothing can be paired.

    `results[arm][seed]` is the arm's last held-out measurement. Intervals resample tasks with all their
    members, trials and seeds.
    """
    wins: list[float] = []
    losses: list[float] = []
    clusters: list[str] = []
    for seed in results[first].keys() & results[second].keys():
        a, b, cluster = paired_successes(results[first][seed], results[second][seed])
        wins, losses, clusters = wins + a, losses + b, clusters + cluster
    if not clusters:
        return None
    return Contrast(first, second, paired_difference(wins, losses, clusters))


def order(
    expected: Sequence[str], results: Mapping[str, Mapping[int, PanelResult]]
) -> tuple[list[Contrast], list[str]]:
    """Contrasts of the neighbours in an expected order, and the order found (best first) among its arms."""
    here = [arm for arm in expected if arm in results]
    contrasts = [c for a, b in itertools.pairwise(here) if (c := contrast(a, b, results)) is not None]

    def mean(arm: str) -> float:
        values = [cell.success for result in results[arm].values() for cell in result.cells]
        return sum(values) / len(values) if values else 0.0

    return contrasts, sorted(here, key=mean, reverse=True)
