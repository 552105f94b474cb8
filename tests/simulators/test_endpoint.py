"""Agents and simulators behind a chat server: a real one on the loopback interface, which can misbehave."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import tomllib
import traceback
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from upstream import CANDIDATE_FAULTS, Reply, Upstream, completion, error, serving

from unfrozen.config import RunConfig, parse_config, to_toml, with_overrides
from unfrozen.core.episodes import SpeakerInfo, Turn
from unfrozen.core.errors import ConfigError, EpisodeError, UsageError
from unfrozen.core.messages import Message, ToolCall
from unfrozen.core.records import read_episodes
from unfrozen.core.traces import TokenStream
from unfrozen.engines.endpoint import Endpoint, EndpointSpec
from unfrozen.environments.protocol import Cue, RoleView
from unfrozen.jobs.evaluate import evaluate
from unfrozen.jobs.imitate import ImitateConfig
from unfrozen.jobs.train import train
from unfrozen.simulators.endpoint import CHOICE_RETRIES, EndpointSpeaker, read_choice
from unfrozen.simulators.persona import Persona
from unfrozen.simulators.protocol import View
from unfrozen.simulators.verbalized import Verbalized, VerbalizedSettings

KEY = "sk-secret-0123456789abcdef"
CORPUS = Path(__file__).parents[1] / "data" / "persuasion" / "csv"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    with serving(Upstream(repeat_last=True)) as state:
        yield state


def view(
    *messages: Message, options: tuple[str, ...] = (), tools: tuple[Any, ...] = (), limit: int | None = None
) -> View:
    start = RoleView("You give or you do not.", tools)
    return View("user", start, messages, Cue("user", options=options, max_tokens=limit), TokenStream())


HELLO = Message("user", "Will you give?")


def ask(server: Upstream, seen: View, seed: int = 5, **spec: Any) -> Turn:
    async def run() -> Turn:
        settings = EndpointSpec("some-model", server.url, "models.mine", **{"max_retries": 0, **spec})
        async with aclosing(Endpoint(settings)) as endpoint:
            return await EndpointSpeaker(endpoint, SpeakerInfo("mine", "f", "endpoint"), 50, 0.7).reply(seen, seed)

    return asyncio.run(run())


def test_it_sends_its_own_side_of_the_conversation_and_says_what_the_server_answers(server: Upstream) -> None:
    server.script.extend([completion(" I will. ")])
    turn = ask(server, view(HELLO, Message("assistant", "Why?"), Message("user", "Because.")))
    assert turn == Turn(Message("assistant", "I will."), truncated=False, sampled_tokens=7)
    (request,) = server.requests
    assert [(m["role"], m["content"]) for m in request["messages"]] == [
        ("system", "You give or you do not."),
        ("user", "Will you give?"),
        ("assistant", "Why?"),
        ("user", "Because."),
    ]
    assert (request["model"], request["max_tokens"], request["temperature"]) == ("some-model", 50, 0.7)
    assert request["seed"] == 5
    assert "tools" not in request
    assert server.paths == ["/v1/chat/completions"]


def test_a_cue_may_set_the_limit_and_a_config_its_name_and_further_fields(server: Upstream) -> None:
    server.script.extend([completion("Yes.")])
    seen = view(HELLO, limit=9)
    ask(server, seen, 2**62 + 3, max_tokens_key="max_completion_tokens", extra_body={"top_p": 0.9})
    (request,) = server.requests
    assert (request["max_completion_tokens"], request["top_p"]) == (9, 0.9)
    assert "max_tokens" not in request
    assert 0 <= request["seed"] < 2**31


def test_a_key_is_read_from_its_variable_and_no_other_key_is_ever_sent(
    server: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.script.extend([completion("Yes.")])
    monkeypatch.setenv("OPENAI_API_KEY", "sk-for-somebody-else")
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "sk-admin-for-somebody-else")
    monkeypatch.setenv("MY_KEY", f"{KEY}\n")
    ask(server, view(HELLO))
    ask(server, view(HELLO), api_key_env="MY_KEY")
    assert "somebody-else" not in json.dumps(server.headers)
    assert [h.get("Authorization") for h in server.headers] == [None, f"Bearer {KEY}"]


def test_a_missing_key_names_its_variable(server: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(UsageError, match=r"models\.mine\.api_key_env: the environment variable MY_KEY is not set"):
        ask(server, view(HELLO), api_key_env="MY_KEY")


def test_a_missing_package_says_how_to_install_it(server: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(UsageError, match=r'models\.mine: .* pip install "unfrozen\[anthropic\]"'):
        ask(server, view(HELLO), api="anthropic")


def test_wrappers_work_over_an_endpoint(server: Upstream) -> None:
    """Verbalized Sampling asks for more tokens and gets text; a choice is passed through."""
    written = '{"replies": [{"text": "No.", "probability": 0.9}, {"text": "No.", "probability": 0.1}]}'
    server.script.extend([completion(written), completion('{"choice": "$0.00"}')])

    async def run() -> tuple[Turn, Turn]:
        async with aclosing(Endpoint(EndpointSpec("m", server.url))) as endpoint:
            inner = EndpointSpeaker(endpoint, SpeakerInfo("mine", "f", "endpoint"), 50)
            wrapped = Verbalized(Persona(inner, "blunt", "Be blunt."), VerbalizedSettings(k=2, max_tokens=300))
            return await wrapped.reply(view(HELLO), 1), await wrapped.reply(view(HELLO, options=AMOUNTS), 2)

    said, chosen = asyncio.run(run())
    assert (said.message.content, chosen.message.content) == ("No.", "$0.00")
    assert server.requests[0]["max_tokens"] == 300
    assert server.requests[0]["messages"][0]["content"].endswith("Be blunt.")


def verbalize(server: Upstream, k: int = 3) -> Turn:
    async def run() -> Turn:
        async with aclosing(Endpoint(EndpointSpec("m", server.url))) as endpoint:
            inner = EndpointSpeaker(endpoint, SpeakerInfo("mine", "f", "endpoint"), 50)
            return await Verbalized(inner, VerbalizedSettings(k=k)).reply(view(HELLO), 1)

    return asyncio.run(run())


@pytest.mark.parametrize("fault", ["empty", "reasoning-only"])
def test_an_empty_candidate_reply_counts_as_unreadable_and_fails_nothing(fault: str) -> None:
    """The speaker asks once more; then it is an attempt of Verbalized Sampling that gave nothing."""
    with serving(Upstream(script=[fault] * 2)) as server:
        turn = verbalize(server)
    assert turn.draw is not None
    assert (turn.draw.raw[0], len(turn.draw.raw), turn.draw.fallback) == ("", 2, False)
    assert turn.message.content == turn.draw.candidates[turn.draw.index or 0].text
    with serving(Upstream(script=[fault] * 4)) as server:
        turn = verbalize(server)
    assert turn.draw is not None
    assert (turn.draw.raw, turn.draw.fallback, turn.draw.candidates) == (("", ""), True, ())
    assert turn.message.content, "a plain single reply, marked as such"


@pytest.mark.parametrize("fault", CANDIDATE_FAULTS)
def test_spoiled_candidates_are_read_as_far_as_they_can_be_and_never_said_as_they_are(fault: str) -> None:
    with serving(Upstream(script=[fault])) as server:
        turn = verbalize(server, k=5)
        assert server.served[fault] == 1
    assert turn.draw is not None
    assert not turn.draw.fallback
    assert not set(turn.message.content) & set('{}"`')
    if fault == "candidates-malformed":
        assert len(turn.draw.raw) == 2, "unreadable: asked again"
    else:
        assert 1 <= len(turn.draw.candidates) <= 5
        assert sum(c.probability for c in turn.draw.candidates) == pytest.approx(1)
    if fault in ("candidates-nan", "candidates-negative"):
        assert len(turn.draw.candidates) == 4


def test_a_server_error_that_passes_is_not_noticed(server: Upstream) -> None:
    server.script.extend([error(500, "boom"), completion("Yes.")])
    assert ask(server, view(HELLO), max_retries=2).message.content == "Yes."
    assert len(server.requests) == 2


def test_a_server_that_asks_for_patience_gets_it(server: Upstream) -> None:
    server.script.extend([error(429, "slow down", Retry_After="1"), completion("Yes.")])
    began = time.monotonic()
    assert ask(server, view(HELLO), max_retries=1).message.content == "Yes."
    assert time.monotonic() - began >= 1.0


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_an_error_that_may_pass_fails_one_episode_and_says_where(server: Upstream, status: int) -> None:
    server.script.extend([error(status, "bad day,\ncome back")])
    with pytest.raises(EpisodeError) as failed:
        ask(server, view(HELLO))
    assert failed.value.cause == "infrastructure"
    assert f"{server.url} answered {status}" in failed.value.detail
    assert "\n" not in failed.value.detail


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (error(401, "no such key"), r"check the key in \$MY_KEY"),
        (error(403, "not for you"), r"check the key in \$MY_KEY"),
        (error(404, "no such model"), r"check models\.mine\.model and models\.mine\.base_url"),
        (Reply("<html>not here</html>", 404), r"check models\.mine\.model and models\.mine\.base_url"),
        (error(400, "some-model is not a valid model ID"), r"model 'some-model'"),
        (error(400, "model some-model does not exist"), r"check models\.mine\.model"),
        (error(400, "use another name", "unsupported_parameter"), "max_tokens_key"),
        (error(429, "pay first", "insufficient_quota"), "nothing left to spend"),
        (error(402, "pay first"), "nothing left to spend"),
    ],
)
def test_an_error_that_no_retry_mends_stops_the_run_with_the_way_out(
    server: Upstream, reply: Reply, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    server.script.extend([reply])
    with pytest.raises(UsageError, match=says) as stopped:
        ask(server, view(HELLO), api_key_env="MY_KEY")
    assert str(stopped.value).startswith("models.mine: ")
    assert len(server.requests) == 1


def test_a_refusal_without_a_key_says_where_to_name_one(server: Upstream) -> None:
    server.script.extend([error(401, "who are you")])
    with pytest.raises(UsageError, match=r"set models\.mine\.api_key_env"):
        ask(server, view(HELLO))


@pytest.mark.parametrize("status", [200, 401, 404, 500])
def test_a_server_that_repeats_the_key_does_not_get_it_into_an_error(
    server: Upstream, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    server.script.extend([error(status, f"bad key Bearer {KEY}")])
    with pytest.raises((EpisodeError, UsageError)) as failed:
        ask(server, view(HELLO), api_key_env="MY_KEY")
    shown = "".join(traceback.format_exception(failed.value))
    assert "***" in shown
    assert KEY not in shown


@pytest.mark.parametrize(
    "body",
    ["", "<html>welcome</html>", "[]", "null", {"choices": []}, {"choices": None}, []],
)
def test_an_answer_that_is_no_chat_completion_fails_the_episode(server: Upstream, body: Any) -> None:
    server.script.extend([Reply(body)])
    with pytest.raises(EpisodeError, match="without a chat completion") as failed:
        ask(server, view(HELLO))
    assert failed.value.cause == "infrastructure"


def test_a_server_that_is_not_there_or_never_answers_fails_the_episode(server: Upstream) -> None:
    gone = Upstream()
    gone.url = "http://127.0.0.1:9/v1"
    with pytest.raises(EpisodeError, match=r"infrastructure: http://127\.0\.0\.1:9/v1 cannot be reached"):
        ask(gone, view(HELLO))
    server.slow = 0.6
    server.script.append("slow")
    with pytest.raises(EpisodeError, match=r"gave no answer within 0\.2 s") as failed:
        ask(server, view(HELLO), timeout=0.2)
    assert failed.value.cause == "infrastructure"


@pytest.mark.parametrize("content", [None, "", "  \n", "<think>hm</think>", "<think>cut off"])
def test_an_empty_reply_is_a_format_failure(server: Upstream, content: str | None) -> None:
    server.script.extend([completion(content)])
    with pytest.raises(EpisodeError, match="mine said nothing") as failed:
        ask(server, view(HELLO))
    assert failed.value.cause == "format"


def test_reasoning_that_used_up_the_limit_says_so(server: Upstream) -> None:
    server.script.extend([completion("", "length", reasoning_content="hm, hm")])
    with pytest.raises(EpisodeError, match="raise max_tokens"):
        ask(server, view(HELLO))


def test_a_reply_cut_by_the_limit_is_truncated(server: Upstream) -> None:
    server.script.extend([completion("I would like to", "length")])
    assert ask(server, view(HELLO)).truncated


@pytest.mark.parametrize(
    "reply",
    [
        completion("<think>They want\nmoney.</think>\n\nNo."),
        completion("They want money.</think>No."),
        completion("<thinking>a</thinking> No. <think>b"),
        completion("No.", reasoning="They want money.", reasoning_content="They want money."),
        completion([{"type": "thinking", "thinking": "money"}, {"type": "text", "text": "No."}]),
    ],
)
def test_reasoning_is_not_said(server: Upstream, reply: Reply) -> None:
    server.script.extend([reply])
    assert ask(server, view(HELLO)).message.content == "No."


TOOL = {"type": "function", "function": {"name": "give", "parameters": {"type": "object", "properties": {}}}}


def test_tools_are_offered_and_calls_read_and_sent_back(server: Upstream) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "give", "arguments": '{"x": 1}'}}
    server.script.extend([completion(None, "tool_calls", tool_calls=[call]), completion("Done.")])
    turn = ask(server, view(HELLO, tools=(TOOL,)))
    assert turn.message == Message("assistant", "", (ToolCall("c1", "give", '{"x": 1}'),))
    ask(server, view(HELLO, turn.message, Message("tool", "ok", tool_call_id="c1"), tools=(TOOL,)))
    assert [r["tools"] for r in server.requests] == [[TOOL], [TOOL]]
    assert server.requests[1]["messages"][2]["tool_calls"] == [call]
    assert server.requests[1]["messages"][3] == {"role": "tool", "content": "ok", "tool_call_id": "c1"}


AMOUNTS = ("$0.00", "$0.50", "$1.00")


@pytest.mark.parametrize(
    ("written", "choice"),
    [
        ('{"choice": "$0.50"}', "$0.50"),
        ('Sure!\n```json\n{"choice": " $0.50 "}\n```', "$0.50"),
        ('{not json} {"why": "fair", "choice": "$0.50"} {"choice": "$0.50"}', "$0.50"),
        (" $0.50\n", "$0.50"),
        ("I give $0.50", None),
        ('{"choice": "0.50"}', None),
        ('{"choice": 0.5}', None),
        ('{"choice": ["$0.50"]}', None),
        ('{"choice": "$0.50"} or {"choice": "$1.00"}', None),
        ('{"choice": "$0.50"} or {"choice": "$5.00"}', None),
        ('{"choice": "$0.5', None),
        ('{"amount": "$0.50"}', None),
        ("{" * 3000, None),
        ("", None),
    ],
)
def test_a_choice_is_read_where_exactly_one_option_is_named(written: str, choice: str | None) -> None:
    assert read_choice(written, AMOUNTS) == choice


def test_a_choice_is_asked_for_in_private_and_answered_by_the_option_itself(server: Upstream) -> None:
    server.script.extend([completion("I would give some."), completion('{"choice": "$0.50"}')])
    turn = ask(server, view(HELLO, options=AMOUNTS, tools=(TOOL,)))
    assert turn == Turn(Message("assistant", "$0.50"), sampled_tokens=14)
    assert turn.option_probabilities is None
    first, second = server.requests
    assert [m["role"] for m in first["messages"]] == ["system", "user"]
    assert first["messages"][1]["content"].startswith("Will you give?")
    assert '["$0.00", "$0.50", "$1.00"]' in first["messages"][1]["content"]
    assert first["seed"] != second["seed"]
    assert first["tool_choice"] == "none"


def test_no_choice_after_all_tries_is_a_format_failure(server: Upstream) -> None:
    server.script.extend([completion("Some.")])
    with pytest.raises(EpisodeError, match=r"mine chose none of \$0\.00, \$0\.50, \$1\.00 in 4 tries") as failed:
        ask(server, view(HELLO, options=AMOUNTS))
    assert failed.value.cause == "format"
    assert len(server.requests) == CHOICE_RETRIES + 1


def config(url: str = "http://127.0.0.1:1/v1", **overrides: Any) -> RunConfig:
    """An endpoint in the agent's role, and in the panel beside a scripted persuadee."""
    base: dict[str, Any] = {
        "name": "endpoint",
        "environment": {"name": "persuasion", "corpus": str(CORPUS), "exchanges": 1},
        "models": {
            "mine": {"engine": "endpoint", "model": "some-model", "base_url": url, "max_retries": 0},
            "main": {"model": "lab"},
        },
        "agent": {"model": "mine"},
        "simulators": {
            "undecided": {"scripted": "undecided"},
            "by-persona": {"scripted": "by-persona"},
            "served": {"model": "mine"},
        },
        "train": {"simulators": ["undecided"], "steps": 1, "groups": 1, "group_size": 2},
        "panel": {"simulators": ["by-persona"], "tasks": 2, "split": "validation"},
    }
    return parse_config(with_overrides(base, overrides))


