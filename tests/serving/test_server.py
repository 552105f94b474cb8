"""The OpenAI-compatible server: what it answers, what it refuses and how, and that it never hangs."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from house import HELLO, SYSTEM, Client, Speaks, serving
from hypothesis import given
from hypothesis import strategies as st

from unfrozen.core.episodes import Turn
from unfrozen.core.errors import ContextTooLong, EpisodeError, ResumableError, UsageError
from unfrozen.core.messages import Message, ToolCall
from unfrozen.serving import replies
from unfrozen.serving.requests import RequestError, read_request
from unfrozen.serving.turnlog import TurnLog, read_turns
from unfrozen.simulators.persona import PERSONAS
from unfrozen.simulators.supply import FixedSupply, PersonaSupply, VerbalizedSupply
from unfrozen.simulators.verbalized import VerbalizedSettings

TOOL = {"type": "function", "function": {"name": "toggle", "parameters": {"type": "object", "properties": {}}}}


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def events(text: str) -> list[dict[str, Any]]:
    *chunks, end, last = text.split("\n\n")
    assert (end, last) == ("data: [DONE]", "")
    return [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]


def candidates(*texts: str) -> str:
    return json.dumps({"replies": [{"text": t, "probability": 1 / len(texts)} for t in texts]})


def test_a_request_is_answered_as_openai_would() -> None:
    async def talk() -> None:
        simulator = Speaks(lambda v, s: "It broke.")
        async with serving(simulator) as client:
            status, body, headers = await client.chat(seed=7, temperature=0, max_tokens=20)
            assert status == 200
            assert body["object"] == "chat.completion"
            assert body["model"] == "user"
            (choice,) = body["choices"]
            assert choice["message"] == {"role": "assistant", "content": "It broke."}
            assert choice["finish_reason"] == "stop"
            assert body["usage"] == {"prompt_tokens": 0, "completion_tokens": 3, "total_tokens": 3}
            assert "unfrozen" not in body
            assert headers["X-Unfrozen-Session"]
            (view,) = simulator.seen
            assert (view.role, view.start.system) == ("user", SYSTEM["content"])
            assert view.messages == (Message("user", HELLO["content"]),)
            assert view.cue.max_tokens == 20

    run(talk())


def test_a_streamed_reply_has_the_chunks_that_clients_expect() -> None:
    async def talk() -> None:
        async with serving(Speaks(lambda v, s: "It broke.")) as client:
            _, text, headers = await client.chat(stream=True, stream_options={"include_usage": True})
            assert headers["Content-Type"].startswith("text/event-stream")
            first, said, end, usage = events(text)
            assert first["choices"][0]["delta"] == {"role": "assistant"}
            assert said["choices"][0]["delta"] == {"content": "It broke."}
            assert (end["choices"][0]["delta"], end["choices"][0]["finish_reason"]) == ({}, "stop")
            assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 3)
            assert {chunk["object"] for chunk in (first, said, end, usage)} == {"chat.completion.chunk"}
            assert len({chunk["id"] for chunk in (first, said, end, usage)}) == 1

    run(talk())


def test_the_openai_client_reads_replies_streams_calls_and_errors() -> None:
    openai = pytest.importorskip("openai")

    async def talk() -> None:
        call = ToolCall("call_1", "toggle", '{"on": true}')
        simulator = Speaks(lambda v, s: Turn(Message("assistant", "", (call,))) if v.start.tools else "It broke.")
        async with serving(simulator, key="sesame") as client:
            user = openai.AsyncOpenAI(base_url=f"{client.url}/v1", api_key="sesame", max_retries=0)
            ask = user.chat.completions.create
            said = await ask(model="user", messages=[HELLO])
            assert said.choices[0].message.content == "It broke."
            called = await ask(model="user", messages=[HELLO], tools=[TOOL])
            assert called.choices[0].finish_reason == "tool_calls"
            assert called.choices[0].message.tool_calls[0].function.arguments == '{"on": true}'
            stream = await ask(model="user", messages=[HELLO], tools=[TOOL], stream=True)
            deltas = [chunk.choices[0].delta async for chunk in stream]
            assert [d.tool_calls[0].function.name for d in deltas if d.tool_calls] == ["toggle"]
            assert [m.id async for m in await user.models.list()] == ["user"]
            with pytest.raises(openai.NotFoundError, match="there is: user"):
                await ask(model="nobody", messages=[HELLO])
            with pytest.raises(openai.BadRequestError, match="n must be 1"):
                await ask(model="user", messages=[HELLO], n=2)
            await user.close()

    run(talk())


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": "hello"}, "invalid_value", "messages"),
        ({"messages": None}, "invalid_value", "messages"),
        ({"messages": [HELLO] * 9}, "too_many_messages", "messages"),
        ({"messages": ["hello"]}, "invalid_value", "messages.0"),
        ({"messages": [HELLO, {"role": "robot", "content": "x"}]}, "invalid_value", "messages.1"),
        ({"messages": [{"role": "user"}]}, "invalid_value", "messages.0"),
        ({"messages": [{"role": "user", "content": 5}]}, "invalid_value", "messages.0"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "invalid_value", "messages.0"),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": 5}]}, "invalid_value", "messages.0"),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [5]}]}, "invalid_value", "messages.0"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": 5}]}, "invalid_value", "messages.0"),
        ({"model": None}, "invalid_value", "model"),
        ({"model": 5}, "invalid_value", "model"),
        ({"n": 2}, "unsupported_value", "n"),
        ({"n": True}, "invalid_value", "n"),
        ({"logprobs": True}, "unsupported_value", "logprobs"),
        ({"response_format": {"type": "json_object"}}, "unsupported_value", "response_format"),
        ({"seed": "7"}, "invalid_value", "seed"),
        ({"seed": 1.5}, "invalid_value", "seed"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"max_completion_tokens": -1}, "invalid_value", "max_completion_tokens"),
        ({"stop": [""]}, "invalid_value", "stop"),
        ({"stop": {"a": 1}}, "invalid_value", "stop"),
        ({"stop": list("abcde")}, "invalid_value", "stop"),
        ({"stream": "yes"}, "invalid_value", "stream"),
        ({"stream_options": []}, "invalid_value", "stream_options"),
        ({"tools": [{"type": "function"}]}, "invalid_value", "tools.0"),
        ({"tools": {}}, "invalid_value", "tools"),
        ({"tool_choice": "required"}, "unsupported_value", "tool_choice"),
        ({"unfrozen": {"sesion": "x"}}, "invalid_value", "unfrozen.sesion"),
        ({"unfrozen": {"session": 5}}, "invalid_value", "unfrozen.session"),
        ({"unfrozen": {"session": "a\nb"}}, "invalid_value", "unfrozen.session"),
        ({"unfrozen": True}, "invalid_value", "unfrozen"),
    ],
)
def test_what_is_wrong_with_a_request_is_said_as_openai_says_it(fields: dict[str, Any], code: str, param: str) -> None:
    async def talk() -> None:
        async with serving(Speaks(lambda v, s: "no"), max_messages=8) as client:
            status, body, _ = await client.chat(**{"messages": [HELLO], **fields})
            assert status == 400
            assert body["error"]["type"] == "invalid_request_error"
            assert (body["error"]["code"], body["error"]["param"]) == (code, param)
            assert body["error"]["message"]

    run(talk())


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"\xff\xfe\x00", 400),
        (b"[" * 100_000, 400),
        (b'{"a": ' + b"9" * 5000 + b"}", 400),
        (b'"' + b"x" * 5000 + b'"', 413),
    ],
)
def test_a_body_that_is_no_request_is_refused(data: bytes, status: int) -> None:
    async def talk() -> None:
        limit = 200_000 if status == 400 else 4096
        async with serving(Speaks(lambda v, s: "no"), max_body=limit) as client:
            url = f"{client.url}/v1/chat/completions"
            headers = {"Content-Type": "application/json"}
            async with client.http.post(url, data=data, headers=headers) as answer:
                assert answer.status == status
                assert (await answer.json())["error"]["message"]
            async with client.http.post(url, data=data, headers=headers | {"Content-Encoding": "gzip"}) as answer:
                assert answer.status == 400, "it is not what its header says"
                assert (await answer.json())["error"]["message"]

    run(talk())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
message_keys = st.sampled_from(["role", "content", "tool_calls", "tool_call_id", "name"])
message_values = json_values | st.sampled_from(["user", "assistant", "tool"])
messages = st.lists(json_values | st.dictionaries(message_keys, message_values), max_size=3)
KEYS = "model n seed stop tools tool_choice stream stream_options unfrozen response_format max_tokens logprobs user"
keys = st.sampled_from(KEYS.split())


@given(st.dictionaries(keys, json_values), messages | json_values, st.booleans())
def test_whatever_json_comes_in_is_read_or_refused(fields: dict[str, Any], talk: Any, whole: bool) -> None:
    record = {"model": "user", "messages": [HELLO], **fields} if whole else {**fields, "messages": talk}
    assert what_becomes_of(json.dumps(record).encode()) in [(400, "invalid_request_error"), (200, "ChatRequest")]


def what_becomes_of(body: bytes) -> tuple[int, str]:
    try:
        return 200, type(read_request(body, max_messages=3)).__name__
    except RequestError as error:
        return error.status, replies.error(error)["error"]["type"]


def test_paths_methods_and_content_types_that_are_not_served_are_refused_in_json() -> None:
    async def talk() -> None:
        async with serving(Speaks(lambda v, s: "no")) as client:
            for method, path, status in (
                ("GET", "/", 404),
                ("GET", "/v1/chat/completions", 405),
                ("POST", "/healthz", 405),
            ):
                async with client.http.request(method, client.url + path) as answer:
                    assert (answer.status, "message" in (await answer.json())["error"]) == (status, True)
            # What a web page can send without asking the server first.
            page = {"Content-Type": "text/plain"}
            async with client.http.post(f"{client.url}/v1/chat/completions", data=b"{}", headers=page) as answer:
                assert answer.status == 415
            status, body = await client.get("/v1/models", headers={"Host": "evil.example"})
            assert (status, json.loads(body)["error"]["code"]) == (403, "wrong_host")

    run(talk())


def test_without_the_key_nothing_but_the_health_is_told() -> None:
    async def talk() -> None:
        async with serving(Speaks(lambda v, s: "no"), key="sesame") as client:
            for path, status in (("/healthz", 200), ("/v1/models", 401), ("/metrics", 401)):
                assert (await client.get(path))[0] == status
            for given in ("Bearer wrong", "sesame", "Bearer sesam\u00e9", ""):
                status, body, _ = await client.chat(headers={"Authorization": given})
                assert (status, body["error"]["type"]) == (401, "authentication_error")
            assert (await client.chat(headers={"Authorization": "Bearer sesame"}))[0] == 200

    run(talk())


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (EpisodeError("format", "said nothing"), 502, "format_error"),
        (EpisodeError("infrastructure", "cannot be reached"), 502, "infrastructure_error"),
        (EpisodeError("timeout", "too slow"), 504, "timeout_error"),
        (ContextTooLong("5000 tokens"), 400, "context_length_exceeded"),
        (ResumableError("the budget is spent"), 429, "insufficient_quota"),
        (UsageError("check the key in $KEY"), 500, "server_misconfigured"),
        (RuntimeError("a secret detail"), 500, "internal_error"),
    ],
)
def test_a_simulator_that_fails_is_an_error_and_never_a_reply(
    error: Exception, status: int, code: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(view: Any, seed: int) -> str:
        raise error

    async def talk() -> None:
        log = TurnLog(tmp_path / "turns.jsonl")
        async with serving(Speaks(fail), log=log) as client:
            got, body, _ = await client.chat()
            assert (got, body["error"]["code"]) == (status, code)
            assert "secret detail" not in json.dumps(body)
            assert client.server.in_flight == 0
        (turn,) = read_turns(log.path)
        assert turn.reply is None
        assert turn.failure == body["error"]["message"]

    run(talk())


def test_a_reply_that_does_not_come_is_a_timeout_and_not_a_hang() -> None:
    async def talk() -> None:
        async with serving(Speaks(lambda v, s: asyncio.sleep(60)), timeout=0.05) as client:
            status, body, _ = await client.chat()
            assert (status, body["error"]["code"]) == (504, "timeout")

    run(talk())


def test_a_full_queue_is_answered_at_once_and_says_when_to_come_back() -> None:
    async def talk() -> None:
        door = asyncio.Event()

        async def wait() -> str:
            await door.wait()
            return "at last"

        async with serving(Speaks(lambda v, s: wait()), queue=4) as client:
            waiting = [asyncio.create_task(client.chat()) for _ in range(4)]
            while client.server.in_flight < 4:
                await asyncio.sleep(0.005)
            status, body, headers = await client.chat()
            assert (status, body["error"]["code"], headers["Retry-After"]) == (429, "queue_full", "1")
            door.set()
            assert [status for status, *_ in await asyncio.gather(*waiting)] == [200] * 4
            assert (await client.chat())[0] == 200

    run(talk())


def test_a_client_that_hangs_up_cancels_its_request() -> None:
    async def talk() -> None:
        cancelled = asyncio.Event()

        async def wait() -> str:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.set()
                raise
            return "never"

        async with serving(Speaks(lambda v, s: wait())) as client:
            task = asyncio.create_task(client.chat())
            while not client.server.in_flight:
                await asyncio.sleep(0.005)
            task.cancel()
            await asyncio.wait_for(cancelled.wait(), 5)
            while client.server.in_flight:
                await asyncio.sleep(0.005)
            _, text = await client.get("/metrics")
            assert 'unfrozen_requests_total{model="none",status="499"} 1.0' in text

    run(talk())


def test_the_header_or_the_extra_field_names_the_session_and_the_draw_comes_on_request() -> None:
    async def talk() -> None:
        inner = Speaks(lambda v, s: candidates("a", "b", "c"))
        supply = VerbalizedSupply(PersonaSupply(FixedSupply([inner]), PERSONAS), VerbalizedSettings())
        async with serving(supply) as client:
            _, body, headers = await client.chat(
                headers={"X-Unfrozen-Session": "ep-1"}, unfrozen={"draw": True}, temperature=0, user="x", top_p=None
            )
            extra = body["unfrozen"]
            assert (headers["X-Unfrozen-Session"], extra["session"], extra["turn"]) == ("ep-1", "ep-1", 1)
            assert extra["simulator"]["persona"] in PERSONAS
            assert [c["text"] for c in extra["draw"]["candidates"]] == ["a", "b", "c"]
            drawn = extra["draw"]["candidates"][extra["draw"]["index"]]["text"]
            assert drawn == body["choices"][0]["message"]["content"]
            assert extra["ignored"] == ["temperature", "user"]
            _, text, _ = await client.chat(unfrozen={"draw": True, "session": "ep-1"}, stream=True)
            last = events(text)[-1]["unfrozen"]
            assert (last["turn"], last["simulator"]) == (2, extra["simulator"])

    run(talk())


def test_tools_reach_the_simulator_and_none_takes_them_away() -> None:
    async def talk() -> None:
        simulator = Speaks(lambda v, s: "no")
        async with serving(simulator) as client:
            await client.chat(tools=[TOOL], tool_choice="auto")
            await client.chat(tools=[TOOL], tool_choice="none")
            assert [len(view.start.tools) for view in simulator.seen] == [1, 0]

    run(talk())


def test_stop_strings_end_a_reply_and_a_cut_reply_says_so() -> None:
    async def talk() -> None:
        async with serving(Speaks(lambda v, s: "well, no. ###STOP### more")) as client:
            _, body, _ = await client.chat(stop=["more", "###STOP###"])
            assert body["choices"][0]["message"]["content"] == "well, no. "
        async with serving(Speaks(lambda v, s: Turn(Message("assistant", "we"), truncated=True))) as client:
            assert (await client.chat())[1]["choices"][0]["finish_reason"] == "length"

    run(talk())


def test_half_a_character_in_a_request_does_no_harm(tmp_path: Path) -> None:
    async def talk() -> None:
        log = TurnLog(tmp_path / "turns.jsonl")
        tool = {"type": "function", "function": {"name": "t", "description": "\ud83d"}}
        inner = Speaks(lambda v, s: candidates("a \ud83d"))
        async with serving(VerbalizedSupply(FixedSupply([inner]), VerbalizedSettings()), log=log) as client:
            status, body, _ = await client.chat([{"role": "user", "content": "x\ud83d"}], tools=[tool], user="\ud83d")
            assert (status, body["choices"][0]["message"]["content"]) == (200, "a \ufffd")
        assert next(iter(read_turns(log.path))).messages[0].content == "x\ufffd"

    run(talk())


def test_every_turn_is_in_the_log_with_its_candidates_and_nothing_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def talk() -> None:
        caplog.set_level(logging.DEBUG)
        log = TurnLog(tmp_path / "turns.jsonl")
        inner = Speaks(lambda v, s: candidates("a", "b"))
        supply = VerbalizedSupply(FixedSupply([inner]), VerbalizedSettings())
        async with serving(supply, key="sesame-open", log=log) as client:
            key = {"Authorization": "Bearer sesame-open"}
            _, body, _ = await client.chat((SYSTEM, HELLO), key, seed=3)
            said = body["choices"][0]["message"]
            await client.chat((SYSTEM, HELLO, said, {"role": "user", "content": "And?"}), key)
            await client.chat((SYSTEM, HELLO), {"Authorization": "Bearer wrong"})
        first, second = read_turns(log.path)
        assert (first.turn, first.seed, first.system) == (1, 3, SYSTEM["content"])
        assert first.reply is not None
        assert first.reply.draw is not None
        assert [c.text for c in first.reply.draw.candidates] == ["a", "b"]
        assert second.session == first.session
        assert (second.turn, second.system, second.known_messages) == (2, None, 2)
        assert [m.content for m in second.messages] == ["And?"]
        assert "sesame-open" not in log.path.read_text() + caplog.text

    run(talk())


def test_a_line_that_a_kill_cut_short_is_the_only_one_lost(tmp_path: Path) -> None:
    async def talk() -> None:
        log = TurnLog(tmp_path / "turns.jsonl")
        async with serving(Speaks(lambda v, s: "no"), log=log) as client:
            for _ in range(3):
                await client.chat()
        data = log.path.read_bytes()
        log.path.write_bytes(data[:-20])
        assert len(list(read_turns(log.path))) == 2
        log.path.write_bytes(b"{}\n" + data)
        with pytest.raises(UsageError, match="line 1"):
            list(read_turns(log.path))

    run(talk())


def test_a_full_disk_costs_log_lines_and_no_replies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk() -> None:
        log = TurnLog(tmp_path / "turns.jsonl")
        real = os.write
        room = [10]

        def full(file: int, data: bytes) -> int:
            if file != log._file:
                return real(file, data)
            if room[0] > 0:  # a partial write, then none
                room[0] = 0
                return real(file, data[:10])
            raise OSError(errno.ENOSPC, "No space left on device")

        async with serving(Speaks(lambda v, s: "no"), log=log) as client:
            await client.chat()
            monkeypatch.setattr(os, "write", full)
            assert [(await client.chat())[0] for _ in range(3)] == [200] * 3
            monkeypatch.setattr(os, "write", real)
            assert json.loads((await client.get("/healthz"))[1])["status"] == "log_incomplete"
            assert "unfrozen_log_missing_turns 3.0" in (await client.get("/metrics"))[1]
            await client.chat()
        assert len(list(read_turns(log.path))) == 2

    run(talk())


def test_metrics_count_what_happened_by_served_model_only() -> None:
    async def talk() -> None:
        async with serving(Speaks(lambda v, s: "no")) as client:
            await client.chat()
            await client.chat(model="never-heard-of")
            _, text = await client.get("/metrics")
            assert 'unfrozen_requests_total{model="user",status="200"} 1.0' in text
            assert 'unfrozen_requests_total{model="none",status="404"} 1.0' in text
            assert 'unfrozen_reply_tokens_total{model="user"} 3.0' in text
            assert "unfrozen_sessions 1.0" in text
            assert "never-heard-of" not in text

    run(talk())


def test_a_thousand_conversations_at_once_are_all_answered() -> None:
    async def talk() -> None:
        async def wait() -> str:
            await asyncio.sleep(0.2)
            return "yes"

        async def one(client: Client, number: int) -> int:
            return int((await client.chat(headers={"X-Unfrozen-Session": f"ep-{number}"}))[0])

        async with serving(Speaks(lambda v, s: wait())) as client:
            assert await asyncio.gather(*(one(client, i) for i in range(1000))) == [200] * 1000
            assert len(client.server.sessions["user"]) == 1000

    run(talk())
