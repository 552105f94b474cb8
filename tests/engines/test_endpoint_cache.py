"""The response cache: what was answered once costs nothing again, and nothing else is ever answered from it."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import zstandard
from endpoints import ask, spec
from hypothesis import given
from hypothesis import strategies as st
from upstream import Upstream, serving

from unfrozen.core.errors import UsageError
from unfrozen.engines.endpoint import Answer, Endpoint, ResponseCache
from unfrozen.engines.endpoint.cache import request_key


def test_a_repeated_evaluation_costs_nothing_and_other_samples_stay_other(tmp_path: Path) -> None:
    async def run(server: Upstream, seeds: range) -> tuple[list[Answer], dict[str, Any]]:
        cache = ResponseCache(tmp_path / "answers.sqlite")
        async with aclosing(Endpoint(spec(server.url), cache=cache)) as endpoint:
            answers = [await ask(endpoint, seed=seed) for seed in seeds]
            cache.close()
            return answers, endpoint.ledger.summary()["total"]

    async def both() -> None:
        async with Upstream() as server:
            first, _ = await run(server, range(10))
            again, spent = await run(server, range(10))
            assert server.count == 10
            assert [a.message for a in again] == [a.message for a in first]
            assert len({a.message.content for a in again}) > 5
            assert all(a.hit for a in again)
            assert not any(a.hit for a in first)
            assert (spent["requests"], spent["cache_hits"], spent["completion_tokens"]) == (0, 10, 0)
            await run(server, range(10, 12))
            assert server.count == 12

    asyncio.run(both())


def test_reasoning_and_tool_calls_come_back_whole(tmp_path: Path) -> None:
    from upstream import completion

    call = {"id": "c1", "type": "function", "function": {"name": "give", "arguments": '{"x": 1}'}}
    reply = completion("<think>hm</think>Yes.", "tool_calls", tool_calls=[call], reasoning="so")

    async def run() -> None:
        cache = ResponseCache(tmp_path / "answers.sqlite")
        async with (
            Upstream(lambda _: reply) as server,
            aclosing(Endpoint(spec(server.url), cache=cache)) as endpoint,
        ):
            first, again = await ask(endpoint), await ask(endpoint)
        assert (again.message, again.reasoning) == (first.message, first.reasoning)
        assert again.reasoning == "so\nhm"
        assert again.message.tool_calls[0].name == "give"

    asyncio.run(run())


@pytest.mark.parametrize("fault", ["empty", "reasoning-only"])
def test_an_answer_that_says_nothing_is_not_kept(fault: str, tmp_path: Path) -> None:
    async def run() -> None:
        cache = ResponseCache(tmp_path / "answers.sqlite")
        async with (
            Upstream(script=[fault]) as server,
            aclosing(Endpoint(spec(server.url), cache=cache)) as endpoint,
        ):
            assert (await ask(endpoint)).silent
            assert not (await ask(endpoint)).silent

    asyncio.run(run())


def test_an_answer_under_another_name_that_was_kept_is_not_given_where_those_are_refused(tmp_path: Path) -> None:
    async def run() -> None:
        cache = ResponseCache(tmp_path / "answers.sqlite")
        async with Upstream(script=["other-model"]) as server:
            async with aclosing(Endpoint(spec(server.url), cache=cache)) as endpoint:
                assert (await ask(endpoint)).model == "quite-another-model"
            async with aclosing(Endpoint(spec(server.url, refuse_other_model=True), cache=cache)) as endpoint:
                assert (await ask(endpoint)).model == "some-model"

    asyncio.run(run())


def test_a_field_that_is_rejected_still_tells_samples_apart(tmp_path: Path) -> None:
    """A server that knows no seed draws anew for each request: sample numbers are in the key all the same."""
    from upstream import error

    replies = iter(f"reply {n}" for n in range(9))

    def answer(request: Mapping[str, Any]) -> Any:
        return error(400, "seed is not supported") if "seed" in request else next(replies)

    async def run() -> None:
        cache = ResponseCache(tmp_path / "answers.sqlite")
        async with Upstream(answer) as server, aclosing(Endpoint(spec(server.url), cache=cache)) as endpoint:
            said = [(await ask(endpoint, seed=seed)).message.content for seed in (1, 2, 1, 2)]
        assert said == ["reply 0", "reply 1", "reply 0", "reply 1"]

    asyncio.run(run())


BODY: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hello"}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "temperature": 0.7,
    "max_tokens": 40,
    "seed": 3,
    "top_p": 0.9,
}


@pytest.mark.parametrize("field", [*BODY, "base_url", "api"])
def test_everything_that_shapes_a_reply_is_in_the_key(field: str) -> None:
    changed = dict(BODY)
    url, api = "http://host/v1", "openai"
    if field == "base_url":
        url = "http://other/v1"
    elif field == "api":
        api = "anthropic"
    else:
        changed[field] = [] if isinstance(BODY[field], list) else 0
    assert request_key(url, api, changed) != request_key("http://host/v1", "openai", BODY)
    reordered = dict(reversed(BODY.items()))
    assert request_key("http://host/v1", "openai", reordered) == request_key("http://host/v1", "openai", BODY)


@given(st.text(), st.text())
def test_different_texts_have_different_keys(a: str, b: str) -> None:
    def key(text: str) -> bytes:
        return request_key("u", "openai", {"messages": [{"content": text}]})

    assert (key(a) == key(b)) == (a == b)


def test_two_processes_share_a_file_while_both_write(tmp_path: Path) -> None:
    file = tmp_path / "answers.sqlite"
    script = f"""
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from endpoints import ask_many, spec
from unfrozen.engines.endpoint import Endpoint, ResponseCache
async def main():
    cache = ResponseCache(Path({str(file)!r}))
    endpoint = Endpoint(spec(sys.argv[1]), cache=cache)
    for start in range(0, 300, 50):
        answers = await ask_many(endpoint, range(start, start + 50))
    cache.close()
    await endpoint.aclose()
    print(endpoint.ledger.total().hits, endpoint.ledger.total().requests)
