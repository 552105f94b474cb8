"""The behavioural fingerprint of a user: 19 features of its turns in four dimensions, and likeness to a reference.

The taxonomy follows the user-simulator index of Zhou et al. 2026 (arXiv 2603.11245) and PPol (arXiv 2605.12894); the
patterns are our own (`patterns`). Likeness is the Dice alignment that PPol prints; it is called *behavioural USI
(Dice)* here and is not the index of the paper, which also weighs outcomes and questionnaires.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist, pdist

from unfrozen.core.seeds import generator
from unfrozen.measures import patterns
from unfrozen.measures.intervals import Estimate
from unfrozen.measures.language import repeats, words_of
from unfrozen.measures.resampling import unit_mean, unit_weights
from unfrozen.measures.spread import chamfer_coverage
from unfrozen.measures.talks import Talk

Floats = npt.NDArray[np.float64]

SHORT_WORDS = 3
_CEILING_SPLITS = 50


def _rate(test: Callable[[str], object]) -> Callable[[Sequence[str]], float]:
    return lambda turns: sum(bool(test(turn)) for turn in turns) / len(turns)


def _lengths(turns: Sequence[str]) -> Floats:
    return np.array([len(words_of(turn)) for turn in turns], dtype=np.float64)


def _early_share(turns: Sequence[str]) -> float:
    lengths = _lengths(turns)
    return float(lengths[:2].sum() / max(lengths.sum(), 1))


def _variation(turns: Sequence[str]) -> float:
    lengths = _lengths(turns)
    return float(lengths.std() / max(lengths.mean(), 1))


def _repetition(turns: Sequence[str]) -> float:
    return sum(repeats(turn, turns[:i]) for i, turn in enumerate(turns)) / len(turns)


DIMENSIONS: Mapping[str, Mapping[str, Callable[[Sequence[str]], float]]] = {
    "style": {
        "words_per_turn": lambda turns: float(_lengths(turns).mean()),
        "short_turns": _rate(lambda turn: len(words_of(turn)) <= SHORT_WORDS),
        "politeness": _rate(patterns.POLITE.search),
        "formality": _rate(patterns.FORMAL.search),
        "acknowledgement_only": _rate(lambda turn: not words_of(patterns.ACKNOWLEDGEMENT.sub(" ", turn))),
        "length_variation": _variation,
        "repetition": _repetition,
        "identity_confusion": _rate(patterns.IDENTITY.search),
    },
    "disclosure": {
        "early_share": _early_share,
        "identifiers_per_turn": lambda turns: sum(len(patterns.IDENTIFIER.findall(t)) for t in turns) / len(turns),
        "opening_words": lambda turns: float(len(words_of(turns[0]))),
    },
    "clarification": {
        "questions": _rate(lambda turn: "?" in turn),
        "clarifying_questions": _rate(patterns.CLARIFICATION.search),
        "uncertainty": _rate(patterns.UNSURE.search),
        "certainty": _rate(patterns.SURE.search),
        "pushback": _rate(patterns.PUSHBACK.search),
    },
    "reaction": {
        "frustration": _rate(patterns.FRUSTRATION.search),
        "accusation": _rate(patterns.ACCUSATION.search),
        "change_of_plan": _rate(patterns.PIVOT.search),
    },
}
"""Dimension (D1 to D4) -> feature -> its value for the user's turns of one talk. Rates are shares of the turns;
`early_share` is the share of all words that stand in the first two turns; `length_variation` is the coefficient of
variation of turn lengths; `repetition` counts turns of which 80 % of the word 3-grams stand in an earlier one."""

FEATURES: tuple[str, ...] = tuple(name for features in DIMENSIONS.values() for name in features)


@dataclass(frozen=True, slots=True)
class Alignment:
    """Dice alignment to a reference: 2 min(a, b) / (a + b) of the mean features, 1 where both are 0.

    `overall` is the mean of the four dimensions, each the mean of its features; its interval resamples the tasks of
    both sides. `ceiling` is what two halves of the reference reach, with as many talks each as are compared here.
    """

    features: Mapping[str, float]
    dimensions: Mapping[str, float]
    overall: Estimate
    ceiling: float


def features_of(talks: Sequence[Talk]) -> tuple[Floats, list[Talk]]:
    """The features of each talk in which the user speaks, shape (talks, 19), and those talks."""
    spoken = [(talk, turns) for talk in talks if (turns := talk.turns("user"))]
    measures = [measure for features in DIMENSIONS.values() for measure in features.values()]
    rows = [[measure(turns) for measure in measures] for _, turns in spoken]
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(measures)), [talk for talk, _ in spoken]


def fingerprint(talks: Sequence[Talk], seed: int = 0) -> dict[str, Estimate]:
    """The mean of each feature over talks, with an interval that resamples tasks. {} without a user's turn."""
    matrix, spoken = features_of(talks)
    units = [talk.cluster for talk in spoken]
    return {name: unit_mean(list(matrix[:, i]), units, seed) for i, name in enumerate(FEATURES)} if spoken else {}


