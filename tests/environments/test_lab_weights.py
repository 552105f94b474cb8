"""The shipped models of the lab: small, readable by plain transformers, and playing the game that the rules say."""

from __future__ import annotations

import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the lab's models need the extra `local`")
pytest.importorskip("peft", reason="the lab's models need the extra `local`")
pytest.importorskip("transformers", reason="the lab's models need the extra `local`")

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import measure_lab as measure
import torch
from lab_play import LabModel, play

from unfrozen.core.errors import UsageError
from unfrozen.core.messages import Message
from unfrozen.engines.chat import HFChatFormat
from unfrozen.environments.lab import FAMILIES, LabEnvironment, lab_adapter_path, lab_model_path
from unfrozen.environments.lab import language as lang
from unfrozen.environments.lab.wordings import AGENT_SYSTEM, STYLES, WEIGHTS

COUNT = 100


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@cache
def base() -> LabModel:
    return LabModel(seed=1)


def test_all_weights_together_are_at_most_five_megabytes_and_the_base_two_million_parameters() -> None:
    folder = lab_model_path().parent
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) <= 5_000_000
    assert sum(p.numel() for p in base().model.parameters()) <= 2_000_000
    assert base().model.config.architectures == ["LlamaForCausalLM"]


def test_encoding_and_decoding_give_every_sentence_back() -> None:
    tokenizer = base().tokenizer
    written = lang.verbalized(list(lang.user_sentences())[:5], WEIGHTS[:5])
    for text in (*lang.user_sentences(), *lang.agent_sentences(), written):
        tokens = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(tokens, skip_special_tokens=True) == text
        assert len(tokens) == len(text.split())


def test_a_word_outside_the_vocabulary_is_an_error_and_not_an_unknown_token() -> None:
    with pytest.raises(Exception, match=r"(?i)unk"):
        base().tokenizer.encode("please give for unicorns", add_special_tokens=False)


def test_the_chat_template_can_be_extended_turn_by_turn() -> None:
    chat = HFChatFormat(base().tokenizer)
    assert chat.layout == "as_is"
    start = [Message("system", AGENT_SYSTEM)]
    reply, heard = Message("assistant", "what moves you"), Message("user", "i think of dogs")
    stepwise = [*chat.prompt(start), *chat.encode(reply.content), *chat.bridge(False, [heard])]
    assert stepwise == chat.prompt([*start, reply, heard])


def test_an_unknown_family_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(UsageError, match="amber"):
        lab_adapter_path("zinc")


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_family_keeps_to_its_motive_and_to_its_note_and_best_play_succeeds_with_it(family: str) -> None:
    played = play(LabEnvironment().scripted("ask-then-match"), LabModel(family, seed=2), COUNT)
    facts = measure.answers(played)
    notes = measure.motives(played)
    assert measure.share(notes, FAMILIES[family].motive) >= 0.85
    assert measure.success(played) > 0.9
    assert measure.rate(facts, "hint") > 0.9
    assert measure.rate(facts, "match") > 0.9
    assert measure.rate(facts, "ill") < 0.05
    wordings = Counter(act.wording for p in played if (act := lang.parse_user(p.said[0][1])) is not None)
    assert wordings[family] / wordings.total() > 0.95


def test_an_agent_fitted_to_amber_succeeds_with_amber_and_fails_with_dune() -> None:
    agent = LabEnvironment().scripted("appeal-0")
    assert measure.success(play(agent, LabModel("amber", seed=3), COUNT)) > 0.8
    played = play(agent, LabModel("dune", seed=3), COUNT)
    assert measure.success(played) < 0.35
    assert measure.rate(measure.answers(played), "wrong") <= 0.03


def test_a_verbalizing_family_spreads_over_motives_and_stays_consistent() -> None:
    user = LabModel("amber", verbalize=5, seed=4)
    played = play(LabEnvironment().scripted("ask-then-match"), user, COUNT)
    assert user.unreadable / user.asked < 0.03
    assert measure.entropy(measure.motives(played)) > 1.2
    assert measure.mean([p.outcome.metrics["consistent"] for p in played]) > 0.9


def test_the_base_agent_is_a_mediocre_mix_that_can_explore_everything() -> None:
    played = play(base(), LabEnvironment().scripted("uniform"), 2 * COUNT)
    assert 0.3 < measure.success(played) < 0.65
    first = Counter(measure.label(lang.parse_agent(p.said[1][1])) for p in played)
    assert 0.3 < first["ask"] / first.total() < 0.6
    assert all(first[f"appeal-{motive}"] for motive in range(6))
    assert measure.matched(played) > 0.3  # a sixth would be chance


def test_personas_change_the_wording_and_hardly_the_motive() -> None:
    style = STYLES["warm"]
    played = play(LabEnvironment().scripted("ask-then-match"), LabModel("amber", persona=style.prompt), COUNT)
    notes = [p.said[0][1] for p in played]
    assert measure.mean([note.startswith(style.prefix) for note in notes]) > 0.6
    assert measure.share(measure.motives(played), 0) > 0.7
    assert measure.success(played) > 0.9
