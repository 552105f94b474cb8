"""The catalogue: what a config's `model` may be, and which family it belongs to. No model is loaded here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from unfrozen.core.errors import UsageError
from unfrozen.core.files import cache_folder
from unfrozen.engines.catalog import KNOWN, family_of, fetch, list_models, resolve


def test_each_kind_of_model_resolves_to_its_own_kind_of_source(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text("{}")
    (tmp_path / "one").mkdir()
    weights = tmp_path / "one" / "model.gguf"
    weights.write_bytes(b"")
    assert resolve("smollm2").known is not None
    assert resolve(str(tmp_path / "folder")).folder == tmp_path / "folder"
    assert resolve(str(weights)).gguf == weights
    assert resolve(str(tmp_path / "one")).gguf == weights
    assert resolve("Qwen/Qwen2.5-0.5B-Instruct").hub == "Qwen/Qwen2.5-0.5B-Instruct"


def test_a_folder_wins_over_a_hub_id_of_the_same_spelling(tmp_path, monkeypatch):
    (tmp_path / "owner" / "name").mkdir(parents=True)
    (tmp_path / "owner" / "name" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    source = resolve("owner/name")
    assert source.hub is None
    assert source.folder == Path("owner/name")


def test_what_is_no_model_is_refused_with_the_known_names():
    with pytest.raises(UsageError) as caught:
        resolve("smolm2")
    for model in KNOWN:
        assert model.name in str(caught.value)
    with pytest.raises(UsageError, match="known: lab, smollm2"):
        fetch("nothing")


def test_a_folder_with_two_gguf_files_asks_for_one(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(UsageError, match="2 GGUF files"):
        resolve(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "config", "family"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", {"model_type": "llama"}, "smollm2"),
        ("Qwen/Qwen2.5-0.5B-Instruct", {"model_type": "qwen2"}, "qwen2.5"),
        ("Qwen/Qwen3-4B-Instruct-2507", {"model_type": "qwen3"}, "qwen3"),
        ("meta-llama/Llama-3.2-1B-Instruct", {"model_type": "llama"}, "llama3.2"),
        ("google/gemma-3-270m-it", {"model_type": "gemma3_text"}, "gemma3"),
        ("models/mine", {"model_type": "llama", "_name_or_path": "Smollm2 135M 8k"}, "smollm2"),
        ("models/mine", {"model_type": "olmo2"}, "olmo2"),
        ("models/mine", {}, "unknown"),
    ],
)
def test_the_family_comes_from_the_name_before_the_architecture(name, config, family):
    assert family_of(config, name) == family


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("UNFROZEN_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    assert {row.name: row.cached for row in list_models()}["smollm2"] is False


def test_a_cache_that_cannot_be_written_is_one_line_with_the_way_out(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UNFROZEN_CACHE", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="UNFROZEN_CACHE"):
        fetch("smollm2")


def test_the_catalogue_and_chat_formats_import_without_torch():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "import unfrozen.engines.catalog, unfrozen.engines.chat\n"
        "try:\n    import unfrozen.engines.local.loading\n"
        "except unfrozen.engines.catalog.UsageError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "unfrozen[local]"' in done.stdout
