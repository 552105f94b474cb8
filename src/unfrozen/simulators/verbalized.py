"""Verbalized Sampling: the simulator writes several candidate replies, and one of them is drawn.

After "Verbalized Sampling" (arXiv 2510.01171): asked for one reply, a tuned model gives its mode; asked for a
distribution of replies, it spreads wider. No training is needed. Works over any speaker, frozen or trainable.

A user with tools keeps them: each candidate may be a message or a call. While candidates are written nothing
may be called for real, so the tools are then described in the instruction and not offered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from unfrozen.core.episodes import Candidate, Draw, Turn
from unfrozen.core.errors import EpisodeError
from unfrozen.core.messages import Message
from unfrozen.core.seeds import derive_seed, generator
from unfrozen.engines.toolcalls import written_out
from unfrozen.simulators.candidates import read_candidates, tail
from unfrozen.simulators.protocol import Speaker, View

INSTRUCTION = (
    "Do not answer yet. Write {k} different replies that you, in your role, might give next, from likely to "
    "unlikely, each complete and in your own voice, with the probability that you would give it. Answer with "
    'JSON only, in this form: {{"replies": [{{"text": "...", "probability": 0.4}}, ...]}}'
)
UNWEIGHTED_INSTRUCTION = (
    "Do not answer yet. Write {k} different replies that you, in your role, might give next, each complete and "
    'in your own voice. Answer with JSON only, in this form: {{"replies": [{{"text": "..."}}, ...]}}'
)

TOOLS_INSTRUCTION = (
    "Instead of text, a reply may be a call of one of your functions, as "
    '{{"tool_call": {{"name": "...", "arguments": {{...}}}}}} in place of "text". Your functions:\n{signatures}'
)


@dataclass(frozen=True, slots=True)
class VerbalizedSettings:
    """How many candidates, and how one of them is drawn.

    `draw`: "probability" draws in proportion to the stated probabilities, "uniform" gives each the same
    chance and does not ask for probabilities. `tail` < 1 keeps only candidates at or below that probability.
    `retries` further attempts follow an unreadable one; after them a plain single reply is used.
    `max_tokens` bounds the written candidates. `constrained` holds the model to the JSON form while it writes
    them (local models by constrained decoding, servers by a json_schema response format), each text no longer
    than its share of `max_tokens`: small models need it. It is not for simulators that learn.
    """

    k: int = 5
    draw: Literal["probability", "uniform"] = "probability"
    tail: float = 1.0
    retries: int = 1
    max_tokens: int = 512
    constrained: bool = False


class Verbalized:
    """Asks `inner` for candidates and answers with one of them. Raw JSON never enters the dialogue."""

    def __init__(self, inner: Speaker, settings: VerbalizedSettings, instruction: str = "") -> None:
        self.inner = inner
        self.settings = settings
        default = INSTRUCTION if settings.draw == "probability" else UNWEIGHTED_INSTRUCTION
        self.instruction = (instruction or default).format(k=settings.k)
        self.info = replace(inner.info, kind=f"verbalized({inner.info.kind})")

    async def reply(self, view: View, seed: int) -> Turn:
        """Draw one of the verbalized candidates; a choice among given options is passed through."""
        if view.cue.options:
            return await self.inner.reply(view, seed)
        asked = self._asking(view)
        tools = tool_names(view.start.tools)
        raw: list[str] = []
        sampled = 0
        for attempt in range(self.settings.retries + 1):
            turn = await self._written(asked, derive_seed(seed, "candidates", attempt))
            raw.append(turn.message.content)
            sampled += turn.sampled_tokens
            candidates = self._candidates(turn.message.content, tools)
            if candidates:
                index = self._pick(candidates, seed)
                return Turn(
                    _message(candidates[index], seed),
                    sampled_tokens=sampled,
                    draw=Draw(candidates, index, fallback=False, raw=tuple(raw)),
                    reasoning=turn.reasoning,
                )
            view.stream.drop()
        turn = await self.inner.reply(view, derive_seed(seed, "plain"))
        return replace(
            turn,
            sampled_tokens=sampled + turn.sampled_tokens,
            draw=Draw((), None, fallback=True, raw=tuple(raw)),
        )

    async def _written(self, asked: View, seed: int) -> Turn:
        """What the model writes when it is asked for candidates; an answer that is no turn is an unreadable one."""
        try:
            return await self.inner.reply(asked, seed)
        except EpisodeError as error:
            if error.cause != "format":
                raise
            return Turn(Message("assistant", ""))

    def _asking(self, view: View) -> View:
        """The view with the request for candidates; tools, and what they were used for, in words."""
        messages, instruction = view.messages, self.instruction
        if view.start.tools:
            messages = tuple(written_out(messages))
            signatures = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in view.start.tools)
            instruction = f"{instruction}\n{TOOLS_INSTRUCTION.format(signatures=signatures)}"
        return replace(
            view,
            start=replace(view.start, tools=()),
            messages=(*messages, Message("user", instruction)),
            cue=replace(
                view.cue,
                max_tokens=self.settings.max_tokens,
                json_schema=candidates_schema(self.settings, view.start.tools) if self.settings.constrained else None,
            ),
        )

    def _candidates(self, written: str, tools: Sequence[str]) -> tuple[Candidate, ...]:
        weighted = self.settings.draw == "probability"
        candidates = read_candidates(written, self.settings.k, weighted, tools)
        return tail(candidates, self.settings.tail) if weighted and self.settings.tail < 1 else candidates

    def _pick(self, candidates: tuple[Candidate, ...], seed: int) -> int:
        probabilities = [c.probability for c in candidates]
        return int(generator(seed, "draw").choice(len(candidates), p=probabilities))


_PROBABILITIES = [percent / 100 for percent in range(1, 101)]
"""A free number could go on for ever: small models write digits until their tokens end."""
_FRAME_TOKENS = 16
_CHARACTERS_PER_TOKEN = 3
"""Cautious: what the JSON around a text takes, and how much text a token holds."""


def candidates_schema(settings: VerbalizedSettings, tools: Sequence[Mapping[str, Any]] = ()) -> str:
    """The JSON Schema, as text, of the candidates that the instruction asks for."""
    longest = max(1, settings.max_tokens // settings.k - _FRAME_TOKENS) * _CHARACTERS_PER_TOKEN
    weight = {"probability": {"enum": _PROBABILITIES}} if settings.draw == "probability" else {}
    forms = [_form({"text": {"type": "string", "minLength": 1, "maxLength": longest}, **weight})]
    for tool in tools:
        function = tool["function"]
        call = _form({"name": {"const": function["name"]}, "arguments": function.get("parameters") or {}})
        forms.append(_form({"tool_call": call, **weight}))
    items = forms[0] if len(forms) == 1 else {"anyOf": forms}
    replies = {"type": "array", "items": items, "minItems": settings.k, "maxItems": settings.k}
    return json.dumps(_form({"replies": replies}))


def _form(properties: Mapping[str, Any]) -> dict[str, Any]:
    """An object with exactly these properties."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def tool_names(tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Names of OpenAI function schemas."""
    return tuple(tool["function"]["name"] for tool in tools)


def _message(candidate: Candidate, seed: int) -> Message:
    """The drawn candidate as it is said or called. A call gets an id of its own."""
    if candidate.tool_call is None:
        return Message("assistant", candidate.text)
    call = replace(candidate.tool_call, id=f"call_{derive_seed(seed, 'call'):016x}")
    return Message("assistant", "", (call,))
