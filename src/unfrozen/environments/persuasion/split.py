"""The frozen split by connected users, and the rule that made it.

Persuader and persuadee ids form a graph with an edge for each dialogue. Whoever is connected stays together,
so that no person stands in two splits, in either role: 118 persuadees of the corpus recur, and a split by
dialogue leaks them. The corpus's own split is frozen in `split.json` (ids only, made by
`scripts/make_persuasion_split.py`); a corpus of your own is split by the same rule, in the same proportions.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

from unfrozen.core.episodes import SPLITS, Split
from unfrozen.core.errors import UsageError
from unfrozen.core.seeds import derive_seed
from unfrozen.environments.persuasion.corpus import Dialogue

PROPORTIONS: Mapping[Split, int] = {"train": 800, "validation": 100, "test": 117}
"""Dialogues of each split in the full corpus (1,017); own corpora are split in the same proportions."""

SPLIT_SEED = 0


def components(dialogues: Sequence[Dialogue]) -> dict[str, str]:
    """Map each dialogue id to its component: the smallest dialogue id among those with connected users."""
    parent: dict[str, str] = {}

    def root(user: str) -> str:
        parent.setdefault(user, user)
        while parent[user] != user:
            parent[user] = parent[parent[user]]
            user = parent[user]
        return user

    for dialogue in dialogues:
        parent[root(dialogue.persuader.user)] = root(dialogue.persuadee.user)
    names: dict[str, str] = {}
    for dialogue in dialogues:
        key = root(dialogue.persuadee.user)
        names[key] = min(names.get(key, dialogue.id), dialogue.id)
    return {dialogue.id: names[root(dialogue.persuadee.user)] for dialogue in dialogues}


def make_split(dialogues: Sequence[Dialogue], seed: int = SPLIT_SEED) -> dict[str, Split]:
    """Split whole components, near `PROPORTIONS` and balanced on donated or not.

    Validation and test each take components in a seeded order, as long as both their quota of donors and
    their quota of others have room; train keeps the rest, and with it every component too large to fit.
    A component counts as fitting when it is at most a quarter of the quota, so that no held-out split hangs
    on a few people who met often. The result depends on the set of dialogues, not on their order.
    """
    component = components(dialogues)
    members: dict[str, list[Dialogue]] = defaultdict(list)
    for dialogue in dialogues:
        members[component[dialogue.id]].append(dialogue)
    order = sorted(members, key=lambda name: (derive_seed(seed, "persuasion split", name), name))
    donors = sum(dialogue.donated for dialogue in dialogues)
    split: dict[str, Split] = {dialogue.id: "train" for dialogue in dialogues}
    held_out: tuple[Split, ...] = ("validation", "test")
    for name in held_out:
        share = PROPORTIONS[name] / sum(PROPORTIONS.values())
        size = max(round(len(dialogues) * share), 1)
        room_donors = round(size * donors / len(dialogues))
        room_others = size - room_donors
        for key in order:
            group = members[key]
            giving = sum(dialogue.donated for dialogue in group)
            fits = giving <= room_donors and len(group) - giving <= room_others
            if split[group[0].id] != "train" or len(group) > max(size // 4, 1) or not fits:
                continue
            room_donors -= giving
            room_others -= len(group) - giving
            split.update({dialogue.id: name for dialogue in group})
    return split


@cache
def frozen_split() -> Mapping[str, Split]:
    """The split of the published corpus, by dialogue id, as shipped in `split.json`."""
    text = files(__package__).joinpath("split.json").read_text(encoding="utf-8")
    by_split: dict[str, list[str]] = json.loads(text)
    return {id: split for split in SPLITS for id in by_split[split]}


def split_of(dialogues: Sequence[Dialogue]) -> Mapping[str, Split]:
    """The split of each dialogue: the frozen one for the published corpus, else `make_split`.

    A part of the published corpus keeps the frozen split. Raises UsageError where published and other
    dialogues are mixed, where an id occurs twice, and where users of two frozen splits are connected.
    """
    seen = set()
    for dialogue in dialogues:
        if dialogue.id in seen:
            raise UsageError(f"the corpus has dialogue {dialogue.id!r} twice; remove one of them")
        seen.add(dialogue.id)
    frozen = frozen_split()
    unknown = [dialogue.id for dialogue in dialogues if dialogue.id not in frozen]
    if len(unknown) == len(dialogues):
        return make_split(dialogues)
    if unknown:
        raise UsageError(
            f"{len(unknown)} of {len(dialogues)} dialogues are not in the frozen split (the first is "
            f"{unknown[0]!r}); keep dialogues of your own in a corpus folder of their own"
        )
    split = {dialogue.id: frozen[dialogue.id] for dialogue in dialogues}
    check_no_crossing(dialogues, split)
    return split


def check_no_crossing(dialogues: Sequence[Dialogue], split: Mapping[str, Split]) -> None:
    """Raise UsageError if a user stands in two splits."""
    home: dict[str, Split] = {}
    for dialogue in dialogues:
        for user in (dialogue.persuader.user, dialogue.persuadee.user):
            if home.setdefault(user, split[dialogue.id]) != split[dialogue.id]:
                raise UsageError(
                    f"user {user!r} stands in the splits {home[user]} and {split[dialogue.id]}: the corpus "
                    "files were changed; use the published ones, or give your dialogues ids of their own"
                )
