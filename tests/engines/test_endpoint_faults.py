"""Every way in which a chat server can fail: retried, or one clear line; never a wrong answer, never a lost count."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import time
import traceback
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from endpoints import KEY, ask, ask_many, spec
from hypothesis import given
from hypothesis import strategies as st
from upstream import REPLY_FAULTS, TRANSPORT_FAULTS, Reply, Upstream, completion, error

from unfrozen.core.errors import ContextTooLong, EpisodeError, ResumableError, UsageError
from unfrozen.engines.endpoint import Answer, Endpoint, Ledger
from unfrozen.engines.endpoint.answers import read_completion, same_model, split_reasoning
from unfrozen.engines.endpoint.failures import retry_after
from unfrozen.engines.endpoint.transport import without_key


@pytest.mark.parametrize("fault", TRANSPORT_FAULTS)
def test_a_fault_of_the_exchange_passes_on_a_further_try(fault: str) -> None:
    async def run() -> tuple[Answer, Upstream, Ledger]:
        async with (
            Upstream(script=[fault], retry_after=0.2, slow=0.3) as server,
            aclosing(Endpoint(spec(server.url, first_byte_timeout=0.15, max_retries=1))) as endpoint,
        ):
            return await ask(endpoint), server, endpoint.ledger

    answer, server, ledger = asyncio.run(run())
    assert answer.message.content
    assert server.count == 2
    total = ledger.total()
    assert total.requests == 2
    # Refused: not billed. Answered whole, though unreadable: billed as stated. Else nobody knows.
    refused = fault.startswith(("429", "5"))
    assert (total.refused, total.unknown) == (refused, not refused and fault != "not-utf8")
    if fault != "slow":  # which the server may still be writing, for nobody
        assert total.usage.completion == server.billed["completion"]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("429", "answered 429"),
        ("503", "answered 503"),
        ("reset", "broke off"),
        ("reset-body", "broke off"),
        ("slow", "no first byte within 0.15 s"),
        ("empty-body", "without a chat completion: nothing"),
        ("not-json", "without a chat completion: <html>"),
        ("truncated-json", "without a chat completion: {"),
        ("not-utf8", "not UTF-8"),
    ],
)
def test_a_fault_that_stays_fails_one_episode_with_one_clear_line(fault: str, says: str) -> None:
    async def run() -> None:
        async with (
            Upstream(script=[fault], repeat_last=True, slow=0.3) as server,
            aclosing(Endpoint(spec(server.url, first_byte_timeout=0.15, max_retries=1))) as endpoint,
        ):
            with pytest.raises(EpisodeError, match=says) as failed:
                await ask(endpoint)
            assert failed.value.cause == "infrastructure"
            assert server.url in failed.value.detail
            assert "\n" not in failed.value.detail
            assert server.count == 2

    asyncio.run(run())


def test_a_body_that_never_ends_is_cut_by_the_timeout_and_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unfrozen.engines.endpoint.transport.MOST_BYTES", 10_000)

    async def run() -> None:
        async with (
            Upstream(lambda _: "word " * 5_000) as server,
            aclosing(Endpoint(spec(server.url, max_retries=0))) as endpoint,
        ):
            with pytest.raises(EpisodeError, match="more than"):
                await ask(endpoint)

    asyncio.run(run())


def test_the_spend_is_right_to_the_token_under_twenty_percent_random_faults() -> None:
    faults = dict.fromkeys((*TRANSPORT_FAULTS, *REPLY_FAULTS), 0.2 / 17)

    async def run() -> tuple[list[Any], Upstream, Ledger]:
        async with (
            Upstream(faults=faults, seed=3, slow=0.02, retry_after=0.05) as server,
            aclosing(Endpoint(spec(server.url))) as endpoint,
        ):
            return await ask_many(endpoint, range(500)), server, endpoint.ledger

    answers, server, ledger = asyncio.run(run())
    assert len(answers) == 500
    assert server.count > 550, "the faults must have struck"
    assert not [a for a in answers if isinstance(a, EpisodeError)], "six retries outlast a fifth of bad luck"
    total = ledger.total()
    assert total.requests == server.count
    assert total.usage.prompt == server.billed["prompt"]
    assert total.usage.completion == server.billed["completion"]
    # What was generated and never arrived is known to be unknown, and bounded.
    assert total.unknown == server.lost["requests"] + server.served["reset"]
    assert total.bound.prompt + total.bound.completion >= server.lost["prompt"] + server.lost["completion"]
    assert total.refused == sum(server.served[f] for f in ("429", "429-after", "429-date", "500", "503"))


@pytest.mark.parametrize("fault", ["429-after", "429-date"])
def test_retry_after_is_honoured_by_every_request_to_the_server(fault: str) -> None:
    """The one that was refused and those that were not sent yet."""
    wait = 0.6 if fault == "429-after" else 2.0  # a date has whole seconds

    async def run() -> tuple[Upstream, float]:
        async with (
            Upstream(script=[fault], retry_after=wait) as server,
            aclosing(Endpoint(spec(server.url, max_concurrency=1))) as endpoint,
        ):
            began = time.monotonic()
            await ask_many(endpoint, range(3))
            return server, began

    server, _ = asyncio.run(run())
    first, *later = server.times
    assert min(later) - first >= wait - 1.0 if fault == "429-date" else min(later) - first >= wait


def test_a_server_that_wants_to_be_left_alone_for_long_stops_the_job_at_once_to_go_on_later() -> None:
    async def run() -> None:
        async with (
            Upstream(script=[error(429, "daily limit", Retry_After="86400")]) as server,
            aclosing(Endpoint(spec(server.url))) as endpoint,
        ):
            with pytest.raises(ResumableError, match=r"left alone for 86400 s: run the same command again then"):
                await ask(endpoint)
            assert server.count == 1
            assert (await asyncio.wait_for(ask(endpoint), 5)).message.content  # the gate is not closed till then

    asyncio.run(run())


def test_retry_after_is_read_as_seconds_and_as_a_date() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    date = format_datetime(now + timedelta(seconds=90), usegmt=True)
    assert retry_after({"Retry-After": "7"}, now) == 7.0
    assert retry_after({"Retry-After": date}, now) == 90.0
    assert retry_after({"Retry-After": format_datetime(now - timedelta(hours=1), usegmt=True)}, now) == 0.0
    assert retry_after({"Retry-After": "soon"}, now) is None
    assert retry_after({}, now) is None


def test_an_error_under_status_200_is_sorted_like_any_other() -> None:
    async def run() -> None:
        router = {"error": {"code": 429, "message": "busy"}}
        async with (
            Upstream(script=[Reply(router)]) as server,
            aclosing(Endpoint(spec(server.url))) as endpoint,
        ):
            assert (await ask(endpoint)).message.content
        async with (
            Upstream(script=[Reply({"error": {"code": 402, "message": "no credit"}})]) as server,
            aclosing(Endpoint(spec(server.url))) as endpoint,
        ):
            with pytest.raises(UsageError, match="nothing left to spend"):
                await ask(endpoint)

    asyncio.run(run())


def rejecting(field: str, message: str, **detail: Any) -> Any:
    """A model that answers requests without `field` only."""

    def answer(request: dict[str, Any]) -> Any:
        return error(400, message, **detail) if field in request else "Yes."

    return answer


@pytest.mark.parametrize(
    ("field", "message", "detail"),
    [
        ("temperature", "Unsupported parameter: 'temperature' is not supported with this model.", {}),
        ("temperature", "Only the default (1) value is supported.", {"param": "temperature"}),
        ("temperature", "use another", {"param": "temperature", "code": "unsupported_value"}),
        ("seed", "1 validation error: seed: Extra inputs are not permitted", {}),
        ("logprobs", "logprobs is not supported by this model", {}),
        ("return_token_ids", "Unrecognized request argument supplied: return_token_ids", {}),
    ],
)
def test_a_rejected_field_is_learned_once_and_named_in_the_log(
    field: str, message: str, detail: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> tuple[Upstream, Endpoint]:
        async with (
            Upstream(rejecting(field, message, **detail)) as server,
            aclosing(Endpoint(spec(server.url, logprobs=True, token_ids=True, max_retries=0))) as endpoint,
        ):
            assert (await ask(endpoint)).message.content == "Yes."
            assert (await ask(endpoint)).message.content == "Yes."
            return server, endpoint

    with caplog.at_level(logging.WARNING, "unfrozen"):
        server, endpoint = asyncio.run(run())
    assert [field in request for request in server.requests] == [True, False, False]
    assert endpoint.capabilities().rejected == {field}
    lines = [r.getMessage() for r in caplog.records if field in r.getMessage() and "rejects" in r.getMessage()]
    assert lines == [f"models.mine, model 'some-model': it rejects {field!r}, which is no longer sent"]
    assert (
        endpoint.ledger.summary()["models"]["some-model"]["notes"][0]
        == f"it rejects {field!r}, which is no longer sent"
    )


@pytest.mark.parametrize(
    ("said", "detail"),
    [
        ("This response_format type is unavailable now: json_schema is not supported", {}),
        ("Invalid parameter: 'response_format' of type 'json_schema'", {"code": "unsupported_parameter"}),
    ],
)
def test_a_server_that_holds_no_reply_to_a_form_stops_the_run_and_names_the_setting(
    said: str, detail: dict[str, Any]
) -> None:
    async def run() -> None:
        async with (
            Upstream(lambda _: error(400, said, **detail)) as server,
            aclosing(Endpoint(spec(server.url))) as endpoint,
        ):
            with pytest.raises(UsageError, match="take `constrained` away"):
                await ask(endpoint)

    asyncio.run(run())


def test_requests_that_were_under_way_when_a_field_was_learned_are_repeated_without_it() -> None:
    async def run() -> int:
        rejects = rejecting("temperature", "temperature is not supported")
        async with (
            Upstream(rejects, latency=0.02) as server,
            aclosing(Endpoint(spec(server.url, max_retries=0))) as endpoint,
        ):
            answers = await ask_many(endpoint, range(8))
            assert all(isinstance(a, Answer) for a in answers)
            return server.count

    assert 9 <= asyncio.run(run()) <= 12, "one refusal each for those that were under way, none later"


@pytest.mark.parametrize("key", ["max_tokens", "max_completion_tokens"])
def test_a_limit_goes_by_its_other_name_where_the_first_is_rejected(key: Any) -> None:
    other = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}[key]
    said = f"Unsupported parameter: '{key}' is not supported with this model. Use '{other}' instead."

    async def run() -> dict[str, Any]:
        async with (
            Upstream(rejecting(key, said)) as server,
            aclosing(Endpoint(spec(server.url, max_tokens_key=key))) as endpoint,
        ):
            await ask(endpoint, max_tokens=33)
            return server.requests[-1]

    request = asyncio.run(run())
    assert (request.get(other), key in request) == (33, False)


def test_a_model_that_rejects_whatever_it_is_sent_is_not_asked_for_ever() -> None:
    async def run() -> int:
        async with (
            Upstream(lambda _: error(400, "max_tokens, max_completion_tokens: not supported")) as server,
            aclosing(Endpoint(spec(server.url))) as endpoint,
        ):
            with pytest.raises(EpisodeError, match="answered 400"):
                await ask(endpoint)
            return server.count

    assert asyncio.run(run()) == 3


def test_a_limit_that_is_too_high_is_no_rejected_field() -> None:
    async def run() -> None:
        said = "max_tokens is too large: 40. This model supports at most 10 completion tokens."
        async with (
            Upstream(lambda _: error(400, said, param="max_tokens", code="invalid_value")) as server,
            aclosing(Endpoint(spec(server.url))) as endpoint,
        ):
            with pytest.raises(EpisodeError, match="too large"):
                await ask(endpoint)
            assert server.count == 1

    asyncio.run(run())


@pytest.mark.parametrize(
    "refusal",
    [
        error(400, "too long", code="context_length_exceeded"),
        error(400, "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens."),
        error(400, "the request exceeds the available context size, try increasing it"),
        error(400, "prompt is too long: 210000 tokens > 200000 maximum"),
        error(413, "input exceeds the context window"),
    ],
)
def test_a_talk_that_no_longer_fits_is_said_as_such_and_not_tried_again(refusal: Reply) -> None:
    async def run() -> None:
        async with Upstream(script=[refusal]) as server, aclosing(Endpoint(spec(server.url))) as endpoint:
            with pytest.raises(ContextTooLong):
                await ask(endpoint)
            assert server.count == 1

    asyncio.run(run())


def test_a_server_that_accepts_no_connection_is_given_up_in_time_and_bills_nothing() -> None:
    """The queue of a listening socket is full: the kernel answers no further handshake."""
    with socket.socket() as listening, socket.socket() as first, socket.socket() as second:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for client in (first, second):
            client.setblocking(False)
            client.connect_ex(listening.getsockname())
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"

        async def run() -> Ledger:
            async with aclosing(Endpoint(spec(url, connect_timeout=0.2, max_retries=0))) as endpoint:
                with pytest.raises(EpisodeError, match=r"cannot be reached within 0\.2 s"):
                    await ask(endpoint)
                return endpoint.ledger

        total = asyncio.run(run()).total()
    assert (total.refused, total.unknown) == (1, 0)


def test_a_proxy_that_the_environment_names_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> Upstream:
        async with Upstream() as server:
            monkeypatch.setenv("http_proxy", server.url.removesuffix("/v1"))
            monkeypatch.delenv("no_proxy", raising=False)
            monkeypatch.delenv("NO_PROXY", raising=False)
            async with aclosing(Endpoint(spec("http://chat.example/v1", max_retries=0))) as endpoint:
                assert (await ask(endpoint)).message.content
            return server

    server = asyncio.run(run())
    assert server.headers[0]["Host"] == "chat.example"


def test_a_redirect_is_not_followed_with_the_key() -> None:
    async def run() -> None:
        async with Upstream() as other:
            moved = Reply("", 301, {"Location": f"{other.url}/chat/completions"})
            async with Upstream(script=[moved]) as server, aclosing(Endpoint(spec(server.url))) as endpoint:
                with pytest.raises(UsageError, match=r"models\.mine\.base_url has moved"):
                    await ask(endpoint)
            assert other.count == 0

    asyncio.run(run())


def test_another_models_name_is_recorded_once_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def run(refuse: bool) -> Endpoint:
        async with (
            Upstream(script=["other-model"], repeat_last=True) as server,
            aclosing(Endpoint(spec(server.url, refuse_other_model=refuse, max_retries=1))) as endpoint,
        ):
            if refuse:
                with pytest.raises(EpisodeError, match="asked for model 'some-model' and answered as 'quite-another-"):
                    await ask(endpoint)
            else:
                assert (await ask(endpoint)).model == "quite-another-model"
                assert (await ask(endpoint, seed=1)).message.content
            return endpoint

    with caplog.at_level(logging.WARNING, "unfrozen"):
        endpoint = asyncio.run(run(False))
        asyncio.run(run(True))
    assert endpoint.ledger.summary()["models"]["some-model"]["notes"] == ["it answered as 'quite-another-model'"]
    assert len([r for r in caplog.records if "answered as" in r.getMessage()]) == 2, "once for each endpoint"


@pytest.mark.parametrize(
    ("asked", "answered", "same"),
    [
        ("gpt-4o", "gpt-4o-2024-08-06", True),
        ("openai/gpt-4o", "gpt-4o", True),
        ("Qwen/Qwen3-4B", "qwen3-4b", True),
        ("llama3.2:1b", "llama3.2:1b", True),
        ("llama3.2", "llama3.2:latest", True),
        ("gpt-4", "gpt-4-0613", True),
        ("models/qwen", "/srv/models/qwen/", True),
        ("gpt-4o", "gpt-3.5-turbo", False),
        ("gpt-4o", "gpt-4o-mini", False),
        ("qwen3-4b", "qwen3-4b-thinking", False),
    ],
)
def test_a_dated_or_prefixed_name_is_the_same_model_and_a_sister_is_not(asked: str, answered: str, same: bool) -> None:
    assert same_model(asked, answered) is same


@pytest.mark.parametrize("fault", ["500", "not-json", "429-after"])
def test_a_key_that_the_server_repeats_reaches_no_log_and_no_error(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)

    async def run() -> Answer:
        bad = error({"500": 500, "not-json": 200, "429-after": 429}[fault], f"you sent Bearer {KEY}")
        other = completion("Yes.", model=f"model-of-{KEY}")
        async with (
            Upstream(script=[bad, other, completion(f"Your key is {KEY}."), bad]) as server,
            aclosing(Endpoint(spec(server.url, api_key_env="MY_KEY", max_retries=1))) as endpoint,
        ):
            await ask(endpoint)
            answer = await ask(endpoint)
            server.repeat_last = True
            with pytest.raises(EpisodeError) as failed:
                await ask(endpoint)
            assert KEY not in "".join(traceback.format_exception(failed.value))
            assert KEY not in str(endpoint.ledger.summary())
            return answer

    with caplog.at_level(logging.DEBUG):
        answer = asyncio.run(run())
    assert answer.message.content == "Your key is ***."
    assert KEY not in caplog.text


def test_a_placeholder_that_a_local_server_wants_for_a_key_changes_no_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "EMPTY")

    async def run() -> Answer:
        async with (
            Upstream(lambda _: "The shelf is EMPTY.") as server,
            aclosing(Endpoint(spec(server.url, api_key_env="MY_KEY"))) as endpoint,
        ):
            return await ask(endpoint)

    assert asyncio.run(run()).message.content == "The shelf is EMPTY."


def test_a_key_is_found_in_either_spelling_of_its_slashes() -> None:
    assert without_key(rb"a/long/secret/key a\/long\/secret\/key", "a/long/secret/key", 200) == b"*** ***"


@pytest.mark.parametrize(
    ("text", "said", "thought"),
    [
        ("<think>They want\nmoney.</think>\n\nNo.", "No.", "They want\nmoney."),
        ("They want money.</think>No.", "No.", "They want money."),
        ("<thinking>a</thinking> No. <think>b", "No.", "a\nb"),
        ("<scratchpad>goal: get a refund</scratchpad>Hello", "Hello", "goal: get a refund"),
        ("goal: get a refund</scratchpad> Hello <think>hm</think>", "Hello", "goal: get a refund\nhm"),
        ("2 < 3 > 1", "2 < 3 > 1", ""),
        ("<think></think>No.", "No.", ""),
        ("", "", ""),
    ],
)
def test_reasoning_is_split_from_what_is_said(text: str, said: str, thought: str) -> None:
    assert split_reasoning(text) == (said, thought)


@given(st.text(st.characters(exclude_characters="<>")))
def test_text_without_reasoning_is_kept_whole(text: str) -> None:
    assert split_reasoning(text) == (text.strip(), "")


@given(st.lists(st.tuples(st.sampled_from(["think", "thinking", "scratchpad"]), st.text("abc \n")), max_size=4))
def test_no_reasoning_block_is_ever_said(blocks: list[tuple[str, str]]) -> None:
    text = "".join(f"<{tag}>{thought}</{tag}>said" for tag, thought in blocks)
    assert split_reasoning(text)[0] == "said" * len(blocks)


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_fields_are_kept_beside_the_message(field: str) -> None:
    answer = read_completion(completion("<think>b</think>No.", **{field: "a"}).body)
    assert (answer.message.content, answer.reasoning) == ("No.", "a\nb")


def test_logprobs_and_token_ids_are_read_where_they_are_stated() -> None:
    record = completion(
        "No.", logprobs={"content": [{"token": "No", "logprob": -0.5}, {"token": ".", "logprob": -0.1}]}
    )
    record.body["choices"][0]["token_ids"] = [7, 9]
    answer = read_completion(record.body)
    assert (answer.logprobs, answer.token_ids) == ((-0.5, -0.1), (7, 9))
    plain = read_completion(completion("No.", logprobs={"content": [{"logprob": None}]}).body)
    assert (plain.logprobs, plain.token_ids) == ((), ())


def test_what_a_model_gives_is_known_after_it_was_asked() -> None:
    async def run() -> None:
        with_logprobs = completion("No.", logprobs={"content": [{"token": "No.", "logprob": -0.5}]})
        async with (
            Upstream(lambda _: with_logprobs) as server,
            aclosing(Endpoint(spec(server.url, logprobs=True, token_ids=True))) as endpoint,
        ):
            assert endpoint.capabilities().logprobs is None
            await ask(endpoint)
            assert (server.requests[0]["logprobs"], server.requests[0]["return_token_ids"]) == (True, True)
            assert (endpoint.capabilities().logprobs, endpoint.capabilities().token_ids) == (True, False)

    asyncio.run(run())


@pytest.mark.parametrize(
    "usage", [None, {}, {"prompt_tokens": None}, {"prompt_tokens": "many"}, {"prompt_tokens": 10**400}, "much"]
)
def test_odd_usage_is_never_an_error(usage: Any) -> None:
    record = {"choices": [{"message": {"content": "No."}}], "usage": usage}
    answer = read_completion(record)
    assert (answer.message.content, answer.tokens) == ("No.", 0)


def test_a_part_without_text_says_nothing_and_numbers_without_bounds_are_no_completion() -> None:
    def read(**choice: Any) -> Answer:
        return read_completion({"choices": [{"message": {"content": "No."}, **choice}]})

    parts = [{"type": "text", "text": None}, {"type": "text", "text": "Yes."}]
    assert read(message={"content": parts}).message.content == "Yes."
    for odd in ({"token_ids": [math.inf]}, {"logprobs": {"content": [{"logprob": 10**400}]}}):
        with pytest.raises(ValueError, match="not a chat completion"):
            read(**odd)
