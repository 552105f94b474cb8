"""Imitation: human talks as a role lived them, what is learned of them, and the job on a tiny model."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import byte_tokenizer, write_tiny_model

from unfrozen.config import validated
from unfrozen.core.errors import ConfigError, UsageError
from unfrozen.core.messages import Message, ToolCall
from unfrozen.engines.chat import HFChatFormat
from unfrozen.environments.human import HumanTalk, corpus_talks, log_talks
from unfrozen.environments.persuasion import prompts
from unfrozen.environments.registry import open_environment
from unfrozen.jobs.imitate import ImitateConfig, imitate, schedule
from unfrozen.jobs.progress import Silent
from unfrozen.learning.imitation import make_batches, make_lesson, take_slice, to_datums

CORPUS = Path(__file__).parents[1] / "data" / "persuasion" / "csv"
ENVIRONMENT = {"name": "persuasion", "corpus": str(CORPUS), "exchanges": 1}


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def settings(tiny_model: str) -> Callable[..., ImitateConfig]:
    def build(**changes: Any) -> ImitateConfig:
        base: dict[str, Any] = {
            "name": "tiny",
            "environment": ENVIRONMENT,
            "model": {"model": tiny_model, "memory_gib": 0.5, "threads": 1, "device": "cpu"},
            "steps": 3,
            "batch_tokens": 2000,
            "max_tokens": 6000,
            "learning_rate": 2e-2,
            "choice_weight": 4.0,
            "held_out": 1,
            "reply_tokens": 8,
            "checkpoint_every": 2,
            "lora": {"rank": 4},
        }
        return validated(ImitateConfig, {**base, **changes}, "test")

    return build


def talks(role: str, keep: str = "last", **options: Any) -> list[HumanTalk]:
    environment = open_environment("persuasion", {"corpus": str(CORPUS), "exchanges": 2, **options})
    return asyncio.run(corpus_talks(environment, role, "train", keep))  # type: ignore[arg-type]


# -- human talks --------------------------------------------------------------------------------------------------


def test_a_persuadee_hears_the_persuader_answers_and_ballots_what_it_really_gave():
    talk = next(t for t in talks("user") if t.choice and t.choice.actual == 0.5)
    assert talk.choice is not None
    roles = [m.role for m in talk.messages]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user", "assistant"]
    assert talk.messages[-2].content == prompts.ballot_question(talk.choice.options)
    assert talk.messages[-1].content == "$0.50"
    assert talk.choice.amounts[talk.choice.index] == 0.5


def test_more_than_two_dollars_is_a_gift_of_two_and_what_lies_between_options_goes_to_the_nearest():
    assert max(t.choice.actual for t in talks("user") if t.choice) == 2.0
    near = {t.choice.actual: t.messages[-1].content for t in talks("user", ballot_options=(0, 1, 2)) if t.choice}
    assert near == {1.0: "$1.00", 0.0: "$0.00", 0.5: "$0.00", 0.25: "$0.00", 0.1: "$0.00", 2.0: "$2.00"}


def test_a_persuader_opens_to_the_scenes_cue_and_has_no_ballot():
    for talk in talks("agent"):
        assert talk.choice is None
        assert talk.messages[1] == Message("user", prompts.OPENING)
        assert talk.messages[2].role == "assistant"
        assert talk.said("agent")[0] == ("agent", talk.messages[2].content)


def test_the_last_exchanges_are_kept_or_the_first():
    whole = next(t for t in talks("user", exchanges=3) if t.id == "own_01").said("user")
    last = next(t for t in talks("user", "last", exchanges=1) if t.id == "own_01").said("user")
    first = next(t for t in talks("user", "first", exchanges=1) if t.id == "own_01").said("user")
    assert (first, last) == (whole[:2], whole[-2:])


def test_a_shorter_talk_is_told_its_own_number_of_messages():
    talk = next(t for t in talks("user", exchanges=10) if t.id == "own_02")
    assert "up to 2 messages" in talk.messages[0].content


def test_an_environment_without_human_talks_says_so():
    environment = open_environment("lab", {})
    with pytest.raises(UsageError, match="'lab' has no human talks"):
        asyncio.run(corpus_talks(environment, "user", "train", "last"))


# -- logs ---------------------------------------------------------------------------------------------------------


def write_logs(path: Path, count: int = 40) -> Path:
    lines = []
    for i in range(count):
        call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        messages = [
            {"role": "system", "content": "You are a shop."},
            {"role": "user", "content": f"I want {i} teas."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "in stock", "tool_call_id": "c"},
            {"role": "assistant", "content": "Here they are."},
            {"role": "user", "content": "Thanks!"},
        ]
        lines.append(json.dumps({"messages": messages}))
    path.write_text("\n".join(lines) + "\n\n")
    return path


def test_logs_are_split_by_the_conversation_so_that_doubles_stay_together(tmp_path):
    once = write_logs(tmp_path / "logs.jsonl")
    parts = {split: log_talks(once, "agent", split) for split in ("train", "validation")}
    assert len(parts["train"]) + len(parts["validation"]) == 40
    assert 1 <= len(parts["validation"]) <= 10
    twice = tmp_path / "twice.jsonl"
    twice.write_text(once.read_text() * 2)
    for split, found in parts.items():
        assert {t.cluster for t in log_talks(twice, "agent", split)} == {t.cluster for t in found}
    assert not {t.cluster for t in parts["train"]} & {t.cluster for t in parts["validation"]}


def test_a_line_of_logs_ends_at_a_newline_alone(tmp_path):
    talk = {"messages": [{"role": "user", "content": "a\u2028b\x85"}, {"role": "assistant", "content": "c"}]}
    (tmp_path / "logs.jsonl").write_text(json.dumps(talk, ensure_ascii=False) + "\n", encoding="utf-8")
    found = [t for split in ("train", "validation") for t in log_talks(tmp_path / "logs.jsonl", "agent", split)]
    assert [m.content for t in found for m in t.messages] == ["a\u2028b\x85", "c"]


def test_an_imitated_agent_keeps_its_prompt_and_tools_and_a_user_sees_neither(tmp_path):
    logs = write_logs(tmp_path / "logs.jsonl")
    agent = log_talks(logs, "agent", "train")[0]
    assert [m.role for m in agent.messages] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert agent.messages[2].tool_calls == (ToolCall("c", "look", "{}"),)
    user = log_talks(logs, "user", "train", system="You buy tea.")[0]
    assert [m.role for m in user.messages] == ["system", "assistant", "user", "assistant"]
    assert [m.content for m in user.messages] == ["You buy tea.", user.messages[1].content, "Here they are.", "Thanks!"]
    assert user.said("user")[1] == ("agent", "Here they are.")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "line 1: not an object"),
        ('{"messages": [{"role": "boss", "content": ""}]}', "line 1: message.role"),
        ('{"talk": []}', "line 1: not an object"),
        ("[]", "line 1: not an object"),
        ("\n", "no conversation"),
    ],
)
def test_bad_logs_are_one_line_with_file_and_line(tmp_path, text, why):
    (tmp_path / "bad.jsonl").write_text(text)
    with pytest.raises(UsageError, match=why) as caught:
        log_talks(tmp_path / "bad.jsonl", "agent", "train")
    assert "bad.jsonl" in str(caught.value)
    with pytest.raises(UsageError, match=r"gone\.jsonl"):
        log_talks(tmp_path / "gone.jsonl", "agent", "train")


# -- lessons ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["user", "agent"])
def test_a_lesson_is_what_a_rollout_reads_and_only_own_turns_have_weight(role):
    tokenizer = byte_tokenizer()
    chat = HFChatFormat(tokenizer, "bytes")
    for talk in talks(role):
        lesson = make_lesson(chat, talk.messages, 10_000, talk.choice is not None, choice_weight=3.0)
        assert lesson is not None
        end = max(i for i, m in enumerate(talk.messages) if m.role == "assistant")
        rendered = chat.prompt(talk.messages[: end + 1])
        assert list(lesson.tokens) == rendered[: len(lesson.tokens)]
        learned = tokenizer.decode([t for t, w in zip(lesson.tokens, lesson.weights, strict=True) if w])
        own = [m.content for m in talk.messages if m.role == "assistant"]
        assert learned == "".join(f"{text}<|im_end|>" for text in own)
        assert lesson.weights[-1] == (3.0 if talk.choice else 1.0)
        spoken = tokenizer.decode([lesson.tokens[i] for i in lesson.spoken()])
        assert spoken == "".join(f"{text}<|im_end|>" for text in (own[:-1] if talk.choice else own))
        if talk.choice:
            assert list(lesson.tokens[: lesson.choice_start]) == chat.prompt(talk.messages[:-1])


def test_a_talk_that_is_too_long_ends_with_a_whole_turn_and_loses_its_choice():
    chat = HFChatFormat(byte_tokenizer(), "bytes")
    talk = talks("user")[0]
    whole = make_lesson(chat, talk.messages, 10_000, chosen=True)
    assert whole is not None
    cut = make_lesson(chat, talk.messages, len(whole.tokens) - 1, chosen=True)
    assert cut is not None
    assert cut.tokens == whole.tokens[: len(cut.tokens)]
    assert cut.tokens[-1] == chat.end_tokens[0]
    assert cut.choice_start is None
    assert make_lesson(chat, talk.messages, 10, chosen=True) is None


def test_a_tool_call_is_learned_as_the_text_that_calls_it():
    chat = HFChatFormat(byte_tokenizer(), "bytes")
    call = Message("assistant", "Wait.", (ToolCall("c", "look", '{"at": "tea"}'),))
    lesson = make_lesson(chat, [Message("user", "hi"), call], 10_000)
    assert lesson is not None
    read = chat.parse(chat.decode([t for t, w in zip(lesson.tokens, lesson.weights, strict=True) if w]))
    assert (read.content, read.tool_calls[0].name, read.tool_calls[0].arguments) == ("Wait.", "look", '{"at": "tea"}')


def test_batches_hold_every_lesson_once_and_their_weights_sum_to_one():
    chat = HFChatFormat(byte_tokenizer(), "bytes")
    lessons = [made for t in talks("user") if (made := make_lesson(chat, t.messages, 10_000, True))]
    batches = make_batches(lessons, 5000, np.random.default_rng(0))
    assert sorted(x.tokens for batch in batches for x in batch) == sorted(x.tokens for x in lessons)
    assert len(batches) < len(lessons)
    for batch in batches:
        assert len(batch) == 1 or sum(len(x.tokens) for x in batch) <= 5000
        assert math.isclose(sum(sum(d.weights) for d in to_datums(batch)), 1.0)


def test_slices_divide_the_talks_between_different_people():
    parts = [take_slice(10, f"{i}/3") for i in range(3)]
    assert sorted(index for part in parts for index in part) == list(range(10))


# -- the job ------------------------------------------------------------------------------------------------------


class Stop(Silent):
    """Kills the job after a step."""

    def __init__(self, after: int) -> None:
        self.after = after

    def step(self, row: Any) -> None:
        if row["step"] == self.after:
            raise KeyboardInterrupt


def test_imitation_lowers_heldout_perplexity_and_leaves_a_loadable_adapter_with_a_card(settings, tmp_path):
    result = imitate(settings(partner="persuader", steps=8, choice_weight=0.2), tmp_path / "run")
    summary = result.summary
    assert summary["after"]["perplexity"] < 0.9 * summary["before"]["perplexity"]
    assert summary["training"]["steps"] == 8
    assert summary["human"]["ballot"] == {"talks": 1, "rate": 1.0, "mean": 1.0}
    assert summary["after"]["talks"]["speech"]["turns"] == 1
    assert 0 <= summary["after"]["ballot"]["donations"]["mean"] <= 2
    assert json.loads((result.path / "summary.json").read_text()) == summary
    assert (result.adapter / "adapter_config.json").is_file()
    assert "`user`" in (result.adapter / "README.md").read_text()


def test_a_killed_imitation_resumes_and_ends_with_the_same_weights_and_summary(settings, tmp_path):
    whole = imitate(settings(), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        imitate(settings(), tmp_path / "killed", Stop(3))
    resumed = imitate(settings(), tmp_path / "killed")
    weights = [(r.adapter / "adapter_model.safetensors").read_bytes() for r in (whole, resumed)]
    assert weights[0] == weights[1]
    for key in ("data", "human", "before", "after"):
        assert whole.summary[key] == resumed.summary[key]


def test_different_slices_make_different_people_of_the_agents_role_too(settings, tmp_path):
    runs = [imitate(settings(role="agent", steps=1, slice=f"{i}/2"), tmp_path / str(i)) for i in range(2)]
    assert runs[0].summary["data"]["train_talks"] == 5
    assert runs[0].summary["after"]["ballot"] is None
    weights = [(r.adapter / "adapter_model.safetensors").read_bytes() for r in runs]
    assert weights[0] != weights[1]


def test_logs_of_ones_own_are_learned_from(settings, tmp_path):
    logs = write_logs(tmp_path / "logs.jsonl")
    config = settings(environment=None, logs=str(logs), system="You buy tea.", steps=2, held_out=4)
    summary = imitate(config, tmp_path / "run").summary
    assert summary["after"]["perplexity"] < summary["before"]["perplexity"]
    assert summary["environment"] == "logs.jsonl"
    assert summary["human"]["ballot"] is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"environment": None}, "either .environment. or logs"),
        ({"logs": "x.jsonl"}, "either .environment. or logs"),
        ({"slice": "3/3"}, "slice"),
        ({"system": "x"}, "system is for logs"),
        ({"environment": None, "logs": "x.jsonl", "partner": "persuader"}, "partner"),
        ({"sped": 1}, "sped"),
        ({"role": "boss"}, "role"),
    ],
)
def test_a_bad_config_names_the_key(settings, changes, why):
    with pytest.raises(ConfigError, match=why):
        settings(**changes)


def test_without_talks_to_learn_from_the_job_says_what_is_missing(settings, tmp_path):
    logs = write_logs(tmp_path / "logs.jsonl", count=1)
    with pytest.raises(UsageError, match="both are needed"):
        imitate(settings(environment=None, logs=str(logs)), tmp_path / "run")
    with pytest.raises(UsageError, match="max_tokens = 64"):
        imitate(settings(max_tokens=64), tmp_path / "short")


def test_the_learning_rate_rises_over_the_first_tenth_and_falls_to_a_tenth():
    factors = [schedule(step, 40) for step in range(1, 41)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[-1] == pytest.approx(0.1)
    assert all(a > b for a, b in itertools.pairwise(factors[3:]))
    assert schedule(1, 1) == 1.0
