"""The offline model and a real embeddings server on loopback."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from unfrozen.core.errors import ResumableError, UsageError
from unfrozen.measures import embeddings
from unfrozen.measures.embeddings import EndpointEmbedder, OfflineEmbedder


def test_the_offline_model_knows_what_is_alike_and_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network was used"))
    vectors = OfflineEmbedder().embed(["I will give a dollar.", "I'll donate one dollar.", "My cat is asleep.", " "])
    assert (vectors.shape, vectors.dtype) == ((4, 256), np.float32)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(4), abs=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2


def test_the_same_text_has_the_same_vector_in_any_batch() -> None:
    model = OfflineEmbedder()
    alone = model.embed(["Yes."])
    assert model.embed(["A much longer text stands before it in the batch.", "Yes."])[1] == pytest.approx(alone[0])


def test_a_missing_extra_is_one_line_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wordllama", None)
    with pytest.raises(UsageError, match=r'pip install "unfrozen\[diagnose\]"'):
        OfflineEmbedder()


def test_the_model_s_package_does_not_turn_on_the_logs_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("wordllama.wordllama")]:
        monkeypatch.delitem(sys.modules, name)
    before = (list(logging.getLogger().handlers), logging.getLogger().level)
    OfflineEmbedder()
    assert (list(logging.getLogger().handlers), logging.getLogger().level) == before


class Server:
    """Answers with vectors of (1, length, 0), the last text first; the first `faults` requests go wrong."""

    def __init__(self) -> None:
        self.faults: list[int] = []
        self.answer: bytes | None = None
        self.location = ""
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                owner.requests.append({"path": self.path, **body})
                owner.keys.append(self.headers.get("Authorization"))
                status = owner.faults.pop(0) if owner.faults else 200
                rows = [{"index": i, "embedding": [1, len(text), 0]} for i, text in enumerate(body["input"])]
                said = owner.answer or json.dumps({"data": rows[::-1]}).encode()
                self.send_response(status)
                self.send_header("Retry-After", "0")
                self.send_header("Location", f"{owner.location}/embeddings")
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_: object) -> None:
                """Silence."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.http.shutdown()
    running.http.server_close()


def test_an_endpoint_is_asked_in_batches_and_its_vectors_come_in_order(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDDING_KEY", "secret-1")
    model = EndpointEmbedder(server.url, "small", "EMBEDDING_KEY", batch=2)
    vectors = model.embed(["a", "bbb", "", "dd", "e"])
    assert [request["input"] for request in server.requests] == [["a", "bbb"], [".", "dd"], ["e"]]
    assert {request["path"] for request in server.requests} == {"/v1/embeddings"}
    assert set(server.keys) == {"Bearer secret-1"}
    assert vectors[1] == pytest.approx(np.array([1, 3, 0]) / np.sqrt(10))
    assert "secret-1" not in repr(model)


def test_what_may_pass_is_tried_again_and_what_may_not_stops_at_once(server: Server) -> None:
    server.faults = [503, 429]
    assert EndpointEmbedder(server.url, "small").embed(["a"]).shape == (1, 3)
    server.faults = [401]
    with pytest.raises(UsageError, match="answered 401"):
        EndpointEmbedder(server.url, "small").embed(["a"])
    server.faults = [500, 500]
    with pytest.raises(ResumableError, match="2 times"):
        EndpointEmbedder(server.url, "small", max_retries=1).embed(["a"])


@pytest.mark.parametrize(
    "answer", [b"<html>", b'{"data": []}', b'{"data": [{"index": 0}]}', b'{"data": [{"index": 0, "embedding": [NaN]}]}']
)
def test_an_answer_without_usable_vectors_is_an_error(server: Server, answer: bytes) -> None:
    server.answer = answer
    with pytest.raises(UsageError, match="embeddings"):
        EndpointEmbedder(server.url, "small").embed(["a"])


def test_a_variable_without_a_key_and_a_closed_port_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(UsageError, match="NO_SUCH_KEY"):
        EndpointEmbedder("http://127.0.0.1:9/v1", "small", "NO_SUCH_KEY").embed(["a"])
    monkeypatch.setattr(embeddings.time, "sleep", lambda _: None)
    with pytest.raises(ResumableError, match="cannot be reached"):
        EndpointEmbedder("http://127.0.0.1:9/v1", "small", max_retries=1).embed(["a"])


def test_a_key_goes_to_no_other_address_and_into_no_error(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDDING_KEY", "secret-1\n")
    server.faults, server.location = [307], server.url
    with pytest.raises(UsageError, match="it answered 307"):
        EndpointEmbedder(server.url, "small", "EMBEDDING_KEY").embed(["a"])
    assert server.keys == ["Bearer secret-1"], "the redirect was not followed"
    monkeypatch.setenv("EMBEDDING_KEY", "secret-1\nX-More: 1")
    with pytest.raises(UsageError, match="EMBEDDING_KEY holds characters that no key has") as refused:
        EndpointEmbedder(server.url, "small", "EMBEDDING_KEY").embed(["a"])
    assert "secret" not in str(refused.value)
