"""Copies what a finished job measured into results/: summary.json, the configs, table.txt and the picture.

Usage: python scripts/publish_results.py RUN_FOLDER RESULTS_FOLDER
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from unfrozen.report import collapse_picture, print_summary


def main(run: Path, results: Path) -> None:
    """Publish `run`."""
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    results.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(run / "summary.json", results / "summary.json")
    configs = [run / "config.toml"] if (run / "config.toml").exists() else sorted(run.glob("*/config.toml"))
    (results / "configs").mkdir(exist_ok=True)
    for file in configs:
        shutil.copyfile(file, results / "configs" / f"{file.parent.name}.toml")
    if any(arm["curve"] for arm in summary["arms"].values()):
        collapse_picture(summary, results / "collapse.png")
    with (results / "table.txt").open("w") as file:
        print_summary(summary, Console(file=file, width=100))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
