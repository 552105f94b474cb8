"""The conformance suite on the local engine, and on engines that break one promise each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import local_models as tiny
import pytest

from unfrozen.core.traces import AdapterRef
from unfrozen.engines.conformance import CHECKS, Nonconformance, Subject, applicable, conform
from unfrozen.engines.local import LocalEngine
from unfrozen.engines.protocol import (
    AdamParams,
    Capabilities,
    Datum,
    EngineSpec,
    LossSpec,
    LossStats,
    Sample,
    SamplingParams,
)


def subject(engine: LocalEngine, folder: Path) -> Subject:
    return Subject(engine, tuple(tuple(tiny.words(10 + i, i)) for i in range(4)), folder)


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_the_local_engine_keeps_every_promise(kind: str, tmp_path: Path) -> None:
    passed = asyncio.run(conform(subject(tiny.engine(kind), tmp_path)))
    assert passed == list(CHECKS)


def test_an_engine_is_only_held_to_what_it_says_it_does() -> None:
    poor = Capabilities(trainable=False, several_adapters=False, honours_seeds=False)
    rich = Capabilities(trainable=True, several_adapters=True, honours_seeds=True)
    assert applicable(rich) == list(CHECKS)
    assert 0 < len(applicable(poor)) < len(CHECKS) - 4


class Forgetful(LocalEngine):
    async def sample(
        self, prompt: Sequence[int], params: SamplingParams, seed: int, adapter: AdapterRef | None
    ) -> Sample:
        self.calls = getattr(self, "calls", 0) + 1
        return await super().sample(prompt, params, seed + self.calls, adapter)


class BeforeTemperature(LocalEngine):
    async def sample(
        self, prompt: Sequence[int], params: SamplingParams, seed: int, adapter: AdapterRef | None
    ) -> Sample:
        sample = await super().sample(prompt, params, seed, adapter)
        tokens = (*prompt, *sample.tokens)
        return replace(sample, logprobs=tuple(await self.logprobs(tokens, adapter, len(prompt))))


class Averaging(LocalEngine):
    async def forward_backward(self, name: str, datums: Sequence[Datum], loss: LossSpec) -> LossStats:
        stats = await super().forward_backward(name, datums, loss)
        return replace(stats, loss=stats.loss / stats.tokens)


class Hoarding(LocalEngine):
    async def optim_step(self, name: str, adam: AdamParams) -> float:
        parameters = self._bank.trainable(name).flat()
        kept = [None if p.grad is None else p.grad.clone() for p in parameters]
        norm = await super().optim_step(name, adam)
        for parameter, grad in zip(parameters, kept, strict=True):
            parameter.grad = grad
        return norm


class Mutable(LocalEngine):
    async def optim_step(self, name: str, adam: AdamParams) -> float:
        self._bank.trainable(name).shared = False
        return await super().optim_step(name, adam)


class Unforgetting(LocalEngine):
    async def drop_version(self, ref: AdapterRef) -> None:
        return None


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (Forgetful, "the same seed"),
        (BeforeTemperature, "after temperature"),
        (Averaging, "losses are sums"),
        (Hoarding, "losses are sums"),
        (Mutable, "stays as it was"),
        (Unforgetting, "dropped"),
    ],
)
def test_an_engine_that_breaks_a_promise_is_found_out(broken: type[LocalEngine], promise: str, tmp_path: Path) -> None:
    chat: Any = tiny.Chat()
    engine = broken(tiny.model(), chat, EngineSpec("tiny", memory_gib=0.25))
    [check] = [check for name, check in CHECKS.items() if promise in name]
    with pytest.raises(Nonconformance):
        tiny.run(check(subject(engine, tmp_path)))
