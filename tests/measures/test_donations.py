"""Human donations and the accuracy of reading stated ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from unfrozen.core.errors import UsageError
from unfrozen.environments.persuasion import load_corpus
from unfrozen.measures.distributions import compare_donations
from unfrozen.measures.donations import corpus_payment, human_donations, measure_donations, read_labels
from unfrozen.measures.stated import stated_donation

OWN = Path(__file__).parents[1] / "data" / "persuasion"
HUMAN = Path(os.environ.get("UNFROZEN_P4G", Path(__file__).parents[3] / "shared" / "data" / "persuasion-for-good"))
needs_human_corpus = pytest.mark.skipif(
    not (HUMAN / "full_info.csv").is_file(),
    reason=f"the human corpus is not at {HUMAN}; set UNFROZEN_P4G to its folder",
)


@pytest.mark.parametrize("layout", ["csv", "convokit"])
def test_accuracy_is_measured_on_either_layout(layout: str) -> None:
    accuracy = measure_donations(OWN / layout, OWN / "labels.csv")
    assert (accuracy.dialogues, accuracy.within_cent, accuracy.mentioned) == (10, 1.0, 1.0)
    assert json.loads(json.dumps(accuracy.to_json())) == accuracy.to_json()
    assert str(accuracy) == ("stated donations of 10 dialogues: 100.0% within $0.01, 100.0% right on mentioned or not")


def test_wrong_labels_lower_the_accuracy_they_should(tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("dialogue_id,intended_donation\nown_01,1.01\nown_03,0.6\nown_05,1.0\nown_07,\n")
    accuracy = measure_donations(OWN / "csv", labels)
    assert (accuracy.within_cent, accuracy.mentioned) == (0.5, 0.75)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "no such labels file"),
        ("", "dialogue_id, intended_donation"),
        ("dialogue_id\nown_01\n", "lacks the column intended_donation"),
        ("dialogue_id,intended_donation\n", "no rows"),
        ("dialogue_id,intended_donation\nown_01,much\n", "row 2"),
        ("dialogue_id,intended_donation\nelsewhere,1\n", "'elsewhere'"),
    ],
)
def test_bad_labels_are_one_clear_line(tmp_path: Path, content: str | None, named: str) -> None:
    labels = tmp_path / "labels.csv"
    if content is not None:
        labels.write_text(content)
    with pytest.raises(UsageError) as caught:
        measure_donations(OWN / "csv", labels)
    assert named in str(caught.value)
    assert "labels.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_human_donations_are_clipped_to_two_dollars() -> None:
    donations = human_donations(OWN / "csv")
    assert donations.shape == (12,)
    assert donations.max() == 2.0
    assert donations.min() == 0.0


def test_the_payment_of_a_day_is_a_fact_of_the_corpus() -> None:
    assert corpus_payment("20180825-075611_866_live") == 0.3
    assert corpus_payment("20180904-024226_703_live") == 2.0
    assert corpus_payment("own_01") == 2.0


@needs_human_corpus
def test_humans_give_in_536_of_1000_dialogues_and_41_cents_on_average() -> None:
    donations = human_donations(HUMAN)
    assert donations.shape == (1017,)
    assert round(float((donations > 0).mean()), 3) == 0.536
    assert round(float(donations.mean()), 2) == 0.41


@needs_human_corpus
def test_people_compared_with_people_lie_at_the_floor_and_a_constant_does_not() -> None:
    donations = human_donations(HUMAN)
    people = compare_donations(np.random.default_rng(1).choice(donations, 100, replace=False), donations, draws=200)
    assert not people.ks.beyond_people
    assert not people.wasserstein.beyond_people
    always_a_dollar = compare_donations(np.ones(100), donations, draws=200)
    assert always_a_dollar.ks.beyond_people
    assert always_a_dollar.wasserstein.beyond_people
    assert always_a_dollar.histogram_l1.beyond_people
    assert (always_a_dollar.rate, always_a_dollar.mean) == (1.0, 1.0)
    assert round(always_a_dollar.human_rate, 3) == 0.536


@needs_human_corpus
def test_stated_donations_are_read_better_than_the_bar_on_the_human_labels() -> None:
    accuracy = measure_donations(HUMAN, HUMAN / "intended_donation_dev.csv")
    assert accuracy.dialogues == 153
    assert accuracy.within_cent > 0.83
    assert accuracy.mentioned > 0.89


@needs_human_corpus
def test_dialogues_nobody_labelled_are_read_as_well_as_the_labelled_ones() -> None:
    """Where people say a sum and give one, the two agree in 4 of 5 dialogues; annotators find the same share."""
    labelled = read_labels(HUMAN / "intended_donation_dev.csv")
    unseen = [dialogue for dialogue in load_corpus(HUMAN) if dialogue.id not in labelled]
    pairs = [(stated_donation(d.turns, corpus_payment(d.id)), d.donation) for d in unseen if d.donated]
    both = [(stated, given) for stated, given in pairs if stated is not None and 0 < stated <= 2]
    agreement = sum(abs(stated - given) < 0.011 for stated, given in both) / len(both)
    assert len(both) > 300
    assert agreement > 0.77
