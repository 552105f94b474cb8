"""Sampling on the local engine: batches, caches and adapters change nothing but the speed."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import local_models as tiny
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from unfrozen.core.errors import EpisodeError, OutOfMemory, UsageError
from unfrozen.core.traces import AdapterRef
from unfrozen.engines.local import LocalEngine
from unfrozen.engines.local.drawing import Drawing
from unfrozen.engines.protocol import (
    AdamParams,
    Datum,
    EngineSpec,
    LoraSpec,
    LossSpec,
    Sample,
    SamplingParams,
)


def reference(model: torch.nn.Module, tokens: list[int], start: int, temperature: float = 1.0) -> list[float]:
    """Log-probabilities from the model's own plain forward pass."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    logp = (logits / temperature).log_softmax(-1)
    return [float(logp[i - 1, tokens[i]]) for i in range(start, len(tokens))]


async def adapters(engine: LocalEngine, count: int, lora: LoraSpec | None = None) -> list[AdapterRef]:
    """Published adapters that differ from the base and from each other."""
    refs = []
    for i in range(count):
        await engine.create_adapter(f"a.{i}", lora or LoraSpec(4, 8.0), seed=i)
        for step in range(2):
            tokens = tiny.words(12, 100 * i + step)
            datum = Datum(tuple(tokens), (0.0,) * 12, (1.0,) * 12)
            await engine.forward_backward(f"a.{i}", [datum], LossSpec("cross_entropy"))
            await engine.optim_step(f"a.{i}", AdamParams(0.05))
        refs.append(await engine.publish(f"a.{i}"))
    return refs


async def talk(
    engine: LocalEngine, ref: AdapterRef | None, seed: int, turns: int, params: SamplingParams, opening: list[int]
) -> list[tuple[list[int], Sample]]:
    """One stream of several turns; the other party's words are random."""
    tokens, record = list(opening), []
    for turn in range(turns):
        tokens += tiny.words(1 + (seed + turn) % 5, 1000 * seed + turn)
        sample = await engine.sample(tokens, params, 31 * seed + turn, ref)
        record.append((list(tokens), sample))
        tokens += sample.tokens
    return record


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_logprobs_of_a_whole_sequence_are_those_of_the_models_own_forward_pass(kind: str) -> None:
    tokens = tiny.words(40, 1)
    engine = tiny.engine(kind)
    expected = reference(tiny.model(kind), tokens, 1, 0.7)
    [got] = tiny.run(engine.logprobs(tokens, None, 1, 0.7))
    assert got == pytest.approx(expected, abs=1e-4)
    [tail] = tiny.run(engine.logprobs(tokens, None, 30, 0.7))
    assert tail == pytest.approx(expected[29:], abs=1e-4)


@settings(max_examples=12, deadline=None)
@given(
    kind=st.sampled_from(tiny.KINDS),
    streams=st.integers(1, 6),
    turns=st.integers(1, 4),
    opening=st.integers(1, 40),
    max_batch=st.sampled_from((1, 3, 64)),
    temperature=st.sampled_from((0.7, 1.0, 1.3)),
)
def test_sampling_from_the_cache_gives_the_logprobs_of_a_fresh_forward_pass(
    kind: str, streams: int, turns: int, opening: int, max_batch: int, temperature: float
) -> None:
    engine = tiny.engine(kind, max_batch=max_batch)
    params = SamplingParams(9, temperature)
    opened = tiny.words(opening, 5)
    records = tiny.run(*(talk(engine, None, i, turns, params, opened) for i in range(streams)))
    plain = tiny.model(kind)
    for record in records:
        for prompt, sample in record:
            expected = reference(plain, [*prompt, *sample.tokens], len(prompt), temperature)
            assert sample.logprobs == pytest.approx(expected, abs=1e-4)
    if turns > 1:
        assert engine.throughput()["cached_tokens"] > 0


