"""Training on the local engine: gradients against a naive float64 reference, sums, masks, Adam."""

from __future__ import annotations

import asyncio
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import local_models as tiny
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import PeftModel

from unfrozen.core.errors import ResumableError, UsageError
from unfrozen.engines.local import LocalEngine
from unfrozen.engines.local.training import micro_batches
from unfrozen.engines.protocol import AdamParams, Datum, LoraSpec, LossName, LossSpec

LOSSES: tuple[LossName, ...] = ("importance_sampling", "ppo", "cispo", "cross_entropy")


def datums(count: int, seed: int, logp_shift: float = 0.4) -> list[Datum]:
    """Sequences with a masked prompt, weights of both signs, and sampler log-probabilities around -4.5."""
    g = torch.Generator().manual_seed(seed)
    made = []
    for i in range(count):
        length = 6 + (7 * i + seed) % 19
        weights = torch.randn(length, generator=g)
        weights[: length // 3] = 0
        weights[torch.rand(length, generator=g) < 0.2] = 0
        old = -4.5 + logp_shift * torch.randn(length, generator=g)
        made.append(Datum(tuple(tiny.words(length, seed + i)), tuple(old.tolist()), tuple(weights.tolist())))
    return made


async def moved(engine: LocalEngine, name: str = "a") -> None:
    """Make an adapter whose B is not zero, so that A has gradients too."""
    await engine.create_adapter(name, LoraSpec(4, 8.0), seed=3)
    await engine.forward_backward(name, datums(2, 50), LossSpec("cross_entropy"))
    await engine.optim_step(name, AdamParams(0.02))


def gradients(engine: LocalEngine, name: str = "a") -> list[torch.Tensor]:
    return [p.grad.clone() for p in engine._bank.trainable(name).flat() if p.grad is not None]


def naive(engine: LocalEngine, batch: list[Datum], spec: LossSpec) -> tuple[list[torch.Tensor], float]:
    """Gradients and loss from plain PEFT in float64, a sequence at a time, by the definitions in `LossSpec`."""
    with tempfile.TemporaryDirectory() as folder:
        tiny.run(engine.save("a", Path(folder) / "a"))
        model = PeftModel.from_pretrained(
            tiny.model(), Path(folder) / "a", is_trainable=True, autocast_adapter_dtype=False
        )
    model = model.double().eval()
    model.set_attn_implementation("eager")
    wanted = [
        model.get_submodule(f"base_model.model.{name}.lora_{part}.default").weight
        for name in engine._bank.trainable("a").parameters
        for part in "AB"
    ]
    total = 0.0
    for datum in batch:
        logits = model(torch.tensor([datum.tokens]), use_cache=False).logits[0] / spec.temperature
        loss = torch.zeros((), dtype=torch.float64)
        for i in range(1, len(datum.tokens)):
            logp = logits[i - 1].log_softmax(-1)[datum.tokens[i]]
            advantage, ratio = datum.weights[i], torch.exp(logp - datum.logprobs[i])
            bounded = torch.clamp(ratio, 1 - spec.clip_low, 1 + spec.clip_high)
            if spec.name == "importance_sampling":
                loss = loss - ratio * advantage
            elif spec.name == "ppo":
                loss = loss - torch.minimum(ratio * advantage, bounded * advantage)
            elif spec.name == "cispo":
                loss = loss - bounded.detach() * advantage * logp
            else:
                loss = loss - advantage * logp
        loss.backward()
        total += float(loss.detach())
    return [p.grad for p in wanted], total


@settings(max_examples=16, deadline=None)
@given(
    name=st.sampled_from(LOSSES),
    seed=st.integers(0, 10_000),
    temperature=st.sampled_from((1.0, 0.7)),
    limit=st.sampled_from((1, 40, 4096)),
)
def test_every_losss_gradient_is_that_of_its_definition_in_float64(
    name: LossName, seed: int, temperature: float, limit: int
) -> None:
    engine = tiny.engine(micro_batch_tokens=limit)
    batch, spec = datums(5, seed), LossSpec(name, temperature=temperature)
    tiny.run(moved(engine))
    [stats] = tiny.run(engine.forward_backward("a", batch, spec))
    got = gradients(engine)
    expected, loss = naive(engine, batch, spec)
    assert stats.loss == pytest.approx(loss, rel=1e-4, abs=1e-3)
    assert len(got) == len(expected) > 0
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2e-3, atol=2e-4 * float(b.abs().max()) + 1e-5)


