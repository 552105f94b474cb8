"""A small lab run, as a config: seconds on one core."""

from __future__ import annotations

from typing import Any

from unfrozen.config import RunConfig, parse_config, with_overrides

BASE: dict[str, Any] = {
    "name": "small",
    "environment": {"name": "lab"},
    "models": {"main": {"model": "lab", "threads": 1}},
    "agent": {"max_tokens": 16, "lora": {"rank": 4, "alpha": 8.0}, "learner": {"learning_rate": 2e-3, "kl": 0.01}},
    "simulators": {
        **{name: {"adapter": f"lab:{name}", "max_tokens": 16} for name in ("amber", "birch", "cedar", "dune")},
        "uniform": {"scripted": "uniform"},
    },
    "train": {"steps": 2, "groups": 2, "group_size": 4, "simulators": ["amber"]},
    "panel": {"simulators": ["dune", "uniform"], "every": 2, "tasks": 4, "probes": 2, "probe_samples": 2},
    "ensemble": {"simulators": ["amber", "birch", "cedar"]},
    "verbalized": {"max_tokens": 110},
    "population": {"size": 2, "pool": 2, "interval": 1, "learner": {"learning_rate": 2e-3, "kl": 0.05}},
}


def lab_config(**overrides: Any) -> RunConfig:
    """The small run with dotted keys replaced: lab_config(**{"train.steps": 3})."""
    return parse_config(with_overrides(BASE, overrides))
