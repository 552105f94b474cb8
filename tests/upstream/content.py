"""What the server says when it behaves: replies, candidate sets, choices; and the shape of a completion."""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_TEXT = (
    "well I think that this might work if you tell me more about it but honestly my time is short and we could "
    "talk again later because the money matters to a family like mine so what would you say to that"
)
WORDS = _TEXT.split()


@dataclass(frozen=True)
class Reply:
    """One answer: a status, headers, and a body that is JSON, text, or bytes as they are."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def data(self) -> bytes:
        """The body's bytes."""
        if isinstance(self.body, bytes):
            return self.body
        return self.body.encode() if isinstance(self.body, str) else json.dumps(self.body).encode()


def completion(
    content: Any,
    finish: str = "stop",
    model: str = "some-model",
    usage: Mapping[str, Any] | None = None,
    logprobs: Any = None,
    **message: Any,
) -> Reply:
    """A chat completion. `message` adds fields such as tool_calls or reasoning_content."""
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": content, **message},
        "finish_reason": finish,
    }
    if logprobs is not None:
        choice["logprobs"] = logprobs
    return Reply(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 0,
            "model": model,
            "choices": [choice],
            "usage": dict(usage or {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}),
        }
    )


def error(status: int, message: str, code: str | None = None, param: str | None = None, **headers: str) -> Reply:
    """A refusal in OpenAI's form. A header is given as Retry_After="1"."""
    body = {"error": {"message": message, "code": code, "param": param, "type": "error"}}
    return Reply(body, status, {name.replace("_", "-"): value for name, value in headers.items()})


def improvise(request: Mapping[str, Any]) -> str:
    """A plausible answer, the same for the same messages and seed: a choice, a candidate set, or some words."""
    messages = request["messages"]
    asked = str(messages[-1].get("content") or "") if messages else ""
    # Any change of seed or context changes the words; hash() would differ from process to process.
    rng = random.Random(zlib.crc32(json.dumps(messages).encode()) ^ int(request.get("seed") or 0))
    if options := re.search(r'\{"choice".*?for character: (\[.*\])', asked, re.DOTALL):
        return json.dumps({"choice": rng.choice(json.loads(options.group(1)))})
    if wanted := re.search(r"Write (\d+) different replies", asked):
        return json.dumps({"replies": candidates(int(wanted.group(1)), rng, '"probability"' in asked)})
    return sentence(rng)


def candidates(k: int, rng: random.Random, weighted: bool = True) -> list[dict[str, Any]]:
    """`k` different replies, with weights that sum to about one."""
    replies = [{"text": f"{sentence(rng)} {number}"} for number in range(k)]
    return [r | {"probability": round(1 / k, 3)} for r in replies] if weighted else replies


def sentence(rng: random.Random) -> str:
    """Four to twelve words."""
    start = rng.randrange(len(WORDS))
    count = rng.randrange(4, 13)
    return " ".join((WORDS * 2)[start : start + count])


def count_tokens(messages: Sequence[Mapping[str, Any]], text: str) -> tuple[int, int]:
    """(prompt, completion): this server's tokens are words."""
    prompt = sum(1 + len(str(m.get("content") or "").split()) for m in messages)
    return prompt, len(text.split())
