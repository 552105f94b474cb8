"""Python functions in a role, and the agent that does nothing."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Any

import pytest

from unfrozen.core.episodes import SpeakerInfo
from unfrozen.core.errors import EpisodeError
from unfrozen.core.messages import Message
from unfrozen.core.traces import TokenStream
from unfrozen.environments.protocol import Cue, RoleView
from unfrozen.simulators.function import DoNothing, FunctionSpeaker
from unfrozen.simulators.protocol import View

INFO = SpeakerInfo("mine", "mine", "function")


def reply(function: Any, cue: Cue | None = None) -> str:
    messages = (Message("user", "hello"),)
    view = View("agent", RoleView("be kind"), messages, cue or Cue("agent"), TokenStream())
    return asyncio.run(FunctionSpeaker(function, INFO).reply(view, 0)).message.content


def test_a_function_reads_the_conversation_as_a_chat_api_does_and_says_what_it_returns() -> None:
    seen: list[Any] = []

    def mine(messages: list[dict[str, Any]]) -> str:
        seen.extend(messages)
        return "hi"

    async def later(messages: list[dict[str, Any]]) -> str:
        return messages[-1]["content"]

    class Agent:
        async def __call__(self, messages: list[dict[str, Any]]) -> str:
            return messages[0]["role"]

    assert reply(mine) == "hi"
    assert seen == [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]
    assert reply(later) == "hello"
    assert reply(Agent()) == "system"


async def cancels_itself(messages: list[dict[str, Any]]) -> str:
    waiting = asyncio.ensure_future(asyncio.sleep(60))
    waiting.cancel()
    await waiting
    return "never"


@pytest.mark.parametrize(
    ("function", "cause", "said"),
    [
        (lambda messages: 1 / 0, "infrastructure", "mine raised ZeroDivisionError"),
        (lambda messages: None, "format", "mine returned None"),
        (lambda messages: " ", "format", "mine returned ' '"),
        (lambda messages: next(iter(())), "infrastructure", "mine raised StopIteration"),
        (lambda messages: sys.exit(3), "infrastructure", "mine raised SystemExit: 3"),
        (cancels_itself, "infrastructure", "mine raised CancelledError"),
    ],
)
def test_what_a_function_raises_or_leaves_unsaid_fails_one_episode(function: Any, cause: str, said: str) -> None:
    with pytest.raises(EpisodeError, match=said) as error:
        reply(function)
    assert error.value.cause == cause


def test_a_choice_must_be_one_of_the_options() -> None:
    cue = Cue("agent", "well?", options=("yes", "no"))
    assert reply(lambda messages: " yes\n", cue) == "yes"
    with pytest.raises(EpisodeError, match="none of the options"):
        reply(lambda messages: "maybe", cue)


def test_plain_functions_of_several_conversations_run_side_by_side() -> None:
    from threading import Barrier

    meet = Barrier(3, timeout=10)

    def waits(messages: list[dict[str, Any]]) -> str:
        meet.wait()
        return "met"

    async def together() -> list[str]:
        speaker = FunctionSpeaker(waits, INFO)
        view = View("agent", RoleView(""), (), Cue("agent"), TokenStream())
        return [turn.message.content for turn in await asyncio.gather(*(speaker.reply(view, i) for i in range(3)))]

    assert asyncio.run(together()) == ["met"] * 3


def test_the_agent_that_does_nothing_says_the_same_whatever_it_hears() -> None:
    view = View("agent", RoleView("sell!"), (Message("user", "so?"),), Cue("agent"), TokenStream())
    assert asyncio.run(DoNothing().reply(view, 1)).message.content == "Okay."


def test_calls_that_hang_hold_up_neither_another_one_nor_the_end_of_the_loop() -> None:
    release = threading.Event()

    def hangs(messages: list[dict[str, Any]]) -> str:
        release.wait(30)
        return "late"

    async def talks() -> str:
        view = View("agent", RoleView(""), (Message("user", "hello"),), Cue("agent"), TokenStream())

        async def one() -> None:
            async with asyncio.timeout(0.2):
                await FunctionSpeaker(hangs, INFO).reply(view, 0)

        ends = await asyncio.gather(*(one() for _ in range(64)), return_exceptions=True)
        assert all(isinstance(end, TimeoutError) for end in ends)
        return (await FunctionSpeaker(lambda messages: "hi", INFO).reply(view, 0)).message.content

    began = time.monotonic()
    assert asyncio.run(talks()) == "hi"
    assert time.monotonic() - began < 10
    release.set()
