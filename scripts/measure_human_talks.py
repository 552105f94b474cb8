"""Measure the people of Persuasion for Good: what the fault rules and word patterns find in them, and what they gave.

    python scripts/measure_human_talks.py CORPUS_FOLDER > results/human-talks.json

`faults`: share of all whole talks with each realism fault (false alarms, if people are taken to be real), and its
rule. `role_swaps`: share of each party's turns that the patterns of `measures.language.SWAPS` match. `splits`: talks
and the share that gave. `stated`: accuracy of the reader of stated donations, where the folder has the labels
(intended_donation_dev.csv). Some seconds on one core. Nothing of the corpus is written.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from unfrozen.core.episodes import SPLITS
from unfrozen.core.messages import ROLES
from unfrozen.environments.persuasion import Dialogue, PersuasionConfig, PersuasionEnvironment
from unfrozen.jobs.summary import hardware, now
from unfrozen.measures.donations import measure_donations
from unfrozen.measures.language import swaps_role
from unfrozen.measures.realism import RULES, find_faults
from unfrozen.measures.talks import Talk


def measure(corpus: Path) -> dict[str, Any]:
    """All numbers."""
    environment = PersuasionEnvironment(PersuasionConfig(corpus=str(corpus)))
    dialogues = environment.dialogues()
    goals = {task.id: environment.open(task, 0).view("user").system for s in SPLITS for task in environment.tasks(s)}
    found = Counter(name for d in dialogues for name in {f.name for f in find_faults(talk(d), goals[d.id])})
    given = environment.human_outcomes()["donation"]
    labels = corpus / "intended_donation_dev.csv"
    return {
        "created": now(),
        "hardware": hardware(),
        "talks": len(dialogues),
        "faults": {name: {"share": found[name] / len(dialogues), "rule": rule} for name, rule in RULES.items()},
        "role_swaps": {role: swaps(dialogues, role) for role in ROLES},
        "donations": {"mean": sum(given) / len(given), "rate": sum(g > 0 for g in given) / len(given)},
        "splits": {s: gave(environment.dialogues(s)) for s in SPLITS},
        "stated": measure_donations(corpus, labels).to_json() if labels.exists() else None,
    }


def talk(dialogue: Dialogue) -> Talk:
    """A human dialogue, whole."""
    said = tuple((turn.role, turn.text) for turn in dialogue.turns)
    return Talk(dialogue.id, dialogue.id, dialogue.id, said, tuple(range(len(said))))


def swaps(dialogues: tuple[Dialogue, ...], role: str) -> float:
    """Share of a party's turns in which it speaks the other's lines."""
    turns = [turn for d in dialogues for turn in d.turns if turn.role == role]
    return sum(swaps_role(turn.text, turn.role) for turn in turns) / len(turns)


def gave(dialogues: tuple[Dialogue, ...]) -> dict[str, float]:
    """How many talks there are, and the share whose persuadee gave."""
    return {"talks": len(dialogues), "rate": sum(d.donated for d in dialogues) / len(dialogues)}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    json.dump(measure(Path(sys.argv[1])), sys.stdout, indent=1)
    print()
