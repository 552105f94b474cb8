"""Reading stated donations from whole dialogues: refusals, minutes, shares, proposals, changes of mind."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unfrozen.environments.persuasion import Utterance
from unfrozen.measures.stated import stated_donation


def dialogue(*texts: str) -> tuple[Utterance, ...]:
    """Turns in order; the persuader speaks first."""
    return tuple(Utterance("user" if i % 2 else "agent", text) for i, text in enumerate(texts))


@pytest.mark.parametrize(
    ("reply", "amount"),
    [
        ("I will donate $1.50.", 1.5),
        ("I'll give 50 cents.", 0.5),
        ("I would like to donate 0.25", 0.25),
        ("I can do a dollar", 1.0),
        ("I'd be glad to put down two dollars", 2.0),
        ("$1", 1.0),
        ("Maybe 75 cents then", 0.75),
        ("0.50 cents is what I can afford, I can give that", 0.5),
        ("I think I will make it .10", 0.1),
        ("I'll pitch in a quarter", 0.25),
        ("I would donate the full amount", 2.0),
        ("Half of my payment, I guess", 1.0),
        ("I will donate all of my payment", 2.0),
        ("I will give $1 of my $2 payment", 1.0),
        ("I can't give more than $1", 1.0),
        ("I will gladly donate $0", 0.0),
        ("No, I will not donate.", 0.0),
        ("I don't want to give any money.", 0.0),
        ("No thank you", 0.0),
        ("Not today", 0.0),
        ("I’ll donate $1", 1.0),
    ],
)
def test_an_answer_to_how_much_is_read(reply: str, amount: float) -> None:
    assert stated_donation(dialogue("How much would you like to donate?", reply)) == pytest.approx(amount)


@pytest.mark.parametrize(
    "reply",
    [
        "I can give 5 minutes of my time.",
        "I would give 10% of it to anybody",
        "I have 2 children of my own",
        "I donated $50 last year",
        "I usually give $20 to my church",
        "Would you give $2 yourself?",
        "What does $1 buy?",
        "I will give $1 if you give $1",
        "I will donate $30 in the future",
        "I could give between $1 and $2",
        "I only get paid $2",
        "Let me think about it.",
        "Good cause, I guess.",
    ],
)
def test_amounts_that_are_no_gift_are_passed_over(reply: str) -> None:
    assert stated_donation(dialogue("How much would you like to donate?", reply)) is None


@pytest.mark.parametrize(
    ("asked", "reply", "amount"),
    [
        ("Would you donate $1 of your $2?", "Yes, of course.", 1.0),
        ("How about 50 cents?", "Sure!", 0.5),
        ("Could you spare half of your payment?", "I could do that.", 1.0),
        ("So you will give a dollar, correct?", "Yes", 1.0),
        ("Would you donate $1?", "Yes, but what is it for?", None),
        ("Would you donate $1 or $2?", "Sure.", None),
        ("You can give any amount from $0 to all of your payment.", "Okay.", None),
        ("I will match it: I donate $1 myself.", "Great!", None),
        ("Just $1 feeds a child for a day.", "Yes, I know.", None),
        ("Would you donate $1?", "No.", 0.0),
    ],
)
def test_a_yes_accepts_the_one_amount_that_was_asked_for(asked: str, reply: str, amount: float | None) -> None:
    assert stated_donation(dialogue(asked, reply)) == amount


def test_the_last_commitment_wins() -> None:
    turns = dialogue(
        *("How much would you give?", "I can give 10 cents."),
        *("Could you do a little more?", "OK, I'll give 25 cents."),
        *("Wonderful!", "You are welcome."),
    )
    assert stated_donation(turns) == 0.25
    assert stated_donation((*turns, *dialogue("Thanks again.", "On second thought, I will not donate."))) == 0.0


def test_more_is_added_to_what_was_promised() -> None:
    turns = dialogue("How much?", "I could donate 10 cents.", "A bit more?", "I could give 5 more cents.")
    assert stated_donation(turns) == 0.15


def test_what_the_persuader_gives_is_never_counted() -> None:
    assert stated_donation(dialogue("I will donate $2 today!", "How kind of you.", "I gave $1.", "Nice.")) is None


def test_half_is_half_of_the_payment_that_the_dialogue_names() -> None:
    turns = dialogue("The task pays $2. How much would you give?", "I will give half.")
    assert stated_donation(turns, payment=0.3) == 1.0
    assert stated_donation(dialogue("How much would you give?", "I will give half."), payment=0.3) == 0.15


@settings(deadline=None)
@given(st.integers(1, 200))
def test_every_amount_is_read_as_it_is_written(cents: int) -> None:
    for written in (f"${cents / 100:.2f}", f"{cents} cents", f"{cents / 100:.2f} dollars"):
        turns = dialogue("How much would you like to give?", f"I will donate {written}.")
        assert stated_donation(turns) == pytest.approx(cents / 100)


@settings(deadline=None)
@given(st.lists(st.text(max_size=80), max_size=8))
def test_any_dialogue_gives_an_amount_or_none(texts: list[str]) -> None:
    stated = stated_donation(dialogue(*texts))
    assert stated is None or stated >= 0
