"""Reading verbalized candidates: tolerant of form, strict about numbers."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unfrozen.core.episodes import Candidate
from unfrozen.core.messages import ToolCall
from unfrozen.simulators.candidates import read_candidates, tail

words = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=20).filter(str.strip)
weights = st.one_of(st.floats(), st.integers(-3, 3), st.none(), st.just("0.2"), st.just("many"), st.booleans())


sets = st.lists(
    st.tuples(words, st.floats(0.01, 1)), min_size=1, max_size=5, unique_by=lambda c: " ".join(c[0].split())
)


@given(sets)
def test_a_well_formed_set_is_read_whole_and_normalised(items: list[tuple[str, float]]) -> None:
    written = json.dumps({"replies": [{"text": t, "probability": p} for t, p in items]})
    candidates = read_candidates(written, 5, weighted=True)
    total = sum(p for _, p in items)
    assert [c.text for c in candidates] == [" ".join(t.split()) for t, _ in items]
    assert [c.probability for c in candidates] == pytest.approx([p / total for _, p in items])


@given(st.lists(st.tuples(words, weights), max_size=8), st.integers(1, 6), st.booleans(), st.text(), st.text())
def test_whatever_is_written_the_probabilities_are_finite_positive_and_sum_to_one(
    items: list[tuple[str, object]], k: int, weighted: bool, before: str, after: str
) -> None:
    written = before + json.dumps([{"text": t, "probability": p} for t, p in items]) + after
    candidates = read_candidates(written, k, weighted)
    assert len(candidates) <= k
    assert len({c.text for c in candidates}) == len(candidates)
    assert all(0 < c.probability <= 1 + 1e-9 for c in candidates)
    if candidates:
        assert math.isclose(sum(c.probability for c in candidates), 1.0, rel_tol=1e-9)


@given(st.text())
def test_arbitrary_text_never_breaks_the_reader(written: str) -> None:
    for candidate in read_candidates(written, 5, weighted=True):
        assert candidate.text


@pytest.mark.parametrize(
    ("written", "texts"),
    [
        ('```json\n[{"text": "a", "probability": 0.5}, {"text": "b", "probability": 0.5}]\n```', ["a", "b"]),
        ('Sure! Here they are: {"responses": [{"text": "a", "probability": 0.9}]} Hope it helps', ["a"]),
        ('[{"text": "a", "probability": 0.5}, {"text": "b", "probab', ["a"]),
        ('[{"reply": "a", "p": "30%"}, {"content": "b", "weight": ".5"}]', ["a", "b"]),
        ('[{"text": "a", "probability": NaN}, {"text": "b", "probability": 0.1}]', ["b"]),
        ('[{"text": "a", "probability": -1}, {"text": "b", "probability": Infinity}]', []),
        ('[{"text": "a", "probability": 0}, {"text": "b", "probability": 0.0}]', []),
        ('[{"text": "", "probability": 1}]', []),
        ('[{"text": "a"}]', []),
        ("no braces at all", []),
    ],
)
def test_what_models_really_write_is_read(written: str, texts: list[str]) -> None:
    assert [c.text for c in read_candidates(written, 5, weighted=True)] == texts


@pytest.mark.parametrize(
    ("written", "texts"),
    [
        ('[{"text": "a", "probability": %s}, {"text": "b", "probability": 1}]' % ("9" * 400), ["b"]),
        ('[{"text": "a", "probability": %s}, {"text": "b", "probability": 1}]' % ("9" * 5000), ["b"]),
        ('[{"text": "a", "probability": 1.7e308}, {"text": "b", "probability": 1.7e308}]', []),
        ('{"a": [' * 480 + '{"text": "a", "probability": 1}' + "]}" * 480, []),
        ('[{"text": "a", "probability": 1}]' + "[" * 1_000_000, ["a"]),
    ],
    ids=["no float", "no integer", "no sum", "nested", "never closed"],
)
def test_numbers_and_depths_beyond_all_bounds_do_not_break_the_reader(written: str, texts: list[str]) -> None:
    assert [c.text for c in read_candidates(written, 5, weighted=True)] == texts


def test_half_a_character_in_a_candidate_becomes_one_that_can_be_recorded() -> None:
    (candidate,) = read_candidates('[{"text": "yes \\ud83d", "p": 1}]', 5, weighted=True)
    assert candidate.text == "yes \ufffd"


def test_duplicates_are_merged_and_their_weights_added() -> None:
    written = '[{"text": "yes", "p": 0.2}, {"text": " yes", "p": 0.3}, {"text": "no", "p": 0.5}]'
    assert read_candidates(written, 5, weighted=True) == (Candidate("yes", 0.5), Candidate("no", 0.5))


def test_more_candidates_than_asked_for_are_left_out() -> None:
    written = json.dumps([{"text": str(i), "probability": 0.1} for i in range(9)])
    assert [c.text for c in read_candidates(written, 3, weighted=True)] == ["0", "1", "2"]


def test_without_weights_every_distinct_text_has_the_same_chance() -> None:
    written = '[{"text": "a", "probability": 0.9}, {"text": "b"}, {"text": "a"}]'
    assert [c.probability for c in read_candidates(written, 5, weighted=False)] == [0.5, 0.5]


def test_a_tail_threshold_keeps_the_unlikely_and_never_nothing() -> None:
    candidates = (Candidate("a", 0.8), Candidate("b", 0.15), Candidate("c", 0.05))
    assert tail(candidates, 0.2) == (Candidate("b", pytest.approx(0.75)), Candidate("c", pytest.approx(0.25)))
    assert tail(candidates, 0.01) == candidates


def test_a_candidate_of_a_user_with_tools_may_be_a_call() -> None:
    written = """Here: {"replies": [
        {"text": "one moment", "probability": 0.5},
        {"tool_call": {"name": "toggle", "arguments": {"on": true}}, "probability": 0.2},
        {"tool_call": {"name": "toggle", "arguments": "{\\"on\\": true}"}, "probability": 0.1},
        {"text": "and in words", "tool_call": {"name": "status"}, "probability": 0.2}]}"""
    assert read_candidates(written, 5, weighted=True, tools=["toggle", "status"]) == (
        Candidate("one moment", 0.5),
        Candidate("", pytest.approx(0.3), ToolCall("", "toggle", '{"on": true}')),
        Candidate("", 0.2, ToolCall("", "status", "{}")),
    )


@pytest.mark.parametrize(
    "call",
    [
        '{"name": "format_disk", "arguments": {}}',
        '{"name": "toggle", "arguments": [1]}',
        '{"name": "toggle", "arguments": "{on"}',
        '{"arguments": {}}',
        '"toggle"',
        '{"name": {"a": 1}}',
    ],
)
def test_a_call_that_cannot_be_made_is_no_candidate(call: str) -> None:
    written = f'[{{"tool_call": {call}, "text": "words", "p": 0.9}}, {{"text": "b", "p": 0.1}}]'
    assert read_candidates(written, 5, weighted=True, tools=("toggle",)) == (Candidate("b", 1.0),)


def test_without_tools_a_call_is_never_a_candidate() -> None:
    assert read_candidates('[{"tool_call": {"name": "toggle"}, "p": 1}]', 5, weighted=True) == ()
