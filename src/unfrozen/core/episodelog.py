"""Episodes written as they finish, one line each: a job that is killed has lost nothing that was over.

A line is flushed to the disk before the next conversation counts as finished. A last line that a kill cut short is
dropped when the log is opened again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from unfrozen.core.episodes import Episode
from unfrozen.core.errors import RunDirectoryError
from unfrozen.core.files import disk_errors, whole_lines, write_atomically
from unfrozen.core.records import episode_from_json, episode_to_json

EPISODE_LOG = "episodes.jsonl"


class EpisodeLog:
    """The finished episodes of one run directory, in the order in which they ended.

    Raises RunDirectoryError that names the line where the file is damaged elsewhere than at its end.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / EPISODE_LOG
        self.episodes: list[Episode] = []
        if self.path.exists():
            self._read()

    def append(self, episode: Episode) -> None:
        """Write one finished episode durably."""
        line = episode_to_json(episode) + b"\n"
        with disk_errors(self.path), self.path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self.episodes.append(episode)

    def forget(self, unwanted: Callable[[Episode], bool]) -> int:
        """Drop episodes from the file (failed ones that are to be tried again); returns how many."""
        kept = [episode for episode in self.episodes if not unwanted(episode)]
        dropped = len(self.episodes) - len(kept)
        if dropped:
            write_atomically(self.path, b"".join(episode_to_json(episode) + b"\n" for episode in kept))
            self.episodes = kept
        return dropped

    def _read(self) -> None:
        for number, line in enumerate(whole_lines(self.path, mend=True), start=1):
            try:
                self.episodes.append(episode_from_json(line))
            except ValidationError as error:
                raise RunDirectoryError(
                    f"{self.path}, line {number}: not an episode record ({error.errors()[0]['msg']}); "
                    "put the file back as it was, or remove the run's folder to start again"
                ) from error
