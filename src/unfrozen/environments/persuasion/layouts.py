"""The two file layouts of the corpus, read into one raw form.

The authors' CSV: `full_dialog.csv` has one sentence unit a row (B2 dialogue, B4 role, Turn, Unit) and
`full_info.csv` two rows a dialogue (B3 user, B6 donation, persona columns with the suffix ".x").
ConvoKit's: `utterances.jsonl`, `conversations.json` and `speakers.json`; older dumps say `user` and `root`
for `speaker` and `conversation_id`, and keep speaker metadata without the "meta" level. Both are read.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unfrozen.core.errors import UsageError

NUMERIC_CELLS = [
    *("extrovert", "agreeable", "conscientious", "neurotic", "open"),
    *("care", "fairness", "loyalty", "authority", "purity", "freedom"),
    *("conform", "tradition", "benevolence", "universalism", "self_direction", "stimulation"),
    *("hedonism", "achievement", "power", "security"),
    *("rational", "intuitive", "age", "income"),
]
TEXT_CELLS = ["sex", "race", "edu", "marital", "employment", "religion", "ideology"]


@dataclass(frozen=True, slots=True)
class RawDialogue:
    """A dialogue as the files have it. `units` are (persuader speaks, text) in order, empty texts left out."""

    id: str
    persuader: str
    persuadee: str
    persuader_cells: Mapping[str, float | str]
    persuadee_cells: Mapping[str, float | str]
    units: tuple[tuple[bool, str], ...]
    donation: float


def read_csv(dialog_file: Path, info_file: Path) -> list[RawDialogue]:
    """Read the authors' layout. Raises UsageError that names the file, row or column."""
    info_columns = ["B2", "B3", "B4", "B6", *(f"{cell}.x" for cell in NUMERIC_CELLS + TEXT_CELLS)]
    people: dict[str, dict[str, Mapping[str, str]]] = {}
    for number, row in _csv_rows(info_file, info_columns):
        parties = people.setdefault(row["B2"], {})
        if row["B4"] not in ("0", "1") or row["B4"] in parties:
            raise UsageError(
                f"{info_file} row {number}: column B4 (role) is {row['B4']!r}; a dialogue needs one row with "
                "0 (persuader) and one with 1 (persuadee)"
            )
        parties[row["B4"]] = row
    units: dict[str, list[tuple[int, bool, str]]] = {}
    for number, row in _csv_rows(dialog_file, ["B2", "B4", "Turn", "Unit"]):
        if row["B2"] not in people:
            raise UsageError(f"{dialog_file} row {number}: dialogue {row['B2']!r} is not in {info_file.name}")
        turn = _number(row["Turn"], f"{dialog_file} row {number}: column Turn")
        persuader_speaks = _role(row["B4"], f"{dialog_file} row {number}: column B4 (role)")
        units.setdefault(row["B2"], []).append((int(turn or 0), persuader_speaks, row["Unit"]))
    dialogues = []
    for id, parties in people.items():
        if len(parties) != 2:
            raise UsageError(f"{info_file}: dialogue {id!r} has one row; it needs persuader and persuadee")
        if id not in units:
            raise UsageError(f"{dialog_file}: dialogue {id!r} of {info_file.name} has no rows")
        persuader, persuadee = parties["0"], parties["1"]
        donation = _number(persuadee["B6"], f"{info_file}: column B6 (donation) of dialogue {id!r}")
        # Within a turn the persuader speaks first; the sort is stable, so sentences keep their order.
        ordered = sorted(units[id], key=lambda unit: (unit[0], not unit[1]))
        dialogues.append(
            RawDialogue(
                id,
                persuader["B3"],
                persuadee["B3"],
                _cells(persuader, ".x", f"{info_file}: dialogue {id!r}"),
                _cells(persuadee, ".x", f"{info_file}: dialogue {id!r}"),
                _spoken((speaks, text) for _, speaks, text in ordered),
                donation or 0.0,
            )
        )
    return dialogues


