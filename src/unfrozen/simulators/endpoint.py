"""A speaker that is a model behind an OpenAI-compatible chat server: text in, text out.

An agent under evaluation, a frozen simulator or a panel member can be one. Nothing of it can be trained: there
are no token ids, so its view's stream stays empty. `Endpoint` is one model on one server and sorts its errors:
what the user has to mend (key, address, model name, an unknown parameter) stops the run; what may pass (after
the SDK's own retries) fails one episode. `EndpointSpeaker` is a role played by it.

The key is read from an environment variable and goes nowhere but into the request's header: error texts are
scrubbed of it, for there are servers that repeat it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from unfrozen.core.episodes import SpeakerInfo, Turn
from unfrozen.core.errors import EpisodeError, UnfrozenError, UsageError
from unfrozen.core.messages import Message, ToolCall
from unfrozen.core.seeds import derive_seed
from unfrozen.simulators.protocol import View

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

TokenLimitKey = Literal["max_tokens", "max_completion_tokens"]
OWN_FIELDS = frozenset(
    {"model", "messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "temperature", "seed"}
    | {"n", "stream"}
)
"""Fields of a request that the speaker sets or depends on; `extra_body` may have none of them."""

CHOICE = (
    'Answer with JSON only, in this form: {{"choice": "..."}}. The choice is exactly one of these, character '
    "for character: {options}"
)
CHOICE_RETRIES = 3
_CHOICE_TOKENS = 64
"""Room for the JSON around a chosen option; an option has at most as many tokens as characters."""

_NO_KEY = "none"
"""Sent where no key is named: without one the SDK would take OPENAI_API_KEY, and hand it to a stranger."""

_REFUSED = (401, 403)
_NOT_THERE = (404, 405)
_HOPELESS_CODES = frozenset(
    {"model_not_found", "invalid_model", "unsupported_parameter", "unsupported_value", "unknown_parameter"}
    | {"insufficient_quota", "invalid_api_key"}
)
"""Error codes that mean the same for every request, whatever status they come with."""
_NO_SUCH_MODEL = re.compile(r"\bmodel\b.*(not found|not exist|not a valid)|(invalid|unknown|no such) model", re.I)

_REASONING = re.compile(r"<(think|thinking)>.*?(?:</\1>|\Z)", re.DOTALL)
_REASONING_BEFORE = re.compile(r"\A.*</think(?:ing)?>", re.DOTALL)
"""Some chat templates write the opening tag themselves, so that a reply begins in the middle of the reasoning."""


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """What the config says of one model on a server. `section` is its name there ("models.judge"), for errors.

    `timeout` is in seconds a request; `max_retries` further tries follow a connection error, a timeout, or
    status 408, 409, 429 or 5xx, after a growing pause or as long as the server's Retry-After says.
    """

    model: str
    base_url: str
    section: str = "models.main"
    api_key_env: str | None = None
    timeout: float = 120.0
    max_retries: int = 4
    max_tokens_key: TokenLimitKey = "max_tokens"
    extra_body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server answered: the message without reasoning, why it ended, and the tokens it was billed for."""

    message: Message
    finish: str
    tokens: int


