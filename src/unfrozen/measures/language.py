"""What can be wrong with how a party talks: echoes, repetitions, swapped roles; and distinct-n.

Every measure has one stated rule on plain words, so that it can be checked by hand and gives the same number for
human talk, which is what a model's number is read against. Words are runs of letters, digits and apostrophes,
without case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from unfrozen.core.messages import Role, other

Said = tuple[Role, str]
"""Who spoke, and what."""

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
ECHO_GRAM = 3
ECHO_SHARE = 0.8
ECHO_WORDS = 4

_ASKS_TO_GIVE = (
    r"\b(?:would|will|could|can|are) you (?:\w+ ){0,4}(?:donat\w*|giv(?:e|ing)|contribut\w*)\b"
    r"|\bhow much (?:would|will|do|could|can) you (?:\w+ ){0,4}(?:donate|give|contribute)\b"
    r"|\b(?:please|consider|considering) (?:\w+ ){0,2}(?:donat\w+|giv(?:e|ing)|contribut\w+)\b"
    r"|\b(?:your|any) (?:\w+ )?(?:donation|contribution)s? (?:will|would|can|could|to save)\b"
    r"|\bthank you for (?:your|the) (?:\w+ )?(?:donation|contribution|generosity)\b"
)
_OWN_DECISION = (
    r"\bi(?:'ll| will| would|'d| can| could| want to| am going to| decided to) (?:\w+ ){0,3}"
    r"(?:donate|give|contribute) (?:\w+ ){0,2}(?:\$ ?\d|\d|all|half|some|one|two|my)"
    r"|\bmy (?:payment|earnings|task payment)\b|\bi(?:'ll| will) think about (?:it|donating)\b"
)
_LABEL = r"^\W*(?:{names})\W*:"

SWAPS: Mapping[Role, re.Pattern[str]] = {
    "agent": re.compile(f"{_OWN_DECISION}|{_LABEL.format(names='persuadee|donor|user|human')}", re.IGNORECASE),
    "user": re.compile(f"{_ASKS_TO_GIVE}|{_LABEL.format(names='persuader|assistant|ai|agent')}", re.IGNORECASE),
}
"""Words by which a party of a talk about a donation speaks the other's lines: a persuader that decides over money
of its own; a persuadee that asks for a donation or thanks for one; either that labels its turn with the other's
name. Humans do it at times (a persuader who says that it gives too), so read it against their rate."""


@dataclass(frozen=True, slots=True)
class Speech:
    """How one party talked, over `turns` turns. Shares are of turns and lie in [0, 1].

    `words`: mean words a turn. `echo`: turns that repeat an earlier turn of the other party; `repeat`: of their
    own. `role_swap`: turns in which the party speaks the other's lines (`SWAPS`). `distinct_2`: distinct word
    pairs over all word pairs of all turns (depends on their number: compare at equal `turns`).
    """

    turns: int
    words: float
    echo: float
    repeat: float
    role_swap: float
    distinct_2: float

    def row(self) -> dict[str, float]:
        """As summaries write it."""
        return asdict(self)


def words_of(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return _WORD.findall(text.casefold())


def distinct_n(texts: Sequence[str], n: int = 2) -> float:
    """Share of distinct n-grams among all word n-grams of the texts (Li et al. 2016, arXiv 1510.03055), in (0, 1].

    A text of fewer than n words counts as one n-gram, the whole text: one-word replies that are all the same
    are not diverse. No texts give 1.0, for nothing is repeated.
    """
    grams = [gram for text in texts for gram in _grams(words_of(text), n)]
    return len(set(grams)) / len(grams) if grams else 1.0


def repeats(text: str, earlier: Iterable[str]) -> bool:
    """Whether a turn repeats one earlier turn: at least 80 % of its word 3-grams stand in that turn.

    Turns of fewer than four words ("Yes, of course") never count.
    """
    words = words_of(text)
    if len(words) < ECHO_WORDS:
        return False
    grams = _grams(words, ECHO_GRAM)
    return any(
        sum(gram in said for gram in grams) >= ECHO_SHARE * len(grams)
        for said in (set(_grams(words_of(turn), ECHO_GRAM)) for turn in earlier)
    )


def swaps_role(text: str, role: Role) -> bool:
    """Whether `role` speaks the other party's lines in this turn, by `SWAPS`."""
    return SWAPS[role].search(text) is not None


def measure_speech(talks: Sequence[Sequence[Said]], role: Role, last_only: bool = False) -> Speech | None:
    """Measure how `role` talks in some talks; None where it has no turn there.

    `last_only`: only the last turn of each talk is measured, and what came before is its context.
    """
    turns: list[str] = []
    echo = repeat = 0
    for talk in talks:
        for place, (speaker, text) in enumerate(talk):
            if speaker != role or (last_only and place != len(talk) - 1):
                continue
            turns.append(text)
            before = talk[:place]
            echo += repeats(text, (t for who, t in before if who == other(role)))
            repeat += repeats(text, (t for who, t in before if who == role))
    if not turns:
        return None
    count = len(turns)
    return Speech(
        turns=count,
        words=sum(len(words_of(text)) for text in turns) / count,
        echo=echo / count,
        repeat=repeat / count,
        role_swap=sum(swaps_role(text, role) for text in turns) / count,
        distinct_2=distinct_n(turns),
    )


def _grams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    if not words:
        return []
    return [tuple(words[i : i + n]) for i in range(max(len(words) - n + 1, 1))]