def test_the_head_in_many_chunks_gives_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for logits in (2**24, 3 * tiny.VOCABULARY):
        monkeypatch.setattr("unfrozen.engines.local.forward._LOGITS", logits)
        engine = tiny.engine()
        tiny.run(moved(engine))
        tiny.run(engine.forward_backward("a", datums(4, 1), LossSpec("ppo")))
        found.append(gradients(engine))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_losses_are_sums_so_two_calls_add_up_to_one() -> None:
    batch = datums(6, 4)
    at_once, in_two = tiny.engine(), tiny.engine()
    for engine in (at_once, in_two):
        tiny.run(moved(engine))
    spec = LossSpec("importance_sampling")
    [whole] = tiny.run(at_once.forward_backward("a", batch, spec))
    [first] = tiny.run(in_two.forward_backward("a", batch[:2], spec))
    [second] = tiny.run(in_two.forward_backward("a", batch[2:], spec))
    assert whole.loss == pytest.approx(first.loss + second.loss, rel=1e-4)
    assert whole.tokens == first.tokens + second.tokens == sum(sum(w != 0 for w in d.weights) for d in batch)
    for a, b in zip(gradients(at_once), gradients(in_two), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)
    # and twice the data is twice the gradient, not the same mean
    tiny.run(at_once.forward_backward("a", batch, spec))
    for a, b in zip(gradients(at_once), gradients(in_two), strict=True):
        torch.testing.assert_close(a, 2 * b, rtol=1e-4, atol=1e-3)


def test_masked_tokens_have_no_influence() -> None:
    base = datums(1, 9)[0]
    last = max(i for i, w in enumerate(base.weights) if w)
    longer = Datum(  # other words after the last weighted token, wild log-probabilities where nothing is weighted
        (*base.tokens[: last + 1], *tiny.words(5, 99)),
        (*(old if w else 777.0 for old, w in zip(base.logprobs, base.weights, strict=True)),)[: last + 1]
        + (123.0,) * 5,
        (*base.weights[: last + 1], *(0.0,) * 5),
    )
    found = []
    for datum in (base, longer):
        engine = tiny.engine()
        tiny.run(moved(engine))
        tiny.run(engine.forward_backward("a", [datum], LossSpec("ppo")))
        found.append(gradients(engine))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


def test_entry_zero_and_datums_without_weights_are_never_used() -> None:
    engine = tiny.engine()
    tiny.run(moved(engine))
    tokens = tuple(tiny.words(5, 1))
    silent = [Datum(tokens, (0.0,) * 5, (0.0,) * 5), Datum(tokens, (0.0,) * 5, (9.0, 0.0, 0.0, 0.0, 0.0))]
    [stats] = tiny.run(engine.forward_backward("a", silent, LossSpec("ppo")))
    assert (stats.tokens, stats.loss, gradients(engine)) == (0, 0.0, [])
    assert tiny.run(engine.optim_step("a", AdamParams(1.0))) == [0.0]


def test_an_adapters_gradients_stay_while_another_trains() -> None:
    engine = tiny.engine()

    async def check() -> None:
        await moved(engine, "a")
        await moved(engine, "b")
        await engine.forward_backward("a", datums(3, 1), LossSpec("ppo"))
        before = gradients(engine, "a")
        weights = [p.detach().clone() for p in engine._bank.trainable("a").flat()]
        await engine.forward_backward("b", datums(3, 2), LossSpec("cispo"))
        await engine.optim_step("b", AdamParams(0.1))
        for x, y in zip(gradients(engine, "a"), before, strict=True):
            assert torch.equal(x, y)
        for x, y in zip(engine._bank.trainable("a").flat(), weights, strict=True):
            assert torch.equal(x, y)

    asyncio.run(check())


