"""The persuasion environment whole: tasks, prompts, scripted talks, probes, styles."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from persuasion_data import HUMAN, OWN_CONVOKIT, OWN_CSV, needs_human_corpus

from unfrozen.core.episodes import SPLITS, Task
from unfrozen.core.errors import UsageError
from unfrozen.environments.persuasion import PersuasionConfig, PersuasionEnvironment, prompts
from unfrozen.environments.persuasion.layouts import NUMERIC_CELLS
from unfrozen.environments.persuasion.marker import read_turn
from unfrozen.environments.persuasion.personas import describe
from unfrozen.environments.persuasion.scripted import SPEAKERS, wants
from unfrozen.rollout.conversation import Conversation, converse


@pytest.fixture(scope="module")
def own() -> PersuasionEnvironment:
    return PersuasionEnvironment(PersuasionConfig(corpus=str(OWN_CSV)))


@pytest.fixture(scope="module")
def human() -> PersuasionEnvironment:
    return PersuasionEnvironment(PersuasionConfig(corpus=str(HUMAN)))


def talk(environment: PersuasionEnvironment, task: Task, user: str, seed: int = 0) -> Conversation:
    speakers = {"agent": environment.scripted("persuader"), "user": environment.scripted(user)}
    return asyncio.run(converse(environment.open(task, seed), speakers, seed))


def test_tasks_are_persona_pairs_as_plain_json(own: PersuasionEnvironment) -> None:
    tasks = [task for split in SPLITS for task in own.tasks(split)]
    assert len({task.id for task in tasks}) == 12
    for task in tasks:
        assert json.loads(json.dumps(dict(task.data))) == dict(task.data)
        assert set(task.data) == {"persuader", "persuadee"}


def test_the_dialogues_of_the_splits_are_those_of_the_corpus(own: PersuasionEnvironment) -> None:
    parts = [dialogue for split in SPLITS for dialogue in own.dialogues(split)]
    assert sorted(parts, key=lambda d: d.id) == sorted(own.dialogues(), key=lambda d: d.id)
    assert [d.id for d in own.dialogues("train")] == [task.id for task in own.tasks("train")]


def test_both_layouts_give_the_same_tasks(own: PersuasionEnvironment) -> None:
    other = PersuasionEnvironment(PersuasionConfig(corpus=str(OWN_CONVOKIT)))
    assert all(own.tasks(split) == other.tasks(split) for split in SPLITS)


def test_the_corpus_path_may_use_home_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN_CORPUS", str(OWN_CSV.parent))
    assert PersuasionEnvironment(PersuasionConfig(corpus="$OWN_CORPUS/csv")).tasks("train")


def test_clusters_never_span_two_splits(own: PersuasionEnvironment) -> None:
    clusters = [{task.cluster for task in own.tasks(split)} for split in SPLITS]
    assert clusters[0].isdisjoint(clusters[1] | clusters[2])
    assert clusters[1].isdisjoint(clusters[2])


def test_a_task_cannot_be_opened_under_another_split(own: PersuasionEnvironment) -> None:
    task = own.tasks("test")[0]
    with pytest.raises(UsageError, match="stands in 'test'"):
        own.open(replace(task, split="train"), 0)
    with pytest.raises(UsageError, match="unheard"):
        own.open(replace(task, id="unheard"), 0)


def test_an_empty_split_says_that_groups_are_not_divided(tmp_path: Path) -> None:
    lines = {name: (OWN_CSV / name).read_text().splitlines() for name in ("full_info.csv", "full_dialog.csv")}
    for name, rows in lines.items():
        kept = [rows[0], *(row for row in rows[1:] if "own_10" in row or "own_11" in row)]
        (tmp_path / name).write_text("\n".join(kept) + "\n")
    environment = PersuasionEnvironment(PersuasionConfig(corpus=str(tmp_path)))
    assert len(environment.tasks("train")) == 2
    with pytest.raises(UsageError, match=r"'validation'.*1 groups"):
        environment.tasks("validation")


def test_each_role_reads_only_its_own_persona(own: PersuasionEnvironment) -> None:
    for task in own.tasks("train"):
        scene = own.open(task, 0)
        for role, party, other in (("agent", "persuader", "persuadee"), ("user", "persuadee", "persuader")):
            system = scene.view(role).system
            assert describe(task.data[party]) in system
            theirs = describe(task.data[other])
            assert not theirs or theirs == describe(task.data[party]) or theirs not in system


def test_only_the_persuadee_is_told_of_the_marker(own: PersuasionEnvironment) -> None:
    scene = own.open(own.tasks("train")[0], 0)
    assert "[DONATE" in scene.view("user").system
    assert "DONATE" not in scene.view("agent").system
    assert "ballot" not in scene.view("agent").system.lower()


def test_instructions_tell_the_limits_that_are_set() -> None:
    config = PersuasionConfig(corpus="unused", exchanges=3, word_limit=25)
    for system in (prompts.agent_system({}, config), prompts.user_system({}, config)):
        assert "up to 3 messages" in system
        assert "under 25 words" in system
        assert "Who you are" not in system


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(NUMERIC_CELLS), st.floats(1, 6)))
def test_any_persona_with_cells_missing_is_described_in_sentences(cells: dict[str, float]) -> None:
    text = describe(cells)
    assert text == "" or (text[0].isupper() and text.endswith("."))
    assert not any(word in text for word in ("nan", "None", "{", "  "))


def test_a_persona_is_described_by_what_stands_out() -> None:
    text = describe({"age": 34.0, "sex": "Female", "agreeable": 5.0, "open": 3.0, "care": 6.0, "income": 1.0})
    assert text.startswith("You are a 34-year-old woman. ")
    assert "low income" in text
    assert "trust people readily" in text
    assert "imaginative" not in text
    assert describe({"age": 3.0}) == ""
    assert describe({"age": 18.0}) == "You are an 18-year-old person."
    assert describe({"age": 80.0, "sex": "Male"}) == "You are an 80-year-old man."


@pytest.mark.parametrize(
    ("user", "state", "donation", "truncated"),
    [
        ("generous", "donated", 1.0, False),
        ("stingy", "refused", 0.0, False),
        ("undecided", "undecided", 0.0, True),
        ("careless", "donated", 0.5, False),
    ],
)
def test_scripted_persuadees_play_whole_talks(
    own: PersuasionEnvironment, user: str, state: str, donation: float, truncated: bool
) -> None:
    outcome = talk(own, own.tasks("train")[0], user).outcome
    assert (outcome.state, outcome.metrics["donation"], outcome.truncated) == (state, donation, truncated)
    assert outcome.metrics["reasks"] == (1 if user == "careless" else 0)


def test_the_record_of_a_talk_tells_what_was_heard(own: PersuasionEnvironment) -> None:
    turns = talk(own, own.tasks("train")[0], "careless").turns
    assert [(turn.speaker, turn.private) for turn in turns] == [
        ("agent", False),
        ("user", False),
        ("user", True),
        ("user", True),
    ]
    assert turns[1].heard == "All right, take three dollars."
    assert "[DONATE" in turns[1].turn.message.content
    assert turns[3].turn.message.content == "$0.50"
    assert turns[2].heard is None


def test_the_persona_and_the_wording_decide_what_by_persona_gives(own: PersuasionEnvironment) -> None:
    tasks = [task for split in SPLITS for task in own.tasks(split)]
    kinds = Counter(wants(own.open(task, 0).view("user").system) for task in tasks)
    assert len(kinds) >= 2
    outcomes = [talk(own, task, "by-persona", seed).outcome for task in tasks for seed in range(3)]
    assert len({outcome.metrics["donation"] for outcome in outcomes}) >= 3
    assert len({outcome.metrics["exchanges"] for outcome in outcomes}) >= 2
    first = talk(own, tasks[0], "by-persona", 5)
    assert first == talk(own, tasks[0], "by-persona", 5)


def test_a_persuader_without_the_right_words_does_not_move_by_persona(own: PersuasionEnvironment) -> None:
    task = own.tasks("train")[0]
    speakers = {"agent": own.scripted("undecided"), "user": own.scripted("by-persona")}
    outcome = asyncio.run(converse(own.open(task, 0), speakers, 0)).outcome
    assert (outcome.state, outcome.truncated) == ("undecided", True)


def test_an_unknown_scripted_name_lists_the_known_ones(own: PersuasionEnvironment) -> None:
    with pytest.raises(UsageError, match="by-persona"):
        own.scripted("nobody")
    assert all(own.scripted(name).info.family == "scripted" for name in SPEAKERS)


def test_probes_are_fixed_contexts_in_which_the_agent_speaks(own: PersuasionEnvironment) -> None:
    probes = own.probes(2)
    assert probes == own.probes(2)
    assert len(own.probes(50)) == 2 * len(own.tasks("validation"))
    first, middle = probes
    assert [message.role for message in first.messages] == ["user"]
    assert [message.role for message in middle.messages] == ["user", "assistant", "user", "assistant", "user"]
    assert first.system == own.open(own.tasks("validation")[0], 0).view("agent").system
    assert first.messages[0].content == prompts.OPENING


def test_there_are_at_least_eight_styles_and_none_names_an_outcome(own: PersuasionEnvironment) -> None:
    styles = own.phrasing().personas
    assert len(styles) >= 8
    assert len(set(styles.values())) == len(styles)
    for text in styles.values():
        assert read_turn(text).public == text
        assert "$" not in text


@needs_human_corpus
def test_the_human_corpus_gives_800_100_and_117_tasks(human: PersuasionEnvironment) -> None:
    assert [len(human.tasks(split)) for split in SPLITS] == [800, 100, 117]
    for split in ("validation", "test"):
        sizes = Counter(task.cluster for task in human.tasks(split))
        assert max(sizes.values()) <= 10
    assert len({task.cluster for task in human.tasks("train")}) > 500


@needs_human_corpus
def test_every_human_persona_pair_can_be_opened(human: PersuasionEnvironment) -> None:
    for split in SPLITS:
        for task in human.tasks(split):
            scene = human.open(task, 0)
            assert scene.view("agent").system
            assert "nan" not in scene.view("user").system.split()
