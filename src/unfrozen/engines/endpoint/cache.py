"""The response cache: answers of frozen models, by everything that shapes them.

A row's key is a hash of the server's address, its dialect and the whole request as the speaker wrote it, seed
included, so different samples stay different and one that is asked for again costs nothing. The value is the
server's own JSON, compressed with a checksum. SQLite in WAL mode lets several processes use one file at once.

A cache is never worth a wrong answer or a stopped job: what cannot be read or written while a job runs is said once
in the log, and the job goes on without it. A file that is no cache of ours is an error at the start.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import zstandard

from unfrozen.core.errors import UsageError
from unfrozen.core.files import disk_errors

_LOG = logging.getLogger(__name__)
_VERSION = 1
_HELD = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_PATIENCE = 1.0
"""Seconds to wait for another process's write; the event loop waits with us."""


class ResponseCache:
    """Answers by key, in one file. Raises UsageError where the file is damaged or something else."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._squeeze = zstandard.ZstdCompressor(level=3, write_checksum=True)
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db: sqlite3.Connection | None = self._connect()
        except sqlite3.Error as error:
            raise UsageError(f"{path} cannot be used as a response cache ({error}); remove or rename it") from None

    def get(self, key: bytes) -> Any:
        """The JSON that was stored under `key`, or None."""
        if self._db is None:
            return None
        try:
            row = self._db.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
            if row is None:
                return None
            return json.loads(zstandard.ZstdDecompressor().decompress(row[0]))
        except (sqlite3.Error, zstandard.ZstdError, ValueError, TypeError) as error:
            self._failed("read", error)
            return None

    def put(self, key: bytes, answer: Any) -> None:
        """Store JSON under `key`; the first of several writers wins."""
        if self._db is None:
            return
        data = self._squeeze.compress(json.dumps(answer).encode())
        try:
            self._db.execute("INSERT OR IGNORE INTO answers VALUES (?, ?)", (key, data))
        except sqlite3.Error as error:
            self._failed("write", error)

    def close(self) -> None:
        """Close the file."""
        if self._db is not None:
            self._db.close()
            self._db = None

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None)
        try:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            foreign = db.execute("SELECT 1 FROM sqlite_master WHERE name != 'answers'").fetchone()
            if version not in (0, _VERSION) or foreign:
                raise sqlite3.DatabaseError(f"it holds something else, or version {version} of a cache")
            db.execute("PRAGMA journal_mode = WAL")
            # A crash of the machine may lose the last answers, never damage the file.
            db.execute("PRAGMA synchronous = NORMAL")
            if version == 0:
                db.execute(
                    "CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, answer BLOB NOT NULL) WITHOUT ROWID"
                )
                db.execute(f"PRAGMA user_version = {_VERSION}")
        except sqlite3.Error:
            db.close()
            raise
        return db

    def _failed(self, action: str, error: Exception) -> None:
        """Go on: without this answer where another process holds the file, without the file where it is broken."""
        if isinstance(error, sqlite3.Error) and error.sqlite_errorcode & 0xFF in _HELD:
            _LOG.warning("the response cache %s is busy: could not %s one answer", self.path, action)
            return
        _LOG.warning("the response cache %s: cannot %s (%s); going on without it", self.path, action, error)
        self.close()


def request_key(base_url: str, api: str, body: Mapping[str, Any]) -> bytes:
    """The key of a request: 32 bytes that depend on all of it."""
    text = json.dumps([base_url, api, body], sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
