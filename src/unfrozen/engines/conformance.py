"""What every engine must keep to, as checks that run against any of them.

Each check is named by the promise that it tests and raises `Nonconformance` with what it saw. `applicable`
leaves out what the engine says it cannot do: an engine may do less than others, but it must do what it says.
An adapter that a check makes is named after the check, so that all can run on one engine.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from unfrozen.core.errors import UnfrozenError
from unfrozen.core.traces import AdapterRef
from unfrozen.engines.protocol import (
    AdamParams,
    Capabilities,
    Datum,
    Engine,
    LoraSpec,
    LossSpec,
    Sample,
    SamplingParams,
)


class Nonconformance(AssertionError):
    """The engine broke a promise of the protocol."""


_LORA = LoraSpec(rank=4, alpha=8.0)


@dataclass(frozen=True, slots=True)
class Subject:
    """An engine under test, and what to test it with.

    `prompts` are at least three token sequences that the model can read, none of them alike; `tolerance` is how
    far two log-probabilities of one token may lie apart (nats); `folder` is free to write to.
    """

    engine: Engine
    prompts: tuple[tuple[int, ...], ...]
    folder: Path
    lora: LoraSpec = _LORA
    tolerance: float = 1e-3
    learning_rate: float = 0.02


Check = Callable[[Subject], Awaitable[None]]
CHECKS: dict[str, Check] = {}
"""Every check by its promise."""

_TRAINING: set[str] = set()
_SEEDED: set[str] = set()
_SEVERAL: set[str] = set()
_PARAMS = SamplingParams(max_tokens=8)


def applicable(capabilities: Capabilities) -> list[str]:
    """Names of the checks that an engine with these capabilities must pass."""
    left_out: set[str] = set()
    if not capabilities.trainable:
        left_out |= _TRAINING
    if not capabilities.honours_seeds:
        left_out |= _SEEDED
    if not capabilities.several_adapters:
        left_out |= _SEVERAL
    return [name for name in CHECKS if name not in left_out]


async def conform(subject: Subject) -> list[str]:
    """Run every applicable check; return their names. Raises Nonconformance at the first that fails."""
    names = applicable(subject.engine.capabilities())
    for name in names:
        await CHECKS[name](subject)
    return names


def _check(promise: str, *groups: set[str]) -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        CHECKS[promise] = check
        for group in groups:
            group.add(promise)
        return check

    return add


def _hold(true: bool, said: str) -> None:
    if not true:
        raise Nonconformance(said)


def _close(a: Sequence[float], b: Sequence[float], tolerance: float, what: str) -> None:
    _hold(len(a) == len(b), f"{what}: {len(a)} numbers against {len(b)}")
    worst = max((abs(x - y) for x, y in zip(a, b, strict=True)), default=0.0)
    _hold(worst <= tolerance, f"{what}: {worst:.3g} apart, allowed {tolerance:.3g}")


async def _draw(subject: Subject, adapter: AdapterRef | None = None, seed: int = 0) -> list[Sample]:
    calls = [subject.engine.sample(prompt, _PARAMS, seed + i, adapter) for i, prompt in enumerate(subject.prompts)]
    return await asyncio.gather(*calls)


async def _learn(subject: Subject, name: str, steps: int = 1, weight: float = 1.0) -> None:
    """Take steps of supervised learning on the prompts."""
    loss, adam = LossSpec("cross_entropy"), AdamParams(subject.learning_rate)
    batch = [Datum(p, (0.0,) * len(p), (weight,) * len(p)) for p in subject.prompts]
    for _ in range(steps):
        await subject.engine.forward_backward(name, batch, loss)
        await subject.engine.optim_step(name, adam)


async def _score(subject: Subject, adapter: AdapterRef | None) -> list[float]:
    return await subject.engine.logprobs(subject.prompts[0], adapter)


@_check("a sample has a finite log-probability for each token, at most max_tokens, and says how it ended")
async def _shapes(subject: Subject) -> None:
    for sample in await _draw(subject):
        _hold(len(sample.tokens) == len(sample.logprobs), "tokens and logprobs differ in length")
        _hold(1 <= len(sample.tokens) <= _PARAMS.max_tokens, f"{len(sample.tokens)} tokens were drawn")
        _hold(all(math.isfinite(p) and p <= 1e-6 for p in sample.logprobs), f"logprobs {sample.logprobs}")
        ends = sample.tokens[-1] in subject.engine.chat.end_tokens
        _hold(sample.stopped == ends, f"stopped is {sample.stopped} after token {sample.tokens[-1]}")
        _hold(sample.stopped or len(sample.tokens) == _PARAMS.max_tokens, "cut before max_tokens")


@_check("sampled log-probabilities are those that scoring gives, after temperature")
async def _agreement(subject: Subject) -> None:
    params = SamplingParams(max_tokens=6, temperature=0.7)
    for i, prompt in enumerate(subject.prompts):
        sample = await subject.engine.sample(prompt, params, i, None)
        scored = await subject.engine.logprobs((*prompt, *sample.tokens), None, len(prompt), 0.7)
        _close(sample.logprobs, scored, subject.tolerance, "sampled against scored")


@_check("scoring from a start is the tail of scoring from the beginning")
async def _tails(subject: Subject) -> None:
    prompt = subject.prompts[0]
    whole = await subject.engine.logprobs(prompt, None)
    _hold(len(whole) == len(prompt) - 1, f"{len(whole)} log-probabilities for {len(prompt)} tokens")
    tail = await subject.engine.logprobs(prompt, None, len(prompt) - 2)
    _close(tail, whole[-2:], subject.tolerance, "tail")


@_check("a stop token ends the reply and is part of it")
async def _stops(subject: Subject) -> None:
    free = (await _draw(subject))[0]
    stop = free.tokens[len(free.tokens) // 2]
    params = SamplingParams(_PARAMS.max_tokens, stop=(stop,))
    stopped = await subject.engine.sample(subject.prompts[0], params, 0, None)
    if stop in stopped.tokens:
        _hold(stopped.stopped, "a reply that ends with a stop token is not marked as stopped")
        _hold(stopped.tokens.index(stop) == len(stopped.tokens) - 1, "the reply goes on after a stop token")


@_check("the same seed draws the same tokens, alone or among others, cached or not", _SEEDED)
async def _seeds(subject: Subject) -> None:
    together = await _draw(subject)
    again = await _draw(subject)
    await subject.engine.flush()
    alone = [await subject.engine.sample(p, _PARAMS, i, None) for i, p in enumerate(subject.prompts)]
    for a, b, c in zip(together, again, alone, strict=True):
        _hold(a.tokens == b.tokens == c.tokens, f"one seed drew {a.tokens}, {b.tokens} and {c.tokens}")
    others = await asyncio.gather(
        *(subject.engine.sample(subject.prompts[0], _PARAMS, seed, None) for seed in range(100, 112))
    )
    _hold(len({s.tokens for s in others}) > 1, "twelve seeds drew one and the same reply")


@_check("a fresh adapter changes nothing, and versions count from 0", _TRAINING)
async def _fresh(subject: Subject) -> None:
    await subject.engine.create_adapter("check-fresh", subject.lora, 1)
    first = await subject.engine.publish("check-fresh")
    second = await subject.engine.publish("check-fresh")
    _hold((first.version, second.version) == (0, 1), f"the first two versions are {first} and {second}")
    _close(await _score(subject, first), await _score(subject, None), subject.tolerance, "fresh against base")


@_check("training raises what it weighs, and a published version stays as it was", _TRAINING)
async def _immutable(subject: Subject) -> None:
    await subject.engine.create_adapter("check-learn", subject.lora, 2)
    await _learn(subject, "check-learn")
    before = await subject.engine.publish("check-learn")
    scored = await _score(subject, before)
    await _learn(subject, "check-learn", steps=3)
    after = await subject.engine.publish("check-learn")
    await subject.engine.flush()
    _close(await _score(subject, before), scored, subject.tolerance, "a published version")
    base, now = sum(await _score(subject, None)), sum(await _score(subject, after))
    _hold(now > sum(scored) > base, f"log-likelihood went {base:.3f}, {sum(scored):.3f}, {now:.3f}")


@_check("losses are sums over tokens, and masked tokens count for nothing", _TRAINING)
async def _sums(subject: Subject) -> None:
    await subject.engine.create_adapter("check-sums", subject.lora, 3)
    prompt, loss = subject.prompts[0], LossSpec("cross_entropy")
    scored = await subject.engine.logprobs(prompt, None)
    half = len(prompt) // 2
    weights = (0.0,) * half + (2.0,) * (len(prompt) - half)
    datum = Datum(prompt, (9.0,) * half + (0.0,) * (len(prompt) - half), weights)
    expected = -2 * sum(scored[half - 1 :])
    allowed = subject.tolerance * 2 * len(prompt)
    for copies in (1, 2):
        stats = await subject.engine.forward_backward("check-sums", [datum] * copies, loss)
        _close([stats.loss], [copies * expected], copies * allowed, f"the loss of {copies} datums")
        _hold(stats.tokens == copies * (len(prompt) - half), f"{stats.tokens} tokens were weighted")
    norm = await subject.engine.optim_step("check-sums", AdamParams(subject.learning_rate))
    _hold(norm > 0, f"the gradient norm is {norm}")
    nothing = await subject.engine.optim_step("check-sums", AdamParams(subject.learning_rate))
    _hold(nothing == 0, f"a step left gradients behind: the next norm is {nothing}")


@_check("on fresh samples the ratio is 1: sampler and trainer agree", _TRAINING)
async def _on_policy(subject: Subject) -> None:
    engine = subject.engine
    await engine.create_adapter("check-ratio", subject.lora, 4)
    await _learn(subject, "check-ratio")
    ref = await engine.publish("check-ratio")
    batch = []
    for prompt, sample in zip(subject.prompts, await _draw(subject, ref), strict=True):
        quiet = (0.0,) * len(prompt)
        batch.append(
            Datum((*prompt, *sample.tokens), (*quiet, *sample.logprobs), (*quiet, *(1.0,) * len(sample.tokens)))
        )
    names = engine.capabilities().losses - {"cross_entropy"}
    for name in sorted(names):
        stats = await engine.forward_backward("check-ratio", batch, LossSpec(name))
        _hold(stats.gap <= subject.tolerance, f"{name}: the gap is {stats.gap:.3g} on the sampler's own samples")
        _hold(stats.clipped == 0, f"{name}: {stats.clipped:.0%} of the ratios are out of bounds")


@_check("adapters learn apart from each other and share batches", _TRAINING, _SEVERAL)
async def _several(subject: Subject) -> None:
    engine = subject.engine
    refs: list[AdapterRef | None] = [None]
    for name, weight in (("check-more", 1.0), ("check-less", -1.0)):
        await engine.create_adapter(name, subject.lora, 5)
        await _learn(subject, name, steps=2, weight=weight)
        refs.append(await engine.publish(name))
    alone = [await _score(subject, ref) for ref in refs]
    together = await asyncio.gather(*(_score(subject, ref) for ref in refs))
    for a, b in zip(alone, together, strict=True):
        _close(a, b, subject.tolerance, "a row of a mixed batch against the adapter alone")
    base, more, less = (sum(scores) for scores in alone)
    _hold(more > base > less, f"log-likelihoods: more {more:.3f}, base {base:.3f}, less {less:.3f}")


@_check("what is saved comes back: weights, moments and the version counter", _TRAINING, _SEVERAL)
async def _saved(subject: Subject) -> None:
    engine, path = subject.engine, subject.folder / "check-saved"
    await engine.create_adapter("check-saved", subject.lora, 6)
    await _learn(subject, "check-saved", steps=2)
    published = await engine.publish("check-saved")
    await engine.save("check-saved", path)
    await _learn(subject, "check-saved", steps=2)
    expected = await _score(subject, await engine.publish("check-saved"))
    await engine.create_adapter("check-back", subject.lora, 7)
    await engine.load("check-back", path)
    await _learn(subject, "check-back", steps=2)
    back = await engine.publish("check-back")
    _close(await _score(subject, back), expected, subject.tolerance, "two steps after loading")
    _hold(back.version == published.version + 1, f"the counter came back as {back.version}")
    await engine.save_version(published, subject.folder / "check-version")
    again = AdapterRef("check-again", 3)
    await engine.load_version(again, subject.folder / "check-version")
    _close(await _score(subject, again), await _score(subject, published), subject.tolerance, "a loaded version")


@_check("a dropped version cannot be sampled from", _TRAINING)
async def _dropped(subject: Subject) -> None:
    await subject.engine.create_adapter("check-drop", subject.lora, 8)
    ref = await subject.engine.publish("check-drop")
    await subject.engine.drop_version(ref)
    try:
        await subject.engine.sample(subject.prompts[0], _PARAMS, 0, ref)
    except UnfrozenError:
        return
    raise Nonconformance(f"{ref} was sampled from after it was dropped")
