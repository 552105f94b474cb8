"""Messages as every chat API knows them (OpenAI-compatible, with tool calls).

A message is always seen from somebody's side: in each role's own context its own turns are "assistant" and
the other's are "user". `Role` names the two parties of a conversation; `ChatRole` the field of a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from unfrozen.core.errors import UsageError

Role = Literal["agent", "user"]
"""The two parties of a conversation: the agent (the policy) and the user (played by a simulator)."""

ChatRole = Literal["system", "user", "assistant", "tool"]

ROLES: tuple[Role, Role] = ("agent", "user")
_CHAT_ROLES = ("system", "user", "assistant", "tool")


def other(role: Role) -> Role:
    """Return the other party."""
    return "user" if role == "agent" else "agent"


def whole_text(text: str) -> str:
    """Replace half a surrogate pair, which an escape in a model's JSON can make, by U+FFFD.

    Python strings may hold one, but UTF-8 has no form for it: no record could be written.
    """
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One function call of an assistant message. `arguments` is JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str

    def __post_init__(self) -> None:
        for field in ("id", "name", "arguments"):
            object.__setattr__(self, field, whole_text(getattr(self, field)))


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message. `content` is "" where the message is tool calls only."""

    role: ChatRole
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "content", whole_text(self.content))

    def to_openai(self) -> dict[str, Any]:
        """Return the message as an OpenAI chat-completions dict; empty fields are left out."""
        record: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            record["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in self.tool_calls
            ]
        if self.tool_call_id is not None:
            record["tool_call_id"] = self.tool_call_id
        return record

    @staticmethod
    def from_openai(record: Mapping[str, Any]) -> Message:
        """Read an OpenAI chat-completions dict. Raises UsageError that names the field that is wrong.

        Content may be a list of text parts, which are joined by newlines; "developer" is "system".
        """
        if not isinstance(record, Mapping):
            raise UsageError(f"a message is a {type(record).__name__}; it must be an object")
        role: Any = "system" if record.get("role") == "developer" else record.get("role")
        if role not in _CHAT_ROLES:
            raise UsageError(f"message.role is {role!r}; allowed: {', '.join(_CHAT_ROLES)}")
        content, calls = _text(record.get("content")), _tool_calls(record.get("tool_calls"))
        if content is None and not calls:
            raise UsageError("message.content is missing and there are no tool_calls")
        answers = record.get("tool_call_id")
        if answers is not None and not isinstance(answers, str):
            raise UsageError(f"message.tool_call_id is a {type(answers).__name__}; it must be text")
        return Message(role, content or "", calls, answers)


def _text(content: Any) -> str | None:
    if isinstance(content, list):
        for part in content:
            if not (isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)):
                raise UsageError("message.content has a part that is not text; only text is supported")
        return "\n".join(part["text"] for part in content)
    if content is not None and not isinstance(content, str):
        raise UsageError(f"message.content is a {type(content).__name__}; only text is supported")
    return content


def _tool_calls(records: Any) -> tuple[ToolCall, ...]:
    if records is not None and not isinstance(records, list | tuple):
        raise UsageError(f"message.tool_calls is a {type(records).__name__}; it must be a list")
    calls = []
    for call in records or ():
        try:
            function = call["function"]
            calls.append(ToolCall(str(call["id"]), str(function["name"]), str(function["arguments"])))
        except KeyError as error:
            raise UsageError(f"message.tool_calls: a call lacks {error}") from error
        except TypeError as error:
            raise UsageError("message.tool_calls: a call and its function must be objects") from error
    return tuple(calls)
