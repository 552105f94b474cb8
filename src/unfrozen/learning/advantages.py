"""Advantages: rewards minus a baseline. Small pure functions, chosen by name.

- `group`: r - mean of its group (GRPO, arXiv 2402.03300), optionally divided by the group's standard deviation.
- `leave_one_out`: r - mean of the *others* in its group (RLOO, arXiv 2402.14740); unbiased at any group size.
- `batch`: r - mean over the whole batch, across prompts. A reward that is constant inside a group (the
  curriculum reward) needs it: a group baseline would cancel it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

AdvantageName = Literal["group", "leave_one_out", "batch"]
Scale = Literal["none", "std"]


@dataclass(frozen=True, slots=True)
class Advantages:
    """One advantage per reward, and how many groups carried no signal because all their rewards were equal."""

    values: tuple[float, ...]
    groups: int
    zero_variance_groups: int


def advantages(
    rewards: Sequence[float], groups: Sequence[Hashable], name: AdvantageName, scale: Scale = "none"
) -> Advantages:
    """Return r - baseline for each reward; with scale="std", divided by the baseline set's standard deviation.

    `groups[i]` is the group of rewards[i]. Values of a set whose rewards are all equal are 0; so is the value
    of a group of one under `group` and `leave_one_out`: it has nothing to be compared with.
    """
    r = np.asarray(rewards, dtype=np.float64)
    if r.size != len(groups):
        raise ValueError(f"{r.size} rewards but {len(groups)} group labels")
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    flat = sum(bool(np.ptp(r[rows]) == 0) for rows in members.values())
    values = np.zeros_like(r)
    baseline_sets = [list(range(r.size))] if name == "batch" else list(members.values())
    for rows in baseline_sets:
        if not rows or np.ptp(r[rows]) == 0:
            continue
        centred = r[rows] - r[rows].mean()
        if name == "leave_one_out":
            centred *= len(rows) / (len(rows) - 1)
        values[rows] = centred / r[rows].std() if scale == "std" else centred
    return Advantages(tuple(float(v) for v in values), len(members), flat)
