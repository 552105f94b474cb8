"""Files: where fetched things are cached, and atomic writes.

A reader, or a restart after a kill, sees the old file or the new one, never half of one.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from platformdirs import user_cache_dir

from unfrozen.core.errors import ResumableError, RunDirectoryError


def cache_folder() -> Path:
    """Where fetched models and corpora lie: $UNFROZEN_CACHE, else the platform's cache folder for `unfrozen`."""
    chosen = os.environ.get("UNFROZEN_CACHE")
    return Path(chosen).expanduser() if chosen else Path(user_cache_dir("unfrozen"))


@contextmanager
def disk_errors(path: Path, action: str = "write") -> Iterator[None]:
    """Turn what the disk refuses (it is full, read-only, no folder) into one clear line that names `path`.

    Nothing that was complete before is lost.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResumableError(
                f"no space left while writing {path}; free some and run the same command again: "
                "it resumes from the last complete step"
            ) from error
        if error.errno is None:
            # Not the disk's: a timeout, say.
            raise
        raise RunDirectoryError(f"cannot {action} {path}: {error.strerror}") from error


def whole_lines(path: Path, mend: bool = False) -> list[bytes]:
    """The lines of a journal without a last one that was cut short; with `mend` that one is removed from the file."""
    with disk_errors(path, "read"):
        data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if mend and len(whole) < len(data):
        with disk_errors(path):
            os.truncate(path, len(whole))
    return whole.split(b"\n")[:-1]


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file by way of a temporary one in the same folder, flushed to disk before the rename."""
    data = content.encode() if isinstance(content, str) else content
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o644)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write indented JSON atomically. NaN and infinity are refused: they are not JSON."""
    write_atomically(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")
