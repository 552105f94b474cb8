"""Simulator rewards: what a trainable user is paid for. One registry for every environment.

- `adversarial`: 1 - the agent's reward. Finds the agent's weak spots; can learn to refuse everything.
- `cooperative`: the agent's reward.
- `curriculum`: exp(-(Var - 0.25)^2 / 0.02), Var the variance of success inside the group: highest when the
  agent wins half of it (SPICE, arXiv 2510.24684). Constant inside a group: use the `batch` advantage.
- `realism`: mean log-likelihood per token (nats) of the simulator's turns under the reference simulator.

They are combined as a weighted sum. An episode that failed has no reward for either role.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

RewardName = Literal["adversarial", "cooperative", "curriculum", "realism"]


@dataclass(frozen=True, slots=True)
class Played:
    """What a simulator reward may look at: one finished episode."""

    group: Hashable
    """Episodes of the same task against the same simulator."""
    agent_reward: float
    success: bool
    log_likelihood: float | None = None
    """Mean log-likelihood per token of the simulator's turns under its reference; only for `realism`."""


def adversarial(episodes: Sequence[Played]) -> list[float]:
    """1 - the agent's reward."""
    return [1.0 - e.agent_reward for e in episodes]


def cooperative(episodes: Sequence[Played]) -> list[float]:
    """The agent's reward."""
    return [e.agent_reward for e in episodes]


def curriculum(episodes: Sequence[Played]) -> list[float]:
    """exp(-(Var - 0.25)^2 / 0.02) over each group's successes; 0.25 is the variance of a fair coin."""
    outcomes: dict[Hashable, list[float]] = {}
    for e in episodes:
        outcomes.setdefault(e.group, []).append(float(e.success))
    worth = {g: math.exp(-((float(np.var(s)) - 0.25) ** 2) / 0.02) for g, s in outcomes.items()}
    return [worth[e.group] for e in episodes]


def realism(episodes: Sequence[Played]) -> list[float]:
    """Mean log-likelihood per token under the reference simulator, in nats."""
    values = [e.log_likelihood for e in episodes]
    if any(v is None for v in values):
        raise ValueError("the realism reward needs every episode's log-likelihood under the reference")
    return [float(v) for v in values if v is not None]


SIMULATOR_REWARDS: Mapping[RewardName, Callable[[Sequence[Played]], list[float]]] = {
    "adversarial": adversarial,
    "cooperative": cooperative,
    "curriculum": curriculum,
    "realism": realism,
}


def simulator_rewards(episodes: Sequence[Played], weights: Mapping[RewardName, float]) -> list[float]:
    """Weighted sum of the named rewards, one value per episode."""
    total = np.zeros(len(episodes))
    for name, weight in weights.items():
        total += weight * np.asarray(SIMULATOR_REWARDS[name](episodes))
    return [float(v) for v in total]
