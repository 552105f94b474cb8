"""Turns what a step did into one row of metrics.jsonl. Only complete episodes have rewards and successes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from unfrozen.core.episodes import Episode
from unfrozen.measures.collapse import Measurement
from unfrozen.measures.diversity import Diversity
from unfrozen.measures.intervals import Estimate
from unfrozen.measures.panel import PanelResult, panel_result


def episode_row(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Means over a batch of episodes: reward, success with interval, shares, the environment's own metrics."""
    complete = [e.outcome for e in episodes if e.outcome is not None]
    draws = [t.turn.draw for e in episodes for t in e.turns if t.turn.draw is not None]
    row: dict[str, Any] = {
        "episodes": len(episodes),
        "failure_share": 1 - len(complete) / len(episodes) if episodes else 0.0,
        "failures": _counts(e.failure.cause for e in episodes if e.failure is not None),
        "sampled_tokens": sum(t.turn.sampled_tokens for e in episodes for t in e.turns),
    }
    success = panel_result(episodes).success()
    if complete and success is not None:
        row |= {
            "reward": sum(o.reward for o in complete) / len(complete),
            "success": success.mean,
            "interval": success.interval,
            "truncated_share": sum(o.truncated for o in complete) / len(complete),
            "cut_turns_share": _share(t.turn.truncated for e in episodes for t in e.turns),
            "states": _counts(o.state for o in complete),
            "metrics": mean_metrics([o.metrics for o in complete]),
        }
    if draws:
        row["verbalized"] = {
            "fallback_share": _share(d.fallback for d in draws),
            "candidates": sum(len(d.candidates) for d in draws) / len(draws),
        }
    return row


def by_simulator(episodes: Sequence[Episode]) -> dict[str, dict[str, Any]]:
    """`episode_row` for each simulator that played, with the versions that did."""
    rows = {}
    for label in dict.fromkeys(e.simulator.label for e in episodes):
        played = [e for e in episodes if e.simulator.label == label]
        rows[label] = episode_row(played) | {
            "family": played[0].simulator.family,
            "versions": sorted({e.simulator.adapter for e in played if e.simulator.adapter}),
        }
    return rows


def measure_row(measured: Measurement, diversity: Diversity) -> dict[str, Any]:
    """One measurement: own and held-out success, every member, the policy's diversity."""
    return {
        "own": _result_row(measured.own),
        "held_out": _result_row(measured.held_out),
        "policy_entropy": diversity.entropy.mean,
        "entropy_interval": diversity.entropy.interval,
        "reply_entropy": diversity.reply_entropy,
        "distinct_n": diversity.distinct_n,
    }


def _result_row(result: PanelResult) -> dict[str, Any] | None:
    success = result.success()
    if success is None:
        return None
    return _estimate(success) | {"members": by_simulator(result.episodes)}


def _estimate(estimate: Estimate) -> dict[str, Any]:
    return {"success": estimate.mean, "interval": estimate.interval, "episodes": estimate.count}


def mean_metrics(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean of each metric over the rows that have it."""
    names = dict.fromkeys(name for row in rows for name in row)
    means = {}
    for name in names:
        values = [row[name] for row in rows if name in row]
        means[name] = math.fsum(values) / len(values)
    return means


def _share(flags: Any) -> float:
    values = list(flags)
    return sum(values) / len(values) if values else 0.0


def _counts(names: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts
