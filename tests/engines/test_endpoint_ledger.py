"""The spend ledger: right to the token, over kills, and a budget that stops the job before it is exceeded."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from endpoints import ask, ask_many, spec
from hypothesis import given
from hypothesis import strategies as st
from upstream import Upstream, completion, serving

from unfrozen.core.errors import ConfigError, ResumableError, RunDirectoryError, UsageError
from unfrozen.engines.endpoint import Budget, BudgetSpent, Endpoint, Ledger, PriceTable, Usage, estimate
from unfrozen.engines.endpoint.prices import Price

TABLE = PriceTable({"some-model": Price(input=1000.0, cached=100.0, output=2000.0)}, "a test's")


def test_tokens_and_money_are_counted_by_model(tmp_path: Path) -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 30,
        "prompt_tokens_details": {"cached_tokens": 60},
        "completion_tokens_details": {"reasoning_tokens": 20},
    }

    async def run() -> dict[str, Any]:
        ledger = Ledger(tmp_path, prices=TABLE)
        async with (
            Upstream(lambda _: completion("Yes.", usage=usage)) as server,
            aclosing(Endpoint(spec(server.url), ledger)) as endpoint,
        ):
            await ask(endpoint)
            await ask(endpoint)
        ledger.close()
        return Ledger(tmp_path, prices=TABLE).summary()

    summary = asyncio.run(run())
    row = summary["models"]["some-model"]
    assert (row["requests"], row["prompt_tokens"], row["cached_tokens"]) == (2, 200, 120)
    assert (row["completion_tokens"], row["reasoning_tokens"]) == (60, 40)
    # 80 fresh tokens at 1000, 120 cached at 100, 60 written at 2000 dollars a million.
    assert row["money"] == pytest.approx(0.08 + 0.012 + 0.12)
    assert summary["total"]["money"] == row["money"]
    assert summary["unpriced"] == []


def test_a_model_without_a_price_is_counted_in_tokens_and_named() -> None:
    async def run() -> dict[str, Any]:
        async with Upstream() as server, aclosing(Endpoint(spec(server.url))) as endpoint:
            await ask(endpoint)
            return endpoint.ledger.summary()

    summary = asyncio.run(run())
    assert summary["unpriced"] == ["some-model"]
    assert summary["models"]["some-model"]["money"] is None
    assert summary["total"]["money"] is None
    assert summary["total"]["completion_tokens"] > 0


def test_a_budget_in_money_wants_a_price_for_every_model() -> None:
    with pytest.raises(ConfigError, match=r"no price is known for model 'some-model' \(models\.mine\.model\)"):
        Endpoint(spec("http://127.0.0.1:1/v1"), Ledger(budget=Budget(money=1.0)))


def test_a_dated_version_costs_what_its_model_costs_and_ones_own_table_comes_first(tmp_path: Path) -> None:
    own = tmp_path / "prices.toml"
    own.write_text(
        'date = "2026-01"\n[models]\n"gpt-4o" = { input = 1.0, output = 2.0 }\n"mine" = {input=0,output=0}\n'
    )
    table = PriceTable.load(own)
    built_in = PriceTable.load()
    assert table.price("gpt-4o-2024-08-06") == Price(input=1.0, output=2.0)
    assert table.price("gpt-4o-mini") == built_in.price("gpt-4o-mini") != built_in.price("gpt-4o")
    assert table.price("mine") == Price(input=0, output=0)
    assert table.price("gpt-4o-of-mine") is None
    assert table.source == "prices.toml of 2026-01, then the built-in table of 2026-10"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[models", "not valid TOML"),
        ("a = " + "[" * 10_000, "not valid TOML"),
        ("a = " + "9" * 5000, "not valid TOML"),
        ('[models]\n"m" = { input = -1, output = 1 }', r"models\.m\.input"),
        ('[models]\n"m" = { input = 1, output = 1, reasoning = 1 }', r"models\.m\.reasoning"),
        ("", "models: Field required"),
    ],
)
def test_a_bad_price_table_is_one_clear_line(text: str, says: str, tmp_path: Path) -> None:
    own = tmp_path / "prices.toml"
    own.write_text(text)
    with pytest.raises(UsageError, match=rf"spend\.prices: .*prices\.toml.*{says}"):
        PriceTable.load(own)
    with pytest.raises(UsageError, match="cannot be read"):
        PriceTable.load(tmp_path / "none.toml")


@pytest.mark.parametrize(
    "budget", [Budget(requests=30), Budget(tokens=1500), Budget(money=1.5)], ids=["requests", "tokens", "money"]
)
def test_a_budget_is_never_exceeded_by_requests_that_run_at_once(budget: Budget, tmp_path: Path) -> None:
    async def run(budget: Budget) -> Upstream:
        ledger = Ledger(tmp_path, budget, TABLE)
        async with (
            Upstream(lambda _: "word " * 40, latency=0.01) as server,
            aclosing(Endpoint(spec(server.url), ledger)) as endpoint,
        ):
            with pytest.raises(BudgetSpent) as stopped:
                await ask_many(endpoint, range(200))
            assert isinstance(stopped.value, ResumableError)
            name = next(k for k in ("requests", "tokens", "money") if getattr(budget, k))
            assert f"spend.{name}" in str(stopped.value)
            assert "run the same command again" in str(stopped.value)
        ledger.close()
        return server

    server = asyncio.run(run(budget))
    used = server.billed["prompt"] + server.billed["completion"]
    money = (server.billed["prompt"] * 1000 + server.billed["completion"] * 2000) / 1e6
    # Never more than the budget, and no more than one request's worst case is left over.
    if budget.requests:
        assert server.count == budget.requests
    if budget.tokens:
        assert budget.tokens - 100 < used <= budget.tokens
    if budget.money:
        assert budget.money - 0.15 < money <= budget.money
    # Started again, nothing more is sent; with a larger budget it goes on from the sum.
    assert asyncio.run(run(budget)).count == 0
    if budget.requests:
        assert asyncio.run(run(Budget(requests=40))).count == 10


def test_the_ledger_goes_on_after_sigkill_and_bounds_what_was_under_way(tmp_path: Path) -> None:
    """Two kills in the middle of 50 requests at once: the settled sum equals the server's, the rest is bounded."""
    script = f"""
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from endpoints import ask_many, spec
from unfrozen.engines.endpoint import Endpoint, Ledger
async def main():
    endpoint = Endpoint(spec(sys.argv[1]), Ledger(Path({str(tmp_path)!r})))
    await ask_many(endpoint, range(int(sys.argv[2]), int(sys.argv[2]) + 10_000))
asyncio.run(main())
"""
    with serving(Upstream(latency=0.02)) as server:
        for start in (0, 10_000):
            before = server.billed["requests"]
            process = subprocess.Popen([sys.executable, "-c", script, server.url, str(start)])
            deadline = time.monotonic() + 30
            while server.billed["requests"] < before + 60 and time.monotonic() < deadline:
                time.sleep(0.01)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        time.sleep(0.1)
        ledger = Ledger(tmp_path)
        total = ledger.total()
        assert total.usage.completion > 0
        assert 0 < total.unknown <= 2 * 64
        # Everything that the server billed is either known or under a bound.
        known = total.usage.completion
        assert known <= server.billed["completion"] <= known + total.bound.completion
        assert total.usage.prompt <= server.billed["prompt"] <= total.usage.prompt + total.bound.prompt
        again = Ledger(tmp_path).total()
        assert again == total, "reading it again changes nothing"


