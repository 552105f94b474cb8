"""A speaker that is a model behind a chat server: text in, text out.

An agent under evaluation, a frozen simulator or a panel member can be one. Nothing of it can be trained, so its
view's stream stays empty. How the server is asked (retries, limits, budget, cache) is the engine's affair
(`engines/endpoint`); here is what makes it a speaker: whose side is sent, what a choice looks like, what is said.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unfrozen.core.episodes import SpeakerInfo, Turn
from unfrozen.core.errors import EpisodeError
from unfrozen.core.jsontext import json_values
from unfrozen.core.messages import Message
from unfrozen.core.seeds import derive_seed
from unfrozen.engines.endpoint import Answer, Endpoint
from unfrozen.simulators.protocol import View

CHOICE = (
    'Answer with JSON only, in this form: {{"choice": "..."}}. The choice is exactly one of these, character '
    "for character: {options}"
)
CHOICE_RETRIES = 3
_CHOICE_TOKENS = 64
"""Room for the JSON around a chosen option; an option has at most as many tokens as characters."""
SILENCE_RETRIES = 1
"""Further tries, each with a seed of its own, after an answer that says nothing."""


class EndpointSpeaker:
    """Plays a role with an `Endpoint`. Seeds are passed on; whether they are honoured is the server's affair."""

    def __init__(self, endpoint: Endpoint, info: SpeakerInfo, max_tokens: int, temperature: float = 1.0) -> None:
        self.endpoint = endpoint
        self.info = info
        self.max_tokens = max_tokens
        self.temperature = temperature

    async def reply(self, view: View, seed: int) -> Turn:
        """Answer the cue, with text, tool calls, or one of its options.

        Raises EpisodeError("format") where nothing is said or no option is chosen; else as `Endpoint.ask`.
        """
        if view.cue.options:
            return await self._choose(view, seed)
        limit = view.cue.max_tokens or self.max_tokens
        answer = await self._say(view, seed, limit)
        if answer.silent:
            cut = f": {limit} tokens were not enough for reasoning and reply; raise max_tokens"
            raise EpisodeError(
                "format", f"{self.info.label} said nothing{cut if answer.finish == 'length' else f' ({answer.finish})'}"
            )
        return Turn(
            answer.message,
            truncated=answer.finish == "length",
            sampled_tokens=answer.tokens,
            reasoning=answer.reasoning,
            token_ids=answer.token_ids,
            logprobs=answer.logprobs,
        )

    async def _say(self, view: View, seed: int, limit: int) -> Answer:
        messages = _request_messages(view)
        answer = await self.endpoint.ask(messages, self._options(seed, view), limit)
        for attempt in range(SILENCE_RETRIES):
            if not answer.silent or answer.finish == "length":
                break
            options = self._options(derive_seed(seed, "silence", attempt), view)
            answer = await self.endpoint.ask(messages, options, limit)
        return answer

    async def _choose(self, view: View, seed: int) -> Turn:
        """Ask for one of the options as JSON. Only the chosen text enters the conversation."""
        options = view.cue.options
        instruction = CHOICE.format(options=json.dumps(options, ensure_ascii=False))
        messages = _with_instruction(_request_messages(view), instruction)
        limit = view.cue.max_tokens or max(self.max_tokens, _CHOICE_TOKENS + max(map(len, options)))
        tokens, written = 0, ""
        for attempt in range(CHOICE_RETRIES + 1):
            fields = self._options(derive_seed(seed, "choice", attempt), view)
            if view.start.tools:
                fields["tool_choice"] = "none"
            answer = await self.endpoint.ask(messages, fields, limit)
            tokens += answer.tokens
            written = answer.message.content
            choice = read_choice(written, options)
            if choice is not None:
                return Turn(Message("assistant", choice), sampled_tokens=tokens, reasoning=answer.reasoning)
        raise EpisodeError(
            "format",
            f"{self.info.label} chose none of {', '.join(options)} in {CHOICE_RETRIES + 1} tries; "
            f"the last answer was {written[:80]!r}",
        )

    def _options(self, seed: int, view: View) -> dict[str, Any]:
        # 31 bits: servers differ in how large a seed may be.
        options: dict[str, Any] = {"temperature": self.temperature, "seed": seed & 0x7FFFFFFF}
        if view.start.tools:
            options["tools"] = list(view.start.tools)
        if view.cue.json_schema is not None:
            schema = {"name": "reply", "strict": True, "schema": json.loads(view.cue.json_schema)}
            options["response_format"] = {"type": "json_schema", "json_schema": schema}
        return options


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
    return (value["choice"] for value in json_values(written) if "choice" in value)


def _request_messages(view: View) -> list[dict[str, Any]]:
    start = (Message("system", view.start.system),) if view.start.system else ()
    return [message.to_openai() for message in (*start, *view.messages)]


def _with_instruction(messages: Sequence[Mapping[str, Any]], text: str) -> list[Mapping[str, Any]]:
    """Append an instruction, to the last message where that is the user's: some templates insist on turns."""
    if messages and messages[-1]["role"] == "user":
        return [*messages[:-1], {**messages[-1], "content": f"{messages[-1]['content']}\n\n{text}"}]
    return [*messages, {"role": "user", "content": text}]