asyncio.run(main())
"""
    with serving() as server:
        command = [sys.executable, "-c", script, server.url]
        processes = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
        ]
        results = [process.communicate(timeout=60) for process in processes]
        assert [process.returncode for process in processes] == [0, 0], results
        assert [errors for _, errors in results] == ["", ""], "nobody was locked out"
        for out, _ in results:
            hits, requests = map(int, out.split())
            assert hits + requests == 300
        served = server.count
        third = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert third.stdout.split() == ["300", "0"]
        assert server.count == served
    rows = sqlite3.connect(file).execute("SELECT count(*) FROM answers").fetchone()[0]
    assert rows == 300


def test_a_file_that_is_no_cache_is_one_clear_error_and_is_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database at all, but long enough to be taken for a page of one" * 20)
    foreign = tmp_path / "foreign.sqlite"
    with sqlite3.connect(foreign) as db:
        db.execute("CREATE TABLE photos (id INTEGER)")
    for file in (text, foreign):
        before = file.read_bytes()
        with pytest.raises(UsageError, match=rf"{file.name} cannot be used as a response cache .*remove or rename"):
            ResponseCache(file)
        assert file.read_bytes() == before


def fill(file: Path, rows: int = 200) -> list[bytes]:
    cache = ResponseCache(file)
    keys = [request_key("u", "openai", {"n": n}) for n in range(rows)]
    for n, key in enumerate(keys):
        cache.put(key, {"n": n})
    cache.close()
    return keys


def test_a_damaged_file_never_gives_a_wrong_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes all over the file are overwritten; every answer is then the right one or none."""
    file = tmp_path / "answers.sqlite"
    keys = fill(file)
    whole = file.read_bytes()
    missed = 0
    for start in range(100, len(whole), 997):
        damaged = bytearray(whole)
        damaged[start : start + 64] = bytes(64)
        file.write_bytes(damaged)
        try:
            cache = ResponseCache(file)
        except UsageError:
            missed += 1
            continue
        answers = [cache.get(key) for key in keys]
        cache.close()
        assert all(answer in (None, {"n": n}) for n, answer in enumerate(answers))
        missed += any(answer is None for answer in answers)
    assert missed > 5
    assert "going on without it" in caplog.text


@pytest.mark.parametrize("row", [zstandard.compress(b'{"choices": []}'), "a text", None])
def test_a_damaged_row_is_asked_for_again(tmp_path: Path, row: bytes | str | None) -> None:
    async def run(server: Upstream) -> Answer:
        cache = ResponseCache(tmp_path / "answers.sqlite")
        async with aclosing(Endpoint(spec(server.url), cache=cache)) as endpoint:
            answer = await ask(endpoint)
            cache.close()
            return answer

    async def both() -> None:
        async with Upstream() as server:
            first = await run(server)
            with sqlite3.connect(tmp_path / "answers.sqlite") as db:
                db.execute("UPDATE answers SET answer = ?", (b"" if row is None else row,))
            assert (await run(server)).message == first.message
            assert server.count == 2

    asyncio.run(both())


def test_a_disk_that_is_full_is_said_once_and_the_job_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """SQLite's own limit on pages stands in for the disk's: it gives the same error, SQLITE_FULL."""
    cache = ResponseCache(tmp_path / "answers.sqlite")
    cache._db.execute("PRAGMA max_page_count = 8")  # type: ignore[union-attr]

    async def run() -> int:
        async with Upstream() as server, aclosing(Endpoint(spec(server.url), cache=cache)) as endpoint:
            for seed in range(200):
                assert (await ask(endpoint, f"{seed} " * 50, seed)).message.content
            return server.count

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(run()) == 200
    assert len([r for r in caplog.records if "going on without it" in r.getMessage()]) == 1


def test_a_locked_file_costs_one_answer_and_no_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unfrozen.engines.endpoint.cache._PATIENCE", 0.05)
    file = tmp_path / "answers.sqlite"
    cache = ResponseCache(file)
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    cache.put(b"a", {"n": 1})
    assert cache.get(b"a") is None
    assert "is busy" in caplog.text
    other.execute("COMMIT")
    cache.put(b"a", {"n": 1})
    assert cache.get(b"a") == {"n": 1}
    cache.close()
