"""Runs the server until it is told to stop, and lets what is in flight finish."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator

from aiohttp import web

from unfrozen.core.errors import UsageError
from unfrozen.serving.server import Server

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def run(server: Server, stop: asyncio.Event, ready: Callable[[str], None] = lambda _: None) -> None:
    """Listen where the server's settings say until `stop` is set; `ready` is told the base URL.

    Then no connection is accepted any more, and requests in flight have `settings.grace` seconds to finish.
    Raises UsageError where the address cannot be listened on.
    """
    settings = server.settings
    # A client that hangs up cancels its request: nobody would read the reply.
    runner = web.AppRunner(
        server.application(), access_log=None, handler_cancellation=True, shutdown_timeout=settings.grace
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, settings.host, settings.port, backlog=4096)
        try:
            await site.start()
        except OSError as error:
            where = f"{settings.host}:{settings.port}"
            raise UsageError(f"cannot listen on {where}: {error.strerror}; choose another --host or --port") from error
        host, port = runner.addresses[0][:2]
        ready(f"http://{f'[{host}]' if ':' in host else host}:{port}/v1")
        await stop.wait()
        server.draining = True
    finally:
        await runner.cleanup()


@contextlib.contextmanager
def stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """Let SIGTERM and Ctrl-C set `stop`; a second one ends the process as it would without us."""
    loop = asyncio.get_running_loop()

    def ask() -> None:
        stop.set()
        for one in _SIGNALS:
            loop.remove_signal_handler(one)

    for number in _SIGNALS:
        loop.add_signal_handler(number, ask)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
