"""Reads what a chat server answered: what is said, what was only thought, why it ended, what it will be billed.

Servers differ in where they put reasoning (fields of its own, <think> blocks, scratchpads), in how they write
tool calls and usage, and in what they leave out. What cannot be read as a chat completion is a ValueError.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unfrozen.core.messages import Message, ToolCall

_TAGS = "think|thinking|reasoning|scratchpad"
_REASONING = re.compile(rf"<({_TAGS})>(.*?)(?:</\1>|\Z)", re.DOTALL)
_REASONING_BEFORE = re.compile(rf"\A((?:(?!<(?:{_TAGS})>).)*)</(?:{_TAGS})>", re.DOTALL)
"""Some chat templates write the opening tag themselves, so that a reply begins in the middle of the reasoning."""
_TAG = re.compile(r"(?:[-:@](?:20\d\d-?\d\d-?\d\d|\d{3,4}|latest|preview|free))+$")
"""What servers add to a model's name without meaning another: a date, a short date, a tag."""
_MOST_TOKENS = 10**12
"""No request has more."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request as the server bills them; `cached` is a part of `prompt`, `reasoning` of `completion`."""

    prompt: int
    completion: int
    cached: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """One completion. `reasoning` is not part of `message`; `usage` is None where the server states none.

    `model` is the name that the server answers under. `token_ids` and `logprobs` (nats) are of the completion's
    tokens, empty where they were not asked for or not stated. `hit` marks an answer out of the response cache.
    """

    message: Message
    finish: str = "stop"
    usage: Usage | None = None
    model: str = ""
    reasoning: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    hit: bool = False

    @property
    def tokens(self) -> int:
        """Completion tokens, reasoning included; 0 where the server states none."""
        return self.usage.completion if self.usage else 0

    @property
    def silent(self) -> bool:
        """Whether nothing is said and no tool is called."""
        return not (self.message.content or self.message.tool_calls)


def read_completion(record: Any) -> Answer:
    """Read an OpenAI chat completion. Raises ValueError where it is none."""
    try:
        choice = record["choices"][0]
        message = choice["message"]
        calls = tuple(
            ToolCall(str(call.get("id") or f"call_{i}"), str(call["function"]["name"]), _arguments(call["function"]))
            for i, call in enumerate(message.get("tool_calls") or ())
        )
        said, thought = split_reasoning(_text(message.get("content"), "text"))
        thoughts = (message.get("reasoning_content") or message.get("reasoning"), _thinking(message), thought)
        return Answer(
            Message("assistant", said, calls),
            str(choice.get("finish_reason") or "stop"),
            read_usage(record),
            str(record.get("model") or ""),
            "\n".join(t.strip() for t in thoughts if isinstance(t, str) and t.strip()),
            tuple(int(token) for token in choice.get("token_ids") or ()),
            _logprobs(choice.get("logprobs")),
        )
    except (AttributeError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"not a chat completion: {error}") from error


def read_usage(record: Any) -> Usage | None:
    """The usage that an OpenAI chat completion states, or None."""
    usage = record.get("usage") if isinstance(record, Mapping) else None
    if not isinstance(usage, Mapping) or "prompt_tokens" not in usage:
        return None
    return Usage(
        count(usage.get("prompt_tokens")),
        count(usage.get("completion_tokens")),
        count(_inner(usage, "prompt_tokens_details").get("cached_tokens")),
        count(_inner(usage, "completion_tokens_details").get("reasoning_tokens")),
    )


def split_reasoning(text: str) -> tuple[str, str]:
    """(said, thought): a reasoning block that was cut off reaches to the end of the text."""
    thoughts: list[str] = []

    def take(match: re.Match[str]) -> str:
        thoughts.append(match.group(match.lastindex or 0).strip())
        return ""

    if "<" not in text:
        return text.strip(), ""
    said = _REASONING.sub(take, _REASONING_BEFORE.sub(take, text))
    return said.strip(), "\n".join(t for t in thoughts if t)


def same_model(asked: str, answered: str) -> bool:
    """Whether a server's name for its model means the one asked for: dated, tagged, or with an owner before it."""
    return _bare(asked) == _bare(answered)


def _bare(name: str) -> str:
    return _TAG.sub("", name.lower().rstrip("/").rsplit("/", 1)[-1])


def count(value: Any) -> int:
    """A number of tokens; what is none counts as 0."""
    return int(value) if isinstance(value, int | float) and 0 < value <= _MOST_TOKENS else 0


def _inner(usage: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = usage.get(key)
    return inner if isinstance(inner, Mapping) else {}


def _text(content: Any, kind: str) -> str:
    """Content as text: a string, null, or a list of parts, of which reasoning is another kind than text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content if kind == "text" else ""
    return "".join(str(part.get(kind) or "") for part in content if part.get("type") == kind)


def _thinking(message: Mapping[str, Any]) -> str:
    return _text(message.get("content"), "thinking")


def _arguments(function: Mapping[str, Any]) -> str:
    """Arguments as JSON text; some servers send the object itself."""
    arguments = function.get("arguments")
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)


def _logprobs(stated: Any) -> tuple[float, ...]:
    """Log-probabilities of the completion's tokens; () where one of them is not stated as a number."""
    if not isinstance(stated, Mapping) or not isinstance(stated.get("content"), list):
        return ()
    values = [token.get("logprob") for token in stated["content"]]
    good = all(isinstance(v, int | float) and math.isfinite(v) for v in values)
    return tuple(float(v) for v in values) if good else ()
