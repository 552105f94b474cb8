"""The run directory: what a job leaves behind, and what it resumes from.

    runs/NAME/
      config.toml            the resolved configuration
      manifest.json          versions, hardware, when it started
      metrics.jsonl          one line a step
      episodes.jsonl         every episode as it finished (diagnose)
      episodes/              one compressed JSONL a step and phase ("train-000012", "panel-000012")
      state/step-000012/     adapters with optimizer moments, and state.json: enough to go on from step 13
      snapshots/             published adapter versions that a population still plays
      spend.jsonl            what endpoints were used for (engines/endpoint/ledger.py)
      replies.sqlite         what they answered, until the job is complete (jobs/spending.py)
      summary.json, report.html

A step is complete when its `state/` folder has its final name; everything later than the last complete step
is thrown away on resume. One process owns a run directory at a time (a lock that dies with its process).
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock

from unfrozen.core.episodelog import EPISODE_LOG
from unfrozen.core.episodes import Episode
from unfrozen.core.errors import RunDirectoryError
from unfrozen.core.files import disk_errors, whole_lines, write_atomically, write_json
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

    def commit_state(self, step: int, state: Mapping[str, Any]) -> None:
        """Complete a step: write state.json, give the draft its final name, drop the steps before it."""
        draft = self.path / "state" / f".draft-{step:06d}"
        write_json(draft / "state.json", state)
        with disk_errors(draft):
            draft.replace(self.state_of(step))
        for old in sorted(self._complete_steps())[:-1]:
            shutil.rmtree(self.state_of(old), ignore_errors=True)

    def read_state(self, step: int) -> dict[str, Any]:
        """The state.json of a complete step."""
        return _read_json(self.state_of(step) / "state.json")

    def rewind(self, step: int | None) -> None:
        """Throw away metrics, episodes and drafts later than the last complete step (None: everything)."""
        last = -1 if step is None else step
        write_atomically(
            self.path / "metrics.jsonl",
            "".join(json.dumps(row, allow_nan=False) + "\n" for row in self.rows_until(step)),
        )
        for file in sorted((self.path / "episodes").glob("*.jsonl.zst")):
            number = file.name.split(".")[0].rpartition("-")[2]
            if number.isdecimal() and int(number) > last:
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

    def rows_until(self, step: int | None) -> list[dict[str, Any]]:
        """Rows of metrics.jsonl up to a complete step. RunDirectoryError where some of them are gone."""
        if step is None:
            return []
        rows = [row for row in self.metrics() if row["step"] <= step]
        if not rows or rows[-1]["step"] != step:
            raise RunDirectoryError(
                f"{self.path / 'metrics.jsonl'}: the rows up to step {step}, which is complete, are not all there; "
                "put the file back, or remove the folder to start again"
            )
        return rows

    def write_episodes(self, phase: str, step: int, episodes: Sequence[Episode]) -> None:
        """Write the episodes of one phase ("train", "panel") of one step."""
        write_episodes(self.path / "episodes" / f"{phase}-{step:06d}.jsonl.zst", episodes)

    def _complete_steps(self) -> list[int]:
        states = (self.path / "state").glob("step-*")
        return [int(p.name[5:]) for p in states if p.name[5:].isdecimal() and (p / "state.json").exists()]

    def _claim(self, config_toml: str, manifest: Mapping[str, Any]) -> None:
        config_file = self.path / "config.toml"
        if config_file.exists():
            with disk_errors(config_file, "read"):
                before = config_file.read_bytes()
            if before == config_toml.encode():
                return
            if _differs_in_limits_only(before, config_toml):
                write_atomically(config_file, config_toml)
                return
            if not self._came_to_nothing():
                changed = _changed_keys(before, config_toml)
                raise RunDirectoryError(
                    f"{self.path} holds a run with another configuration (see config.toml there{changed}); "
                    "choose another name (--out), or remove the folder"
                )
        write_json(self.path / "manifest.json", manifest)
        write_atomically(config_file, config_toml)

    def _came_to_nothing(self) -> bool:
        """Whether a run of ours began here and stopped (at a mistake in its config) before anything was complete.

        Then a mended config may take the folder; a config.toml that no run of ours wrote is never touched.
        """
        manifest = self.path / "manifest.json"
        ours = manifest.is_file() and "unfrozen" in _read_json(manifest)
        finished = self._complete_steps() or (self.path / EPISODE_LOG).exists() or (self.path / "summary.json").exists()
        return ours and not finished


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """All complete rows of a run's metrics.jsonl; a last line that a kill cut short is left out.

    Raises RunDirectoryError that names the line where the file is damaged or steps are missing.
    """
    file = run / "metrics.jsonl"
    if not file.exists():
        return []
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(whole_lines(file), start=1):
        try:
            row = json.loads(line)
            step = row["step"]
        except (ValueError, KeyError, TypeError) as error:
            raise RunDirectoryError(f"{file}, line {number}: not a row of metrics; {_WAY_OUT}") from error
        # Training begins with the measurement at step 0, imitation with step 1.
        if step not in ((rows[-1]["step"] + 1,) if rows else (0, 1)):
            raise RunDirectoryError(f"{file}, line {number}: step {step}, and steps before it are missing; {_WAY_OUT}")
        rows.append(row)
    return rows


_WAY_OUT = "put the file back as it was, or remove the run's folder to start again"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        with disk_errors(path, "read"):
            value = json.loads(path.read_bytes())
    except ValueError as error:
        raise RunDirectoryError(f"{path}: not JSON ({error}); {_WAY_OUT}") from error
    if not isinstance(value, dict):
        raise RunDirectoryError(f"{path} does not hold a JSON object")
    return value


def _changed_keys(before: bytes, after: str) -> str:
    """Up to three keys in which two configurations differ, for an error message; "" where one is no TOML."""
    try:
        old, new = _flat(tomllib.loads(before.decode())), _flat(tomllib.loads(after))
    except ValueError:
        return ""
    keys = [key for key in dict.fromkeys((*old, *new)) if old.get(key) != new.get(key)]
    return f": {', '.join(keys[:3])}{' and more' if len(keys) > 3 else ''}" if keys else ""


_LIMITS = "spend."
"""Keys that a resumed run may change: they bound what it may cost, and shape nothing of what it does."""


def _differs_in_limits_only(before: bytes, after: str) -> bool:
    try:
        old, new = _flat(tomllib.loads(before.decode())), _flat(tomllib.loads(after))
    except ValueError:
        return False
    return all(old.get(key) == new.get(key) for key in (*old, *new) if not key.startswith(_LIMITS))


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {k: v for key, inner in value.items() for k, v in _flat(inner, f"{prefix}{key}.").items()}
    return {prefix.removesuffix("."): value}
