"""Measure the diagnosis: power of designs, coverage of its intervals, false alarms of its verdict.

    python scripts/measure_diagnosis.py            # all, some minutes on one core
    python scripts/measure_diagnosis.py power      # or: coverage, rates, families, alarms

Writes results/power/*.json; docs/statistics.md shows them. Everything is simulated from the model of
`unfrozen.measures.plan` with fixed seeds.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special, stats

from unfrozen.core.seeds import generator
from unfrozen.measures import inference, plan
from unfrozen.measures.drop import measure_drops
from unfrozen.measures.inference import one_way, two_way
from unfrozen.measures.intervals import cluster_mean
from unfrozen.measures.observations import Table
from unfrozen.measures.plan import Design, Rates, estimate_power, simulate
from unfrozen.measures.rates import success_rate
from unfrozen.measures.verdict import MARGIN, decide

RESULTS = Path(__file__).parent.parent / "results" / "power"
REPEATS = 10_000
COVERAGE_REPEATS = 2_000

# (tasks, trials): standard error in points, power paired, power with different tasks in each arm. An earlier,
# independent simulation of: base 60 %, ICC .49, task-by-simulator noise .7 logits, a true drop of 10 points,
# two-sided 5 %. Its number of repeats is not known; 2,000 is assumed for its Monte-Carlo error.
EARLIER = {
    (20, 4): (6.1, 0.32, 0.12),
    (20, 16): (3.8, 0.72, 0.13),
    (40, 4): (4.3, 0.61, 0.20),
    (40, 8): (3.3, 0.84, 0.22),
    (50, 8): (3.0, 0.91, 0.26),
    (100, 2): (3.7, 0.75, 0.38),
    (114, 2): (3.5, 0.81, 0.41),
    (114, 4): (2.6, 0.97, 0.48),
    (200, 1): (3.6, 0.78, 0.50),
    (200, 2): (2.6, 0.96, 0.64),
}
EARLIER_CORRECTED = {(114, 2): 0.69, (114, 4): 0.93}
EARLIER_REPEATS = 2_000


def power() -> list[dict[str, Any]]:
    """The power table, cell by cell beside the earlier one."""
    rows = []
    for (tasks, trials), (error, paired, unpaired) in EARLIER.items():
        design = Design(tasks, trials)
        ours = estimate_power(Rates(), 0.1, design, repeats=REPEATS)
        apart = estimate_power(Rates(), 0.1, design, paired=False, repeats=REPEATS)
        rows.append(
            {
                "tasks": tasks,
                "trials": trials,
                "error_points": round(100 * ours.error, 2),
                "error_points_earlier": error,
                # The standard error of a standard deviation is about itself / sqrt(2 repeats).
                "error_agrees": abs(100 * ours.error - error) <= 0.05 + 3 * error / math.sqrt(2 * EARLIER_REPEATS),
                "paired": round(ours.power, 3),
                "paired_earlier": paired,
                "paired_agrees": agrees(ours.power, paired),
                "different_tasks": round(apart.power, 3),
                "different_tasks_earlier": unpaired,
                "different_tasks_agrees": agrees(apart.power, unpaired),
                "monte_carlo_error": round(ours.monte_carlo_error, 4),
            }
        )
    for (tasks, trials), earlier in EARLIER_CORRECTED.items():
        five = {
            f"one_sided_{alpha}": round(
                estimate_power(Rates(), 0.1, Design(tasks, trials), alpha, repeats=REPEATS).power, 3
            )
            for alpha in (0.05 / 5, 0.025 / 5)
        }
        rows.append(
            {"tasks": tasks, "trials": trials, "comparisons": 5, **five, "earlier": earlier,
             "agrees": agrees(five["one_sided_0.01"], earlier)}
        )  # fmt: skip
    for row in rows:
        print(row)
    return rows


def agrees(ours: float, earlier: float) -> bool:
    """Whether two simulated shares differ by no more than rounding and three Monte-Carlo standard errors."""
    error = math.sqrt(earlier * (1 - earlier) * (1 / EARLIER_REPEATS + 1 / REPEATS))
    return abs(ours - earlier) <= 0.005 + 3 * error


def coverage() -> list[dict[str, Any]]:
    """Coverage and mean width of 95 % intervals of the drop, by method."""
    rows = []
    designs = ((6, 4), (8, 4), (10, 4), (15, 4), (20, 4), (20, 1), (30, 4), (40, 4), (60, 2), (114, 2), (200, 1))
    for success, drop in ((0.6, 0.0), (0.6, 0.1), (0.9, 0.3), (0.95, 0.05)):
        for tasks, trials in designs:
            rng = generator(0, "coverage", int(1000 * success), int(1000 * drop), tasks, trials)
            own, other = simulate(Rates(success), max(drop, 1e-12), Design(tasks, trials), COVERAGE_REPEATS, rng)
            x = own - other
            drawn = inference._with_replacement(tasks, 0, 2000) / tasks
            subsets = inference._subsets(tasks, 0, 2000)
            subsets /= subsets.sum(axis=1, keepdims=True)
            mean, error = x.mean(axis=1), x.std(axis=1, ddof=1) / math.sqrt(tasks)
            reach = stats.t.ppf(0.975, tasks - 1) * error
            used = [one_way(row, np.arange(tasks), draws=1000) for row in x]
            limits = {
                "percentile": np.quantile(x @ drawn.T, [0.025, 0.975], axis=1),
                "sign-flip": np.quantile(x @ subsets.T, [0.025, 0.975], axis=1),
                "t": np.array([mean - reach, mean + reach]),
                "used": np.array([[u.low for u in used], [u.high for u in used]]),
            }
            rows.append(
                {"success": success, "drop": drop, "tasks": tasks, "trials": trials}
                | {f"{name}_coverage": covered(low, high, drop) for name, (low, high) in limits.items()}
                | {f"{name}_width": round(float((high - low).mean()), 4) for name, (low, high) in limits.items()}
            )
            print(rows[-1], flush=True)
    return rows


def rates() -> list[dict[str, Any]]:
    """Coverage of 95 % intervals of a success rate: percentile bootstrap over tasks, and Korn and Graubard's."""
    rows = []
    for success in (0.6, 0.9, 0.97):
        for tasks in (8, 15, 20, 40, 114):
            rng = generator(0, "rates", int(1000 * success), tasks)
            trials, clusters = 4, np.arange(tasks)
            spread = plan._spread(success, 0.49)
            logits = plan._level(success, spread) + spread * rng.standard_normal((1000, tasks))
            played = rng.random((1000, tasks, trials)) < special.expit(logits)[..., None]
            flat = np.repeat(clusters, trials).tolist()
            found = {
                "percentile": [cluster_mean(p.ravel().astype(float), flat, draws=1000) for p in played],
                "used": [success_rate(p.astype(float), clusters) for p in played],
            }
            row: dict[str, Any] = {"success": success, "tasks": tasks, "trials": trials}
            for name, estimates in found.items():
                low = np.array([e.low for e in estimates if e])
                high = np.array([e.high for e in estimates if e])
                row |= {
                    f"{name}_coverage": covered(low, high, success),
                    f"{name}_width": round(float((high - low).mean()), 4),
                }
            rows.append(row)
            print(row, flush=True)
    return rows


