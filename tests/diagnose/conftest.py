"""A diagnosis in the world of `colours`, as a config with dotted keys to replace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from colours import write_tasks

from unfrozen.config import validated, with_overrides
from unfrozen.diagnoseconfig import DiagnoseConfig

MakeConfig = Callable[..., DiagnoseConfig]


@pytest.fixture
def chairs(tmp_path: Path) -> MakeConfig:
    """config(**{"agent.callable": ...}) -> a diagnosis of the agent that asks first, on a few tasks."""
    file = write_tasks(tmp_path)

    def config(**overrides: Any) -> DiagnoseConfig:
        base: dict[str, Any] = {
            "name": "chairs",
            "environment": {"name": "tasks", "file": str(file)},
            "agent": {"callable": "colours:asks_first"},
            "simulators": {name: {"callable": f"colours:{name}"} for name in ("red_lover", "plain", "curt")},
            "roles": {"train": ["red_lover"], "test": ["plain", "curt"]},
            "tasks": {"count": 12, "trials": 1},
            "narrowness": {"states": 0},
        }
        return validated(DiagnoseConfig, with_overrides(base, overrides), "test")

    return config