def test_a_batch_that_mixes_adapters_gives_row_for_row_what_each_gives_alone() -> None:
    engine = tiny.engine()
    params = SamplingParams(8)

    async def mixed_and_alone() -> None:
        refs: list[AdapterRef | None] = [None, *await adapters(engine, 3)]
        prompts = [tiny.words(5 + i, i) for i in range(8)]
        together = await asyncio.gather(*(engine.sample(p, params, i, refs[i % 4]) for i, p in enumerate(prompts)))
        await engine.flush()
        for i, prompt in enumerate(prompts):
            alone = await engine.sample(prompt, params, i, refs[i % 4])
            assert alone.tokens == together[i].tokens
            assert alone.logprobs == pytest.approx(together[i].logprobs, abs=1e-5)
        scores = {
            ref: (await engine.logprobs(prompts[0], ref))[-1] for ref in refs
        }  # the adapters do differ, or this test shows nothing
        assert len({round(score, 3) for score in scores.values()}) == 4

    asyncio.run(mixed_and_alone())


def test_adapters_of_different_shapes_share_a_batch() -> None:
    engine = tiny.engine()

    async def check() -> None:
        [wide] = await adapters(engine, 1)
        await engine.create_adapter("narrow", LoraSpec(2, 8.0, ("q_proj", "down_proj")), 9)
        datum = Datum(tuple(tiny.words(9, 1)), (0.0,) * 9, (1.0,) * 9)
        await engine.forward_backward("narrow", [datum], LossSpec("cross_entropy"))
        await engine.optim_step("narrow", AdamParams(0.05))
        narrow = await engine.publish("narrow")
        tokens = tiny.words(20, 3)
        alone = [await engine.logprobs(tokens, ref) for ref in (wide, narrow)]
        together = await asyncio.gather(*(engine.logprobs(tokens, ref) for ref in (wide, narrow)))
        for a, b in zip(alone, together, strict=True):
            assert a == pytest.approx(b, abs=1e-5)

    asyncio.run(check())


def test_the_same_calls_give_the_same_bits_and_other_seeds_other_tokens() -> None:
    params = SamplingParams(12)

    def record() -> list[list[tuple[list[int], Sample]]]:
        engine = tiny.engine()
        return tiny.run(*(talk(engine, None, i, 3, params, tiny.words(20, 0)) for i in range(5)))

    first, second = record(), record()
    assert first == second
    assert len({sample.tokens for talked in first for _, sample in talked}) > 10


def test_after_a_flush_nothing_depends_on_what_came_before() -> None:
    params = SamplingParams(12)
    used = tiny.engine()
    tiny.run(*(talk(used, None, i, 2, params, tiny.words(90, i)) for i in range(7)))
    tiny.run(used.flush())
    fresh = tiny.engine()
    talks = [
        tiny.run(*(talk(engine, None, i, 3, params, tiny.words(20, 0)) for i in range(4))) for engine in (used, fresh)
    ]
    assert talks[0] == talks[1]


def test_tokens_do_not_depend_on_who_shares_the_batch() -> None:
    engine = tiny.engine()
    prompt, params = tiny.words(9, 1), SamplingParams(10)
    [alone] = tiny.run(engine.sample(prompt, params, 7, None))
    crowd = tiny.run(
        engine.sample(prompt, params, 7, None),
        *(engine.sample(tiny.words(3 + i, i), SamplingParams(4 + i), i, None) for i in range(9)),
    )
    assert crowd[0].tokens == alone.tokens


def test_a_prefix_that_a_group_shares_is_read_once() -> None:
    engine = tiny.engine()
    system = tiny.words(100, 1)
    prompts = [[*system, *tiny.words(30, group), *tiny.words(4, i)] for group in (2, 3) for i in range(8)]
    tiny.run(*(engine.sample(p, SamplingParams(1), i, None) for i, p in enumerate(prompts)))
    # the system prompt once, each group's 30 once, and 4 for each row
    assert engine.throughput()["prefilled_tokens"] <= 100 + 2 * 30 + 16 * 4
    assert engine.throughput()["cached_tokens"] >= sum(map(len, prompts)) - 224


def test_the_next_turn_reads_only_what_is_new() -> None:
    engine = tiny.engine()
    prompt = tiny.words(60, 1)
    [first] = tiny.run(engine.sample(prompt, SamplingParams(5), 1, None))
    assert engine.throughput()["prefilled_tokens"] == 60
    longer = [*prompt, *first.tokens, *tiny.words(7, 2)]
    tiny.run(engine.sample(longer, SamplingParams(5), 2, None))
    # the last sampled token was never run
    assert engine.throughput()["prefilled_tokens"] == 60 + 1 + 7


