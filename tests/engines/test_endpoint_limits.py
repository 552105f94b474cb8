"""How fast a server is asked: concurrency that finds its limit, and rates per minute."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from itertools import pairwise

import pytest
from endpoints import ask_many, spec
from upstream import Upstream

from unfrozen.engines.endpoint import Answer, Endpoint
from unfrozen.engines.endpoint.limits import AdaptiveGate, Rate


@pytest.mark.parametrize("allowed", [3, 12])
def test_concurrency_converges_on_what_the_server_allows(allowed: int) -> None:
    async def run() -> tuple[list[int], Upstream]:
        seen: list[int] = []
        async with (
            Upstream(most=allowed, latency=0.02) as server,
            aclosing(Endpoint(spec(server.url, max_retries=30, max_concurrency=64))) as endpoint,
        ):

            async def watch() -> None:
                while True:
                    seen.append(endpoint.concurrency)
                    await asyncio.sleep(0.01)

            watcher = asyncio.create_task(watch())
            answers = await ask_many(endpoint, range(60 * allowed))
            watcher.cancel()
            assert all(isinstance(a, Answer) for a in answers)
        return seen, server

    seen, server = asyncio.run(run())
    late = seen[len(seen) // 3 :]
    assert max(late) <= allowed + 1
    assert sum(late) / len(late) >= 0.6 * allowed
    assert server.served["overload"] < 0.15 * server.count, "and few requests are wasted on finding it"


def test_without_a_limit_at_the_server_concurrency_climbs_to_the_configured_one() -> None:
    async def run() -> tuple[int, int]:
        async with (
            Upstream(latency=0.02) as server,
            aclosing(Endpoint(spec(server.url, max_concurrency=20))) as endpoint,
        ):
            await ask_many(endpoint, range(300))
            return endpoint.concurrency, server.peak

    concurrency, peak = asyncio.run(run())
    assert (concurrency, peak) == (20, 20)


def test_concurrency_stays_low_where_more_requests_only_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers: latency grows with every request above two."""
    monkeypatch.setattr("unfrozen.engines.endpoint.limits._QUICK", 0.0)

    async def run() -> int:
        gate, workers = AdaptiveGate(64), asyncio.Semaphore(2)

        async def one() -> None:
            async with gate:
                began = time.monotonic()
                async with workers:
                    await asyncio.sleep(0.005)
                gate.answered(began, time.monotonic() - began, 10)

        await asyncio.gather(*(one() for _ in range(500)))
        return gate.limit

    assert 4 <= asyncio.run(run()) <= 16


def test_a_place_that_is_given_to_a_cancelled_request_is_not_lost() -> None:
    async def run() -> None:
        gate = AdaptiveGate(1)

        async def hold() -> None:
            async with gate:
                await asyncio.sleep(0.01)

        first, second, third = (asyncio.create_task(hold()) for _ in range(3))
        await asyncio.sleep(0)
        second.cancel()
        await first
        third.cancel()  # its place has been granted in this very moment, or it still waits
        async with asyncio.timeout(1), gate:
            pass
        assert second.cancelled()

    asyncio.run(run())


def test_a_rate_is_never_exceeded_and_is_used_up() -> None:
    async def run() -> list[float]:
        rate, times = Rate(60 * 50), []
        for _ in range(20):
            await rate.take(1)
            times.append(time.monotonic())
        return times

    times = asyncio.run(run())
    assert 19 / 50 - 0.005 <= times[-1] - times[0] < 1.5 * 19 / 50
    assert all(b - a >= 1 / 50 - 0.01 for a, b in pairwise(times))


def test_requests_per_minute_hold_at_the_server() -> None:
    async def run() -> list[float]:
        async with (
            Upstream() as server,
            aclosing(Endpoint(spec(server.url, requests_per_minute=60 * 40))) as endpoint,
        ):
            await ask_many(endpoint, range(20))
            return server.times

    times = asyncio.run(run())
    assert times[-1] - times[0] >= 19 / 40 - 0.03


def test_tokens_per_minute_count_what_was_used_not_what_could_have_been() -> None:
    """40 tokens are reserved for every reply, and about 10 are used."""

    async def run() -> float:
        async with (
            Upstream(lambda _: "ten words that make a reply of some ten words") as server,
            aclosing(Endpoint(spec(server.url, tokens_per_minute=60 * 400, max_concurrency=1))) as endpoint,
        ):
            began = time.monotonic()
            await ask_many(endpoint, range(20))
            assert server.billed["prompt"] + server.billed["completion"] == 20 * 13
            return time.monotonic() - began

    took = asyncio.run(run())
    # 260 tokens at 400 a second; had every reservation counted in full, 1200 tokens would take 3 s.
    assert 0.35 <= took < 1.5


def test_a_whole_crowd_can_be_sent_away_at_once_and_the_gate_still_opens() -> None:
    async def run() -> None:
        gate = AdaptiveGate(1)

        async def pass_through(seconds: float) -> None:
            async with gate:
                await asyncio.sleep(seconds)

        crowd = [asyncio.create_task(pass_through(60)) for _ in range(20)]
        await asyncio.sleep(0.01)
        for task in crowd:
            task.cancel()
        ends = await asyncio.gather(*crowd, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends)
        await asyncio.wait_for(pass_through(0), 1)

    asyncio.run(run())