class Endpoint:
    """One model on one server. Belongs to one event loop; several speakers may share it.

    Raises UsageError where the extra is not installed, or the variable that should hold the key is not set.
    """

    def __init__(self, spec: EndpointSpec) -> None:
        self.spec = spec
        self._key = _read_key(spec)
        self._client = _client(spec, self._key)

    async def ask(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any], max_tokens: int) -> Answer:
        """Send one request; `options` are its further fields.

        Raises UsageError where no further request could do better, and EpisodeError("infrastructure", ...)
        where this one failed after its retries, or was answered with something else than a chat completion.
        """
        import httpx
        import openai

        spec = self.spec
        body = {**spec.extra_body, "model": spec.model, "messages": list(messages), **options}
        body[spec.max_tokens_key] = max_tokens
        try:
            response = await self._client.post("/chat/completions", body=body, cast_to=httpx.Response)
        except openai.APITimeoutError:
            raise EpisodeError("infrastructure", f"{spec.base_url} gave no answer within {spec.timeout:g} s") from None
        except openai.APIConnectionError as error:
            cause = self._line(str(error.__cause__ or error))
            raise EpisodeError("infrastructure", f"{spec.base_url} cannot be reached: {cause}") from None
        except openai.APIStatusError as error:
            # `from None`: the SDK's error holds the request, and with it the key.
            raise self._refusal(error) from None
        try:
            return read_answer(json.loads(response.text))
        except ValueError:
            start = self._line(response.text)
            raise EpisodeError(
                "infrastructure", f"{spec.base_url} answered {response.status_code} without a chat completion: {start}"
            ) from None

    async def aclose(self) -> None:
        """Close the connections that were kept open for further requests."""
        await self._client.close()

    def _refusal(self, error: APIStatusError) -> UnfrozenError:
        """A UsageError with the way out where every request would meet this error, else an EpisodeError."""
        spec, status = self.spec, error.status_code
        said = self._line(_server_text(error))
        line = f"{spec.base_url} answered {status} for model {spec.model!r}: {said}"
        code = str(error.code or "")
        if status in _REFUSED or code == "invalid_api_key":
            way_out = (
                f"check the key in ${spec.api_key_env}"
                if spec.api_key_env
                else f"set {spec.section}.api_key_env to the name of the variable that holds the key"
            )
        elif status in _NOT_THERE or (status in (400, 422) and _NO_SUCH_MODEL.search(said)):
            way_out = f"check {spec.section}.model and {spec.section}.base_url (which often ends in /v1)"
        elif status == 402 or code == "insufficient_quota":
            way_out = "the account has nothing left to spend"
        elif code in _HOPELESS_CODES:
            way_out = f"check {spec.section}.model, max_tokens_key and extra_body"
        else:
            return EpisodeError("infrastructure", line)
        return UsageError(f"{spec.section}: {line}; {way_out}")

    def _line(self, text: str) -> str:
        """The start of a text on one line, without the key."""
        safe = text.replace(self._key, "***") if self._key else text
        return " ".join(safe.split())[:200]


class EndpointSpeaker:
    """Plays a role with an `Endpoint`. Seeds are passed on; whether they are honoured is the server's affair."""

    def __init__(self, endpoint: Endpoint, info: SpeakerInfo, max_tokens: int, temperature: float = 1.0) -> None:
        self.endpoint = endpoint
        self.info = info
        self.max_tokens = max_tokens
        self.temperature = temperature

    async def reply(self, view: View, seed: int) -> Turn:
        """Answer the cue, with text, tool calls, or one of its options.

        Raises EpisodeError("format") where the reply is empty or no option is chosen; else as `Endpoint.ask`.
        """
        if view.cue.options:
            return await self._choose(view, seed)
        limit = view.cue.max_tokens or self.max_tokens
        options = self._options(seed, view.start.tools)
        answer = await self.endpoint.ask(_request_messages(view), options, limit)
        if not (answer.message.content or answer.message.tool_calls):
            cut = f": {limit} tokens were not enough for reasoning and reply; raise max_tokens"
            raise EpisodeError(
                "format", f"{self.info.label} said nothing{cut if answer.finish == 'length' else f' ({answer.finish})'}"
            )
        return Turn(answer.message, truncated=answer.finish == "length", sampled_tokens=answer.tokens)

    async def _choose(self, view: View, seed: int) -> Turn:
        """Ask for one of the options as JSON. Only the chosen text enters the conversation."""
        options = view.cue.options
        instruction = CHOICE.format(options=json.dumps(options, ensure_ascii=False))
        messages = _with_instruction(_request_messages(view), instruction)
        limit = view.cue.max_tokens or max(self.max_tokens, _CHOICE_TOKENS + max(map(len, options)))
        tokens, written = 0, ""
        for attempt in range(CHOICE_RETRIES + 1):
            fields = self._options(derive_seed(seed, "choice", attempt), view.start.tools)
            if view.start.tools:
                fields["tool_choice"] = "none"
            answer = await self.endpoint.ask(messages, fields, limit)
            tokens += answer.tokens
            written = answer.message.content
            choice = read_choice(written, options)
            if choice is not None:
                return Turn(Message("assistant", choice), sampled_tokens=tokens)
        raise EpisodeError(
            "format",
            f"{self.info.label} chose none of {', '.join(options)} in {CHOICE_RETRIES + 1} tries; "
            f"the last answer was {written[:80]!r}",
        )

    def _options(self, seed: int, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        # 31 bits: servers differ in how large a seed may be.
        options: dict[str, Any] = {"temperature": self.temperature, "seed": seed & 0x7FFFFFFF}
        if tools:
            options["tools"] = list(tools)
        return options


def read_answer(record: Any) -> Answer:
    """Read a chat completion. Raises ValueError where it is none.

    Reasoning, in a field of its own or between <think> tags, is not part of what is said.
    """
    try:
        choice = record["choices"][0]
        message = choice["message"]
        calls = tuple(
            ToolCall(str(call.get("id") or f"call_{i}"), str(call["function"]["name"]), _arguments(call["function"]))
            for i, call in enumerate(message.get("tool_calls") or ())
        )
        usage = record.get("usage") or {}
        said = without_reasoning(_text(message.get("content")))
        finish = str(choice.get("finish_reason") or "stop")
        return Answer(Message("assistant", said, calls), finish, int(usage.get("completion_tokens") or 0))
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"not a chat completion: {error}") from error


