"""Synthetic summaries and episodes of a realistic size: seven arms, three seeds, a panel of eight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

METHODS = {
    # method: (training success at the end, held-out success at the end, entropy at the end)
    "base": (0.47, 0.44, 1.62),
    "single": (0.96, 0.49, 0.31),
    "persona": (0.94, 0.55, 0.52),
    "ensemble": (0.93, 0.68, 0.74),
    "verbalized": (0.91, 0.71, 0.98),
    "cotrain": (0.90, 0.79, 1.05),
    "population": (0.92, 0.89, 1.17),
}
MEMBERS = {
    "amber": "amber", "birch": "birch", "cedar": "cedar", "dune": "dune", "ember": "ember",
    "flint": "flint", "scripted-uniform": "scripted",
}  # fmt: skip
STEPS = 40
EVERY = 5
SEEDS = [0, 1, 2]


def _bounds(value: float, width: float) -> list[float]:
    return [round(max(0.0, value - width), 4), round(min(1.0, value + width), 4)]


def _curve(method: str, rng: np.random.Generator) -> list[dict[str, Any]]:
    if method == "base":
        return [{"step": 0, "train_success": 0.47, "heldout_success": 0.44, "policy_entropy": 1.62, "simulators": {}}]
    train, heldout, entropy = METHODS[method]
    rows = []
    for step in range(STEPS + 1):
        share = 1 - np.exp(-step / 9)
        measured = step % EVERY == 0
        now = float(np.clip(0.47 + (train - 0.47) * share + rng.normal(0, 0.02), 0, 1))
        bump = 0.12 * np.sin(min(step / 12, 1) * np.pi)
        held = float(np.clip(0.44 + (heldout - 0.44) * share + bump, 0, 1))
        row: dict[str, Any] = {
            "step": step,
            "train_success": round(now, 4),
            "train_interval": _bounds(now, 0.06),
            "heldout_success": round(held, 4) if measured else None,
            "heldout_interval": _bounds(held, 0.05) if measured else None,
            "policy_entropy": round(1.62 + (entropy - 1.62) * share, 4) if measured else None,
            "distinct_n": round(0.6 + (entropy / 4 + 0.2 - 0.6) * share, 4) if measured else None,
            "reward": round(0.85 * now, 4),
            "kl_agent": round(0.4 * share * (1.7 - entropy), 5),
            "simulators": {},
        }
        if method in ("cotrain", "population"):
            for index in range(1 if method == "cotrain" else 4):
                row["simulators"][f"sim-{index}"] = {
                    "reward": round(0.5 + 0.1 * index * share, 4),
                    "kl": round(0.02 * step * (1 + index) / 10, 5),
                    "consistent": round(0.99 - 0.03 * index * share, 4),
                }
        rows.append(row)
    return rows


def _arm(method: str) -> dict[str, Any]:
    rng = np.random.default_rng(sum(method.encode()))
    train, heldout, entropy = METHODS[method]
    panel = {}
    for member, family in MEMBERS.items():
        success = float(np.clip(heldout + rng.normal(0, 0.16 * (1 - heldout)), 0.02, 0.99))
        panel[member] = {
            "family": family, "success": round(success, 4), "interval": _bounds(success, 0.07),
            "episodes": 192, "reward": round(0.8 * success, 4),
        }  # fmt: skip
    collapsed = method in ("single", "persona")
    trains = method != "base"
    return {
        "method": method,
        "train_success": train, "train_interval": _bounds(train, 0.02),
        "heldout_success": heldout, "heldout_interval": _bounds(heldout, 0.04),
        "policy_entropy": entropy, "distinct_n": round(entropy / 4 + 0.2, 3),
        "episodes": 7680 if trains else 0, "updates": 120 if trains else 0, "seeds": SEEDS,
        "simulator_updates": {"cotrain": 120, "population": 480}.get(method, 0),
        "zero_variance_share": 0.61 if collapsed else 0.12, "failure_share": 0.0004, "truncated_share": 0.031,
        "sampled_tokens": 412_330, "trained_tokens": 390_112 if trains else 0, "wall_seconds": 41.7,
        "mean_reward": round(0.85 * train, 3),
        "metrics": {"asked_first": round(1 - train * 0.9 if collapsed else 0.8, 3), "consistent": 0.984},
        "panel": panel,
        "curve": _curve(method, rng),
        "seed_results": [
            {"seed": seed, "train_success": round(train + d, 3), "heldout_success": round(heldout + 2 * d, 3)}
            for seed, d in zip(SEEDS, (-0.015, 0.002, 0.02), strict=True)
        ],
        "alarms": [
            {"seed": 1, "step": 20, "sentence": "training success rose by 31 points while held-out success fell by 9"}
        ] if collapsed else [],
        "verdict": {
            "collapsed": collapsed,
            "sentence": f"{method} gained {train - 0.47:.2f} in training and {heldout - 0.44:.2f} held out.",
        },
    }  # fmt: skip


@pytest.fixture
def make_summary() -> Callable[[], dict[str, Any]]:
    """A function that builds a fresh `compare` summary of all seven methods."""

    def build() -> dict[str, Any]:
        rng = np.random.default_rng(7)
        simulators = ["train", *MEMBERS]
        rows = []
        for method, (train, heldout, _) in METHODS.items():
            row = [train, *(round(float(np.clip(heldout + rng.normal(0, 0.12), 0, 1)), 3) for _ in MEMBERS)]
            rows.append([None if method == "base" and index == 3 else value for index, value in enumerate(row)])
        return {
            "job": "compare", "name": "quickstart", "created": "2026-02-03T04:05:06+00:00", "unfrozen": "0.1.0",
            "environment": "lab@1", "hardware": "2 CPU cores, torch 2.13.0", "wall_seconds": 251.4,
            "verdict": {
                "collapsed": True,
                "sentence": "Trained against one frozen user, the agent reaches 0.96 with that user and only 0.49 with "
                "users it has not met; with a population it keeps 0.89.",
            },
            "arms": {method: _arm(method) for method in METHODS},
            "crossplay": {"agents": list(METHODS), "simulators": simulators, "success": rows, "episodes": 192},
            "differences": [
                {"key": "method", "values": {method: method for method in METHODS}},
                {"key": "simulators.count", "values": {m: 4 if m == "population" else 1 for m in METHODS}},
            ],
            "order": {
                "expected": ["population", "cotrain", "verbalized", "single"],
                "found": ["population", "cotrain", "verbalized", "single"],
                "sentence": "The expected order holds in all 3 seeds.",
            },
            "donations": {
                "simulated": {"mean": 0.87, "rate": 0.912, "n": 400},
                "human": {"mean": 0.41, "rate": 0.536, "n": 1017},
                "ks": {"value": 0.376, "floor": 0.061},
                "wasserstein": {"value": 0.46, "floor": 0.031},
                "histogram_l1": {"value": 0.82, "floor": 0.11},
                "histogram": {
                    "edges": [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2],
                    "simulated": [0.09, 0.02, 0.2, 0.03, 0.47, 0.01, 0.06, 0.12],
                    "human": [0.52, 0.09, 0.16, 0.02, 0.12, 0.01, 0.02, 0.06],
                },
            },
        }  # fmt: skip

    return build


@pytest.fixture
def make_episode() -> Callable[..., dict[str, Any]]:
    """A function that builds one episode record; `text` becomes the user's reply and a candidate."""

    def build(
        arm: str = "single",
        step: int = 0,
        sample: int = 0,
        phase: str = "train",
        text: str = "i like the sea",
        **changes: Any,
    ) -> dict[str, Any]:
        success = (sample + step) % 3 != 0
        draw = {
            "candidates": [
                {"text": text, "probability": 0.55},
                {"text": "maybe , tell me more", "probability": 0.3},
                {"text": "no", "probability": 0.15},
            ],
            "index": 0, "fallback": False, "raw": ['{"candidates": []}'],
        }  # fmt: skip
        episode: dict[str, Any] = {
            "arm": arm, "phase": phase, "id": f"{phase}-{step:04d}-{sample:03d}", "environment": "lab@1",
            "task": {"id": f"task-{sample}", "split": "train" if phase == "train" else "test"},
            "step": step, "group": sample // 8, "sample": sample, "seed": 2**62 + sample,
            "agent": {"label": "agent", "family": "lab-base", "kind": "trainable", "adapter": f"agent@{step}"},
            "simulator": {
                "label": "amber" if sample % 2 else "birch", "family": "lab", "kind": "verbalized(frozen)",
                "adapter": None, "persona": "curt" if arm == "persona" else None,
            },
            "turns": [
                _turn("agent", "hello , what do you care for ?"),
                _turn("user", text, draw=draw if arm == "verbalized" else None),
                _turn("agent", "then think of the sea and give [APPEAL sea]", heard="then think of the sea and give"),
                _turn("user", "$1", private=True, prompt="How much do you give?", heard=None,
                      option_probabilities={"$0": 0.2, "$1": 0.7, "$2": 0.1}),
            ],
            "outcome": {
                "state": "accepted" if success else "refused", "reward": 0.81 if success else 0.0, "success": success,
                "truncated": sample == 1, "metrics": {"asked_first": 1.0},
            },
            "failure": None,
        }  # fmt: skip
        return episode | changes

    def _turn(speaker: str, text: str, **changes: Any) -> dict[str, Any]:
        return {
            "speaker": speaker, "text": text, "heard": text, "private": False, "truncated": False, "prompt": None,
            "draw": None, "option_probabilities": None,
        } | changes  # fmt: skip

    return build


@pytest.fixture
def make_episodes(make_episode: Callable[..., dict[str, Any]]) -> Callable[[], list[dict[str, Any]]]:
    """A function that builds the episodes of a comparison; a few of them failed."""

    def build() -> list[dict[str, Any]]:
        episodes = [
            make_episode(arm, step, sample, phase)
            for arm in METHODS
            for step in range(0, STEPS + 1, EVERY)
            for phase in ("train", "panel")
            for sample in range(8)
        ]
        for episode in episodes[::41]:
            episode["outcome"] = None
            episode["failure"] = {"cause": "timeout", "detail": "no answer within 60 s", "attempts": 3}
        return episodes

    return build