def test_many_more_requests_than_rows_are_all_answered_as_if_alone() -> None:
    prompts = [tiny.words(4 + i % 7, i) for i in range(23)]
    limits = [1 + i % 9 for i in range(23)]
    crowded, roomy = tiny.engine(max_batch=4), tiny.engine(max_batch=1)
    calls = [
        tiny.run(
            *(e.sample(p, SamplingParams(n), i, None) for i, (p, n) in enumerate(zip(prompts, limits, strict=True)))
        )
        for e in (crowded, roomy)
    ]
    assert [s.tokens for s in calls[0]] == [s.tokens for s in calls[1]]


def test_a_reply_ends_at_a_stop_token_and_says_so() -> None:
    engine = tiny.engine()
    prompt = tiny.words(6, 3)
    [free] = tiny.run(engine.sample(prompt, SamplingParams(30), 5, None))
    stop = free.tokens[3]
    [stopped] = tiny.run(engine.sample(prompt, SamplingParams(30, stop=(stop,)), 5, None))
    assert stopped.stopped
    assert stopped.tokens == free.tokens[: free.tokens.index(stop) + 1]
    [cut] = tiny.run(engine.sample(prompt, SamplingParams(2), 5, None))
    assert (cut.tokens, cut.stopped) == (free.tokens[:2], False)


def test_draws_follow_the_models_distribution() -> None:
    engine = tiny.engine()
    prompt, count = tiny.words(6, 3), 600
    samples = tiny.run(*(engine.sample(prompt, SamplingParams(1, 0.8), i, None) for i in range(count)))
    with torch.no_grad():
        probabilities = (tiny.model()(torch.tensor([prompt])).logits[0, -1] / 0.8).softmax(-1)
    counts = torch.bincount(torch.tensor([s.tokens[0] for s in samples]), minlength=tiny.VOCABULARY)
    for token in probabilities.topk(5).indices.tolist():
        p = float(probabilities[token])
        assert abs(int(counts[token]) - count * p) < 4.5 * (count * p * (1 - p)) ** 0.5


