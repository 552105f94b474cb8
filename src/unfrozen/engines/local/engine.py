"""`LocalEngine`: the engine protocol on one base model in this process, on the CPU or one GPU."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from unfrozen.core.errors import ContextTooLong, UsageError
from unfrozen.core.traces import AdapterRef
from unfrozen.engines.local import checkpoints, training
from unfrozen.engines.local.adapters import AdapterBank, Version
from unfrozen.engines.local.batch import Batch
from unfrozen.engines.local.forward import Decoder
from unfrozen.engines.local.grammar import Grammars
from unfrozen.engines.local.loading import load
from unfrozen.engines.local.memory import budget, explained
from unfrozen.engines.local.requests import Draw, Score, uniforms
from unfrozen.engines.local.scheduler import Scheduler
from unfrozen.engines.protocol import (
    AdamParams,
    Capabilities,
    ChatFormat,
    Datum,
    EngineSpec,
    LoraSpec,
    LossSpec,
    LossStats,
    Sample,
    SamplingParams,
)

_SETTINGS = "micro_batch_tokens or memory_gib"


class LocalEngine:
    """One base model, its adapters and their optimizers, in memory.

    Calls may come from many tasks of one event loop. What computes runs in that loop's thread: requests are
    gathered into batches, and the same calls give the same bits on a CPU.
    """

    def __init__(
        self, model: Any, chat: ChatFormat, spec: EngineSpec, family: str = "unknown", tokenizer: Any = None
    ) -> None:
        """Take over `model`, a transformers causal LM on its device; it is changed in place.

        `tokenizer` is the model's own (transformers, fast), for replies that follow a JSON schema.

        Raises UsageError where the architecture is one that this engine cannot run.
        """
        if spec.max_batch < 1 or spec.micro_batch_tokens < 1:
            raise UsageError("max_batch and micro_batch_tokens must be at least 1")
        if spec.threads is not None:
            if spec.threads < 1:
                raise UsageError(f"threads is {spec.threads}; it must be at least 1")
            torch.set_num_threads(spec.threads)
        self.chat = chat
        self.family = family
        self._spec = spec
        self._decoder = Decoder(model)
        self._bank = AdapterBank(model)
        self._batch = Batch(
            self._decoder,
            self._bank,
            budget(spec.memory_gib, self._decoder.device),
            spec.max_batch,
            spec.micro_batch_tokens,
        )
        self._scheduler = Scheduler(self._batch)
        self._grammars = (
            None if tokenizer is None else Grammars(tokenizer, self._decoder.vocabulary, chat.end_tokens[0])
        )
        self._trained = 0
        self._train_seconds = 0.0

    def capabilities(self) -> Capabilities:
        return Capabilities(
            trainable=True,
            several_adapters=True,
            honours_seeds=True,
            losses=frozenset(("importance_sampling", "ppo", "cispo", "cross_entropy")),
            grad_clip=True,
            json_schema=self._grammars is not None,
            deterministic=self._decoder.device.type == "cpu",
        )

    # -- sampling -------------------------------------------------------------------------------------------

    async def sample(
        self, prompt: Sequence[int], params: SamplingParams, seed: int, adapter: AdapterRef | None
    ) -> Sample:
        """Draw one reply. A prompt that leaves room for fewer than `max_tokens` is cut there.

        Raises ContextTooLong when the prompt fills the model's context, OutOfMemory when its keys do not fit.
        """
        _check_params(params)
        self._check_tokens(prompt, 1)
        if adapter is not None:
            self._bank.version(adapter)
        room = self._decoder.context - len(prompt)
        if room < 1:
            raise ContextTooLong(f"the prompt has {len(prompt)} tokens and the model's context {self._decoder.context}")
        if params.max_tokens > room:
            params = replace(params, max_tokens=room)
        future: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
        stop = frozenset((*params.stop, *self.chat.end_tokens))
        numbers = uniforms(seed, params.max_tokens)
        grammar = None
        if params.json_schema is not None:
            if self._grammars is None:
                raise UsageError("this engine was made without a tokenizer: replies cannot follow a json_schema")
            grammar = self._grammars.grammar(params.json_schema)
        self._scheduler.submit(Draw(adapter, list(prompt), len(prompt), params, stop, numbers, future, grammar))
        return await future

    async def logprobs(
        self, tokens: Sequence[int], adapter: AdapterRef | None, start: int = 1, temperature: float = 1.0
    ) -> list[float]:
        self._check_tokens(tokens, 1)
        if start < 1 or temperature <= 0:
            raise UsageError(f"logprobs: start is {start} (at least 1), temperature {temperature} (positive)")
        if adapter is not None:
            self._bank.version(adapter)
        if start >= len(tokens):
            return []
        if len(tokens) > self._decoder.context:
            raise ContextTooLong(
                f"the sequence has {len(tokens)} tokens and the model's context {self._decoder.context}"
            )
        future: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()
        self._scheduler.submit(Score(adapter, list(tokens), start, temperature, future))
        return await future

    # -- training -------------------------------------------------------------------------------------------

    async def create_adapter(self, name: str, lora: LoraSpec, seed: int, init: Path | None = None) -> None:
        """Make a trainable adapter. With `init` (a PEFT folder) its rank, alpha and targets are the folder's."""
        if init is None and (lora.rank < 1 or lora.alpha <= 0):
            raise UsageError(f"adapter {name!r}: rank is {lora.rank} and alpha {lora.alpha}; both must be positive")
        start = None if init is None else checkpoints.read_version(init)
        with explained(f"making the adapter {name!r}", "its rank, or the number of adapters"):
            self._bank.create(name, lora, seed, start)

    async def forward_backward(self, name: str, datums: Sequence[Datum], loss: LossSpec) -> LossStats:
        started = time.perf_counter()
        for datum in datums:
            self._check_tokens(datum.tokens, 0)
        self._bank.activate(name)
        with explained("training", _SETTINGS):
            stats, tokens = training.forward_backward(self._decoder, datums, loss, self._spec.micro_batch_tokens)
        self._trained += tokens
        self._train_seconds += time.perf_counter() - started
        return stats

    async def optim_step(self, name: str, adam: AdamParams) -> float:
        started = time.perf_counter()
        with explained("updating an adapter", _SETTINGS):
            norm = training.optim_step(name, self._bank.trainable(name), adam)
        self._train_seconds += time.perf_counter() - started
        return norm

    # -- versions -------------------------------------------------------------------------------------------

    async def publish(self, name: str) -> AdapterRef:
        return self._bank.publish(name)

    async def load_version(self, ref: AdapterRef, path: Path) -> None:
        version = checkpoints.read_version(path)
        device = self._decoder.device
        weights = {m: (a.to(device).float(), b.to(device).float()) for m, (a, b) in version.weights.items()}
        self._bank.register(ref, Version(version.lora, weights))

    async def save_version(self, ref: AdapterRef, path: Path) -> None:
        checkpoints.write_version(path, self._bank.version(ref), self._spec.model)

    async def drop_version(self, ref: AdapterRef) -> None:
        if self._scheduler.uses(ref):
            raise UsageError(f"adapter version {ref} cannot be dropped while replies are being drawn from it")
        self._bank.drop(ref)
        self._batch.forget(ref)

    async def save(self, name: str, path: Path) -> None:
        adapter = self._bank.trainable(name)
        checkpoints.write_trainable(path, adapter, self._bank.counter(name), self._spec.model)

    async def load(self, name: str, path: Path) -> None:
        """Restore weights, moments and the version counter; a counter never goes below versions in use."""
        adapter = self._bank.trainable(name)
        self._bank.advance(name, checkpoints.read_trainable(path, adapter))
        training.clear(adapter)

    # -- housekeeping ---------------------------------------------------------------------------------------

    async def flush(self) -> None:
        self._batch.flush()
        self._bank.forget_packs()

    def throughput(self) -> Mapping[str, float]:
        return {
            "sampled_tokens": self._batch.sampled,
            "prefilled_tokens": self._batch.prefilled,
            "cached_tokens": self._batch.reused,
            "trained_tokens": self._trained,
            "sample_seconds": self._scheduler.seconds,
            "train_seconds": self._train_seconds,
            "seconds": self._scheduler.seconds + self._train_seconds,
        }

    def _check_tokens(self, tokens: Sequence[int], least: int) -> None:
        if len(tokens) < least:
            raise UsageError("the engine was given no tokens")
        if len(tokens) and not 0 <= min(tokens) <= max(tokens) < self._decoder.vocabulary:
            raise UsageError(
                f"a token id lies outside of the model's vocabulary of {self._decoder.vocabulary}: "
                "the tokens were made for another model"
            )


def build_local_engine(spec: EngineSpec) -> LocalEngine:
    """Load `spec.model` and make an engine of it. Raises UsageError that names what cannot be loaded."""
    loaded = load(spec)
    return LocalEngine(loaded.model, loaded.chat, spec, loaded.family, loaded.tokenizer)


def _check_params(params: SamplingParams) -> None:
    if params.max_tokens < 1 or params.temperature < 0 or params.top_k < 0 or not 0 < params.top_p <= 1:
        raise UsageError(
            f"sampling: max_tokens {params.max_tokens} (at least 1), temperature {params.temperature} (at least 0), "
            f"top_k {params.top_k} (0 is off), top_p {params.top_p} (in (0, 1])"
        )
