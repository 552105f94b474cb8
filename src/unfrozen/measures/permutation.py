"""Negative control: the diagnosis with shuffled simulator labels, which must not find collapse.

Within every cluster of tasks the simulators exchange their labels at random, the same way for all of the cluster's
tasks, trials and agents. That keeps everything but which simulator was which, so any drop that is left is chance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unfrozen.core.episodes import Split
from unfrozen.measures.drop import measure_drops
from unfrozen.measures.observations import Table
from unfrozen.measures.verdict import MARGIN, decide

SHUFFLE_DRAWS = 2_000


@dataclass(frozen=True, slots=True)
class Shuffled:
    """Diagnoses of `shuffles` shufflings. `flagged` is the share that found collapse: at most about 5 %.

    `p` is the share of shufflings, the observed one among them, with a pooled drop as large as the observed one: a
    randomisation test of "the simulator makes no difference".
    """

    shuffles: int
    flagged: float
    p: float


def shuffled_labels(
    table: Table,
    agent: str,
    baseline: str | None = None,
    margin: float = MARGIN,
    held_out: Split = "test",
    shuffles: int = 200,
    seed: int = 0,
) -> Shuffled | None:
    """Shuffle simulator labels within clusters and diagnose again; None where the drop cannot be measured."""
    observed = measure_drops(table, agent, baseline, held_out, seed, SHUFFLE_DRAWS)
    if observed is None:
        return None
    rng = np.random.default_rng(seed)
    flagged, larger, done = 0, 1, 0
    for _ in range(shuffles):
        drops = measure_drops(shuffle(table, held_out, rng), agent, baseline, held_out, seed, SHUFFLE_DRAWS)
        if drops is None:
            continue
        done += 1
        flagged += decide(drops, margin)[0] == "collapse"
        larger += drops.pooled.inference.mean >= observed.pooled.inference.mean - 1e-12
    return Shuffled(done, flagged / done if done else 0.0, larger / (done + 1))


def shuffle(table: Table, held_out: Split, rng: np.random.Generator) -> Table:
    """The table with the simulators of training and `held_out` exchanged at random within every cluster."""
    taking_part = np.array(table.with_role("train") + table.with_role(held_out))
    success, failed = table.success.copy(), table.failed.copy()
    for cluster in range(int(table.clusters.max()) + 1):
        rows = np.flatnonzero(table.clusters == cluster)[:, None]
        source = rng.permutation(taking_part)
        success[:, rows, :, taking_part] = table.success[:, rows, :, source]
        failed[:, rows, :, taking_part] = table.failed[:, rows, :, source]
    return replace(table, success=success, failed=failed)
