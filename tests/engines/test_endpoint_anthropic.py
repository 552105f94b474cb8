"""Claude through Anthropic's SDK, against a server that speaks its Messages API."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from endpoints import KEY, ask, spec
from upstream import Reply, Upstream

from unfrozen.core.errors import EpisodeError, UsageError
from unfrozen.core.messages import Message, ToolCall
from unfrozen.engines.endpoint import Answer, Endpoint, Usage
from unfrozen.engines.endpoint.anthropic import to_messages_api

pytest.importorskip("anthropic", reason="the extra `anthropic` is not installed")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-for-somebody-else")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "token-for-somebody-else")


def message(*blocks: Any, stop: str = "end_turn", **usage: int) -> Reply:
    return Reply(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "some-model",
            "content": list(blocks),
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 5, **usage},
        }
    )


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def failed(status: int, kind: str, **headers: str) -> Reply:
    return Reply({"type": "error", "error": {"type": kind, "message": "no"}}, status, headers)


TOOL = {"type": "function", "function": {"name": "give", "description": "Gives.", "parameters": {"type": "object"}}}


def run(*script: Reply, messages: Any = None, **fields: Any) -> tuple[Answer, Upstream, Endpoint]:
    async def talk() -> tuple[Answer, Upstream, Endpoint]:
        async with (
            Upstream(script=script, repeat_last=True) as server,
            aclosing(
                Endpoint(spec(server.url.removesuffix("/v1"), api="anthropic", max_retries=1, api_key_env="MY_KEY"))
            ) as endpoint,
        ):
            asked = messages or [{"role": "user", "content": "hello"}]
            return await endpoint.ask(asked, {"temperature": 0.7, "seed": 3, **fields}, 40), server, endpoint

    return asyncio.run(talk())


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)


def test_a_request_is_translated_and_the_answer_read_back() -> None:
    thinking = {"type": "thinking", "thinking": "They want money.", "signature": "x"}
    system = {"role": "system", "content": "Be brief."}
    answer, server, _ = run(
        message(thinking, text("No."), cache_read_input_tokens=7), messages=[system, {"role": "user", "content": "Hi"}]
    )
    assert answer == Answer(Message("assistant", "No."), "stop", Usage(17, 5, 7), "some-model", "They want money.")
    (request,) = server.requests
    assert server.paths == ["/v1/messages"]
    assert (request["system"], request["max_tokens"], request["temperature"]) == ("Be brief.", 40, 0.7)
    assert request["messages"] == [{"role": "user", "content": [text("Hi")]}]
    assert "seed" not in request
    assert KEY in str(server.headers), "in the header that this version of the SDK uses"
    assert "somebody-else" not in str(server.headers)


def test_tools_go_out_and_calls_come_back_and_results_return() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "give", "input": {"x": 1}}
    answer, server, _ = run(message(use, stop="tool_use"), tools=[TOOL])
    assert answer.finish == "tool_calls"
    assert answer.message.tool_calls == (ToolCall("t1", "give", '{"x": 1}'),)
    assert server.requests[0]["tools"] == [
        {"name": "give", "description": "Gives.", "input_schema": {"type": "object"}}
    ]
    assert server.requests[0]["tool_choice"] == {"type": "auto"}
    results = [
        {"role": "user", "content": "Give."},
        answer.message.to_openai(),
        Message("tool", "done", tool_call_id="t1").to_openai(),
        {"role": "user", "content": "And?"},
    ]
    _, server, _ = run(message(text("Given.")), messages=results, tools=[TOOL], tool_choice="none")
    turns = server.requests[0]["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert turns[1]["content"] == [use]
    assert turns[2]["content"] == [{"type": "tool_result", "tool_use_id": "t1", "content": "done"}, text("And?")]
    assert server.requests[0]["tool_choice"] == {"type": "none"}


def test_a_reply_that_is_cut_says_so_and_further_fields_are_passed_on() -> None:
    answer, server, _ = run(message(text("I would"), stop="max_tokens"), stop=["X"], top_p=0.9, top_k=5)
    assert answer.finish == "length"
    assert (server.requests[0]["stop_sequences"], server.requests[0]["top_p"]) == (["X"], 0.9)
    assert server.requests[0]["top_k"] == 5


@pytest.mark.parametrize("status", [429, 500, 529])
def test_what_may_pass_is_tried_again_by_us_and_not_by_the_sdk(status: int) -> None:
    answer, server, endpoint = run(failed(status, "overloaded_error"), message(text("Yes.")))
    assert answer.message.content == "Yes."
    assert server.count == 2
    assert (endpoint.ledger.total().refused, endpoint.ledger.total().usage) == (1, Usage(10, 5))


def test_errors_are_sorted_as_for_every_endpoint() -> None:
    with pytest.raises(UsageError, match=r"check the key in \$MY_KEY"):
        run(failed(401, "authentication_error"))
    with pytest.raises(UsageError, match=r"check models\.mine\.model"):
        run(failed(404, "not_found_error"))
    with pytest.raises(EpisodeError, match="answered 529"):
        run(failed(529, "overloaded_error"))
    with pytest.raises(EpisodeError, match="without a chat completion"):
        run(Reply({"type": "message"}))
    with pytest.raises(EpisodeError, match="without a chat completion"):
        run(Reply("<html>", headers={"Content-Type": "application/json"}))


def test_a_server_that_is_not_there_bills_nothing() -> None:
    async def talk() -> Endpoint:
        async with aclosing(Endpoint(spec("http://127.0.0.1:9", api="anthropic", max_retries=0))) as endpoint:
            with pytest.raises(EpisodeError, match="cannot be reached"):
                await ask(endpoint)
            return endpoint

    total = asyncio.run(talk()).ledger.total()
    assert (total.refused, total.unknown) == (1, 0)


@pytest.mark.parametrize("arguments", ["", "not json", "[1]", '{"x": 1}'])
def test_arguments_that_a_model_wrote_wrongly_are_passed_on(arguments: str) -> None:
    wrong = Message("assistant", "", (ToolCall("t", "give", arguments),)).to_openai()
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}, wrong], "max_tokens": 5}
    assert isinstance(to_messages_api(body)["messages"][1]["content"][0]["input"], dict)