def read_convokit(utterances_file: Path, conversations_file: Path, speakers_file: Path) -> list[RawDialogue]:
    """Read ConvoKit's layout. Raises UsageError that names the file, record or field."""
    speakers = _json_object(speakers_file)
    conversations = _json_object(conversations_file)
    units: dict[str, list[tuple[bool, str]]] = {}
    for number, record in _jsonl(utterances_file):
        where = f"{utterances_file} line {number}"
        conversation = _field(record, ("conversation_id", "root"), where)
        role = _field(_field(record, ("meta",), where), ("role",), f"{where}: meta")
        spoken = (_role(str(role), f"{where}: meta.role"), str(_field(record, ("text",), where) or ""))
        units.setdefault(str(conversation), []).append(spoken)
    dialogues = []
    for key, conversation in conversations.items():
        where = f"{conversations_file}: conversation {key!r}"
        if key not in units:
            raise UsageError(f"{utterances_file}: {where.rpartition(': ')[2]} has no utterances")
        meta = conversation.get("meta", conversation)
        persuader, persuadee = str(_field(meta, ("user_er",), where)), str(_field(meta, ("user_ee",), where))
        cells = []
        for user in (persuader, persuadee):
            if user not in speakers:
                raise UsageError(f"{speakers_file}: speaker {user!r} of conversation {key!r} is missing")
            survey = speakers[user].get("meta", speakers[user])
            if not isinstance(survey, dict):
                raise UsageError(f"{speakers_file}: meta of speaker {user!r} is not a JSON object")
            cells.append(_cells(survey, "", f"{speakers_file}: speaker {user!r}"))
        donation = _number(_field(meta, ("donation_ee",), where), f"{where}: donation_ee")
        id = str(_field(meta, ("dialogue_id",), where))
        dialogues.append(
            RawDialogue(id, persuader, persuadee, cells[0], cells[1], _spoken(units[key]), donation or 0.0)
        )
    return dialogues


def _spoken(units: Iterable[tuple[bool, str]]) -> tuple[tuple[bool, str], ...]:
    cleaned = ((speaks, " ".join(text.split())) for speaks, text in units)
    return tuple((speaks, text) for speaks, text in cleaned if text)


def _cells(row: Mapping[str, Any], suffix: str, where: str) -> dict[str, float | str]:
    """Persona cells that are not empty; a key that is absent counts as empty."""
    cells: dict[str, float | str] = {}
    for name in NUMERIC_CELLS:
        number = _number(row.get(name + suffix), f"{where}: {name}{suffix}")
        if number is not None:
            cells[name] = number
    for name in TEXT_CELLS:
        value = row.get(name + suffix)
        if isinstance(value, str) and value.strip():
            cells[name] = value.strip()
    return cells


def _number(value: object, where: str) -> float | None:
    """Read a number; None where the cell is empty or not-a-number."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        number = float(str(value))
    except ValueError as error:
        raise UsageError(f"{where} is {value!r}; a number is needed") from error
    if math.isinf(number):
        raise UsageError(f"{where} is {value!r}; a finite number is needed")
    return None if math.isnan(number) else number


def _role(value: str, where: str) -> bool:
    if value not in ("0", "1", "0.0", "1.0"):
        raise UsageError(f"{where} is {value!r}; allowed: 0 (persuader), 1 (persuadee)")
    return value.startswith("0")


def _csv_rows(file: Path, columns: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """Rows with their number in the file (1 is the header); all `columns` are there in each."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            header = reader.fieldnames or ()
            missing = [name for name in columns if name not in header]
            if not header:
                raise UsageError(f"{file} is empty; it needs a header and rows")
            if missing:
                raise UsageError(f"{file} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}")
            rows = []
            for number, row in enumerate(reader, start=2):
                if any(row[name] is None for name in columns):
                    raise UsageError(f"{file} row {number} has fewer cells than the header")
                rows.append((number, row))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{file} is not a UTF-8 CSV file: {error}") from error
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    if not rows:
        raise UsageError(f"{file} has a header but no rows")
    return rows


def _jsonl(file: Path) -> list[tuple[int, Mapping[str, Any]]]:
    records: list[tuple[int, Mapping[str, Any]]] = []
    for number, line in enumerate(_text(file).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise UsageError(f"{file} line {number} is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise UsageError(f"{file} line {number} is not a JSON object")
        records.append((number, record))
    if not records:
        raise UsageError(f"{file} is empty; it needs one utterance a line")
    return records


def _json_object(file: Path) -> dict[str, dict[str, Any]]:
    try:
        content = json.loads(_text(file) or "null")
    except json.JSONDecodeError as error:
        raise UsageError(f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict) or not content:
        raise UsageError(f"{file} is empty; it needs a JSON object keyed by id")
    for key, value in content.items():
        if not isinstance(value, dict):
            raise UsageError(f"{file}: the entry {key!r} is not a JSON object")
    return content


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text: {error}") from error
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error


def _field(record: object, names: tuple[str, ...], where: str) -> Any:
    """The first of `names` that the record has."""
    if isinstance(record, Mapping):
        for name in names:
            if name in record:
                return record[name]
    raise UsageError(f"{where} lacks the field {' (or '.join(names)}{')' * (len(names) - 1)}")