def test_top_k_and_top_p_cut_and_renormalise_and_temperature_zero_is_greedy() -> None:
    engine = tiny.engine()
    prompt = tiny.words(6, 3)
    with torch.no_grad():
        logp = tiny.model()(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
    order = logp.argsort(descending=True)

    def drawn(params: SamplingParams) -> dict[int, float]:
        samples = tiny.run(*(engine.sample(prompt, params, i, None) for i in range(80)))
        return {s.tokens[0]: s.logprobs[0] for s in samples}

    top3 = drawn(SamplingParams(1, top_k=3))
    assert set(top3) == set(order[:3].tolist())
    assert sum(torch.tensor(list(top3.values())).exp()) == pytest.approx(1, abs=1e-5)
    mass = logp[order].exp().cumsum(0)
    nucleus = order[: int((mass < 0.5).sum()) + 1].tolist()
    assert set(drawn(SamplingParams(1, top_p=0.5))) <= set(nucleus)
    assert drawn(SamplingParams(1, temperature=0.0)) == {int(order[0]): 0.0}


def test_scores_meet_cached_prefixes_and_other_requests_in_one_batch() -> None:
    engine = tiny.engine(micro_batch_tokens=64)
    shared = tiny.words(50, 1)
    options = [[*shared, *tiny.words(n, n)] for n in (1, 2, 3, 9)]

    async def check() -> list[list[float]]:
        await engine.sample(shared, SamplingParams(3), 1, None)
        scores = [engine.logprobs(option, None, start=50) for option in options]
        draws = [engine.sample(tiny.words(5, i), SamplingParams(6), i, None) for i in range(4)]
        both = await asyncio.gather(*scores, *draws)
        return both[:4]  # type: ignore[return-value]

    got = asyncio.run(check())
    assert engine.throughput()["cached_tokens"] >= 4 * 49
    for option, score in zip(options, got, strict=True):
        assert score == pytest.approx(reference(tiny.model(), option, 50), abs=1e-4)


def test_a_prompt_longer_than_one_pass_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unfrozen.engines.local.batch._QUERIES", 16)
    engine = tiny.engine()
    prompts = [tiny.words(n, n) for n in (5, 16, 17, 70)]
    samples = tiny.run(*(engine.sample(p, SamplingParams(3), i, None) for i, p in enumerate(prompts)))
    for prompt, sample in zip(prompts, samples, strict=True):
        expected = reference(tiny.model(), [*prompt, *sample.tokens], len(prompt))
        assert sample.logprobs == pytest.approx(expected, abs=1e-4)
    [score] = tiny.run(engine.logprobs(prompts[3], None, 3))
    assert score == pytest.approx(reference(tiny.model(), prompts[3], 3), abs=1e-4)


def test_a_small_memory_setting_slows_but_does_not_change_what_is_said() -> None:
    params = SamplingParams(8)
    # 2 layers, keys and values, 2 heads, 8 numbers of 4 bytes: 256 bytes a token
    little = tiny.engine(memory_gib=3 * 128 * 256 / 2**30)
    records = [
        tiny.run(*(talk(e, None, i, 3, params, tiny.words(30, i)) for i in range(6))) for e in (little, tiny.engine())
    ]
    assert [[s.tokens for _, s in r] for r in records[0]] == [[s.tokens for _, s in r] for r in records[1]]


def test_a_conversation_that_cannot_fit_names_the_setting_and_spares_the_others() -> None:
    engine = tiny.engine(memory_gib=128 * 256 / 2**30)

    async def check() -> Sample:
        short = asyncio.create_task(engine.sample(tiny.words(5, 1), SamplingParams(4), 1, None))
        with pytest.raises(OutOfMemory, match="memory_gib"):
            await engine.sample(tiny.words(200, 1), SamplingParams(20), 1, None)
        return await short

    assert len(asyncio.run(check()).tokens) == 4


@pytest.mark.parametrize("when", ["admit", "step"])
def test_torchs_own_out_of_memory_is_told_as_a_setting_to_lower(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also to those whose prompts were being read: nobody may be left waiting."""
    engine = tiny.engine()

    def fail(*_: object) -> None:
        torch.empty(2**58)

    monkeypatch.setattr(engine._batch, when, fail)
    calls = [engine.sample(tiny.words(4, i), SamplingParams(3), i, None) for i in range(2)]

    async def check() -> list[object]:
        async with asyncio.timeout(20):
            return await asyncio.gather(*calls, return_exceptions=True)

    errors = asyncio.run(check())
    assert all(isinstance(e, OutOfMemory) and "max_batch" in str(e) for e in errors)
    monkeypatch.undo()
    [after] = tiny.run(engine.sample(tiny.words(4, 0), SamplingParams(3), 0, None))
    assert len(after.tokens) == 3


def test_a_reply_is_cut_at_the_context_and_a_prompt_that_fills_it_fails_its_episode() -> None:
    engine = tiny.engine()
    [cut] = tiny.run(engine.sample(tiny.words(250, 1), SamplingParams(50), 3, None))
    assert len(cut.tokens) == 6
    with pytest.raises(EpisodeError, match="context"):
        tiny.run(engine.sample(tiny.words(256, 1), SamplingParams(1), 1, None))


def test_a_cancelled_request_leaves_the_batch_and_harms_nobody() -> None:
    engine = tiny.engine()

    async def check() -> Sample:
        lost = asyncio.create_task(engine.sample(tiny.words(4, 1), SamplingParams(200), 1, None))
        kept = asyncio.create_task(engine.sample(tiny.words(4, 2), SamplingParams(20), 2, None))
        for _ in range(12):
            await asyncio.sleep(0)
        lost.cancel()
        return await kept

    sample = asyncio.run(check())
    [alone] = tiny.run(tiny.engine().sample(tiny.words(4, 2), SamplingParams(20), 2, None))
    assert sample.tokens == alone.tokens
    assert engine.throughput()["sampled_tokens"] < 100


def test_an_engine_lives_on_after_its_event_loop_was_stopped() -> None:
    engine = tiny.engine()

    async def impatient() -> None:
        await asyncio.wait_for(engine.sample(tiny.words(4, 1), SamplingParams(200), 1, None), 0.01)

    with pytest.raises(TimeoutError):
        asyncio.run(impatient())
    [sample] = tiny.run(engine.sample(tiny.words(4, 2), SamplingParams(3), 2, None))
    assert len(sample.tokens) == 3


@pytest.mark.parametrize(
    ("prompt", "params", "word"),
    [
        ([], SamplingParams(3), "no tokens"),
        ([1, 500], SamplingParams(3), "vocabulary"),
        ([1], SamplingParams(0), "max_tokens"),
        ([1], SamplingParams(3, temperature=-1.0), "temperature"),
        ([1], SamplingParams(3, top_p=0.0), "top_p"),
    ],
)
def test_bad_requests_are_refused_in_a_line(prompt: list[int], params: SamplingParams, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        tiny.run(tiny.engine().sample(prompt, params, 1, None))


def test_a_model_with_sliding_windows_is_refused() -> None:
    config = MistralConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        sliding_window=8,
    )
    with pytest.raises(UsageError, match="sliding"):
        LocalEngine(MistralForCausalLM(config), tiny.Chat(), EngineSpec("m"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (Olmo2Config(**tiny.SHAPE), Olmo2ForCausalLM),
        (
            Qwen3MoeConfig(**tiny.SHAPE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16),
            Qwen3MoeForCausalLM,
        ),
    ],
)
def test_other_architectures_of_standard_attention_sample_what_they_predict(config: Any, kind: Any) -> None:
    model = kind(config).eval()
    prompt = tiny.words(20, 1)
    plain = copy.deepcopy(model)
    engine = LocalEngine(model, tiny.Chat(), EngineSpec("m", memory_gib=0.1))  # type: ignore[arg-type]
    [sample] = tiny.run(engine.sample(prompt, SamplingParams(6), 1, None))
    assert sample.logprobs == pytest.approx(reference(plain, [*prompt, *sample.tokens], 20), abs=1e-4)


def test_a_model_without_the_common_attention_interface_is_refused() -> None:
    config = BloomConfig(vocab_size=50, hidden_size=16, n_layer=1, n_head=2)
    with pytest.raises(UsageError, match="Bloom"):
        LocalEngine(BloomForCausalLM(config), tiny.Chat(), EngineSpec("m"))  # type: ignore[arg-type]


def test_half_precision_weights_sample_and_train_with_full_precision_adapters() -> None:
    half = tiny.model().to(torch.bfloat16)
    engine = LocalEngine(half, tiny.Chat(), EngineSpec("m", memory_gib=0.1))  # type: ignore[arg-type]

    async def check() -> None:
        [first, second] = await adapters(engine, 2)
        assert engine._bank.trainable("a.0").flat()[0].dtype == torch.float32
        prompt = tiny.words(9, 1)
        samples = await asyncio.gather(
            *(engine.sample(prompt, SamplingParams(6), i, r) for i, r in enumerate((first, second, None)))
        )
        for ref, sample in zip((first, second, None), samples, strict=True):
            scored = await engine.logprobs([*prompt, *sample.tokens], ref, 9)
            assert sample.logprobs == pytest.approx(scored, abs=0.15)

    asyncio.run(check())


def test_a_model_that_changes_its_logits_after_the_head_is_refused() -> None:
    model = tiny.model()
    plain = model.forward

    def scaled(*args: object, **kwargs: object) -> object:
        out = plain(*args, **kwargs)
        out.logits = out.logits * 0.5
        return out

    model.forward = scaled
    with pytest.raises(UsageError, match="differ from its own pass"):
        LocalEngine(model, tiny.Chat(), EngineSpec("m"))  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [{"threads": 0}, {"memory_gib": -1.0}, {"max_batch": 0}])
def test_settings_that_make_no_sense_are_refused_by_name(change: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(change))):
        LocalEngine(tiny.model(), tiny.Chat(), replace(EngineSpec("m"), **change))  # type: ignore[arg-type]


def test_sampling_from_a_version_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    engine = tiny.engine()
    with pytest.raises(UsageError, match="ghost@3"):
        tiny.run(engine.sample([5, 6], SamplingParams(2), 1, AdapterRef("ghost", 3)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_of_a_model_that_diverged_are_an_error_and_never_a_token(bad: float) -> None:
    """Without the check a search over no numbers gives an index beyond the vocabulary."""
    logits = torch.zeros(2, 5)
    logits[1, 3] = bad
    with pytest.raises(UsageError, match=r"diverged.*learning_rate"):
        Drawing([SamplingParams(4), SamplingParams(4)], torch.device("cpu")).draw(logits, [0.5, 0.5])
    with pytest.raises(UsageError, match="temperature"):
        Drawing([SamplingParams(4, 1e-300)], torch.device("cpu")).draw(torch.randn(1, 5), [0.5])
