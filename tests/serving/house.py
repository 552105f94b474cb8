"""A server on the loopback interface around any speakers, and a client for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from unfrozen.core.episodes import SpeakerInfo, Turn
from unfrozen.core.messages import Message
from unfrozen.serving.server import Served, Server
from unfrozen.serving.settings import ServeSection
from unfrozen.serving.turnlog import TurnLog
from unfrozen.simulators.protocol import View
from unfrozen.simulators.supply import FixedSupply, Supply

HELLO = {"role": "user", "content": "Hello, how can I help?"}
SYSTEM = {"role": "system", "content": "You want a refund."}


class Speaks:
    """Answers with what `answer(view, seed)` returns: text, a whole turn, or an awaitable of one of them."""

    def __init__(self, answer: Callable[[View, int], Any], label: str = "somebody") -> None:
        self.answer = answer
        self.seen: list[View] = []
        self.info = SpeakerInfo(label, "test", "scripted")

    async def reply(self, view: View, seed: int) -> Turn:
        self.seen.append(view)
        said = self.answer(view, seed)
        if asyncio.iscoroutine(said):
            said = await said
        return said if isinstance(said, Turn) else Turn(Message("assistant", said), sampled_tokens=3)


class Client:
    """Talks to the server; every answer is (status, headers, parsed or raw body)."""

    def __init__(self, session: aiohttp.ClientSession, url: str, server: Server) -> None:
        self.http = session
        self.url = url
        self.server = server

    async def chat(
        self, messages: Any = (SYSTEM, HELLO), headers: Mapping[str, str] | None = None, **fields: Any
    ) -> Any:
        """(status, body, headers) of a chat completion."""
        body = {"model": "user", "messages": list(messages) if isinstance(messages, tuple) else messages, **fields}
        async with self.http.post(f"{self.url}/v1/chat/completions", json=body, headers=headers) as answer:
            streamed = answer.content_type == "text/event-stream"
            return answer.status, await (answer.text() if streamed else answer.json()), answer.headers

    async def get(self, path: str, **options: Any) -> tuple[int, str]:
        async with self.http.get(f"{self.url}{path}", **options) as answer:
            return answer.status, await answer.text()


@asynccontextmanager
async def serving(
    supply: Supply | Speaks, key: str | None = None, log: TurnLog | None = None, **settings: Any
) -> AsyncIterator[Client]:
    """A running server with one model, "user"."""
    supply = FixedSupply([supply]) if isinstance(supply, Speaks) else supply
    server = Server({"user": Served(supply, "a test")}, ServeSection(**settings), key=key, log=log)
    runner = web.AppRunner(server.application(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        try:
            yield Client(session, f"http://127.0.0.1:{runner.addresses[0][1]}", server)
        finally:
            await runner.cleanup()