def families() -> list[dict[str, Any]]:
    """Coverage for simulators in general where held-out families differ: resampling tasks only, and two ways."""
    rows = []
    for tasks, trials, count in ((40, 4, 8), (40, 4, 12), (114, 2, 8)):
        for between in (0.0, 0.4, 1.0):
            rng = generator(0, "families", tasks, count, int(10 * between))
            spread = plan._spread(0.6, 0.49)
            each = 0.7 / math.sqrt(2)
            level = plan._level(0.5, spread)
            # The mean success over families, by simulation of very many.
            truth = (
                0.6
                - special.expit(
                    level + math.hypot(between, spread) * np.random.default_rng(0).standard_normal(2_000_000)
                ).mean()
            )
            hits = {"tasks only": [], "two-way": []}
            for repeat in range(600):
                difficulty = math.sqrt(spread**2 - each**2) * rng.standard_normal((tasks, 1))
                own = plan._level(0.6, spread) + difficulty + each * rng.standard_normal((tasks, 1))
                other = (
                    level
                    + between * rng.standard_normal(count)
                    + difficulty
                    + each * rng.standard_normal((tasks, count))
                )
                x = (rng.binomial(trials, special.expit(own)) - rng.binomial(trials, special.expit(other))) / trials
                these = one_way(x.mean(axis=1), np.arange(tasks), draws=1000, seed=repeat)
                general = two_way(x, np.arange(tasks), np.arange(count), draws=1000, seed=repeat)
                hits["tasks only"].append(these.low <= truth <= these.high)
                hits["two-way"].append(general.low <= truth <= general.high)
            rows.append(
                {"tasks": tasks, "trials": trials, "families": count, "between_families_logits": between}
                | {name: round(float(np.mean(h)), 3) for name, h in hits.items()}
            )
            print(rows[-1], flush=True)
    return rows


def alarms() -> list[dict[str, Any]]:
    """How often the verdict says what, without any drop and with one of ten points."""
    rows = []
    for tasks, trials, held_out in ((20, 4, 1), (40, 4, 1), (40, 4, 3), (40, 4, 5), (114, 4, 3)):
        for drop in (0.0, 0.1, 0.2):
            rng = generator(0, "alarms", tasks, trials, held_out, int(100 * drop))
            words = [verdict_word(rng, tasks, trials, held_out, drop) for _ in range(1000)]
            rows.append(
                {"tasks": tasks, "trials": trials, "held_out": held_out, "drop": drop}
                | {w: words.count(w) / len(words) for w in ("collapse", "no collapse detected", "too few episodes")}
            )
            print(rows[-1], flush=True)
    return rows


def verdict_word(rng: np.random.Generator, tasks: int, trials: int, held_out: int, drop: float) -> str:
    """The word of one simulated measurement without failed episodes and without a baseline."""
    spread, each = plan._spread(0.6, 0.49), 0.7 / math.sqrt(2)
    difficulty = math.sqrt(spread**2 - each**2) * rng.standard_normal((tasks, 1, 1))
    level = np.array([plan._level(0.6, spread)] + [plan._level(0.6 - drop, spread)] * held_out)
    logits = level + difficulty + each * rng.standard_normal((tasks, 1, 1 + held_out))
    success = (rng.random((1, tasks, trials, 1 + held_out)) < special.expit(logits)).astype(float)
    names = tuple(str(i) for i in range(1 + held_out))
    failed = np.zeros(success.shape, dtype=bool)
    table = Table(("agent",), names, ("train", *("test",) * held_out), names, np.arange(tasks), success, failed)
    drops = measure_drops(table, "agent", draws=1000)
    assert drops is not None
    return decide(drops, MARGIN)[0]


def covered(low: np.ndarray, high: np.ndarray, truth: float) -> float:
    """The share of intervals that hold the truth."""
    return round(float(((low <= truth) & (truth <= high)).mean()), 3)


def main(names: list[str]) -> None:
    """Measure what is named (all without names) and write each to results/power/."""
    parts = {f.__name__: f for f in (power, coverage, rates, families, alarms)}
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in names or parts:
        file = RESULTS / ("power_table.json" if name == "power" else f"{name}.json")
        file.write_text(json.dumps(parts[name](), indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
