"""`Endpoint`: one model on one server, asked as carefully as it deserves.

One `ask` goes through, in this order: the response cache, a place in the gate, the rates per minute, the budget,
the exchange itself, the reading of the answer. What may pass is tried again after a pause with jitter, or as long
as the server says; a field that the model does not know is left out from then on and named in the log.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from unfrozen.core.errors import EpisodeError, ResumableError
from unfrozen.engines.endpoint.answers import Answer, Usage, same_model
from unfrozen.engines.endpoint.anthropic import AnthropicTransport
from unfrozen.engines.endpoint.cache import ResponseCache, request_key
from unfrozen.engines.endpoint.failures import (
    OVERLOADED,
    Late,
    Passing,
    Unsent,
    error_of,
    refusal,
    rejected_field,
    retry_after,
    without_field,
)
from unfrozen.engines.endpoint.ledger import Ledger
from unfrozen.engines.endpoint.limits import AdaptiveGate, Rate
from unfrozen.engines.endpoint.spec import EndpointSpec
from unfrozen.engines.endpoint.transport import OpenAITransport, Reply, Transport

_LOG = logging.getLogger(__name__)
LONGEST_WAIT = 600.0
"""A server that asks for more seconds than this (a daily limit) is not waited for: the job stops, to go on then."""
_PAUSE = wait_random_exponential(multiplier=0.5, max=30.0)
"""Full jitter: seconds drawn from [0, 0.5 * 2**n), so that requests that failed together come back apart."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a model is known to give and to take; None where it has not been asked.

    Log-probabilities and token ids come as the server states them and are kept in the record. Nothing is trained
    on them: nobody here can check which weights and which template they belong to.
    """

    logprobs: bool | None
    token_ids: bool | None
    rejected: frozenset[str]
    """Fields that it was found to reject, which are no longer sent."""


@dataclass(frozen=True, slots=True)
class _Exchange:
    """What was sent, without the fields that were left out, and what came back; `record` is its JSON, or None."""

    reply: Reply
    record: Any
    sent: Mapping[str, Any]
    left_out: tuple[str, ...]


class Endpoint:
    """One model on one server. Belongs to one event loop; all its speakers share its limits.

    `ledger` counts and limits the spend (default: one of its own, without a budget). `cache` answers what was asked
    before: give one only for a model that does not change.

    Raises UsageError where the SDK that its dialect needs is not installed, or the variable that should hold the
    key is not set, and ConfigError where the budget is in money and the model has no price.
    """

    def __init__(self, spec: EndpointSpec, ledger: Ledger | None = None, cache: ResponseCache | None = None) -> None:
        self.spec = spec
        self.ledger = ledger or Ledger()
        self.ledger.admit(spec.model, f"{spec.section}.model")
        kind = AnthropicTransport if spec.api == "anthropic" else OpenAITransport
        self._transport: Transport = kind(spec, spec.read_key())
        self._cache = cache
        self._gate = AdaptiveGate(spec.max_concurrency)
        self._requests = Rate(spec.requests_per_minute)
        self._tokens = Rate(spec.tokens_per_minute)
        self._rejected: dict[str, None] = {}
        self._gives: dict[str, bool] = {}
        self._retrying = AsyncRetrying(
            retry=retry_if_exception_type(Passing),
            stop=stop_after_attempt(spec.max_retries + 1),
            wait=_pause,
            reraise=True,
        )

    async def ask(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any], max_tokens: int) -> Answer:
        """Send one request, in OpenAI's form; `options` are its further fields.

        Raises UsageError where no further request could do better, BudgetSpent where it could exceed the budget,
        ResumableError where the server wants none for longer than `LONGEST_WAIT`, and
        EpisodeError("infrastructure", ...) where this one failed after its retries. An answer that says nothing is
        returned as it is.
        """
        spec = self.spec
        body = {**spec.extra_body, "model": spec.model, "messages": list(messages), **options}
        body[spec.max_tokens_key] = max_tokens
        if spec.logprobs:
            body["logprobs"] = True
        if spec.token_ids:
            body["return_token_ids"] = True
        key = request_key(spec.base_url, spec.api, body) if self._cache is not None else b""
        kept = self._kept(key)
        if kept is not None and not (spec.refuse_other_model and self._is_others(kept)):
            self.ledger.hit(spec.model)
            return replace(kept, hit=True)
        try:
            answer, record = await self._try(body, max_tokens)
        except Passing as error:
            answer, record = await self._try_again(body, max_tokens, error)
        if self._cache is not None and not answer.silent:
            self._cache.put(key, record)
        return answer

    def _kept(self, key: bytes) -> Answer | None:
        """The answer that the cache has; None where it has none, or one that is damaged."""
        record = None if self._cache is None else self._cache.get(key)
        if record is None:
            return None
        try:
            return self._transport.read(record)
        except ValueError:
            self._note("the response cache holds answers that are none; they were asked for again")
            return None

    def capabilities(self) -> Capabilities:
        """What is known of this model by now."""
        return Capabilities(self._gives.get("logprobs"), self._gives.get("token_ids"), frozenset(self._rejected))

    @property
    def concurrency(self) -> int:
        """How many requests at once the gate lets through now."""
        return self._gate.limit

    async def aclose(self) -> None:
        """Close the connections that were kept open for further requests."""
        await self._transport.aclose()

    async def _try_again(self, body: Mapping[str, Any], max_tokens: int, error: Passing) -> tuple[Answer, Any]:
        """The further tries. The first one is told to tenacity here: most requests need no other, and save its cost."""
        failed = [error]

        async def attempt() -> tuple[Answer, Any]:
            if failed:
                raise failed.pop()
            return await self._try(body, max_tokens)

        try:
            # A copy: calls that run at once would share the state of one tenacity object.
            return await self._retrying.copy()(attempt)
        except Passing as last:
            raise EpisodeError("infrastructure", last.detail) from None

    async def _try(self, body: Mapping[str, Any], max_tokens: int) -> tuple[Answer, Any]:
        """An answer and its JSON. A rejected field is left out at once; that is not a try of its own."""
        while True:
            exchange = await self._exchange(body, max_tokens)
            reply, record = exchange.reply, exchange.record
            if reply.status == 200 and not _is_error(record):
                return self._answer(reply, record), record
            error = error_of(record)
            field = rejected_field(_status(reply, error), _said(error, reply), error, exchange.sent)
            if field is None or field in exchange.left_out:
                raise self._refusal(reply, error)
            self._rejected[field] = None
            self._note(f"it rejects {field!r}, which is no longer sent")

    async def _exchange(self, body: Mapping[str, Any], max_tokens: int) -> _Exchange:
        """One request within all limits, and what was billed for it."""
        most = Usage(_prompt_bound(body), max_tokens)
        async with self._gate:
            await self._requests.take(1)
            await self._tokens.take(most.prompt + most.completion)
            # Only now: while this one waited, another may have learned what is rejected.
            left_out = tuple(self._rejected)
            for name in left_out:
                body = without_field(body, name)
            async with self.ledger.request(self.spec.model, most) as bill:
                began = time.monotonic()
                try:
                    reply = await self._transport.send(body)
                except Unsent:
                    bill.refused = True
                    raise
                except Late:
                    self._gate.overloaded(began)
                    raise
                record = _json(reply.data)
                if reply.status == 200:
                    bill.used = self._transport.usage(record)
                    self._gate.answered(began, time.monotonic() - began, bill.tokens)
                else:
                    bill.refused = True
                    self._slow_down(reply, began)
            if bill.refused or bill.used:
                self._tokens.give_back(most.prompt + most.completion - bill.tokens)
        return _Exchange(reply, record, body, left_out)

    def _slow_down(self, reply: Reply, began: float) -> None:
        """Heed a server that has too much to do: fewer requests at once, and none before it wants some."""
        if reply.status in OVERLOADED:
            self._gate.overloaded(began)
        wait = retry_after(reply.headers)
        if wait and wait <= LONGEST_WAIT:
            self._gate.close_for(wait)

    def _answer(self, reply: Reply, record: Any) -> Answer:
        """Read an answer with status 200. Raises Passing where it is none, or another model's and those are refused."""
        spec = self.spec
        try:
            reply.data.decode()
            answer = self._transport.read(record)
        except UnicodeDecodeError:
            raise Passing(f"{spec.base_url} answered with bytes that are not UTF-8") from None
        except ValueError:
            start = _line(reply.data) or "nothing"
            raise Passing(f"{spec.base_url} answered 200 without a chat completion: {start}") from None
        if self._is_others(answer):
            self._note(f"it answered as {answer.model!r}")
            if spec.refuse_other_model:
                raise Passing(f"{spec.base_url} was asked for model {spec.model!r} and answered as {answer.model!r}")
        for name, wanted, given in (
            ("logprobs", spec.logprobs, answer.logprobs),
            ("token_ids", spec.token_ids, answer.token_ids),
        ):
            if wanted and not answer.silent:
                self._gives[name] = bool(given)
                if not given:
                    self._note(f"it was asked for {name} and states none")
        return answer

    def _is_others(self, answer: Answer) -> bool:
        return bool(answer.model) and not same_model(self.spec.model, answer.model)

    def _refusal(self, reply: Reply, error: Mapping[str, Any]) -> Exception:
        """What a request that was not answered comes to."""
        wait = retry_after(reply.headers)
        status, code = _status(reply, error), str(error.get("code") or "")
        found = refusal(self.spec, status, code, _said(error, reply), wait, reply.status)
        if isinstance(found, Passing) and wait is not None and wait > LONGEST_WAIT:
            return ResumableError(
                f"{self.spec.section}: {found.detail}; it asks to be left alone for {wait:g} s: run the same command "
                "again then"
            )
        return found

    def _note(self, text: str) -> None:
        """Say something about the model once, in the log and in the summary."""
        if self.ledger.note(self.spec.model, text):
            _LOG.warning("%s, model %r: %s", self.spec.section, self.spec.model, text)


