"""A chat server on the loopback interface, which answers as a test tells it to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """One answer of the test server."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


def completion(content: Any, finish: str = "stop", **message: Any) -> Reply:
    message = {"role": "assistant", "content": content, **message}
    return Reply({"choices": [{"message": message, "finish_reason": finish}], "usage": {"completion_tokens": 7}})


def error(status: int, message: str, code: str | None = None, **headers: str) -> Reply:
    return Reply({"error": {"message": message, "code": code, "type": "error"}}, status, headers)


@dataclass
class Server:
    """Answers the replies of its list in turn, the last one for ever; remembers what it was sent."""

    url: str = ""
    replies: list[Reply] = field(default_factory=list)
    answer: Callable[[dict[str, Any]], Reply] | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def next(self, request: dict[str, Any]) -> Reply:
        self.requests.append(request)
        if self.answer is not None:
            return self.answer(request)
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


@contextmanager
def serving() -> Iterator[Server]:
    """A running server; its `url` is what a config calls base_url."""
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.headers.append(dict(self.headers.items()))
            state.paths.append(self.path)
            reply = state.next(request)
            data = reply.body.encode() if isinstance(reply.body, str) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            kind = "text/html" if isinstance(reply.body, str) else "application/json"
            for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    state.url = f"http://127.0.0.1:{http.server_port}/v1"
    try:
        yield state
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