def without_reasoning(text: str) -> str:
    """What is said outside of reasoning blocks; a block that was cut off reaches to the end."""
    return _REASONING_BEFORE.sub("", _REASONING.sub("", text)).strip()


def read_choice(written: str, options: Sequence[str]) -> str | None:
    """The option that an answer names: {"choice": "..."} anywhere in it, or the bare option and nothing else.

    None where there is none, where it is not exactly an option, or where the answer names several.
    """
    known = {option.strip(): option for option in options}
    bare = written.strip()
    if bare in known:
        return known[bare]
    named = {value.strip() if isinstance(value, str) else None for value in _choices(bare)}
    if len(named) != 1:
        return None
    return known.get(named.pop() or "")


def _choices(written: str) -> Iterator[Any]:
    """The value of "choice" in every JSON object that has one."""
    decoder = json.JSONDecoder()
    position = written.find("{")
    while position >= 0:
        try:
            value, end = decoder.raw_decode(written, position)
        except (json.JSONDecodeError, RecursionError):
            end = position + 1
        else:
            if "choice" in value:
                yield value["choice"]
        position = written.find("{", end)


def _text(content: Any) -> str:
    """Content as text: a string, null, or a list of parts, of which reasoning is another kind than text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(str(part["text"]) for part in content if part.get("type") == "text")


def _arguments(function: Mapping[str, Any]) -> str:
    """Arguments as JSON text; some servers send the object itself."""
    arguments = function.get("arguments")
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)


def _request_messages(view: View) -> list[dict[str, Any]]:
    start = (Message("system", view.start.system),) if view.start.system else ()
    return [message.to_openai() for message in (*start, *view.messages)]


def _with_instruction(messages: Sequence[Mapping[str, Any]], text: str) -> list[Mapping[str, Any]]:
    """Append an instruction, to the last message where that is the user's: some templates insist on turns."""
    if messages and messages[-1]["role"] == "user":
        return [*messages[:-1], {**messages[-1], "content": f"{messages[-1]['content']}\n\n{text}"}]
    return [*messages, {"role": "user", "content": text}]


def _read_key(spec: EndpointSpec) -> str | None:
    if spec.api_key_env is None:
        return None
    key = os.environ.get(spec.api_key_env, "").strip()
    if not key:
        raise UsageError(
            f"{spec.section}.api_key_env: the environment variable {spec.api_key_env} is not set; "
            f"put the key for {spec.base_url} there"
        )
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"the environment variable {spec.api_key_env} holds characters that no key has")
    return key


def _client(spec: EndpointSpec, key: str | None) -> AsyncOpenAI:
    try:
        import openai
    except ImportError as error:
        raise UsageError(
            f'{spec.section}: engine "endpoint" needs the openai package: pip install "unfrozen[endpoint]"'
        ) from error
    return openai.AsyncOpenAI(
        base_url=spec.base_url,
        api_key=key or _NO_KEY,
        timeout=openai.Timeout(spec.timeout, connect=min(spec.timeout, 10.0)),
        max_retries=spec.max_retries,
    )


def _server_text(error: APIStatusError) -> str:
    """What the server said went wrong: the message of its JSON, or the body as it is."""
    body = error.body
    if isinstance(body, Mapping) and isinstance(body.get("message"), str):
        return str(body["message"])
    return str(error.response.text or error.message)
