"""Claude through Anthropic's own SDK: the same requests and answers, translated to the Messages API and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unfrozen.core.errors import UsageError
from unfrozen.core.messages import Message, ToolCall
from unfrozen.engines.endpoint.answers import Answer, Usage, count, split_reasoning
from unfrozen.engines.endpoint.failures import Late, Passing, Unsent
from unfrozen.engines.endpoint.spec import EndpointSpec
from unfrozen.engines.endpoint.transport import Reply, without_key

_FINISH = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
_TOOL_CHOICE = {"none": "none", "auto": "auto", "required": "any"}
_UNTOLD = ("seed", "logprobs", "return_token_ids", "max_completion_tokens")
"""What the Messages API has no word for."""


class AnthropicTransport:
    """One model of Anthropic's, or of a server that speaks its Messages API."""

    def __init__(self, spec: EndpointSpec, key: str | None) -> None:
        try:
            import anthropic
        except ImportError as error:
            raise UsageError(
                f'{spec.section}: api "anthropic" needs its SDK: pip install "unfrozen[anthropic]"'
            ) from error
        self._sdk = anthropic
        self._spec = spec
        self._key = key
        # A key is always given: without one the SDK would look for the user's own and send it to base_url.
        self._client = anthropic.AsyncAnthropic(
            base_url=spec.base_url,
            api_key=key or "none",
            max_retries=0,
            timeout=anthropic.Timeout(spec.timeout, connect=min(spec.connect_timeout, spec.timeout)),
        )

    async def send(self, body: Mapping[str, Any]) -> Reply:
        """One request. The time to the first byte is not watched: the SDK has no word for it."""
        sdk, spec = self._sdk, self._spec
        try:
            raw = await self._client.messages.with_raw_response.create(**to_messages_api(body))
            return self._reply(raw.http_response)
        except sdk.APIStatusError as error:
            return self._reply(error.response)
        except sdk.APITimeoutError:
            raise Late(f"{spec.base_url} gave no answer within {spec.timeout:g} s") from None
        except sdk.APIConnectionError as error:
            cause = str(error.__cause__ or error)
            line = " ".join((cause.replace(self._key, "***") if self._key else cause).split())[:200]
            kind = Unsent if "Connect" in type(error.__cause__).__name__ else Passing
            raise kind(f"{spec.base_url} cannot be reached: {line}") from None

    def read(self, record: Any) -> Answer:
        """Read a message of the Messages API."""
        return read_message(record)

    def usage(self, record: Any) -> Usage | None:
        """The usage of a message."""
        return message_usage(record)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _reply(self, response: Any) -> Reply:
        status = int(response.status_code)
        return Reply(status, response.headers, without_key(response.content, self._key, status))


def to_messages_api(body: Mapping[str, Any]) -> dict[str, Any]:
    """An OpenAI chat request as keyword arguments of the SDK's `messages.create`.

    Only what every version of the SDK names is named; the rest goes by `extra_body`, which takes any field.
    """
    known = ("model", "messages", "tools", "tool_choice", "max_tokens", "stop", *_UNTOLD)
    extra = {key: value for key, value in body.items() if key not in known}
    if system := "\n\n".join(m["content"] for m in body["messages"] if m["role"] == "system"):
        extra["system"] = system
    if "stop" in body:
        extra["stop_sequences"] = [body["stop"]] if isinstance(body["stop"], str) else body["stop"]
    if body.get("tools"):
        extra["tools"] = [_tool(tool["function"]) for tool in body["tools"]]
        extra["tool_choice"] = {"type": _TOOL_CHOICE[body.get("tool_choice", "auto")]}
    return {
        "model": body["model"],
        "max_tokens": body.get("max_tokens") or body["max_completion_tokens"],
        "messages": list(_turns(body["messages"])),
        "extra_body": extra,
    }


def read_message(record: Any) -> Answer:
    """Read an answer of the Messages API. Raises ValueError where it is none."""
    try:
        blocks: Sequence[Mapping[str, Any]] = record["content"]
        said, thought = split_reasoning("".join(b["text"] for b in blocks if b["type"] == "text"))
        thoughts = [str(b["thinking"]).strip() for b in blocks if b["type"] == "thinking"]
        calls = tuple(
            ToolCall(str(b["id"]), str(b["name"]), json.dumps(b["input"], ensure_ascii=False))
            for b in blocks
            if b["type"] == "tool_use"
        )
        return Answer(
            Message("assistant", said, calls),
            _FINISH.get(record.get("stop_reason"), str(record.get("stop_reason") or "stop")),
            message_usage(record),
            str(record.get("model") or ""),
            "\n".join(t for t in (*thoughts, thought) if t),
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not an answer of the Messages API: {error}") from error


def message_usage(record: Any) -> Usage | None:
    """The usage that a message states. Its input tokens do not hold those that were written to or read from a cache."""
    usage = record.get("usage") if isinstance(record, Mapping) else None
    if not isinstance(usage, Mapping) or "input_tokens" not in usage:
        return None
    cached = count(usage.get("cache_read_input_tokens"))
    written = count(usage.get("cache_creation_input_tokens"))
    return Usage(count(usage["input_tokens"]) + cached + written, count(usage.get("output_tokens")), cached)


def _turns(messages: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    """Messages without the system's, in turns: what stands side by side for one role becomes one message."""
    open_turn: dict[str, Any] | None = None
    for message in messages:
        if message["role"] == "system":
            continue
        role = "assistant" if message["role"] == "assistant" else "user"
        if open_turn is None or open_turn["role"] != role:
            if open_turn is not None:
                yield open_turn
            open_turn = {"role": role, "content": []}
        open_turn["content"].extend(_blocks(message))
    if open_turn is not None:
        yield open_turn


def _blocks(message: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    if message["role"] == "tool":
        yield {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
        return
    if message["content"]:
        yield {"type": "text", "text": message["content"]}
    for call in message.get("tool_calls") or ():
        function = call["function"]
        yield {"type": "tool_use", "id": call["id"], "name": function["name"], "input": _input(function["arguments"])}


def _input(arguments: str) -> Any:
    """Arguments as an object; what a model wrote wrongly is passed on as it is, under a name."""
    try:
        value = json.loads(arguments or "{}")
    except ValueError:
        return {"arguments": arguments}
    return value if isinstance(value, dict) else {"arguments": value}


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    tool = {"name": function["name"], "input_schema": function.get("parameters") or {"type": "object"}}
    return tool | ({"description": function["description"]} if function.get("description") else {})
