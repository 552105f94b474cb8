"""What the server sends: completions, streams of chunks, lists of models, errors. Shapes are OpenAI's."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from unfrozen.core.episodes import SpeakerInfo
from unfrozen.core.messages import Message
from unfrozen.serving.requests import ChatRequest, RequestError
from unfrozen.simulators.sessions import Reply

EXTRA = "unfrozen"
"""The extra field of a request, and of its reply where the request asks for the draw."""


def completion(request: ChatRequest, reply: Reply, message: Message, finish: str) -> dict[str, Any]:
    """A chat completion. Token counts are 0 where the simulator's engine does not say."""
    body: dict[str, Any] = {
        "id": f"chatcmpl-{reply.session.id}-{reply.session.turns}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": [{"index": 0, "message": _said(message), "logprobs": None, "finish_reason": finish}],
        "usage": usage(reply),
    }
    if request.wants_draw:
        body[EXTRA] = extra(request, reply)
    return body


def event_stream(request: ChatRequest, reply: Reply, message: Message, finish: str) -> bytes:
    """The same as server-sent events: role, text or calls, end, the usage where asked for, and [DONE].

    A reply is whole before it is drawn from its candidates, so all events are sent at once.
    """
    whole = completion(request, reply, message, finish)
    head = {key: whole[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    said: dict[str, Any] = {"content": message.content} if message.content or not message.tool_calls else {}
    if message.tool_calls:
        said["tool_calls"] = [{"index": i, **call} for i, call in enumerate(_said(message)["tool_calls"])]
    deltas: list[tuple[dict[str, Any], str | None]] = [({"role": "assistant"}, None), (said, None), ({}, finish)]
    chunks = [head | {"choices": [{"index": 0, "delta": delta, "finish_reason": end}]} for delta, end in deltas]
    if request.wants_draw:
        chunks[-1][EXTRA] = whole[EXTRA]
    if request.include_usage:
        chunks.append(head | {"choices": [], "usage": whole["usage"]})
    return b"".join(b"data: " + to_json(chunk) + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"


def usage(reply: Reply) -> dict[str, int]:
    """Tokens read and written, as far as the engine counts them."""
    read, written = reply.context_tokens or 0, reply.turn.sampled_tokens
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def extra(request: ChatRequest, reply: Reply) -> dict[str, Any]:
    """Who spoke, with which seed, and how Verbalized Sampling came to the reply."""
    turn = reply.turn
    return {
        "session": reply.session.id,
        "turn": reply.session.turns,
        "simulator": speaker(reply.session.speaker.info),
        "seed": reply.seed,
        "draw": None if turn.draw is None else asdict(turn.draw),
        "ignored": list(request.ignored),
    }


def speaker(info: SpeakerInfo) -> dict[str, Any]:
    """Who plays the user."""
    return asdict(info)


def cut_at(message: Message, truncated: bool, stops: Sequence[str]) -> tuple[Message, str]:
    """The message up to the first of the stop strings, and why it ended ("stop", "length", "tool_calls")."""
    ends = [at for at in (message.content.find(stop) for stop in stops) if at >= 0]
    if ends:
        return Message("assistant", message.content[: min(ends)]), "stop"
    if message.tool_calls:
        return message, "tool_calls"
    return message, "length" if truncated else "stop"


def models(served: Mapping[str, str], started: int) -> dict[str, Any]:
    """The list of served models; each id with what it is."""
    return {"object": "list", "data": [model(name, about, started) for name, about in served.items()]}


def model(name: str, about: str, started: int) -> dict[str, Any]:
    """One served model."""
    return {"id": name, "object": "model", "created": started, "owned_by": "unfrozen", "description": about}


_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def error(problem: RequestError) -> dict[str, Any]:
    """OpenAI's error object."""
    kind = _ERROR_TYPES.get(problem.status, "invalid_request_error" if problem.status < 500 else "server_error")
    return {"error": {"message": str(problem), "type": kind, "param": problem.param, "code": problem.code}}


def to_json(value: Any) -> bytes:
    """Compact JSON in UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _said(message: Message) -> dict[str, Any]:
    record = message.to_openai()
    if message.tool_calls and not message.content:
        record["content"] = None
    return record