def persuade(request: dict[str, Any]) -> Reply:
    asked = request["messages"][-1]["content"]
    if '"choice"' in asked:
        return completion('```json\n{"choice": "$0.50"}\n```')
    return completion("<think>be kind</think>Many children suffer. Would you give a part of your payment?")


def test_an_endpoint_is_evaluated_on_a_panel_and_sits_in_one(
    server: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    server.answer = persuade
    run = config(server.url, **{"panel.simulators": ["by-persona", "served"], "models.mine.api_key_env": "MY_KEY"})
    result = evaluate(run, out=tmp_path / "run")
    arm = result.summary["arms"]["start"]
    assert arm["failure_share"] == 0
    assert set(arm["panel"]) == {"by-persona", "served"}
    assert arm["panel"]["served"]["success"] == 1.0
    assert arm["panel"]["served"]["reward"] == 0.25
    assert {h["Authorization"] for h in server.headers} == {f"Bearer {KEY}"}
    episodes = list(read_episodes(tmp_path / "run" / "episodes" / "start.jsonl.zst"))
    assert {e.agent.kind for e in episodes} == {"endpoint"}
    assert not any("<think" in t.turn.message.content for e in episodes for t in e.turns)
    files = [file for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert (tmp_path / "run" / "report.html") in files
    assert all(KEY.encode() not in file.read_bytes() for file in files)
    assert KEY not in repr(episodes)


def test_an_evaluation_stops_at_once_where_the_model_is_not_there(server: Upstream, tmp_path: Path) -> None:
    server.script.extend([error(404, "no such model")])
    with pytest.raises(UsageError, match=r"check models\.mine\.model"):
        evaluate(config(server.url, **{"rollout.concurrency": 1}), out=tmp_path / "run")
    assert len(server.requests) == 1


def test_an_evaluation_in_which_every_episode_failed_says_why(server: Upstream, tmp_path: Path) -> None:
    server.script.extend([error(503, "asleep")])
    with pytest.raises(UsageError, match=r"agent 'start': all 2 episodes failed \(infrastructure: .* answered 503"):
        evaluate(config(server.url), out=tmp_path / "run")


def test_weights_for_an_endpoint_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"agent\.model: models\.mine is an endpoint"):
        evaluate(config(), {"trained": tmp_path / "weights"}, out=tmp_path / "run")


@pytest.mark.parametrize("method", ["base", "single"])
def test_an_endpoint_cannot_be_trained_and_nothing_is_written(method: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"agent\.model: models\.mine is an endpoint, which cannot be trained"):
        train(config(method=method), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"models.mine": {"engine": "endpoint", "model": "m"}}, r"models\.mine: .* needs base_url"),
        ({"models.mine.base_url": "localhost:8000"}, r"base_url must begin with http"),
        ({"models.mine.base_url": f"https://me:{KEY}@host/v1"}, r"api_key_env"),
        ({"models.mine.base_url": f"https://host/v1?key={KEY}"}, r"api_key_env"),
        ({"models.mine.base_url": "https://host/v1/chat/completions"}, r"ends before /chat/completions"),
        ({"models.mine.api_key_env": KEY}, r"models\.mine\.api_key_env: it is the NAME"),
        ({"models.mine.api_key": KEY}, r"unknown key 'models\.mine\.api_key'"),
        ({"models.mine.device": "cuda"}, r"models\.mine: engine 'endpoint' does not read device"),
        ({"models.mine.options": {"dtype": "float32"}}, r"does not read options"),
        ({"models.mine.extra_body": {"stream": True}}, r"extra_body may not set stream"),
        ({"models.main.base_url": "http://host/v1"}, r"models\.main: engine 'local' does not read base_url"),
        ({"agent.adapter": "lab:amber"}, r"agent\.adapter: models\.mine is an endpoint"),
        ({"simulators.served.adapter": "lab:amber"}, r"simulators\.served\.adapter: models\.mine is an endpoint"),
        ({"method": "cotrain", "train.simulators": ["served"]}, r"simulators\.served is an endpoint"),
        ({"compare.arms": ["population"], "train.simulators": ["served"]}, r"simulators\.served is an endpoint"),
        ({"train.simulators": ["served"], "panel.simulators": ["served"]}, r"held out means another family"),
    ],
)
def test_a_bad_endpoint_in_a_config_gets_one_line_that_repeats_no_key(
    overrides: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        evaluate(config(**overrides), out=tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert KEY not in str(refused.value)


def test_an_endpoint_cannot_be_imitated_into() -> None:
    model = {"engine": "endpoint", "model": "m", "base_url": "http://host/v1"}
    with pytest.raises(ValueError, match="an endpoint cannot be trained"):
        ImitateConfig.model_validate({"model": model, "environment": {"name": "persuasion"}})


def test_a_resolved_config_with_an_endpoint_can_be_read_back() -> None:
    run = config(**{"models.mine.api_key_env": "MY_KEY", "models.mine.extra_body": {"top_p": 0.9}})
    assert parse_config(tomllib.loads(to_toml(run))) == run
