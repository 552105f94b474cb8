"""Persuasion for Good: the corpus as data (Wang et al., ACL 2019, arXiv 1906.06725).

A persuader asks a persuadee, who has just earned $2, to give part of it to Save the Children. `load_corpus`
reads the two layouts in which people have the corpus, the authors' CSV files and ConvoKit's folder, from a
path. How each layout is read lives in `layouts.py`, fetching it in `download.py`; nothing of the corpus is
part of this package.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from unfrozen.core.errors import UsageError
from unfrozen.core.messages import Role
from unfrozen.environments.persuasion.layouts import RawDialogue, read_convokit, read_csv

ENDOWMENT = 2.0
"""Dollars that the persuadee has earned and may give from."""

CSV_FILES = ("full_dialog.csv", "full_info.csv")
CONVOKIT_FILES = ("utterances.jsonl", "conversations.json", "speakers.json")


@dataclass(frozen=True, slots=True)
class Persona:
    """One person: a pseudonymous user id and the survey cells that are not empty.

    Numbers are survey scales (Big Five and decision style 1-5, moral foundations and Schwartz values 1-6, age
    in years, income 1-12); text cells are demographics. Keys have no suffix: "agreeable", "sex".
    """

    user: str
    cells: Mapping[str, float | str]


@dataclass(frozen=True, slots=True)
class Utterance:
    """What one party wrote in one turn; the persuader is "agent", the persuadee "user"."""

    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One human conversation. `donation` is what the persuadee really gave afterwards, in dollars (may be > 2)."""

    id: str
    persuader: Persona
    persuadee: Persona
    turns: tuple[Utterance, ...]
    donation: float

    @property
    def donated(self) -> bool:
        """Whether the persuadee gave anything."""
        return self.donation > 0


def resolve_path(text: str) -> Path:
    """Return a path with a leading ~ and environment variables ($NAME) filled in."""
    return Path(os.path.expandvars(text)).expanduser()


def load_corpus(path: Path) -> tuple[Dialogue, ...]:
    """Read a corpus folder of either layout. Dialogues come in the order of the files.

    Raises UsageError that names the folder, file, column or dialogue that is wrong.
    """
    if not path.exists():
        raise UsageError(f'{path}: there is no such folder; give the corpus folder, or "download" to fetch it')
    if path.is_file():
        raise UsageError(f"{path} is a file; give the folder that holds it")
    if all((path / name).is_file() for name in CSV_FILES):
        raw = read_csv(path / CSV_FILES[0], path / CSV_FILES[1])
    elif all((path / name).is_file() for name in CONVOKIT_FILES):
        raw = read_convokit(*(path / name for name in CONVOKIT_FILES))
    else:
        raise UsageError(
            f"{path} is no corpus folder: it needs {' and '.join(CSV_FILES)} (the authors' layout) or "
            f"{', '.join(CONVOKIT_FILES)} (ConvoKit's)"
        )
    return tuple(_dialogue(record) for record in raw)


def _dialogue(raw: RawDialogue) -> Dialogue:
    turns: list[Utterance] = []
    for persuader_speaks, text in raw.units:
        role: Role = "agent" if persuader_speaks else "user"
        if turns and turns[-1].role == role:
            turns[-1] = Utterance(role, f"{turns[-1].text} {text}")
        else:
            turns.append(Utterance(role, text))
    return Dialogue(
        raw.id,
        Persona(raw.persuader, raw.persuader_cells),
        Persona(raw.persuadee, raw.persuadee_cells),
        tuple(turns),
        raw.donation,
    )
