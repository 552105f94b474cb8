"""Adapters of the local engine: PEFT's format, immutable versions, and what is saved comes back to the last bit."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import local_models as tiny
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from unfrozen.core.errors import OutOfMemory, ResumableError, UsageError
from unfrozen.core.traces import AdapterRef
from unfrozen.engines.local import LocalEngine
from unfrozen.engines.protocol import AdamParams, Datum, EngineSpec, LoraSpec, LossSpec, Sample, SamplingParams

LORA = LoraSpec(4, 12.0)


def call(awaitable: Awaitable[Any]) -> Any:
    return tiny.run(awaitable)[0]


async def train(engine: LocalEngine, name: str, steps: int, seed: int = 0) -> None:
    for step in range(steps):
        batch = [Datum(tuple(tiny.words(15, 9 * (seed + step) + i)), (0.0,) * 15, (1.0,) * 15) for i in range(3)]
        await engine.forward_backward(name, batch, LossSpec("cross_entropy"))
        await engine.optim_step(name, AdamParams(0.02, weight_decay=0.01))


async def trained(engine: LocalEngine, name: str = "p", lora: LoraSpec = LORA) -> AdapterRef:
    await engine.create_adapter(name, lora, seed=1)
    await train(engine, name, 3)
    return await engine.publish(name)


def weights(engine: LocalEngine, name: str = "p") -> list[torch.Tensor]:
    return [p.detach().clone() for p in engine._bank.trainable(name).flat()]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_fresh_adapter_changes_nothing_and_its_seed_decides_its_weights() -> None:
    engine, tokens = tiny.engine(), tiny.words(20, 1)
    base = call(engine.logprobs(tokens, None))
    call(engine.create_adapter("p", LORA, seed=1))
    ref = call(engine.publish("p"))
    assert ref == AdapterRef("p", 0)
    assert call(engine.logprobs(tokens, ref)) == pytest.approx(base, abs=1e-6)
    assert call(engine.logprobs(tokens, None)) == pytest.approx(base, abs=1e-6)
    again, other = tiny.engine(), tiny.engine()
    call(again.create_adapter("p", LORA, seed=1))
    call(other.create_adapter("p", LORA, seed=2))
    assert same(weights(engine), weights(again))
    assert not same(weights(engine), weights(other))


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_all_linear_is_every_linear_layer_but_the_head(kind: str) -> None:
    engine = tiny.engine(kind)
    call(engine.create_adapter("p", LoraSpec(2), seed=1))
    suffixes = {name.rpartition(".")[2] for name in engine._bank.trainable("p").parameters}
    assert suffixes == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def test_a_saved_version_is_what_plain_peft_loads(tmp_path: Path) -> None:
    engine, tokens = tiny.engine(), tiny.words(20, 1)
    ref = call(trained(engine))
    call(engine.save_version(ref, tmp_path / "v"))
    plain = PeftModel.from_pretrained(tiny.model(), tmp_path / "v").eval()
    with torch.no_grad():
        logp = plain(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)
    expected = [float(logp[i - 1, tokens[i]]) for i in range(1, 20)]
    assert call(engine.logprobs(tokens, ref)) == pytest.approx(expected, abs=1e-4)
    assert call(engine.logprobs(tokens, None)) != pytest.approx(expected, abs=1e-2)


def test_an_adapter_that_peft_wrote_starts_a_trainable_one(tmp_path: Path) -> None:
    config = LoraConfig(r=3, lora_alpha=5, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    plain = get_peft_model(tiny.model(), config).eval()
    for name, parameter in plain.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    plain.save_pretrained(tmp_path / "peft")
    tokens = tiny.words(20, 1)
    with torch.no_grad():
        logp = plain(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)
    expected = [float(logp[i - 1, tokens[i]]) for i in range(1, 20)]
    engine = tiny.engine()
    call(engine.create_adapter("p", LORA, 1, init=tmp_path / "peft"))
    ref = call(engine.publish("p"))
    assert call(engine.logprobs(tokens, ref)) == pytest.approx(expected, abs=1e-4)
    assert engine._bank.trainable("p").lora.rank == 3


def test_a_published_version_stays_what_it_was_while_its_adapter_trains_on() -> None:
    engine, tokens = tiny.engine(), tiny.words(20, 1)

    async def check() -> None:
        first = await trained(engine)
        before = await engine.logprobs(tokens, first)
        await train(engine, "p", 2, seed=7)
        second = await engine.publish("p")
        await engine.flush()
        assert await engine.logprobs(tokens, first) == before
        assert await engine.logprobs(tokens, second) != before
        assert (first, second) == (AdapterRef("p", 0), AdapterRef("p", 1))

    asyncio.run(check())


def test_publishing_copies_no_weights() -> None:
    engine = tiny.engine()
    ref = call(trained(engine))
    a, b = next(iter(engine._bank.trainable("p").parameters.values()))
    shared = engine._bank.version(ref).weights[next(iter(engine._bank.trainable("p").parameters))]
    assert (a.data_ptr(), b.data_ptr()) == (shared[0].data_ptr(), shared[1].data_ptr())


def test_a_run_that_was_saved_and_resumed_goes_on_to_the_last_bit(tmp_path: Path) -> None:
    async def talk(engine: LocalEngine) -> list[Sample]:
        await engine.flush()
        ref = await engine.publish("p")
        calls = (engine.sample(tiny.words(6, i), SamplingParams(12), i, ref) for i in range(5))
        return list(await asyncio.gather(*calls))

    async def uninterrupted() -> tuple[list[torch.Tensor], list[Sample], AdapterRef]:
        engine = tiny.engine()
        await trained(engine)
        await engine.save("p", tmp_path / "saved")
        await train(engine, "p", 2, seed=5)
        return weights(engine), await talk(engine), await engine.publish("p")

    async def resumed() -> tuple[list[torch.Tensor], list[Sample], AdapterRef]:
        engine = tiny.engine()
        await engine.create_adapter("p", LORA, seed=99)
        await engine.load("p", tmp_path / "saved")
        await train(engine, "p", 2, seed=5)
        return weights(engine), await talk(engine), await engine.publish("p")

    a, b = asyncio.run(uninterrupted()), asyncio.run(resumed())
    assert same(a[0], b[0])
    assert a[1:] == b[1:]
    assert a[2] == AdapterRef("p", 2)


def test_loading_drops_pending_gradients_and_never_reuses_a_version(tmp_path: Path) -> None:
    engine = tiny.engine()

    async def check() -> None:
        await trained(engine)
        await engine.save("p", tmp_path / "saved")
        before = weights(engine)
        await train(engine, "p", 1)
        later = await engine.publish("p")
        await engine.forward_backward("p", [Datum((5, 6, 7), (0.0,) * 3, (1.0,) * 3)], LossSpec("cross_entropy"))
        await engine.load("p", tmp_path / "saved")
        assert same(weights(engine), before)
        assert await engine.optim_step("p", AdamParams(1.0)) == 0.0
        assert (await engine.publish("p")).version == later.version + 1

    asyncio.run(check())


def test_versions_come_back_from_either_kind_of_folder_and_may_be_dropped(tmp_path: Path) -> None:
    engine, tokens = tiny.engine(), tiny.words(20, 1)

    async def check() -> None:
        ref = await trained(engine)
        expected = await engine.logprobs(tokens, ref)
        await engine.save_version(ref, tmp_path / "version")
        await engine.save("p", tmp_path / "saved")
        for folder in ("version", "saved"):
            fresh = tiny.engine()
            await fresh.load_version(AdapterRef("p", 4), tmp_path / folder)
            assert await fresh.logprobs(tokens, AdapterRef("p", 4)) == pytest.approx(expected, abs=1e-6)
            await fresh.create_adapter("p", LORA, 1)
            assert await fresh.publish("p") == AdapterRef("p", 5)
        await engine.load_version(ref, tmp_path / "version")  # the same weights: nothing to do
        await engine.drop_version(ref)
        with pytest.raises(UsageError, match="p@0"):
            await engine.sample(tokens, SamplingParams(2), 1, ref)

    asyncio.run(check())


def test_other_weights_under_a_published_name_are_refused(tmp_path: Path) -> None:
    engine = tiny.engine()

    async def check() -> None:
        ref = await trained(engine)
        await train(engine, "p", 1)
        await engine.save_version(await engine.publish("p"), tmp_path / "other")
        with pytest.raises(UsageError, match="never reused"):
            await engine.load_version(ref, tmp_path / "other")

    asyncio.run(check())


def test_a_version_is_not_dropped_under_a_conversation() -> None:
    engine = tiny.engine()

    async def check() -> None:
        ref = await trained(engine)
        speaking = asyncio.create_task(engine.sample([5, 6], SamplingParams(5), 1, ref))
        await asyncio.sleep(0)
        with pytest.raises(UsageError, match="p@0"):
            await engine.drop_version(ref)
        await speaking
        await engine.drop_version(ref)

    asyncio.run(check())


def test_a_save_that_fails_leaves_the_old_one_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny.engine()
    call(trained(engine))
    call(engine.save("p", tmp_path / "saved"))
    before = {f.name: f.read_bytes() for f in (tmp_path / "saved").iterdir()}
    call(train(engine, "p", 1))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResumableError, match="disk is full"):
        call(engine.save("p", tmp_path / "saved"))
    monkeypatch.undo()
    assert {f.name: f.read_bytes() for f in (tmp_path / "saved").iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["saved"]
    call(engine.save("p", tmp_path / "saved"))
    assert [p.name for p in tmp_path.iterdir()] == ["saved"]
    assert (tmp_path / "saved" / "adapter_model.safetensors").read_bytes() != before["adapter_model.safetensors"]


def damaged(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, **changes}))


def test_unusable_folders_are_refused_by_file_and_key(tmp_path: Path) -> None:
    engine = tiny.engine()
    ref = call(trained(engine))
    folder = tmp_path / "v"

    def fresh() -> Path:
        call(engine.save_version(ref, folder))
        return folder

    def refused(match: str, target: LocalEngine = engine) -> None:
        with pytest.raises(UsageError, match=match):
            call(target.load_version(AdapterRef("q", 0), folder))

    refused("adapter_config.json: not there")
    damaged(fresh(), peft_type="IA3")
    refused("peft_type")
    damaged(fresh(), use_rslora=True)
    refused("use_rslora")
    damaged(fresh(), r=5)
    refused("shapes differ")
    damaged(fresh(), r="four")
    refused("adapter_config.json: r and lora_alpha must be numbers")
    (fresh() / "adapter_config.json").write_text("[]")
    refused("adapter_config.json: not a JSON object")
    tensors = load_file(fresh() / "adapter_model.safetensors")
    save_file({key: torch.full_like(w, torch.nan) for key, w in tensors.items()}, folder / "adapter_model.safetensors")
    refused("adapter_model.safetensors.*not finite")
    (fresh() / "adapter_model.safetensors").write_bytes(b"nonsense")
    refused("adapter_model.safetensors: cannot be read")
    fresh()
    refused("another model", tiny.engine("qwen3"))


def test_adapters_that_cannot_be_made_are_refused() -> None:
    engine = tiny.engine()
    with pytest.raises(UsageError, match=r"w_pack.*q_proj"):
        call(engine.create_adapter("p", LoraSpec(4, 8.0, ("w_pack",)), 1))
    with pytest.raises(UsageError, match="lm_head"):
        call(engine.create_adapter("p", LoraSpec(4, 8.0, ("lm_head",)), 1))
    with pytest.raises(UsageError, match="rank"):
        call(engine.create_adapter("p", LoraSpec(0), 1))
    with pytest.raises(OutOfMemory, match=r"making the adapter 'p'.*rank"):
        call(engine.create_adapter("p", LoraSpec(2**44), 1))
    call(engine.create_adapter("p", LORA, 1))
    with pytest.raises(UsageError, match="exists already"):
        call(engine.create_adapter("p", LORA, 1))


def test_a_model_without_linear_layers_carries_no_adapters() -> None:
    config = GPT2Config(vocab_size=97, n_embd=32, n_layer=1, n_head=4)
    engine = LocalEngine(GPT2LMHeadModel(config), tiny.Chat(), EngineSpec("m"))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="GPT2LMHeadModel"):
        call(engine.create_adapter("p", LORA, 1))


def test_loading_into_an_adapter_of_another_shape_is_refused(tmp_path: Path) -> None:
    engine, other = tiny.engine(), tiny.engine()
    call(trained(engine))
    call(engine.save("p", tmp_path / "saved"))
    call(other.create_adapter("p", LoraSpec(2, 12.0), 1))
    with pytest.raises(UsageError, match="another shape"):
        call(other.load("p", tmp_path / "saved"))


@pytest.mark.parametrize(
    "state", ["{}", '{"next_version": "x", "steps": {}}', '{"next_version": 1, "steps": {"99": 1}}']
)
def test_a_state_that_does_not_fit_its_moments_is_refused_and_changes_nothing(tmp_path: Path, state: str) -> None:
    engine, other = tiny.engine(), tiny.engine()
    call(trained(engine))
    call(engine.save("p", tmp_path / "saved"))
    (tmp_path / "saved/trainer_state.json").write_text(state)
    call(other.create_adapter("p", LORA, 1))
    before = weights(other)
    with pytest.raises(UsageError, match="do not belong together"):
        call(other.load("p", tmp_path / "saved"))
    assert same(before, weights(other))