def test_a_last_line_that_was_cut_is_dropped_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    async def run() -> None:
        async with Ledger(tmp_path).request("m", Usage(5, 5)) as bill:
            bill.used = Usage(3, 4)

    asyncio.run(run())
    file = tmp_path / "spend.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"sent": 1, "mod')
    assert Ledger(tmp_path).total().usage == Usage(3, 4)
    assert file.read_bytes() == whole
    for damage in (b"nonsense\n", b'{"done": 7, "used": [1, 2, 3, 4]}\n', b'{"sent": 1}\n', b"[]\n"):
        file.write_bytes(damage + whole)
        with pytest.raises(RunDirectoryError, match=r"spend\.jsonl, line 1: not a line of the spend ledger"):
            Ledger(tmp_path)


def test_a_full_disk_stops_the_job_and_leaves_a_ledger_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/dev/full refuses every write as a full disk does."""

    async def spend(ledger: Ledger) -> None:
        async with ledger.request("m", Usage(5, 5)) as bill:
            bill.used = Usage(3, 4)

    asyncio.run(spend(Ledger(tmp_path)))
    full = tmp_path / "full"
    full.mkdir()
    (full / "spend.jsonl").symlink_to("/dev/full")
    ledger = Ledger()
    ledger._path = full / "spend.jsonl"
    with pytest.raises(ResumableError, match="no space left"):
        asyncio.run(spend(ledger))
    assert Ledger(tmp_path).total().usage == Usage(3, 4)


@given(
    st.lists(
        st.one_of(
            st.none(),
            st.just("refused"),
            st.tuples(*(st.integers(0, 1000) for _ in range(4))).map(lambda t: Usage(*t)),
        ),
        max_size=30,
    )
)
def test_what_is_read_back_is_what_was_counted(bills: list[Any]) -> None:
    import tempfile

    async def run(ledger: Ledger) -> None:
        for number, used in enumerate(bills):
            async with ledger.request(f"model-{number % 3}", Usage(number, 9)) as bill:
                bill.refused = used == "refused"
                bill.used = used if isinstance(used, Usage) else None
            ledger.hit("model-0")
            ledger.note("model-1", f"note {number % 2}")

    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder))
        asyncio.run(run(ledger))
        ledger.close()
        again = Ledger(Path(folder))
        assert again.models == ledger.models
        again.close()
    known = [b for b in bills if isinstance(b, Usage)]
    assert ledger.total().usage.prompt == sum(u.prompt for u in known)
    assert ledger.total().unknown == bills.count(None)


def test_a_cancelled_request_is_counted_as_unknown() -> None:
    async def run() -> Ledger:
        async with Upstream(latency=1.0) as server, aclosing(Endpoint(spec(server.url))) as endpoint:
            task = asyncio.create_task(ask(endpoint))
            await asyncio.sleep(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return endpoint.ledger

    total = asyncio.run(run()).total()
    assert (total.requests, total.unknown) == (1, 1)


def test_a_server_that_cannot_be_reached_bills_nothing() -> None:
    async def run() -> Ledger:
        async with aclosing(Endpoint(spec("http://127.0.0.1:9/v1", max_retries=1))) as endpoint:
            await ask_many(endpoint, range(2))
            return endpoint.ledger

    total = asyncio.run(run()).total()
    assert (total.requests, total.refused, total.unknown) == (4, 4, 0)


def test_the_estimate_agrees_with_what_a_talk_needs() -> None:
    """Talks played out: the other speaks first, every call reads everything before it."""
    prompt = completion_ = calls = 0
    for _ in range(7):
        said = 0
        for _ in range(4):
            said += 30  # the other's turn
            prompt += 100 + said
            completion_ += 30
            calls += 1
            said += 30  # its own
    load = estimate(7, 4, system_tokens=100, turn_tokens=30)
    assert (load.calls, load.prompt_tokens, load.completion_tokens) == (calls, prompt, completion_)
    verbalized = estimate(7, 4, system_tokens=100, turn_tokens=30, reply_tokens=200)
    assert verbalized.completion_tokens == calls * 200
    assert (load + verbalized).calls == 2 * calls
    assert load.money(Price(input=1.0, output=2.0)) == pytest.approx((prompt + 2 * completion_) / 1e6)
    assert json.dumps(load.calls)
