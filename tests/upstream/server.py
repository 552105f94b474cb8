"""The server itself: a bare aiohttp handler, since it stands behind benchmarks; in a loop or in a thread."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from typing import Any

from aiohttp import web

from .content import Reply, completion, count_tokens, error, improvise
from .faults import TRANSPORT_FAULTS, draw_fault, spoiled

Answer = Callable[[dict[str, Any]], "str | Reply"]


class Upstream:
    """Answers chat completions, misbehaves as told, and counts.

    `answer` says what it replies (default: `improvise`). `script` is consumed first, one entry a request: the
    name of a fault, or a whole `Reply`; the last `Reply` stays for ever where `repeat_last`. `faults` are the
    probabilities of faults after that; the draw depends on `seed`, the request and how often it was sent, not
    on the order of arrival. `most` requests at once are served, more get 429. `latency` seconds go by before
    each answer; `retry_after` and `slow` are the seconds of those faults. `keep` remembers requests and headers.

    What it counts: `served` by fault ("ok" where none), `billed` tokens of completions that were delivered whole,
    `lost` tokens of those that were not, `peak` requests at once.
    """

    def __init__(
        self,
        answer: Answer = improvise,
        *,
        script: Iterable[str | Reply] = (),
        repeat_last: bool = False,
        faults: Mapping[str, float] | None = None,
        seed: int = 0,
        most: int | None = None,
        latency: float = 0.0,
        retry_after: float = 1.0,
        slow: float = 1.0,
        keep: bool = True,
    ) -> None:
        self.answer = answer
        self.script = deque(script)
        self.repeat_last = repeat_last
        self.faults = dict(faults or {})
        self.seed = seed
        self.most = most
        self.latency = latency
        self.retry_after = retry_after
        self.slow = slow
        self.keep = keep
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.times: list[float] = []
        self.served: Counter[str] = Counter()
        self.billed: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.peak = 0
        self._active = 0
        self._sent: Counter[bytes] = Counter()
        self._runner: web.ServerRunner | None = None

    @property
    def count(self) -> int:
        """Requests received."""
        return self.served.total()

    async def start(self, port: int = 0) -> None:
        """Listen on the loopback interface; `url` is what a config calls base_url."""
        self._runner = web.ServerRunner(web.Server(self._handle, access_log=None), shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, backlog=2048)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def stop(self) -> None:
        """Close every connection."""
        assert self._runner is not None
        await self._runner.cleanup()

    async def __aenter__(self) -> Upstream:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET":
            return self._look(request.path)
        raw = await request.read()
        body = json.loads(raw)
        if self.keep:
            self.requests.append(body)
            self.headers.append(dict(request.headers))
            self.paths.append(request.path)
            self.times.append(time.monotonic())
        if self.most is not None and self._active >= self.most:
            self.served["overload"] += 1
            return _plain(error(429, "too many requests at once"))
        self._active += 1
        self.peak = max(self.peak, self._active)
        try:
            return await self._serve(request, raw, body)
        finally:
            self._active -= 1

    async def _serve(self, request: web.BaseRequest, raw: bytes, body: dict[str, Any]) -> web.StreamResponse:
        fault = self._next(raw, body)
        if self.latency:
            await asyncio.sleep(self.latency)
        if isinstance(fault, Reply):
            self.served["scripted"] += 1
            return _plain(fault)
        self.served[fault or "ok"] += 1
        if fault in ("429", "500", "503"):
            return _plain(error(int(fault), "a bad day"))
        if fault == "429-after":
            return _plain(error(429, "slow down", Retry_After=f"{self.retry_after:g}"))
        if fault == "429-date":
            return _plain(error(429, "slow down", Retry_After=formatdate(time.time() + self.retry_after, usegmt=True)))
        if fault == "reset":
            return self._reset(request)
        if fault == "slow":
            await asyncio.sleep(self.slow)
        said = self.answer(body)
        if isinstance(said, Reply):
            return _plain(said)
        return await self._complete(request, body, said, fault)

    async def _complete(
        self, request: web.BaseRequest, body: dict[str, Any], text: str, fault: str | None
    ) -> web.StreamResponse:
        """A completion of `text`, spoiled by `fault`; what is delivered whole is billed."""
        model = str(body.get("model"))
        whole = fault is None or fault in TRANSPORT_FAULTS
        record = completion(text, model=model).body if whole else spoiled(str(fault), text, model)
        prompt, written = count_tokens(body["messages"], text)
        record["usage"] = {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
        }
        if fault == "reasoning-only":
            record["usage"]["completion_tokens_details"] = {"reasoning_tokens": written}
        undelivered = fault in ("reset-body", "empty-body", "not-json", "truncated-json")
        tally = self.lost if undelivered else self.billed
        tally["requests"] += 1
        tally["prompt"] += prompt
        tally["completion"] += written
        if body.get("stream"):
            return await self._stream(request, body, record, fault)
        data = json.dumps(record).encode()
        if fault == "reset-body":
            return await self._half(request, data)
        if fault == "empty-body":
            data = b""
        elif fault == "not-json":
            data = b"<html><body>502 Bad Gateway</body></html>"
        elif fault == "truncated-json":
            data = data[: len(data) // 2]
        elif fault == "not-utf8":
            data = data.replace(text.encode()[:4], b"\xff\xfe\x80\xa0", 1)
        return web.Response(body=data, content_type="application/json")

    async def _stream(
        self, request: web.BaseRequest, body: dict[str, Any], record: dict[str, Any], fault: str | None
    ) -> web.StreamResponse:
        """Server-sent events, a word a chunk; the usage comes last where it is asked for."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        choice = record["choices"][0]
        message = choice["message"]
        head = {key: record[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
        field = "reasoning_content" if message.get("reasoning_content") else "content"
        words = str(message.get(field) or "").split(" ")
        for number, word in enumerate(words):
            if fault in ("reset-body", "truncated-json") and number == len(words) // 2:
                return self._reset(request)
            piece = word if number == 0 else f" {word}"
            await response.write(_event(head, {"role": "assistant", field: piece}, None))
        await response.write(_event(head, {}, choice["finish_reason"]))
        if (body.get("stream_options") or {}).get("include_usage"):
            await response.write(
                b"data: " + json.dumps(head | {"choices": [], "usage": record["usage"]}).encode() + b"\n\n"
            )
        await response.write(b"data: [DONE]\n\n")
        return response

    def _next(self, raw: bytes, body: dict[str, Any]) -> str | Reply | None:
        if self.script:
            stays = self.repeat_last and len(self.script) == 1
            return self.script[0] if stays else self.script.popleft()
        if not self.faults:
            return None
        self._sent[raw] += 1
        asked = str(body["messages"][-1].get("content") or "")
        return draw_fault(self.faults, f"{self.seed}:{self._sent[raw]}:{raw!r}", "different replies" in asked)

    async def _half(self, request: web.BaseRequest, data: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(data))})
        await response.prepare(request)
        await response.write(data[: len(data) // 2])
        return self._reset(request)

    def _reset(self, request: web.BaseRequest) -> web.StreamResponse:
        """Cut the connection with a reset, not a polite end."""
        if request.transport is not None:
            connection = request.transport.get_extra_info("socket")
            # Lingering for no time makes the kernel send RST where it would send FIN.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            request.transport.abort()
        return web.Response()

    def _look(self, path: str) -> web.Response:
        if path.endswith("/models"):
            return web.json_response({"object": "list", "data": [{"id": "some-model", "object": "model"}]})
        counts = {"served": self.served, "billed": self.billed, "lost": self.lost, "peak": self.peak}
        return web.json_response(counts)


def _plain(reply: Reply) -> web.Response:
    kind = "text/html" if isinstance(reply.body, str) else "application/json"
    return web.Response(body=reply.data(), status=reply.status, headers={"Content-Type": kind, **reply.headers})


def _event(head: Mapping[str, Any], delta: Mapping[str, Any], finish: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return _sse({**head, "choices": [choice]})


def _sse(record: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(record).encode() + b"\n\n"


@contextmanager
def serving(upstream: Upstream | None = None) -> Iterator[Upstream]:
    """A server that runs in a thread of its own, for tests of what brings its own event loop."""
    server = upstream or Upstream()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result()
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
