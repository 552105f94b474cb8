"""`unfrozen serve` as its users run it, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w


@contextmanager
def served(config: Mapping[str, Any], out: Path) -> Iterator[str]:
    """The base URL of a server for `config`; it logs to `out`/served."""
    path = out / "users.toml"
    path.write_text(tomli_w.dumps(dict(config)))
    command = [sys.executable, "-m", "unfrozen", "serve", str(path), "--port", "0", "--out", str(out / "served")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[1]
        finally:
            process.terminate()
