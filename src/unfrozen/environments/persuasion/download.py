"""Fetching the corpus into the cache folder: ConvoKit's archive, else the authors' files.

Both are public under the Apache-2.0 licence. A fetched copy is read once before it takes its place, so the
cache never holds a broken corpus; later calls need no network.
"""

from __future__ import annotations

import io
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

from unfrozen.core.errors import UsageError
from unfrozen.core.files import cache_folder, disk_errors, write_atomically
from unfrozen.environments.persuasion.corpus import CONVOKIT_FILES, CSV_FILES, load_corpus

_AUTHORS = "https://gitlab.com/ucdavisnlp/persuasionforgood/-/raw/master/data/FullData"
_CONVOKIT = "https://zissou.infosci.cornell.edu/convokit/datasets/persuasionforgood-corpus"
_MOST_BYTES = 200 * 1024 * 1024
_TIMEOUT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the corpus is fetched from: first the archive, then the single files."""

    archive: str = f"{_CONVOKIT}/persuasionforgood-corpus.zip"
    files: Mapping[str, str] = field(default_factory=lambda: {name: f"{_AUTHORS}/{name}" for name in CSV_FILES})


def corpus_cache() -> Path:
    """The folder of the fetched corpus."""
    return cache_folder() / "persuasion-for-good"


def download_corpus(folder: Path | None = None, sources: Sources | None = None) -> Path:
    """Fetch the corpus once and return its folder.

    Raises UsageError that says what failed at each source, and how to go on without the download.
    """
    folder = corpus_cache() if folder is None else folder
    sources = Sources() if sources is None else sources
    with disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            if not folder.exists():
                _fetch(folder, sources)
    return folder


def _fetch(folder: Path, sources: Sources) -> None:
    failures = []
    for fetch in (_from_archive, _from_files):
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
            target = Path(temporary) / "corpus"
            try:
                fetch(sources, target)
                load_corpus(target)
            except (UsageError, OSError, zipfile.BadZipFile) as error:
                failures.append(str(error))
                continue
            target.rename(folder)
            return
    raise UsageError(
        f"the corpus could not be downloaded ({'; '.join(failures)}); fetch it yourself and set `corpus` to "
        f"its folder, for instance the two files of {_AUTHORS}"
    )


def _from_archive(sources: Sources, target: Path) -> None:
    """Unpack the corpus files of ConvoKit's archive, whatever folder they stand in; nothing else is written."""
    with zipfile.ZipFile(io.BytesIO(_get(sources.archive))) as archive:
        for name in CONVOKIT_FILES:
            member = next((info for info in archive.infolist() if Path(info.filename).name == name), None)
            if member is None:
                raise UsageError(f"{sources.archive} holds no {name}")
            if member.file_size > _MOST_BYTES:
                raise UsageError(f"{sources.archive}: {name} is larger than {_MOST_BYTES} bytes")
            write_atomically(target / name, archive.read(member))


def _from_files(sources: Sources, target: Path) -> None:
    for name, url in sources.files.items():
        write_atomically(target / name, _get(url))


def _get(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:
            content: bytes = response.read(_MOST_BYTES + 1)
    except (urllib.error.URLError, TimeoutError, ValueError) as error:
        raise UsageError(f"{url}: {error}") from error
    if len(content) > _MOST_BYTES:
        raise UsageError(f"{url} is larger than {_MOST_BYTES} bytes")
    return content
