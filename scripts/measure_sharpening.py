"""Measure the estimator of γ on simulated counts whose truth is known.

    python scripts/measure_sharpening.py > results/sharpening.json     # two minutes on one core

Every state has shares drawn from a symmetric Dirichlet; the reference is drawn from them, the simulator from the
same shares to the power γ. Clusters that nobody hit are not shown to the estimator. docs/narrowness.md shows the rows.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from unfrozen.measures.clusters import Counts
from unfrozen.measures.sharpening import sharpening

STATES = 30
DATA_SETS = 40

# (clusters, concentration of their shares, replies of the reference, replies of the simulator, true γ)
ROWS = [
    *((8, 1.0, 16, 16, gamma) for gamma in (0.5, 1.0, 2.0, 4.0)),
    *((6, 0.5, 16, 8, gamma) for gamma in (0.5, 1.0, 2.0, 4.0)),
    (20, 0.3, 48, 16, 1.0),
]


def counts(
    seed: int, clusters: int, spread: float, reference: int, replies: int, gamma: float
) -> tuple[list[Counts], list[Counts]]:
    """Counts of the reference and of the simulator, state by state."""
    rng = np.random.default_rng(seed)
    references, simulators = [], []
    for _ in range(STATES):
        shares = rng.dirichlet(np.full(clusters, spread))
        sharper = np.maximum(shares, 1e-300) ** gamma
        r = rng.multinomial(reference, shares)
        x = rng.multinomial(replies, sharper / sharper.sum())
        references.append(r[r + x > 0])
        simulators.append(x[r + x > 0])
    return references, simulators


def measure(clusters: int, spread: float, reference: int, replies: int, gamma: float) -> dict[str, Any]:
    """One row: how the estimates lie around the truth."""
    estimates = [
        sharpening(*counts(seed, clusters, spread, reference, replies, gamma), range(STATES), seed)
        for seed in range(DATA_SETS)
    ]
    found = [estimate for estimate in estimates if estimate is not None]
    return {
        "clusters": clusters,
        "spread": spread,
        "reference_replies": reference,
        "replies": replies,
        "states": STATES,
        "gamma": gamma,
        "data_sets": len(found),
        "median": round(float(np.median([f.gamma for f in found])), 3),
        "sd": round(float(np.std([f.gamma for f in found], ddof=1)), 3),
        "inside": sum(f.low <= gamma <= f.high for f in found),
        "median_width": round(float(np.median([f.high - f.low for f in found])), 3),
        "entropy_median": round(float(np.median([f.entropy_gamma for f in found])), 3),
        "entropy_inside": sum(f.entropy_low <= gamma <= f.entropy_high for f in found),
    }


if __name__ == "__main__":
    json.dump([measure(*row) for row in ROWS], sys.stdout, indent=1)
    print()
