"""Reads a chat completion request. What is wrong with it becomes one `RequestError`, as OpenAI would say it.

Honoured: `messages`, `tools` with `tool_choice` "auto" or "none", `seed`, `max_tokens` (or
`max_completion_tokens`), `stop`, `stream`, `stream_options.include_usage`, `n` = 1, and `unfrozen`.
Refused, because a reply without them would not be what was asked for: `n` > 1, another `tool_choice`, another
`response_format` than text, `logprobs`, parts of a message that are not text.
Everything else is left to the simulator's own configuration, above all `temperature`: frameworks set it to 0
without being asked, and that would make one person of every simulator. What was ignored is in the log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unfrozen.core.errors import UsageError
from unfrozen.core.messages import Message, whole_text
from unfrozen.simulators.sessions import split_system

_HONOURED = frozenset(
    {"model", "messages", "tools", "tool_choice", "seed", "max_tokens", "max_completion_tokens", "stop", "stream"}
    | {"stream_options", "n", "unfrozen", "response_format", "logprobs"}
)
_OWN_FIELDS = frozenset({"session", "draw"})
_MOST_STOPS = 4
_LONGEST_NAME = 256


class RequestError(Exception):
    """A request that cannot be answered: HTTP status, and the fields of OpenAI's error object."""

    def __init__(self, status: int, message: str, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request that can be answered. `messages` are those after the system prompt."""

    model: str
    system: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    seed: int | None
    max_tokens: int | None
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    session: str | None
    wants_draw: bool
    ignored: tuple[str, ...]


def read_request(body: bytes, max_messages: int, session: str | None = None) -> ChatRequest:
    """Read a request's body; `session` is that of its header. Raises RequestError."""
    record = _record(body)
    model = _field(record, "model", str)
    if not model:
        raise _wrong("model", "is missing")
    raw = _field(record, "messages", list)
    if not raw:
        raise _wrong("messages", "must hold at least one message")
    if len(raw) > max_messages:
        raise _wrong("messages", f"holds {len(raw)} messages; at most {max_messages} are read", "too_many_messages")
    system, messages = split_system([_message(entry, f"messages.{i}") for i, entry in enumerate(raw)])
    own = _field(record, "unfrozen", dict) or {}
    for key in own:
        if key not in _OWN_FIELDS:
            raise _wrong(f"unfrozen.{key}", f"is unknown; there are: {', '.join(sorted(_OWN_FIELDS))}")
    _refuse_unsupported(record)
    options = _field(record, "stream_options", dict) or {}
    return ChatRequest(
        model=model,
        system=system,
        messages=messages,
        tools=_tools(record),
        seed=_seed(record),
        max_tokens=_limit(record),
        stop=_stop(record),
        stream=_field(record, "stream", bool) or False,
        include_usage=options.get("include_usage") is True,
        session=_session(own.get("session") or session),
        wants_draw=own.get("draw") is True,
        ignored=tuple(sorted(str(key) for key, value in record.items() if key not in _HONOURED and value is not None)),
    )


def _record(body: bytes) -> dict[str, Any]:
    try:
        record = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is not JSON: {str(error)[:200]}", "invalid_json") from None
    if not isinstance(record, dict):
        raise RequestError(400, "the body must be a JSON object", "invalid_json")
    # Half a surrogate pair can only come from an escape, and has no form in UTF-8.
    whole = _whole(record) if b"\\u" in body else record
    return dict(whole)


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {whole_text(key): _whole(item) for key, item in value.items()}
    return value


def _field(record: Mapping[str, Any], key: str, kind: type) -> Any:
    """A field of a type, or None where it is missing or null."""
    value = record.get(key)
    if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        raise _wrong(
            key, f"must be of type {_JSON_TYPES[kind]}, and is {_JSON_TYPES.get(type(value), 'something else')}"
        )
    return value


_JSON_TYPES = {str: "string", list: "array", dict: "object", bool: "boolean", int: "integer", float: "number"}


def _wrong(param: str, what: str, code: str = "invalid_value") -> RequestError:
    return RequestError(400, f"{param} {what}", code, param)


def _message(entry: Any, where: str) -> Message:
    try:
        return Message.from_openai(entry)
    except UsageError as error:
        raise RequestError(400, f"{where}: {error}", "invalid_value", where) from None


def _refuse_unsupported(record: Mapping[str, Any]) -> None:
    if _field(record, "n", int) not in (None, 1):
        raise _wrong("n", "must be 1: ask again for another reply", "unsupported_value")
    if record.get("logprobs"):
        raise _wrong("logprobs", "cannot be returned", "unsupported_value")
    wanted = _field(record, "response_format", dict)
    if wanted and wanted.get("type") != "text":
        raise _wrong("response_format", "must be text: a user talks", "unsupported_value")


def _tools(record: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    tools = _field(record, "tools", list) or []
    for number, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not (isinstance(function, dict) and isinstance(function.get("name"), str)):
            raise _wrong(f"tools.{number}", "must be a function with a name")
    choice = record.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise _wrong("tool_choice", 'must be "auto" or "none": a user decides for itself', "unsupported_value")
    return () if choice == "none" else tuple(tools)


def _seed(record: Mapping[str, Any]) -> int | None:
    seed: int | None = _field(record, "seed", int)
    return None if seed is None else seed & (2**63 - 1)


def _limit(record: Mapping[str, Any]) -> int | None:
    limit: int | None = None
    for key in ("max_tokens", "max_completion_tokens"):
        limit = _field(record, key, int) if limit is None else limit
        if limit is not None and limit < 1:
            raise _wrong(key, "must be at least 1")
    return limit


def _stop(record: Mapping[str, Any]) -> tuple[str, ...]:
    stop = record.get("stop")
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or len(stops) > _MOST_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise _wrong("stop", f"must be a string or an array of up to {_MOST_STOPS} strings, none empty")
    return tuple(stops)


def _session(name: Any) -> str | None:
    if name is None:
        return None
    if not isinstance(name, str) or not name.isprintable() or len(name) > _LONGEST_NAME:
        raise _wrong("unfrozen.session", f"must be printable text of at most {_LONGEST_NAME} characters")
    return name
