"""Simulators as a library: inside anybody's loop, with and without asyncio; and the public names."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from players import Says
from upstream import Upstream, serving

from unfrozen.core.errors import EpisodeError, UsageError
from unfrozen.simulators import PERSONAS, FixedSupply, Simulator, Supply, VerbalizedSettings, open_simulator

FIRST = [{"role": "system", "content": "You want a refund."}, {"role": "user", "content": "How can I help?"}]


def of(*speakers: Any) -> Simulator:
    @asynccontextmanager
    async def opening() -> AsyncIterator[Supply]:
        yield FixedSupply(speakers)

    return Simulator(opening)


def test_five_lines_make_a_user() -> None:
    with serving() as upstream, open_simulator("some-model", base_url=upstream.url) as user:
        reply = user.reply(FIRST, session="episode-1")
        assert reply.text
        assert reply.message == {"role": "assistant", "content": reply.text}
        assert (reply.session.id, reply.session.turns) == ("episode-1", 1)
        assert upstream.requests[0]["messages"] == FIRST


def test_names_compose_into_an_ensemble_with_manners_under_verbalized_sampling() -> None:
    with (
        serving() as upstream,
        open_simulator(
            ["a", "b"], base_url=upstream.url, personas=True, verbalized=VerbalizedSettings(k=3), seed=1
        ) as user,
    ):
        replies = [user.reply(FIRST, session=f"episode-{i}") for i in range(30)]
        infos = [r.session.speaker.info for r in replies]
        assert {i.label for i in infos} == {"a", "b"}
        assert len({i.persona for i in infos} & set(PERSONAS)) > 3
        assert {i.kind for i in infos} == {"verbalized(persona(endpoint))"}
        assert all(r.turn.draw and len(r.turn.draw.candidates) == 3 for r in replies)
        assert user.reply(FIRST, session="episode-3").session.speaker.info == infos[3]


def test_many_conversations_run_at_once_from_a_running_loop_and_from_threads() -> None:
    started = threading.Barrier(8, timeout=10)

    async def wait() -> str:
        await asyncio.sleep(0.05)
        return "ok"

    class Slow(Says):
        async def reply(self, view, seed):  # type: ignore[no-untyped-def]
            await wait()
            return await super().reply(view, seed)

    with of(Slow(lambda v, s: "ok")) as user:

        async def many() -> list[str]:
            return [r.text for r in await asyncio.gather(*(user.areply(FIRST) for _ in range(50)))]

        def one(_: int) -> str:
            started.wait()
            return user.reply(FIRST).text

        assert asyncio.run(many()) == ["ok"] * 50
        assert asyncio.run(many()) == ["ok"] * 50
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(one, range(8))) == ["ok"] * 8


def test_giving_up_on_a_reply_cancels_it() -> None:
    cancelled = threading.Event()

    class Never(Says):
        async def reply(self, view, seed):  # type: ignore[no-untyped-def]
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.set()
                raise

    async def hasty(user: Simulator) -> None:
        async with asyncio.timeout(0.05):
            await user.areply(FIRST)

    with of(Never(lambda v, s: "")) as user:
        with pytest.raises(TimeoutError):
            asyncio.run(hasty(user))
        assert cancelled.wait(5)


def test_what_goes_wrong_is_raised_where_it_was_asked_and_the_next_reply_works() -> None:
    def moody(view: Any, seed: int) -> str:
        if view.messages[-1].content == "fail":
            raise EpisodeError("format", "said nothing")
        return "ok"

    with of(Says(moody)) as user:
        with pytest.raises(EpisodeError, match="said nothing"):
            user.reply([{"role": "user", "content": "fail"}])
        with pytest.raises(UsageError, match="role"):
            user.reply([{"role": "robot", "content": "x"}])
        assert user.reply(FIRST).text == "ok"


def test_a_simulator_that_was_closed_says_so() -> None:
    with of(Says(lambda v, s: "ok")) as user:
        pass
    with pytest.raises(UsageError, match="was closed"):
        user.reply(FIRST)
    with pytest.raises(UsageError, match="was closed"):
        asyncio.run(user.areply(FIRST))


def test_what_cannot_be_opened_leaves_no_thread_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    before = threading.active_count()
    with pytest.raises(UsageError, match="NO_SUCH_KEY"):
        open_simulator("m", base_url="http://127.0.0.1:9/v1", api_key_env="NO_SUCH_KEY")
    with pytest.raises(UsageError, match=r"open_simulator\.api_key_env is the NAME") as refused:
        open_simulator("m", base_url="http://127.0.0.1:9/v1", api_key_env="sk-secret")
    assert "sk-secret" not in str(refused.value)
    with pytest.raises(UsageError, match="nobody"):
        open_simulator([], base_url="http://127.0.0.1:9/v1")
    with of(Says(lambda v, s: "ok")) as user:
        pass
    user.close()
    assert threading.active_count() == before


def test_the_code_of_the_page_about_the_library_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "library.md").read_text()
    first, composition = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    with serving() as upstream:
        local = first.replace("https://api.openai.com/v1", upstream.url).replace(', api_key_env="OPENAI_API_KEY"', "")
        exec(local, {})
    assert capsys.readouterr().out.strip()
    names: dict[str, Any] = {"MySpeaker": lambda label: Says(lambda v, s: v.start.system[-15:], label)}
    exec(composition, names)
    with names["user"] as user:
        reply = user.reply(FIRST)
    assert reply.session.speaker.info.persona == "curt"
    assert reply.text == "in three words."


def test_importing_the_package_is_light() -> None:
    code = "import sys, unfrozen.simulators; print([m for m in ('torch', 'scipy', 'aiohttp') if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"


def test_an_upstream_that_fails_is_an_episode_error_and_not_a_reply() -> None:
    upstream = Upstream(script=["empty", "empty", "empty"])
    with serving(upstream) as server, open_simulator("m", base_url=server.url) as user, pytest.raises(EpisodeError):
        user.reply(FIRST)
