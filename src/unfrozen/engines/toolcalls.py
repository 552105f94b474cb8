"""Tool calls as text, as Hermes and Qwen2.5 write them: JSON of `name` and `arguments` in `<tool_call>` tags.

Models whose chat template writes this convention get it from the template; every other model is told of it in
the system prompt, and reads calls and results as plain text. So one reader serves all token models.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from unfrozen.core.messages import Message, ToolCall

_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)

_EXPLANATION = """You may call functions. Their signatures, one JSON object a line:
{signatures}
To call one, write a block like this, as many blocks as calls:
<tool_call>
{{"name": "the function's name", "arguments": {{"an argument": "its value"}}}}
</tool_call>
Results come back in <tool_response> blocks."""


def read_tool_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """Split a reply into what is said and its tool calls, in order.

    A block may lack its closing tag at the end of the reply. A block that is not a JSON object with a string
    `name` and an object (or nothing) as `arguments` stays in the text, tags included. Ids depend on the
    reply's text and the position of the call only.
    """
    calls: list[ToolCall] = []
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()

    def take(match: re.Match[str]) -> str:
        call = _read_call(match[1], f"call_{digest}_{len(calls)}")
        if call is None:
            return match[0]
        calls.append(call)
        return ""

    said = _BLOCK.sub(take, text)
    return (said.strip() if calls else text), tuple(calls)


def _read_call(block: str, call_id: str) -> ToolCall | None:
    try:
        record = json.loads(block)
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("name"), str):
        return None
    arguments = record.get("arguments")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return None
    return ToolCall(call_id, record["name"], json.dumps(arguments, ensure_ascii=False))


def written_arguments(arguments: str) -> Any:
    """Arguments as templates want them: an object, or the text itself where it is not JSON of an object."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments


def written_out(messages: Sequence[Message]) -> list[Message]:
    """Messages without tool fields: calls and results become text, as `explain_tools` tells the model."""
    plain = []
    for message in messages:
        if message.role == "tool":
            plain.append(Message("user", f"<tool_response>\n{message.content}\n</tool_response>"))
        elif message.tool_calls:
            blocks = [
                "<tool_call>\n"
                + json.dumps({"name": call.name, "arguments": written_arguments(call.arguments)}, ensure_ascii=False)
                + "\n</tool_call>"
                for call in message.tool_calls
            ]
            plain.append(Message(message.role, "\n".join([*([message.content] if message.content else []), *blocks])))
        else:
            plain.append(message)
    return plain


def explain_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Put the tools and how to call them at the end of the system prompt, where there are tools."""
    if not tools:
        return list(messages)
    signatures = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    explanation = _EXPLANATION.format(signatures=signatures)
    if messages and messages[0].role == "system":
        return [Message("system", f"{messages[0].content}\n\n{explanation}"), *messages[1:]]
    return [Message("system", explanation), *messages]
