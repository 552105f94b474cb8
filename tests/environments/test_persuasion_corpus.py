"""Reading the corpus: both layouts, and one clear line for whatever is wrong with a folder."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from persuasion_data import HUMAN, OWN_CONVOKIT, OWN_CSV, needs_human_corpus

from unfrozen.core.errors import UsageError
from unfrozen.environments.persuasion import load_corpus, resolve_path


def copy(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target / "corpus"))


def edit_csv(file: Path, change: object) -> None:
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    rows = [row for row in map(change, rows) if row is not None]  # type: ignore[call-overload]
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def error_of(folder: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load_corpus(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_both_layouts_give_the_same_dialogues() -> None:
    dialogues = load_corpus(OWN_CSV)
    assert dialogues == load_corpus(OWN_CONVOKIT)
    assert len(dialogues) == 12


def test_sentence_units_of_one_turn_become_one_utterance() -> None:
    first = load_corpus(OWN_CSV)[0]
    assert [turn.role for turn in first.turns] == ["agent", "user"] * 3
    assert first.turns[0].text == "Hello there! How is your afternoon?"
    assert first.donation == 1.0


def test_empty_persona_cells_are_absent() -> None:
    people = {d.persuadee.user: d.persuadee.cells for d in load_corpus(OWN_CONVOKIT)}
    people |= {d.persuader.user: d.persuader.cells for d in load_corpus(OWN_CONVOKIT)}
    assert people["guest_03"] == {}
    assert "age" not in people["guest_07"]
    assert "income" in people["guest_07"]
    assert isinstance(people["guest_01"]["age"], float)
    assert isinstance(people["guest_01"]["sex"], str)


def test_convokits_older_field_names_are_read_too(tmp_path: Path) -> None:
    folder = copy(OWN_CONVOKIT, tmp_path)
    lines = [json.loads(line) for line in (folder / "utterances.jsonl").read_text().splitlines()]
    old = [{**line, "root": line["conversation_id"], "user": line["speaker"]} for line in lines]
    for line in old:
        del line["conversation_id"], line["speaker"]
    (folder / "utterances.jsonl").write_text("\n".join(json.dumps(line) for line in old))
    speakers = json.loads((folder / "speakers.json").read_text())
    (folder / "speakers.json").write_text(json.dumps({key: value["meta"] for key, value in speakers.items()}))
    assert load_corpus(folder) == load_corpus(OWN_CSV)


def test_rows_in_any_order_give_the_same_dialogue(tmp_path: Path) -> None:
    folder = copy(OWN_CSV, tmp_path)
    lines = (folder / "full_dialog.csv").read_text().splitlines()
    turns_swapped = [lines[0], *sorted(lines[1:], key=lambda line: line.split(",")[-3], reverse=True)]
    (folder / "full_dialog.csv").write_text("\n".join(turns_swapped))
    assert load_corpus(folder) == load_corpus(OWN_CSV)


def test_a_missing_folder_says_how_to_get_the_corpus(tmp_path: Path) -> None:
    assert "no such folder" in error_of(tmp_path / "nowhere")
    assert "download" in error_of(tmp_path / "nowhere")


def test_a_folder_without_the_files_names_both_layouts(tmp_path: Path) -> None:
    message = error_of(tmp_path)
    assert "full_dialog.csv" in message
    assert "utterances.jsonl" in message


def test_a_file_instead_of_a_folder_is_refused() -> None:
    assert "give the folder" in error_of(OWN_CSV / "full_info.csv")


@pytest.mark.parametrize(
    ("file", "column"), [("full_info.csv", "B6"), ("full_info.csv", "age.x"), ("full_dialog.csv", "Unit")]
)
def test_a_missing_column_is_named(tmp_path: Path, file: str, column: str) -> None:
    folder = copy(OWN_CSV, tmp_path)
    edit_csv(folder / file, lambda row: {key: value for key, value in row.items() if key != column})
    message = error_of(folder)
    assert file in message
    assert f"lacks the column {column}" in message


@pytest.mark.parametrize("file", ["full_info.csv", "full_dialog.csv"])
@pytest.mark.parametrize("content", ["", "header only"])
def test_an_empty_csv_file_is_named(tmp_path: Path, file: str, content: str) -> None:
    folder = copy(OWN_CSV, tmp_path)
    header = (folder / file).read_text().splitlines()[0] + "\n"
    (folder / file).write_text(header if content else "")
    assert file in error_of(folder)


@pytest.mark.parametrize("file", ["utterances.jsonl", "conversations.json", "speakers.json"])
@pytest.mark.parametrize("content", ["", "[1]", "{not json", '{"a": 1}'])
def test_a_broken_convokit_file_is_named(tmp_path: Path, file: str, content: str) -> None:
    folder = copy(OWN_CONVOKIT, tmp_path)
    (folder / file).write_text(content)
    assert file in error_of(folder)


def test_a_missing_field_of_a_convokit_record_is_named(tmp_path: Path) -> None:
    folder = copy(OWN_CONVOKIT, tmp_path)
    conversations = json.loads((folder / "conversations.json").read_text())
    next(iter(conversations.values()))["meta"].pop("donation_ee")
    (folder / "conversations.json").write_text(json.dumps(conversations))
    assert "donation_ee" in error_of(folder)


def test_a_speaker_without_a_survey_object_is_named(tmp_path: Path) -> None:
    folder = copy(OWN_CONVOKIT, tmp_path)
    speakers = json.loads((folder / "speakers.json").read_text())
    speakers["guest_02"]["meta"] = None
    (folder / "speakers.json").write_text(json.dumps(speakers))
    assert "'guest_02'" in error_of(folder)
    del speakers["guest_02"]
    (folder / "speakers.json").write_text(json.dumps(speakers))
    assert "'guest_02'" in error_of(folder)


@pytest.mark.parametrize(("column", "value"), [("B6", "lots"), ("B6", "inf"), ("B4", "2"), ("age.x", "old")])
def test_an_unreadable_cell_is_named(tmp_path: Path, column: str, value: str) -> None:
    folder = copy(OWN_CSV, tmp_path)
    edit_csv(folder / "full_info.csv", lambda row: {**row, column: value})
    message = error_of(folder)
    assert column in message
    assert repr(value) in message


def test_dialogues_that_one_file_lacks_are_named(tmp_path: Path) -> None:
    folder = copy(OWN_CSV, tmp_path)
    edit_csv(folder / "full_dialog.csv", lambda row: None if row["B2"] == "own_04" else row)
    assert "'own_04'" in error_of(folder)
    other = copy(OWN_CSV, tmp_path / "other")
    edit_csv(other / "full_info.csv", lambda row: None if row["B2"] == "own_05" else row)
    assert "'own_05'" in error_of(other)


def test_a_row_cut_short_is_named(tmp_path: Path) -> None:
    folder = copy(OWN_CSV, tmp_path)
    with (folder / "full_info.csv").open("a") as stream:
        stream.write("own_99,guest_01\n")
    assert "row 26" in error_of(folder)


def test_bytes_that_are_not_text_are_named(tmp_path: Path) -> None:
    folder = copy(OWN_CSV, tmp_path)
    (folder / "full_info.csv").write_bytes(b"\xff\xfe\x00B2")
    assert "full_info.csv" in error_of(folder)


def test_paths_fill_in_home_and_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CORPORA", str(tmp_path / "corpora"))
    assert resolve_path("~/p4g") == tmp_path / "p4g"
    assert resolve_path("$CORPORA/p4g") == tmp_path / "corpora" / "p4g"


@needs_human_corpus
def test_the_human_corpus_has_its_published_size() -> None:
    dialogues = load_corpus(HUMAN)
    assert len(dialogues) == 1017
    assert all(dialogue.turns[0].role == "agent" for dialogue in dialogues)
    users = {d.persuader.user for d in dialogues} | {d.persuadee.user for d in dialogues}
    assert len(users) == 1285
