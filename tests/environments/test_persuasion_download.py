"""Fetching the corpus, against a server on the loopback interface."""

from __future__ import annotations

import io
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from persuasion_data import OWN_CONVOKIT, OWN_CSV

from unfrozen.core.errors import UsageError
from unfrozen.environments.persuasion import PersuasionConfig, PersuasionEnvironment, download_corpus, load_corpus
from unfrozen.environments.persuasion.download import Sources, corpus_cache


def archive_of(folder: Path, prefix: str = "persuasionforgood-corpus/") -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for file in folder.iterdir():
            archive.write(file, prefix + file.name)
        archive.writestr("../outside.txt", "must not be written")
    return content.getvalue()


class Site:
    """What the server serves, and which paths were asked for."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.asked: list[str] = []


@pytest.fixture
def site() -> Iterator[tuple[Site, Sources]]:
    served = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append(self.path)
            content = served.content.get(self.path)
            self.send_response(404 if content is None else 200)
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    home = f"http://127.0.0.1:{server.server_port}"
    files = {name: f"{home}/{name}" for name in ("full_dialog.csv", "full_info.csv")}
    yield served, Sources(f"{home}/corpus.zip", files)
    server.shutdown()
    thread.join()
    server.server_close()


def test_convokits_archive_is_fetched_once(site: tuple[Site, Sources], tmp_path: Path) -> None:
    served, sources = site
    served.content["/corpus.zip"] = archive_of(OWN_CONVOKIT)
    folder = download_corpus(tmp_path / "cache" / "p4g", sources)
    assert load_corpus(folder) == load_corpus(OWN_CONVOKIT)
    assert download_corpus(folder, sources) == folder
    assert served.asked == ["/corpus.zip"]
    assert sorted(file.name for file in folder.iterdir()) == ["conversations.json", "speakers.json", "utterances.jsonl"]
    assert not list(tmp_path.rglob("outside.txt"))


@pytest.mark.parametrize("archive", [None, b"not a zip", "empty", "broken corpus"])
def test_the_authors_files_stand_in_for_a_bad_archive(
    site: tuple[Site, Sources], tmp_path: Path, archive: bytes | str | None
) -> None:
    served, sources = site
    if archive == "empty":
        archive = archive_of(OWN_CSV)
    if archive == "broken corpus":
        copy = tmp_path / "broken"
        copy.mkdir()
        for file in OWN_CONVOKIT.iterdir():
            (copy / file.name).write_text("{}")
        archive = archive_of(copy)
    if isinstance(archive, bytes):
        served.content["/corpus.zip"] = archive
    for file in OWN_CSV.iterdir():
        served.content[f"/{file.name}"] = file.read_bytes()
    folder = download_corpus(tmp_path / "p4g", sources)
    assert load_corpus(folder) == load_corpus(OWN_CSV)


def test_a_failed_download_says_why_and_leaves_nothing(site: tuple[Site, Sources], tmp_path: Path) -> None:
    _, sources = site
    with pytest.raises(UsageError, match="404") as caught:
        download_corpus(tmp_path / "p4g", sources)
    message = str(caught.value)
    assert "corpus.zip" in message
    assert "full_dialog.csv" in message
    assert "set `corpus`" in message
    assert "\n" not in message
    assert not (tmp_path / "p4g").exists()
    assert [file.name for file in tmp_path.iterdir()] == [".p4g.lock"]


def test_a_server_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    nowhere = Sources("http://127.0.0.1:9/corpus.zip", {"full_dialog.csv": "http://127.0.0.1:9/full_dialog.csv"})
    with pytest.raises(UsageError, match=r"127\.0\.0\.1:9"):
        download_corpus(tmp_path / "p4g", nowhere)


def test_the_environment_uses_the_cached_download(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UNFROZEN_CACHE", str(tmp_path))
    corpus_cache().mkdir(parents=True)
    for file in OWN_CSV.iterdir():
        (corpus_cache() / file.name).write_bytes(file.read_bytes())
    assert PersuasionEnvironment(PersuasionConfig()).tasks("train")
