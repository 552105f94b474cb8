"""Episodes as JSON, and back. One line of an episode file is one `Episode`, complete enough to replay it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import zstandard
from pydantic import TypeAdapter, ValidationError

from unfrozen.core.episodes import Episode
from unfrozen.core.errors import UsageError
from unfrozen.core.files import write_atomically

_EPISODE = TypeAdapter(Episode)


def episode_to_json(episode: Episode) -> bytes:
    """Return one line of JSON without the newline."""
    return _EPISODE.dump_json(episode)


def episode_from_json(line: bytes | str) -> Episode:
    """Read what `episode_to_json` wrote. Raises ValueError (pydantic's) where a field is missing or wrong."""
    return _EPISODE.validate_json(line)


def write_episodes(path: Path, episodes: Iterable[Episode]) -> None:
    """Write a zstd-compressed JSONL file with a checksum, atomically."""
    plain = b"".join(episode_to_json(episode) + b"\n" for episode in episodes)
    write_atomically(path, zstandard.ZstdCompressor(level=6, write_checksum=True).compress(plain))


def read_episodes(path: Path) -> Iterator[Episode]:
    """Yield the episodes of a file. Raises UsageError that names the file and line where it is damaged."""
    try:
        # The whole frame at once: a streaming reader would take a file cut short for a complete one.
        lines = zstandard.ZstdDecompressor().decompress(path.read_bytes()).splitlines()
    except (OSError, zstandard.ZstdError) as error:
        raise UsageError(f"{path}: cannot be read as an episode file ({error})") from error
    for number, line in enumerate(lines, start=1):
        try:
            yield episode_from_json(line)
        except ValidationError as error:
            raise UsageError(f"{path}, line {number}: not an episode record ({error.errors()[0]['msg']})") from error
