"""Manner of speech: echoes, repetitions, swapped roles and distinct n-grams, each by its stated rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unfrozen.measures.language import distinct_n, measure_speech, repeats, swaps_role, words_of

words = st.sampled_from(["tea", "milk", "sugar", "bread", "salt", "rice", "beans"])
sentences = st.lists(words, min_size=1, max_size=8).map(" ".join)


def test_distinct_pairs_are_counted_over_all_texts():
    assert distinct_n(["a b c", "a b d"]) == 3 / 4
    assert distinct_n(["a b c", "A, b. C!"]) == 1 / 2


def test_one_word_replies_that_are_all_the_same_are_not_diverse():
    assert distinct_n(["Yes.", "yes", "Yes!", "yes"]) == 1 / 4


@given(st.lists(sentences, min_size=1, max_size=6), st.integers(1, 3))
def test_distinct_n_lies_in_0_1_and_saying_everything_twice_halves_it(texts, n):
    once = distinct_n(texts, n)
    assert 0 < once <= 1
    assert distinct_n(texts * 2, n) == pytest.approx(once / 2)


@given(sentences)
def test_a_turn_of_four_words_or_more_repeats_itself_in_any_case_and_punctuation(text):
    assert repeats(f"{text.upper()}!", [text]) == (len(words_of(text)) >= 4)


def test_most_of_a_turn_must_be_repeated_and_from_one_turn():
    first, second = "I like tea with milk", "sugar is what I never buy"
    assert repeats("well I like tea with milk", [first]) is False  # 3 of 4 triples
    assert repeats("I like tea with milk today and", [first, second]) is False
    assert repeats("so now I like tea with milk and sugar", ["so now I like tea with milk and sugar please"])


@pytest.mark.parametrize(
    ("role", "text"),
    [
        ("user", "Would you like to donate some of your money to Save the Children?"),
        ("user", "How much would you give today?"),
        ("user", "Thank you for your generous donation!"),
        ("user", "Persuader: hello there"),
        ("agent", "I will donate $1 of it."),
        ("agent", "I'd give half my earnings"),
        ("agent", "User: that sounds good."),
    ],
)
def test_the_other_partys_lines_are_a_swapped_role(role, text):
    assert swaps_role(text, role)


@pytest.mark.parametrize(
    ("role", "text"),
    [
        ("user", "I will donate $1 of it."),
        ("user", "Why should I give them my money?"),
        ("agent", "Would you like to donate some of your money?"),
        ("agent", "Children need you: please consider giving a dollar."),
    ],
)
def test_a_partys_own_lines_are_not(role, text):
    assert not swaps_role(text, role)


def test_echoes_are_of_the_other_party_and_repetitions_of_oneself():
    line, own = "the children of the world need food", "maybe I could give them one dollar"
    talk = [("agent", line), ("user", line), ("agent", "so what do you think now"), ("user", own), ("user", own)]
    speech = measure_speech([talk], "user")
    assert speech is not None
    assert (speech.turns, speech.echo, speech.repeat) == (3, 1 / 3, 1 / 3)
    agent = measure_speech([talk], "agent")
    assert agent is not None
    assert (agent.turns, agent.echo, agent.repeat) == (2, 0, 0)


def test_with_last_only_what_came_before_is_context():
    line = "the children of the world need food"
    talk = [("agent", line), ("user", "please donate to them"), ("user", line)]
    speech = measure_speech([talk], "user", last_only=True)
    assert speech is not None
    assert (speech.turns, speech.echo, speech.role_swap, speech.words) == (1, 1, 0, 7)


def test_a_party_that_never_spoke_has_no_speech():
    assert measure_speech([[("agent", "hello")]], "user") is None
