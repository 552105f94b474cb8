"""Mini-English: no sentence can be misread, and no prompt holds a word the models do not know."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from unfrozen.environments.lab import LabConfig
from unfrozen.environments.lab import language as lang
from unfrozen.environments.lab import wordings as words
from unfrozen.environments.lab.wordings import MOTIVES, WORDINGS
from unfrozen.simulators.candidates import read_candidates

MOTIVE = st.sampled_from(range(len(MOTIVES)))
RNG = st.integers(0, 2**32).map(random.Random)


def test_the_whole_vocabulary_has_at_most_two_hundred_words() -> None:
    assert len(lang.vocabulary()) <= 200
    assert len(set(lang.vocabulary())) == len(lang.vocabulary())


def test_no_two_sentences_of_different_meaning_are_the_same() -> None:
    templates = [
        (template.format(n=noun), kind, name, motive)
        for name, wording in WORDINGS.items()
        for kind in lang.USER_KINDS
        for template in getattr(wording, kind)
        for motive, nouns in enumerate(MOTIVES.values())
        for noun in nouns
    ]
    meanings: dict[str, set[tuple[str, str, int | None]]] = {}
    for text, kind, name, motive in templates:
        about = motive if kind in ("note", "hint") else None
        meanings.setdefault(text, set()).add((kind, name, about))
    assert [text for text, found in meanings.items() if len(found) > 1] == []


def test_a_phrase_around_a_sentence_never_changes_its_meaning() -> None:
    for core, act in lang.user_sentences().items():
        for prefix, suffix in itertools.product(("", *words.PREFIXES), ("", *words.SUFFIXES)):
            assert lang.parse_user(f" {prefix}  {core} {suffix}") == act


@given(
    wording=st.sampled_from(sorted(WORDINGS)),
    kind=st.sampled_from(lang.USER_KINDS),
    motive=MOTIVE,
    style=st.sampled_from([None, *words.STYLES.values()]),
    rng=RNG,
)
def test_what_a_user_says_is_read_as_it_was_meant(
    wording: str, kind: lang.UserKind, motive: int, style: words.Style | None, rng: random.Random
) -> None:
    text = lang.user_sentence(wording, kind, motive, rng, style, frills=0.5)
    about = motive if kind in ("note", "hint") else None
    assert lang.parse_user(text) == lang.Act(kind, about, wording)
    assert len(text.split()) <= lang.LONGEST
    assert lang.speakable(text)


@given(motive=MOTIVE, rng=RNG)
def test_what_an_agent_says_is_read_as_it_was_meant(motive: int, rng: random.Random) -> None:
    assert lang.parse_agent(lang.appeal(motive, rng)) == lang.Act("appeal", motive)
    assert lang.parse_agent(lang.question(rng)) == lang.Act("ask")


@given(core=st.sampled_from(sorted(lang.user_sentences())), data=st.data())
def test_a_sentence_with_a_foreign_word_in_it_is_not_understood(core: str, data: st.DataObject) -> None:
    said = core.split()
    said.insert(data.draw(st.integers(0, len(said))), "verily")
    assert lang.parse_user(" ".join(said)) is None
    assert not lang.speakable(" ".join(said))


@pytest.mark.parametrize(
    "text",
    ["", "yes", "give", "yes i will not give", "i will give", "no yes i will give", "count me in out", "i am"],
)
def test_half_a_sentence_is_neither_acceptance_nor_anything_else(text: str) -> None:
    assert lang.parse_user(text) is None


def test_every_prompt_of_the_lab_is_in_the_vocabulary() -> None:
    prompts = [words.AGENT_SYSTEM, words.USER_SYSTEM, words.NOTE_PROMPT, words.NOT_UNDERSTOOD]
    prompts += [style.prompt for style in words.STYLES.values()]
    prompts += [words.VERBALIZE.format(k=k) for k in words.CANDIDATE_COUNTS]
    assert [prompt for prompt in prompts if not lang.speakable(prompt)] == []


def test_there_are_at_least_eight_personas_and_wordings() -> None:
    assert len(words.STYLES) >= 8
    assert len(WORDINGS) >= 8


@given(
    pairs=st.dictionaries(
        st.sampled_from(sorted(lang.user_sentences())), st.sampled_from(words.WEIGHTS), min_size=1, max_size=6
    )
)
def test_candidates_written_in_tokens_are_read_back_by_the_tolerant_reader(pairs: dict[str, str]) -> None:
    written = lang.verbalized(list(pairs), list(pairs.values()))
    candidates = read_candidates(written, k=6, weighted=True)
    total = sum(map(float, pairs.values()))
    assert {c.text: c.probability for c in candidates} == pytest.approx(
        {text: float(weight) / total for text, weight in pairs.items()}
    )


def test_the_longest_sentence_fits_the_smallest_token_limit() -> None:
    around = [max(len(phrase.split()) for phrase in phrases) for phrases in (words.PREFIXES, words.SUFFIXES)]
    assert max(len(core.split()) for core in lang.user_sentences()) + sum(around) == lang.LONGEST
    assert max(len(text.split()) for text in lang.agent_sentences()) <= lang.LONGEST
    with pytest.raises(ValidationError, match="max_tokens"):
        LabConfig(max_tokens=lang.LONGEST)


def test_the_first_word_of_an_answer_to_an_appeal_says_which_it_is() -> None:
    for wording in WORDINGS.values():
        accepting = {template.split()[0] for template in wording.accept}
        assert accepting.isdisjoint(template.split()[0] for template in wording.refuse)
