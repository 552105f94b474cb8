"""Continuous batching in the event loop: gathers what is waiting, admits it, decodes until nobody waits.

One task drives the batch. It runs in the loop's own thread, so that nothing depends on timing: between two
steps it yields to the loop until no new request arrives, which lets conversations that move in lock step meet in
one batch, and then goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

import torch

from unfrozen.core.errors import OutOfMemory, UnfrozenError
from unfrozen.core.traces import AdapterRef
from unfrozen.engines.local.batch import Batch
from unfrozen.engines.local.memory import explained
from unfrozen.engines.local.requests import Request

_QUIET = 6
"""Rounds of the event loop without a new request that count as "nobody else is coming"."""

_JOIN = 0.25
"""New requests join a running batch when they are at least this share of it: reading prompts one by one is slow."""


class Scheduler:
    """Owns the waiting line and the task that drives the batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._waiting: deque[Request] = deque()
        self._entering: list[Request] = []
        """Taken from the line, not yet in the batch: while their prompts are read."""
        self._driver: asyncio.Task[None] | None = None
        self._arrivals = 0
        self._stirred = False
        """Whether something finished or arrived since the loop was last quiet."""
        self.seconds = 0.0

    def submit(self, request: Request) -> None:
        """Put a request in line and see to it that somebody works on the line."""
        self._waiting.append(request)
        self._arrivals += 1
        self._stirred = True
        if self._driver is None or self._driver.done():
            self._driver = asyncio.get_running_loop().create_task(self._drive())
            self._driver.add_done_callback(self._ended)

    def uses(self, ref: AdapterRef) -> bool:
        """Whether a request in line or in progress needs this version."""
        return any(r.adapter == ref for r in (*self._waiting, *self._batch.rows))

    async def _drive(self) -> None:
        while self._waiting or self._batch.rows:
            await self._settle()
            started = time.perf_counter()
            with torch.inference_mode(), explained("sampling", "memory_gib, max_batch or micro_batch_tokens"):
                self._advance()
            self.seconds += time.perf_counter() - started

    async def _settle(self) -> None:
        quiet, seen = 0, self._arrivals
        while quiet < (_QUIET if self._stirred else 1):
            await asyncio.sleep(0)
            quiet, seen = (quiet + 1, seen) if seen == self._arrivals else (0, self._arrivals)
        self._stirred = False

    def _advance(self) -> None:
        rows = len(self._batch.rows)
        if self._waiting and len(self._waiting) >= _JOIN * rows:
            self._entering = self._next()
            if self._entering:
                self._deliver(self._batch.admit(self._entering))
            self._entering = []
        if self._batch.rows:
            self._deliver(self._batch.step())

    def _next(self) -> list[Request]:
        """Take from the line, in order, what fits into the batch."""
        chosen: list[Request] = []
        running, room = len(self._batch.rows), self._batch.room
        while self._waiting:
            request = self._waiting[0]
            if not request.future.done():  # else cancelled meanwhile
                try:
                    if not self._batch.fits(request, running + len(chosen), room):
                        break
                    chosen.append(request)
                    room = max(room, request.room)
                except OutOfMemory as error:
                    request.future.set_exception(error)
            self._waiting.popleft()
        return chosen

    def _deliver(self, finished: list[Request]) -> None:
        for request in finished:
            request.deliver()
        self._stirred = self._stirred or bool(finished)

    def _ended(self, driver: asyncio.Task[None]) -> None:
        """If the driver died, tell everybody who waits."""
        error: BaseException | None
        if driver.cancelled():
            error = UnfrozenError("the engine was stopped while replies were being drawn")
        else:
            error = driver.exception()
        if error is None:
            return
        for request in (*self._entering, *self._waiting, *self._batch.rows):
            if not request.future.done():
                request.future.set_exception(error)
        self._entering = []
        self._waiting.clear()
        self._batch.abandon()
