"""The log of episodes: one line of JSON a turn, with the candidates and the draw.

A line is written with one system call as soon as its turn is over, so a server that is killed loses at most
the line that it was writing. Where the disk refuses (it is full), that line is taken back whole; the server goes
on, says so once, and counts what is missing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from unfrozen.core.episodes import SpeakerInfo, Turn
from unfrozen.core.errors import UsageError
from unfrozen.core.files import disk_errors, whole_lines
from unfrozen.core.messages import Message

_log = logging.getLogger("unfrozen.serve")


@dataclass(frozen=True, slots=True)
class LoggedTurn:
    """One request and what became of it: `reply`, or the `failure` that the client was told.

    `messages` are those that no earlier request of the session had brought; `known_messages` came before them.
    `system` is None where it was known. `time` is the start in seconds since 1970, `seconds` how long it took.
    """

    time: float
    seconds: float
    model: str
    session: str | None
    turn: int
    simulator: SpeakerInfo | None
    system: str | None
    known_messages: int
    messages: tuple[Message, ...]
    seed: int | None
    ignored: tuple[str, ...]
    reply: Turn | None
    failure: str | None = None
    tools: tuple[str, ...] = ()
    """Names of the functions that the user could call."""


_LINE = TypeAdapter(LoggedTurn)


class TurnLog:
    """Appends turns to a file. Raises RunDirectoryError where the file cannot be opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.missing = 0
        """Turns that could not be written."""
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o644)
            self._size = os.fstat(self._file).st_size

    def write(self, turn: LoggedTurn) -> None:
        """Append one turn."""
        data = _LINE.dump_json(turn) + b"\n"
        try:
            written = os.write(self._file, data)
            if written < len(data):
                os.ftruncate(self._file, self._size)
                raise OSError(f"only {written} of {len(data)} bytes were taken")
            self._size += written
        except OSError as error:
            if not self.missing:
                _log.warning("the log of episodes %s cannot be written: %s; turns are missing in it", self.path, error)
            self.missing += 1

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_turns(path: Path) -> Iterator[LoggedTurn]:
    """The turns of a log; a last line that was cut short is left out. Raises UsageError that names the line."""
    for number, line in enumerate(whole_lines(path), start=1):
        try:
            yield _LINE.validate_json(line)
        except ValidationError as error:
            raise UsageError(f"{path}, line {number}: not a logged turn ({error.errors()[0]['msg']})") from error
