"""A speaker that is a token model: an engine and, where it has one, a published adapter.

Frozen and trainable simulators and the agent are all this class; what differs is who publishes the adapter.
It keeps the stream exact: it extends the current segment where the new context is a continuation of what the
model has already read, and starts a new segment where it is not.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np

from unfrozen.core.episodes import SpeakerInfo, Turn
from unfrozen.core.errors import UsageError
from unfrozen.core.messages import Message
from unfrozen.core.seeds import generator
from unfrozen.core.traces import AdapterRef, TokenStream
from unfrozen.engines.protocol import ChatFormat, Engine, SamplingParams
from unfrozen.environments.protocol import RoleView
from unfrozen.simulators.protocol import View


class ModelSpeaker:
    """Samples replies from `engine` under `adapter` (None: the base model)."""

    def __init__(
        self, engine: Engine, params: SamplingParams, info: SpeakerInfo, adapter: AdapterRef | None = None
    ) -> None:
        self.engine = engine
        self.params = params
        self.adapter = adapter
        self.info = replace(info, adapter=None if adapter is None else str(adapter))

    async def reply(self, view: View, seed: int) -> Turn:
        """Sample one reply, or draw one of the cue's options in proportion to its probability."""
        stream = view.stream
        stream.adapter = self.adapter
        continue_stream(stream, self.engine.chat, view.start, view.messages)
        if view.cue.options:
            return await self._choose(stream, view.cue.options, seed)
        params = replace(
            self.params,
            max_tokens=view.cue.max_tokens or self.params.max_tokens,
            json_schema=view.cue.json_schema,
        )
        sample = await self.engine.sample(stream.tokens, params, seed, self.adapter)
        stream.sampled(sample.tokens, sample.logprobs)
        message = self.engine.chat.parse(self.engine.chat.decode(sample.tokens))
        stream.history += (message,)
        stream.ended = sample.stopped
        return Turn(message, truncated=not sample.stopped, sampled_tokens=len(sample.tokens))

    async def _choose(self, stream: TokenStream, options: tuple[str, ...], seed: int) -> Turn:
        """Draw one of the options from their normalised probabilities.

        The choice was not sampled token by token, so its tokens stand in the trace as context (mask 0).
        """
        chat = self.engine.chat
        prompt = stream.tokens
        endings = [(*chat.encode(option), chat.end_tokens[0]) for option in options]
        scores = await asyncio.gather(
            *(self.engine.logprobs(prompt + ending, self.adapter, start=len(prompt)) for ending in endings)
        )
        totals = np.array([sum(score) for score in scores])
        probabilities = np.exp(totals - np.logaddexp.reduce(totals))
        probabilities /= probabilities.sum()
        if not np.isfinite(probabilities).all():
            raise UsageError(
                f"{self.info.label}: the probabilities of the options are not numbers: its adapter diverged (lower its "
                "learning_rate or weight_decay), or its weights are damaged"
            )
        index = int(generator(seed, "choice").choice(len(options), p=probabilities))
        message = Message("assistant", options[index])
        stream.context(endings[index])
        stream.history += (message,)
        stream.ended = True
        table = {option: float(p) for option, p in zip(options, probabilities, strict=True)}
        return Turn(message, option_probabilities=table)


def continue_stream(stream: TokenStream, chat: ChatFormat, start: RoleView, messages: tuple[Message, ...]) -> None:
    """Bring `stream` up to where the next reply starts.

    Extends the current segment if what it stands for is a prefix of the conversation and only others have
    spoken since; otherwise opens a new segment with the whole prompt. Tokens are never patched.
    """
    history = (Message("system", start.system), *messages) if start.system else messages
    known = len(stream.history)
    news = history[known:]
    extends = known > 0 and history[:known] == stream.history and all(m.role != "assistant" for m in news)
    if extends and stream.tokens:
        stream.context(chat.bridge(stream.ended, news))
    else:
        stream.open(chat.prompt(history, start.tools))
    stream.history = history
