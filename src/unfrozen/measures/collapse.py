"""Simulator collapse: the agent gains on the simulators it trains with and not on held-out ones.

The alarm watches a run; the verdict judges its end. Both compare with the same agent before training, so that
a panel that is merely harder is not mistaken for collapse (a difference in differences).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unfrozen.measures.intervals import DRAWS, Estimate, paired_difference
from unfrozen.measures.panel import PanelResult, paired_successes

MARGIN = 0.10
"""A loss of transfer smaller than this is not called collapse, however sure it is."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement during training: own simulators, held-out panel, and the policy's entropy."""

    step: int
    own: PanelResult
    held_out: PanelResult
    entropy: Estimate | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """`collapsed` is None where the measurement cannot tell."""

    collapsed: bool | None
    sentence: str
    lost: Estimate | None = None
    """How much of the gain on own simulators did not transfer: gain(own) - gain(held out)."""


def alarm(start: Measurement, now: Measurement) -> str | None:
    """One sentence naming collapse when training success rose while held-out success or entropy fell.

    Rises and falls count when they lie beyond their 95 % intervals, paired by task, trial and member. Where
    held-out success rose as well, a policy that has become surer is no collapse: entropy alone is no alarm then.
    """
    rise = _change(start.own, now.own)
    if rise is None or rise.low <= 0:
        return None
    held_out = _change(start.held_out, now.held_out)
    reasons = []
    if held_out is not None and held_out.high < 0:
        between = f"[{-100 * held_out.high:.0f}, {-100 * held_out.low:.0f}]"
        reasons.append(f"held-out success fell by {_points(-held_out.mean)} {between}")
    transfers = held_out is not None and held_out.low > 0
    if start.entropy and now.entropy and now.entropy.high < start.entropy.low and not transfers:
        reasons.append(f"policy entropy fell from {start.entropy.mean:.2f} to {now.entropy.mean:.2f} nats per token")
    if not reasons:
        return None
    return (
        f"collapse alarm at step {now.step}: training success rose by {_points(rise.mean)} "
        f"while {' and '.join(reasons)}"
    )


def verdict(runs: Sequence[tuple[Measurement, Measurement]]) -> Verdict:
    """Judge runs (start, end), one per training seed: did the gain on own simulators transfer to held-out ones?

    The quantity is gain(own) - gain(held out), each gain paired by task; intervals resample tasks with all
    their trials, members and seeds. *Collapse*: there is a gain on own simulators, its loss in transfer lies
    above 0 and is at least `MARGIN`, and less than half of the gain transfers. *No collapse*: the interval of
    the loss lies below the larger of `MARGIN` and half of the gain. Otherwise the measurement is too small.
    """
    own = _gains([(a.own, b.own) for a, b in runs])
    held = _gains([(a.held_out, b.held_out) for a, b in runs])
    if not own or not held:
        return Verdict(None, "no verdict: own or held-out simulators were not measured at both start and end")
    lost = _difference(own, held)
    if lost is None:
        return Verdict(None, "no verdict: own and held-out simulators were measured on different tasks")
    own_gain, held_gain = _mean(own), _mean(held)
    gained = (
        f"success changed by {100 * own_gain:+.0f} points with the simulators it trained with "
        f"and by {100 * held_gain:+.0f} points with held-out ones"
    )
    size = f"{100 * lost.mean:.0f} points [{100 * lost.low:.0f}, {100 * lost.high:.0f}] did not transfer"
    limit = max(MARGIN, own_gain / 2)
    if own_gain > 0 and lost.low > 0 and lost.mean >= limit:
        return Verdict(True, f"collapse: {gained}; {size}", lost)
    if lost.high < limit:
        return Verdict(False, f"no collapse: {gained}; {size}, less than {_points(limit)}", lost)
    return Verdict(None, f"not decided: {gained}; {size}; collapse would be {_points(limit)} or more", lost)


def _points(value: float) -> str:
    return f"{100 * value:.0f} points"


def _change(before: PanelResult, after: PanelResult) -> Estimate | None:
    first, second, clusters = paired_successes(before, after)
    return paired_difference(second, first, clusters) if first else None


def _gains(pairs: Sequence[tuple[PanelResult, PanelResult]]) -> dict[str, list[float]]:
    """Paired gains by task cluster, over seeds and members."""
    gains: dict[str, list[float]] = {}
    for before, after in pairs:
        first, second, clusters = paired_successes(before, after)
        for a, b, cluster in zip(first, second, clusters, strict=True):
            gains.setdefault(cluster, []).append(b - a)
    return gains


def _mean(gains: dict[str, list[float]]) -> float:
    return float(np.mean([g for values in gains.values() for g in values]))


def _difference(own: dict[str, list[float]], held: dict[str, list[float]], draws: int = DRAWS) -> Estimate | None:
    """mean(own) - mean(held) with a bootstrap over the tasks that both hold; a task keeps both its sides."""
    clusters = sorted(own.keys() & held.keys())
    if not clusters:
        return None
    rng = np.random.default_rng(0)
    weights = rng.multinomial(len(clusters), np.full(len(clusters), 1 / len(clusters)), size=draws)

    def means(gains: dict[str, list[float]]) -> np.ndarray:
        sums = np.array([sum(gains[c]) for c in clusters])
        counts = np.array([len(gains[c]) for c in clusters])
        resampled: np.ndarray = (weights @ sums) / (weights @ counts)
        return resampled

    values = means(own) - means(held)
    low, high = np.quantile(values, [0.025, 0.975])
    point = _mean({c: own[c] for c in clusters}) - _mean({c: held[c] for c in clusters})
    return Estimate(point, float(low), float(high), sum(len(own[c]) + len(held[c]) for c in clusters), len(clusters))
