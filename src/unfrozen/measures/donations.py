"""Human donations, and how well stated donations are read from transcripts without a ballot."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unfrozen.core.episodes import Episode
from unfrozen.core.errors import UsageError
from unfrozen.environments.persuasion.corpus import ENDOWMENT, Dialogue, load_corpus
from unfrozen.measures.distributions import DonationComparison, compare_donations
from unfrozen.measures.stated import stated_donation

TOLERANCE = 0.01
"""Dollars by which a read donation may differ from its label."""

_SHORT_PAY_DAYS = ("20180823", "20180827")
_SHORT_PAY = 0.3


@dataclass(frozen=True, slots=True)
class DonationAccuracy:
    """How well stated donations were read, over `dialogues` labelled ones.

    `within_cent`: the share with the labelled amount, within $0.01, or with none where none was labelled.
    `mentioned`: the share where the reader and the label agree on whether an amount was stated at all.
    """

    dialogues: int
    within_cent: float
    mentioned: float

    def to_json(self) -> dict[str, Any]:
        """All numbers as plain JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"stated donations of {self.dialogues} dialogues: {self.within_cent:.1%} within $0.01, "
            f"{self.mentioned:.1%} right on mentioned or not"
        )


def human_donations(corpus: Path | Sequence[Dialogue]) -> npt.NDArray[np.float64]:
    """What each persuadee of a corpus really gave, in dollars, clipped to [0, 2]. Shape (dialogues,)."""
    dialogues = load_corpus(corpus) if isinstance(corpus, Path) else corpus
    return np.clip(np.array([dialogue.donation for dialogue in dialogues], dtype=np.float64), 0.0, ENDOWMENT)


def compare_episode_donations(
    episodes: Sequence[Episode], human: Sequence[float], seed: int = 0
) -> DonationComparison | None:
    """The donations of complete episodes beside human ones (`Environment.human_outcomes()["donation"]`).

    None where the episodes know of no donation, or there are fewer than two human ones.
    """
    given = [e.outcome.metrics["donation"] for e in episodes if e.outcome and "donation" in e.outcome.metrics]
    return compare_donations(given, human, seed) if given and len(human) > 1 else None


def measure_donations(corpus: Path, labels: Path) -> DonationAccuracy:
    """Read the stated donation of every labelled dialogue and compare it with its label.

    `labels` is a CSV file with the columns `dialogue_id` and `intended_donation` (dollars; empty where none was
    mentioned). Raises UsageError that names the file, column or dialogue that is wrong.
    """
    dialogues = {dialogue.id: dialogue for dialogue in load_corpus(corpus)}
    expected = read_labels(labels)
    exact = agree = 0
    for id, label in expected.items():
        if id not in dialogues:
            raise UsageError(f"{labels}: dialogue {id!r} is not in the corpus {corpus}")
        stated = stated_donation(dialogues[id].turns, corpus_payment(id))
        same_kind = (stated is None) == (label is None)
        agree += same_kind
        # Cents are compared as whole numbers, so that 0.15 and 0.16 are within a cent in floating point too.
        exact += same_kind and (
            stated is None or label is None or abs(round(100 * stated) - round(100 * label)) <= 100 * TOLERANCE
        )
    return DonationAccuracy(len(expected), exact / len(expected), agree / len(expected))


def corpus_payment(dialogue_id: str) -> float:
    """What the study paid for a dialogue of the published corpus, in dollars: "half" is half of that.

    Its ids begin with the day. From 23 to 27 August 2018 participants speak of 30 cents and never of $2, on
    all other days of $2; a payment that the dialogue itself names goes before.
    """
    first, last = _SHORT_PAY_DAYS
    return _SHORT_PAY if first <= dialogue_id[:8] <= last else ENDOWMENT


def read_labels(file: Path) -> dict[str, float | None]:
    """Read labelled intentions by dialogue id; None where no donation was mentioned."""
    if not file.is_file():
        raise UsageError(f"{file}: there is no such labels file; it needs dialogue_id and intended_donation")
    labels: dict[str, float | None] = {}
    with file.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.DictReader(stream)
        missing = [name for name in ("dialogue_id", "intended_donation") if name not in (reader.fieldnames or ())]
        if missing:
            raise UsageError(f"{file} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}")
        for number, row in enumerate(reader, start=2):
            text = (row["intended_donation"] or "").strip()
            try:
                labels[row["dialogue_id"]] = float(text) if text else None
            except ValueError as error:
                raise UsageError(
                    f"{file} row {number}: intended_donation is {text!r}; a number of dollars or nothing is needed"
                ) from error
    if not labels:
        raise UsageError(f"{file} has a header but no rows")
    return labels
