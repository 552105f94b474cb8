"""What waits for the model: replies to draw, sequences to score. Both start by reading a prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from torch import Tensor

from unfrozen.core.traces import AdapterRef
from unfrozen.engines.local.grammar import Grammar
from unfrozen.engines.local.kv import Tokens
from unfrozen.engines.protocol import Sample, SamplingParams


@dataclass(slots=True, eq=False)
class Draw:
    """A reply being drawn. `tokens` holds the prompt, then what was drawn."""

    adapter: AdapterRef | None
    tokens: list[int]
    prompt: int
    params: SamplingParams
    stop: frozenset[int]
    uniform: list[float]
    """One number in [0, 1) for each token, drawn up front from the request's own seed."""
    future: asyncio.Future[Sample]
    grammar: Grammar | None = None
    logprobs: list[float] = field(default_factory=list)

    @property
    def reusable(self) -> int:
        """Tokens whose keys may come from a cache: all but the last, which must be run to know what follows."""
        return self.prompt - 1

    @property
    def room(self) -> int:
        """Columns of the KV batch that the whole reply needs; the last token's keys are never computed."""
        return self.prompt + self.params.max_tokens - 1

    @property
    def drawn(self) -> int:
        return len(self.logprobs)

    def finished(self) -> bool:
        """Whether the last drawn token ends the reply, or nobody waits for it any more."""
        if self.future.done() or self.drawn >= self.params.max_tokens:
            return True
        return self.drawn > 0 and self.tokens[-1] in self.stop

    def deliver(self) -> None:
        """Hand the reply to whoever waits."""
        if not self.future.done():
            drawn = tuple(self.tokens[self.prompt :])
            self.future.set_result(Sample(drawn, tuple(self.logprobs), bool(drawn) and drawn[-1] in self.stop))


@dataclass(slots=True, eq=False)
class Score:
    """A sequence whose tokens' log-probabilities are wanted, from `start` on."""

    adapter: AdapterRef | None
    tokens: list[int]
    start: int
    temperature: float
    future: asyncio.Future[list[float]]
    logprobs: list[float] = field(default_factory=list)

    @property
    def reusable(self) -> int:
        """Token start - 1 must be run: it predicts the first one that is wanted."""
        return self.start - 1

    @property
    def room(self) -> int:
        return len(self.tokens)

    def deliver(self) -> None:
        """Hand the log-probabilities to whoever waits."""
        if not self.future.done():
            self.future.set_result(self.logprobs)


Request = Draw | Score


@dataclass(slots=True, eq=False)
class Admission:
    """A request on its way into the batch: where its first keys come from, and when it is its turn."""

    request: Request
    tokens: Tokens
    """What has to be in the batch: the prompt, or the sequence but its last token."""
    stream: Tensor | None
    """Keys and values found in the store."""
    cached: int
    """Tokens of it that are of use."""
    parent: Admission | None = None
    """An admission of the same batch that has a longer prefix in common; it is run first."""
    common: int = 0
    depth: int = 0
    row: int = -1

    @property
    def done(self) -> int:
        """Tokens that need not be run."""
        return self.cached if self.parent is None else self.common


_WORTH_WAITING = 16
"""A shared prefix shorter than this is run again rather than waited for."""


def link(admissions: Sequence[Admission]) -> list[list[Admission]]:
    """Find shared prefixes; return waves, each of which needs only what earlier ones have run.

    In sorted order the longest prefix that an admission shares with any before it is the one that it shares with
    its neighbour, so one pass finds them all. The parent is the first that holds the prefix: a group of N
    equal prompts is two waves, not N.
    """
    ordered = sorted(admissions, key=lambda a: (str(a.request.adapter), a.tokens.tolist()))
    for before, this in pairwise(ordered):
        if before.request.adapter != this.request.adapter:
            continue
        common = min(_common(before.tokens, this.tokens), this.request.reusable)
        if common < this.cached + _WORTH_WAITING:
            continue
        parent = before
        while parent.parent is not None and parent.common >= common:
            parent = parent.parent
        this.parent, this.common, this.depth = parent, common, parent.depth + 1
    waves: list[list[Admission]] = [[] for _ in range(max((a.depth for a in ordered), default=-1) + 1)]
    for admission in ordered:
        waves[admission.depth].append(admission)
    return waves


def _common(a: Tokens, b: Tokens) -> int:
    width = min(len(a), len(b))
    differs = a[:width] != b[:width]
    return int(differs.argmax()) if differs.any() else width


def uniforms(seed: int, count: int) -> list[float]:
    """The random numbers of one request."""
    numbers: list[float] = np.random.default_rng(seed).random(count, dtype=np.float32).tolist()
    return numbers
