"""The split by connected users: nobody stands in two splits, groups stay whole, donors are balanced."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from persuasion_data import HUMAN, OWN_CSV, needs_human_corpus

from unfrozen.core.episodes import SPLITS
from unfrozen.core.errors import UsageError
from unfrozen.environments.persuasion import Dialogue, Persona, load_corpus
from unfrozen.environments.persuasion.split import (
    PROPORTIONS,
    check_no_crossing,
    components,
    frozen_split,
    make_split,
    split_of,
)

pairs = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.booleans()), min_size=1, max_size=120)


def corpus(edges: list[tuple[int, int, bool]]) -> list[Dialogue]:
    return [
        Dialogue(f"d{i}", Persona(f"u{a}", {}), Persona(f"u{b}", {}), (), 1.0 if gave else 0.0)
        for i, (a, b, gave) in enumerate(edges)
    ]


@settings(deadline=None)
@given(pairs)
def test_no_user_stands_in_two_splits(edges: list[tuple[int, int, bool]]) -> None:
    dialogues = corpus(edges)
    split = make_split(dialogues)
    homes = defaultdict(set)
    for dialogue in dialogues:
        homes[dialogue.persuader.user].add(split[dialogue.id])
        homes[dialogue.persuadee.user].add(split[dialogue.id])
    assert all(len(home) == 1 for home in homes.values())
    check_no_crossing(dialogues, split)


@settings(deadline=None)
@given(pairs)
def test_components_are_the_connected_groups_of_users(edges: list[tuple[int, int, bool]]) -> None:
    dialogues = corpus(edges)
    named = components(dialogues)
    groups: list[set[str]] = []
    for dialogue in dialogues:  # merge overlapping user sets, the slow and obvious way
        users = {dialogue.persuader.user, dialogue.persuadee.user}
        touching = [group for group in groups if group & users]
        groups = [group for group in groups if not group & users] + [users.union(*touching)]
    for first in dialogues:
        for second in dialogues:
            together = any({first.persuader.user, second.persuader.user} <= group for group in groups)
            assert (named[first.id] == named[second.id]) == together


@settings(max_examples=30, deadline=None)
@given(pairs, st.randoms(use_true_random=False))
def test_the_split_depends_on_the_dialogues_and_not_on_their_order(
    edges: list[tuple[int, int, bool]], random: random.Random
) -> None:
    dialogues = corpus(edges)
    shuffled = dialogues.copy()
    random.shuffle(shuffled)
    assert make_split(dialogues) == make_split(shuffled)


def test_a_corpus_of_ones_own_is_split_in_the_same_proportions_and_balance() -> None:
    draw = random.Random(3)
    edges = [(2 * i, 2 * i + 1, draw.random() < 0.3) for i in range(500)]
    dialogues = corpus(edges)
    split = make_split(dialogues)
    sizes = Counter(split.values())
    for name in SPLITS:
        assert abs(sizes[name] - 500 * PROPORTIONS[name] / 1017) <= 1
    donors = {d.id for d in dialogues if d.donated}
    overall = len(donors) / 500
    for name in SPLITS:
        rate = sum(split[id] == name for id in donors) / sizes[name]
        assert abs(rate - overall) < 0.02


def test_one_group_of_connected_users_is_never_divided() -> None:
    dialogues = corpus([(0, i, i % 2 == 0) for i in range(1, 60)])
    assert set(make_split(dialogues).values()) == {"train"}


def test_own_dialogues_get_a_split_and_known_ones_the_frozen_one() -> None:
    own = load_corpus(OWN_CSV)
    assert split_of(own) == make_split(own)
    ids = list(frozen_split())[:3]
    known = [
        replace(own[k], id=id, persuader=Persona(f"a{k}", {}), persuadee=Persona(f"b{k}", {}))
        for k, id in enumerate(ids)
    ]
    assert split_of(known) == {id: frozen_split()[id] for id in ids}


def test_a_mixture_of_known_and_own_dialogues_is_refused() -> None:
    own = load_corpus(OWN_CSV)
    known = next(iter(frozen_split()))
    with pytest.raises(UsageError, match="'own_02'"):
        split_of([replace(own[0], id=known), own[1]])


def test_a_dialogue_that_occurs_twice_is_refused() -> None:
    own = load_corpus(OWN_CSV)
    with pytest.raises(UsageError, match="'own_01' twice"):
        split_of([own[0], own[0]])


def test_a_changed_corpus_that_joins_two_frozen_splits_is_refused() -> None:
    train = next(id for id, name in frozen_split().items() if name == "train")
    test = next(id for id, name in frozen_split().items() if name == "test")
    own = load_corpus(OWN_CSV)
    joined = [replace(own[0], id=train), replace(own[1], id=test)]
    assert joined[0].persuader == joined[1].persuader
    with pytest.raises(UsageError, match=r"guest_01.*train.*test"):
        split_of(joined)


def test_the_frozen_split_has_the_sizes_it_should() -> None:
    assert Counter(frozen_split().values()) == Counter(PROPORTIONS)


@needs_human_corpus
def test_the_frozen_split_is_what_the_rule_gives_and_is_balanced() -> None:
    dialogues = load_corpus(HUMAN)
    split = split_of(dialogues)
    assert split == make_split(dialogues)
    component = components(dialogues)
    homes = defaultdict(set)
    for dialogue in dialogues:
        homes[component[dialogue.id]].add(split[dialogue.id])
    assert all(len(home) == 1 for home in homes.values())
    overall = sum(d.donated for d in dialogues) / len(dialogues)
    for name in SPLITS:
        inside = [d for d in dialogues if split[d.id] == name]
        assert abs(sum(d.donated for d in inside) / len(inside) - overall) < 0.01
    persuadees = Counter(d.persuadee.user for d in dialogues)
    assert sum(count > 1 for count in persuadees.values()) == 118
