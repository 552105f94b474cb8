"""The run directory: what a job leaves behind, and what it resumes from.

    runs/NAME/
      config.toml            the resolved configuration
      manifest.json          versions, hardware, when it started
      metrics.jsonl          one line a step
      episodes/              one compressed JSONL a step and phase ("train-000012", "panel-000012")
      state/step-000012/     adapters with optimizer moments, and state.json: enough to go on from step 13
      snapshots/             published adapter versions that a population still plays
      summary.json, report.html

A step is complete when its `state/` folder has its final name; everything later than the last complete step
is thrown away on resume. One process owns a run directory at a time (a lock that dies with its process).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock

from unfrozen.core.episodes import Episode
from unfrozen.core.errors import RunDirectoryError
from unfrozen.core.files import disk_errors, write_atomically, write_json
from unfrozen.core.records import write_episodes


class RunDirectory:
    """One run's folder, locked for this process. Use as a context manager.

    Raises RunDirectoryError where another process owns it, or where it belongs to another configuration.
    """

    def __init__(self, path: Path, config_toml: str, manifest: Mapping[str, Any]) -> None:
        self.path = path
        with disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        self._lock = filelock.FileLock(path / ".lock", timeout=0)
        try:
            with disk_errors(path):
                self._lock.acquire()
        except filelock.Timeout:
            raise RunDirectoryError(
                f"{path} is in use by another process; wait for it, or choose another name (--out)"
            ) from None
        try:
            self._claim(config_toml, manifest)
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()

    def last_step(self) -> int | None:
        """The last complete step, or None."""
        steps = sorted(self._complete_steps())
        return steps[-1] if steps else None

    def state_of(self, step: int) -> Path:
        """Folder of a complete step's state."""
        return self.path / "state" / f"step-{step:06d}"

    def begin_state(self, step: int) -> Path:
        """Return an empty folder to write the state of `step` into; `commit_state` makes it count."""
        draft = self.path / "state" / f".draft-{step:06d}"
        with disk_errors(draft):
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
        return draft

    def commit_state(self, step: int, state: Mapping[str, Any], keep: int = 1) -> None:
        """Complete a step: write state.json, give the draft its final name, drop all but the last `keep`."""
        draft = self.path / "state" / f".draft-{step:06d}"
        write_json(draft / "state.json", state)
        with disk_errors(draft):
            draft.replace(self.state_of(step))
        for old in sorted(self._complete_steps())[:-keep]:
            shutil.rmtree(self.state_of(old), ignore_errors=True)

    def read_state(self, step: int) -> dict[str, Any]:
        """The state.json of a complete step."""
        return _read_json(self.state_of(step) / "state.json")

    def rewind(self, step: int | None) -> None:
        """Throw away metrics, episodes and drafts later than the last complete step (None: everything)."""
        last = -1 if step is None else step
        write_atomically(
            self.path / "metrics.jsonl",
            "".join(json.dumps(row, allow_nan=False) + "\n" for row in self.metrics() if row["step"] <= last),
        )
        for file in sorted((self.path / "episodes").glob("*.jsonl.zst")):
            if int(file.name.split(".")[0].rpartition("-")[2]) > last:
                file.unlink()
        for draft in (self.path / "state").glob(".draft-*"):
            shutil.rmtree(draft, ignore_errors=True)

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Append one step's metrics."""
        with disk_errors(self.path / "metrics.jsonl"), (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All complete rows of metrics.jsonl; a last line that a kill cut short is left out."""
        return read_metrics(self.path)

    def write_episodes(self, phase: str, step: int, episodes: Sequence[Episode]) -> None:
        """Write the episodes of one phase ("train", "panel") of one step."""
        write_episodes(self.path / "episodes" / f"{phase}-{step:06d}.jsonl.zst", episodes)

    def episode_files(self, phase: str) -> list[Path]:
        """Episode files of a phase, in step order."""
        return sorted((self.path / "episodes").glob(f"{phase}-*.jsonl.zst"))

    def _complete_steps(self) -> list[int]:
        return [int(p.name[5:]) for p in (self.path / "state").glob("step-*") if (p / "state.json").exists()]

    def _claim(self, config_toml: str, manifest: Mapping[str, Any]) -> None:
        config_file = self.path / "config.toml"
        if config_file.exists() and config_file.read_text() != config_toml:
            raise RunDirectoryError(
                f"{self.path} holds a run with another configuration (see config.toml there); "
                "choose another name (--out), or remove the folder"
            )
        if not config_file.exists():
            write_json(self.path / "manifest.json", manifest)
            write_atomically(config_file, config_toml)


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """All complete rows of a run's metrics.jsonl; a last line that a kill cut short is left out."""
    file = run / "metrics.jsonl"
    if not file.exists():
        return []
    text = file.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _read_json(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text())
    if not isinstance(value, dict):
        raise RunDirectoryError(f"{path} does not hold a JSON object")
    return value