def _pause(state: RetryCallState) -> float:
    """Seconds before the next try: as the server said, and some more, so that not all come at that moment."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.wait if isinstance(error, Passing) else None
    return (asked or 0.0) + _PAUSE(state)


def _prompt_bound(body: Mapping[str, Any]) -> int:
    """Tokens that the prompt will hardly exceed: a token has about four bytes of UTF-8, and three are counted."""
    size = sum(len(str(m.get("content") or "").encode(errors="replace")) + 12 for m in body["messages"])
    extra = (
        json.dumps([body.get("tools"), *(m.get("tool_calls") for m in body["messages"])]) if _has_tools(body) else ""
    )
    return (size + len(extra)) // 3 + 8


def _has_tools(body: Mapping[str, Any]) -> bool:
    return bool(body.get("tools")) or any(m.get("tool_calls") for m in body["messages"])


def _json(data: bytes) -> Any:
    """The JSON of a body, with U+FFFD where it is not UTF-8 (its usage may still be read); None where it is none."""
    try:
        return json.loads(data.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None


def _is_error(record: Any) -> bool:
    """Whether an answer is an error in spite of its status, as some routers send them."""
    return isinstance(record, Mapping) and bool(record.get("error")) and not record.get("choices")


def _status(reply: Reply, error: Mapping[str, Any]) -> int:
    """The status that an error means: under 200 it may state one itself."""
    code = error.get("code")
    if reply.status == 200:
        return code if isinstance(code, int) and 400 <= code < 600 else 500
    return reply.status


def _said(error: Mapping[str, Any], reply: Reply) -> str:
    said = error.get("message") or error.get("detail")
    return _line(said.encode(errors="replace") if isinstance(said, str) else reply.data)


def _line(data: bytes) -> str:
    """The start of a text on one line."""
    return " ".join(data.decode(errors="replace").split())[:200]
