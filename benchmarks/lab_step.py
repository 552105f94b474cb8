"""Seconds of one lab training step with both roles learning: 64 episodes, rollout and both updates.

    python benchmarks/lab_step.py [--steps 12] [--out FILE.json]

Run it on an otherwise idle machine: torch's time there is what the figure means.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from unfrozen.config import parse_config, read_toml, with_overrides
from unfrozen.core.rundir import read_metrics
from unfrozen.jobs.summary import hardware
from unfrozen.jobs.train import train

CONFIG = Path(__file__).parent.parent / "examples" / "lab.toml"


def main() -> None:
    """Train a few co-training steps and print the median."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    changes = {"method": "cotrain", "train.steps": options.steps, "train.schedule.warm_up": 0, "panel.every": 1000}
    config = parse_config(with_overrides(read_toml(CONFIG), changes))
    with tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder) / "run", report=False)
        rows = read_metrics(Path(folder) / "run")[1:]
    seconds = [row["seconds_train"] for row in rows]
    result = {
        "episodes": config.train.groups * config.train.group_size,
        "steps": len(rows),
        "median_seconds": statistics.median(seconds),
        "slowest_seconds": max(seconds),
        "rollout_median_seconds": statistics.median(row["seconds_rollout"] for row in rows),
        "hardware": hardware(),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