def test_optim_step_is_torchs_adamw_with_clipping_and_returns_the_norm_before_it() -> None:
    engine = tiny.engine()
    tiny.run(engine.create_adapter("a", LoraSpec(4, 8.0), 3))
    mine = engine._bank.trainable("a").flat()
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in mine]
    optimizer = torch.optim.AdamW(theirs)
    for step, adam in enumerate(
        (AdamParams(0.01), AdamParams(0.003, 0.8, 0.9, 1e-6, 0.1, 0.5), AdamParams(0.02, grad_clip=0.0))
    ):
        tiny.run(engine.forward_backward("a", datums(3, step), LossSpec("cross_entropy")))
        for p, q in zip(mine, theirs, strict=True):
            assert p.grad is not None
            q.grad = p.grad.clone()
        expected = math.sqrt(sum(float(q.grad.double().square().sum()) for q in theirs if q.grad is not None))
        if adam.grad_clip:
            torch.nn.utils.clip_grad_norm_(theirs, adam.grad_clip)
        optimizer.param_groups[0].update(
            lr=adam.learning_rate, betas=(adam.beta1, adam.beta2), eps=adam.eps, weight_decay=adam.weight_decay
        )
        optimizer.step()
        [norm] = tiny.run(engine.optim_step("a", adam))
        assert norm == pytest.approx(expected, rel=1e-5)
        for p, q in zip(mine, theirs, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
            assert p.grad is None


def test_stats_tell_gap_clipped_share_and_logprob_sum() -> None:
    engine = tiny.engine()
    tokens = tiny.words(12, 1)

    async def check() -> None:
        await moved(engine)
        ref = await engine.publish("a")
        logp = [0.0, *await engine.logprobs(tokens, ref)]
        off = [p + (0.5 if i % 2 else 0.0) for i, p in enumerate(logp)]
        datum = Datum(tuple(tokens), tuple(off), (1.0,) * 12)
        stats = await engine.forward_backward("a", [datum], LossSpec("ppo"))
        assert stats.tokens == 11
        assert stats.gap == pytest.approx(6 * 0.5 / 11, abs=1e-4)
        assert stats.clipped == pytest.approx(6 / 11)  # exp(-0.5) lies below 0.8
        assert stats.logprob_sum == pytest.approx(sum(logp), rel=1e-4)

    asyncio.run(check())


def test_sampler_and_trainer_agree_on_logprobs() -> None:
    engine = tiny.engine()

    async def check() -> None:
        await moved(engine)
        ref = await engine.publish("a")
        rows = [[float(x) for x in await engine.logprobs(tiny.words(20, i), ref, 1, 0.7)] for i in range(3)]
        batch = [Datum(tuple(tiny.words(20, i)), (0.0, *row), (0.0, *(1.0,) * 19)) for i, row in enumerate(rows)]
        stats = await engine.forward_backward("a", batch, LossSpec("importance_sampling", temperature=0.7))
        assert stats.gap < 1e-4
        assert stats.loss == pytest.approx(-57, abs=1e-2)  # every ratio is 1

    asyncio.run(check())


@given(
    lengths=st.lists(st.integers(2, 60), min_size=1, max_size=30),
    limit=st.integers(1, 200),
)
def test_micro_batches_hold_every_datum_once_within_the_limit(lengths: list[int], limit: int) -> None:
    batch = [Datum((i,) * n, (0.0,) * n, (0.0, *(1.0,) * (n - 1))) for i, n in enumerate(lengths)]
    groups = micro_batches(batch, limit)
    assert sorted(d.tokens for g in groups for d in g) == sorted(d.tokens for d in batch)
    for group in groups:
        assert len(group) == 1 or len(group) * max(len(d.tokens) for d in group) <= limit


def test_a_gradient_that_is_not_finite_stops_before_it_spoils_the_weights() -> None:
    engine = tiny.engine()
    tiny.run(moved(engine))
    before = [p.detach().clone() for p in engine._bank.trainable("a").flat()]
    bad = replace(datums(1, 1)[0], logprobs=(-1e6,) * len(datums(1, 1)[0].tokens))
    tiny.run(engine.forward_backward("a", [bad], LossSpec("importance_sampling")))
    with pytest.raises(ResumableError, match="gradient norm"):
        tiny.run(engine.optim_step("a", AdamParams(0.1)))
    for p, q in zip(engine._bank.trainable("a").flat(), before, strict=True):
        assert torch.equal(p, q)


def test_training_an_adapter_that_is_not_there_names_those_that_are() -> None:
    engine = tiny.engine()
    tiny.run(moved(engine))
    with pytest.raises(UsageError, match=r"'b'.*\['a'\]"):
        tiny.run(engine.forward_backward("b", datums(1, 1), LossSpec("ppo")))
