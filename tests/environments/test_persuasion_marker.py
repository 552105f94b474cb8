"""The decision marker: an amount, or rejected with a reason; never guessed from prose."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from unfrozen.environments.persuasion.marker import read_turn, render_marker


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("[DONATE $1.50]", 1.5),
        ("[DONATE: $1.50]", 1.5),
        ("[donate 2 dollars]", 2.0),
        ("[Donate one dollar]", 1.0),
        ("[DONATE a dollar]", 1.0),
        ("[DONATE 50 cents]", 0.5),
        ("[DONATE fifty cents]", 0.5),
        ("[DONATE 50¢]", 0.5),
        ("[DONATE $0.5]", 0.5),
        ("[DONATE $.5]", 0.5),
        ("[DONATE 1.25]", 1.25),
        ("[DONATE 1$]", 1.0),
        ("[ DONATE   $ 1 ]", 1.0),
        ("[DONATE = $1]", 1.0),
        ("**[DONATE $1]**", 1.0),
        ("[DONATE nothing]", 0.0),
        ("[DONATE $0]", 0.0),
        ("[DONATE $2.00]", 2.0),
    ],
)
def test_formats_of_an_amount_are_read(text: str, amount: float) -> None:
    reading = read_turn(f"All right. {text}")
    assert reading.amount == amount
    assert reading.problem is None
    assert reading.public == "All right."


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[DONATE $3]", "more than"),
        ("[DONATE 250 cents]", "more than"),
        ("[DONATE ten dollars]", "more than"),
        ("[DONATE $-1]", "negative"),
        ("[DONATE -$1]", "negative"),
        ("[DONATE: -0.5]", "negative"),
        ("[DONATE $1-$2]", "not one amount"),
        ("[DONATE $1 or $2]", "not one amount"),
        ("[DONATE $1 to $2]", "not one amount"),
        ("[DONATE 5 minutes]", "not one amount"),
        ("[DONATE 50%]", "not one amount"),
        ("[DONATE half]", "not one amount"),
        ("[DONATE $x]", "not one amount"),
        ("[DONATE not $1]", "not one amount"),
        ("[DONATE $1.999]", "not one amount"),
        ("[DONATE $1,50]", "not one amount"),
        ("[DONATE ١]", "not one amount"),
        ("[DONATE $]", "not one amount"),
        ("[DONATE]", "no amount"),
        ("[DONATION $1]", "instead of DONATE"),
        ("[donated $1]", "instead of DONATE"),
        ("[DONATE $1", "not closed"),
        ("[DONATE [DONATE $1]]", "inside its bracket"),
        ("[DONATE $1 [really]]", "inside its bracket"),
        ("[DONATE $1] no wait [DONATE $0]", "two different"),
        ("[DONATE $1] [DONATE $9]", "more than"),
    ],
)
def test_what_is_no_amount_between_nothing_and_two_dollars_is_rejected(text: str, reason: str) -> None:
    reading = read_turn(f"All right. {text}")
    assert reading.amount is None
    assert reading.problem is not None
    assert reason in reading.problem
    assert "[" not in reading.public


@pytest.mark.parametrize(
    "text",
    [
        "I won't give $1",
        "I can give 5 minutes of my time.",
        "I will donate $1.50 for certain!",
        "DONATE $1",
        "(DONATE $1)",
        "My range is $1-$2.",
        "one dollar",
        "[I would never donate $1]",
        "[don't donate $1]",
        "",
        "see [1] and [the donation page]",
    ],
)
def test_prose_is_never_a_marker(text: str) -> None:
    reading = read_turn(text)
    assert reading.amount is None
    assert reading.problem is None
    assert reading.public == text


def test_the_same_marker_twice_is_one_decision() -> None:
    reading = read_turn("[DONATE $1] Thank you. [DONATE $1.00]")
    assert reading.amount == 1.0
    assert reading.public == "Thank you."


def test_removing_a_marker_leaves_tidy_text() -> None:
    assert read_turn("I will [DONATE $1] , gladly.").public == "I will, gladly."
    assert read_turn("Yes.\n\n[DONATE $1]\n").public == "Yes."


@settings(deadline=None)
@given(st.integers(0, 200))
def test_every_amount_in_cents_survives_the_round_trip(cents: int) -> None:
    reading = read_turn(f"Fine. {render_marker(cents / 100)}")
    assert reading.amount == cents / 100
    assert reading.public == "Fine."


@settings(deadline=None)
@given(st.integers(201, 10_000_000))
def test_every_amount_above_two_dollars_is_rejected(cents: int) -> None:
    reading = read_turn(f"[DONATE ${cents / 100:.2f}]")
    assert reading.amount is None
    assert reading.problem is not None


pieces = st.lists(
    st.sampled_from(
        [
            "[",
            "]",
            "DONATE",
            "donate",
            " $1",
            " $3",
            "[DONATE $1]",
            "[DONATE ",
            "[STUDY]",
            "study",
            "text",
            "\n",
            "*",
            " ",
        ]
    )
)


@settings(deadline=None)
@given(st.one_of(st.text(), pieces.map("".join)))
@example("[DON[DONATE $1]ATE $2]")
@example("[[DONATE $1]DONATE $1]")
@example("[[DONATE $1]STUDY]")
@example("[[STUDY]DONATE $1]")
def test_what_the_other_hears_never_holds_a_marker(text: str) -> None:
    public = read_turn(text).public
    again = read_turn(public)
    assert again.amount is None
    assert again.problem is None
    assert again.public == public
    assert "[STUDY]" not in public.upper()
