"""How fast an endpoint is asked: a gate that finds out how many requests at once are good, and rates per minute.

The gate is additive increase, multiplicative decrease (Chiu and Jain 1989), as TCP has it: it doubles in a round
until the first sign of overload, is cut at each sign, once a round, and else grows slowly. The strong sign is 429
and its kin, and no answer in time. The weak one is latency: where a token takes several times as long as it did at
best, more requests at once only queue, so the gate gives way, but not below where it began: latency has other causes.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque

_START = 4.0
_CUT = 0.7
_GIVE_WAY = 0.9
_GROWTH = 0.5
"""Places more in a round, after the first sign."""
_SLOW = 4.0
"""Latency a token, as a multiple of the best, above which requests queue rather than run."""
_FIXED_TOKENS = 64
"""What a request costs beside its tokens, in tokens."""
_QUICK = 0.1
"""Seconds: a request that is answered in less did not queue, whatever the best one took."""
_SMOOTHING = 0.1
_MEMORY = 300.0
"""Seconds in which the best latency doubles if nothing is as fast again: servers change."""


class AdaptiveGate:
    """Lets between 1 and `most` requests through at once. Belongs to one event loop."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._limit = min(float(most), _START)
        self._climbing = True
        self._active = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed_until = 0.0
        self._last_cut = 0.0
        self._best = math.inf
        self._best_at = 0.0
        self._smooth = 0.0

    @property
    def limit(self) -> int:
        """How many requests may be under way now."""
        return int(self._limit)

    async def __aenter__(self) -> None:
        """Wait for a place; in order of arrival."""
        if self._free() and not self._waiting:
            self._active += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._leave()
            elif place in self._waiting:  # somebody who left before this one woke up may have passed it over
                self._waiting.remove(place)
            raise

    async def __aexit__(self, *_: object) -> None:
        """Give the place back."""
        self._leave()

    def close_for(self, seconds: float) -> None:
        """Let nobody through for a while: the server asked for it."""
        loop = asyncio.get_running_loop()
        self._closed_until = max(self._closed_until, time.monotonic() + seconds)
        loop.call_later(self._closed_until - time.monotonic() + 0.001, self._admit)

    def answered(self, began: float, seconds: float, tokens: int) -> None:
        """Hear that a request sent at `began` (monotonic) took `seconds` for `tokens` tokens."""
        pace = max(seconds, _QUICK) / (tokens + _FIXED_TOKENS)
        now = time.monotonic()
        self._best = min(self._best * (1.0 + (now - self._best_at) / _MEMORY), pace)
        self._best_at = now
        self._smooth = pace if not self._smooth else self._smooth + _SMOOTHING * (pace - self._smooth)
        if self._smooth > _SLOW * self._best:
            self._cut(began, _GIVE_WAY, _START)
        elif self._active >= self.limit - 1:
            # A limit that is not reached says nothing about a higher one.
            self._limit = min(float(self.most), self._limit + (1.0 if self._climbing else _GROWTH / self._limit))
            self._admit()

    def overloaded(self, began: float) -> None:
        """Hear that the server had too much to do for a request sent at `began`."""
        self._cut(began, _CUT, 1.0)

    def _cut(self, began: float, factor: float, least: float) -> None:
        # Requests that were sent before the last cut met the old limit: one round, one cut.
        if began < self._last_cut:
            return
        self._climbing = False
        self._last_cut = time.monotonic()
        self._limit = min(self._limit, max(least, self._limit * factor))

    def _leave(self) -> None:
        self._active -= 1
        self._admit()

    def _free(self) -> bool:
        return self._active < self.limit and time.monotonic() >= self._closed_until

    def _admit(self) -> None:
        while self._waiting and self._free():
            place = self._waiting.popleft()
            if not place.done():
                self._active += 1
                place.set_result(None)


class Rate:
    """So much a minute (None: as much as you like), spread evenly: whoever finds a debt waits until it is paid off."""

    def __init__(self, per_minute: float | None) -> None:
        self._per_second = None if per_minute is None else per_minute / 60.0
        self._level = 0.0
        self._at = time.monotonic()

    async def take(self, amount: float) -> None:
        """Wait until the account is even, then charge `amount` to it."""
        if self._per_second is None:
            return
        now = time.monotonic()
        # A second's worth may be saved up, no more.
        self._level = min(self._per_second, self._level + (now - self._at) * self._per_second)
        self._at = now
        wait = -self._level / self._per_second
        self._level -= amount
        if wait > 0:
            await asyncio.sleep(wait)

    def give_back(self, amount: float) -> None:
        """What was charged and not used."""
        self._level += amount