def align(talks: Sequence[Talk], reference: Sequence[Talk], seed: int = 0) -> Alignment | None:
    """Dice alignment of two sets of talks; None where in one of them no user speaks."""
    (own, own_talks), (other, other_talks) = features_of(talks), features_of(reference)
    if not (own_talks and other_talks):
        return None
    single = dice(own.mean(axis=0), other.mean(axis=0))
    drawn = [
        weights @ matrix / weights.sum(axis=1, keepdims=True)
        for matrix, weights in (
            (own, unit_weights([t.cluster for t in own_talks], seed)),
            (other, unit_weights([t.cluster for t in other_talks], seed + 1)),
        )
    ]
    low, high = np.quantile(_overall(dice(*drawn)), [0.025, 0.975])
    count, tasks = len(own_talks), len({talk.cluster for talk in own_talks})
    return Alignment(
        dict(zip(FEATURES, (float(x) for x in single), strict=True)),
        {name: float(single[places].mean()) for name, places in _PLACES.items()},
        Estimate(float(_overall(single)), float(low), float(high), count, tasks),
        _ceiling(other, count, seed),
    )


def dice(first: Floats, second: Floats) -> Floats:
    """2 min(a, b) / (a + b) for numbers >= 0, element by element; 1 where both are 0."""
    total = first + second
    return np.where(total > 0, 2 * np.minimum(first, second) / np.where(total > 0, total, 1.0), 1.0)


def fingerprint_coverage(talks: Sequence[Talk], reference: Sequence[Talk], seed: int = 0) -> float | None:
    """Two-sided Chamfer coverage of the talks' features, z-scored on the reference, as many talks of each side.

    Features that do not vary in the reference are left out. None where either side has fewer than two talks.
    """
    own, other = features_of(talks)[0], features_of(reference)[0]
    size = min(len(own), len(other))
    spread = other.std(axis=0) if len(other) else np.zeros(len(FEATURES))
    if size < 2 or not (spread > 0).any():
        return None
    scaled = [(matrix - other.mean(axis=0))[:, spread > 0] / spread[spread > 0] for matrix in (other, own)]
    first, second = (generator(seed, "talks", i).permutation(matrix)[:size] for i, matrix in enumerate(scaled))
    return chamfer_coverage(cdist(first, second), float(pdist(scaled[0]).mean()))


_PLACES: Mapping[str, list[int]] = {
    name: [FEATURES.index(feature) for feature in features] for name, features in DIMENSIONS.items()
}


def _overall(alignment: Floats) -> Floats:
    return np.mean([alignment[..., places].mean(axis=-1) for places in _PLACES.values()], axis=0)


def _ceiling(reference: Floats, count: int, seed: int) -> float:
    size = min(count, len(reference) // 2)
    if size == 0:
        return 1.0
    found = []
    for split in range(_CEILING_SPLITS):
        order = generator(seed, "ceiling", split).permutation(len(reference))
        first, second = reference[order[:size]], reference[order[size : 2 * size]]
        found.append(float(_overall(dice(first.mean(axis=0), second.mean(axis=0)))))
    return float(np.mean(found))
