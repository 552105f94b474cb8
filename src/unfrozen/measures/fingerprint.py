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


@dataclass(frozen=True, slots=True)
class Features:
    """The features of talks in which the user speaks: `matrix` has shape (talks, 19), in the order of `FEATURES`."""

    matrix: Floats
    tasks: tuple[str, ...]
    clusters: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.tasks)


def features_of(talks: Sequence[Talk]) -> Features:
    """Read the features of each talk; talks without a turn of the user's are left out."""
    spoken = [(talk, turns) for talk in talks if (turns := talk.turns("user"))]
    measures = [measure for features in DIMENSIONS.values() for measure in features.values()]
    rows = [[measure(turns) for measure in measures] for _, turns in spoken]
    return Features(
        np.array(rows, dtype=np.float64).reshape(len(rows), len(measures)),
        tuple(talk.task for talk, _ in spoken),
        tuple(talk.cluster for talk, _ in spoken),
    )


def join(parts: Sequence[Features]) -> Features:
    """Several sets of talks as one."""
    return Features(
        np.concatenate([part.matrix for part in parts]) if parts else np.zeros((0, len(FEATURES))),
        tuple(task for part in parts for task in part.tasks),
        tuple(cluster for part in parts for cluster in part.clusters),
    )


def fingerprint(features: Features, seed: int = 0) -> dict[str, Estimate]:
    """The mean of each feature over talks, with an interval that resamples tasks. {} without talks."""
    if not len(features):
        return {}
    return {
        name: unit_mean(list(column), features.clusters, seed)
        for name, column in zip(FEATURES, features.matrix.T, strict=True)
    }


def align(own: Features, reference: Features, seed: int = 0) -> Alignment | None:
    """Dice alignment of two sets of talks; None where one is empty."""
    if not (len(own) and len(reference)):
        return None
    single = dice(own.matrix.mean(axis=0), reference.matrix.mean(axis=0))
    drawn = []
    for side, features in enumerate((own, reference)):
        weights = unit_weights(features.clusters, seed + side)
        drawn.append(weights @ features.matrix / weights.sum(axis=1, keepdims=True))
    overall = float(_overall(single))
    spread = _overall(dice(*drawn))
    # Noise only ever lowers the alignment of like with like, and a resample has it twice: shift it back.
    low, high = np.clip(np.quantile(spread, [0.025, 0.975]) + overall - spread.mean(), 0.0, 1.0)
    return Alignment(
        dict(zip(FEATURES, (float(x) for x in single), strict=True)),
        {name: float(single[places].mean()) for name, places in _PLACES.items()},
        Estimate(overall, float(low), float(high), len(own), len(set(own.clusters))),
        _ceiling(reference.matrix, len(own), seed),
    )


def dice(first: Floats, second: Floats) -> Floats:
    """2 min(a, b) / (a + b) for numbers >= 0, element by element; 1 where both are 0."""
    total = first + second
    return np.where(total > 0, 2 * np.minimum(first, second) / np.where(total > 0, total, 1.0), 1.0)


def fingerprint_coverage(own: Features, reference: Features, seed: int = 0) -> float | None:
    """Two-sided Chamfer coverage of the talks' features, z-scored on the reference, as many talks of each side.

    Features that do not vary in the reference are left out. None where either side has fewer than two talks.
    """
    size = min(len(own), len(reference))
    spread = reference.matrix.std(axis=0) if size else np.zeros(len(FEATURES))
    if size < 2 or not (spread > 0).any():
        return None
    centre = reference.matrix.mean(axis=0)
    scaled = [(side.matrix - centre)[:, spread > 0] / spread[spread > 0] for side in (reference, own)]
    first, second = (generator(seed, "talks", i).permutation(matrix)[:size] for i, matrix in enumerate(scaled))
    return chamfer_coverage(cdist(first, second), float(pdist(scaled[0]).mean()))


_PLACES: Mapping[str, list[int]] = {
    name: [FEATURES.index(feature) for feature in features] for name, features in DIMENSIONS.items()
}


def _overall(alignment: Floats) -> Floats:
    means = [alignment[..., places].mean(axis=-1) for places in _PLACES.values()]
    return np.asarray(np.mean(means, axis=0), dtype=np.float64)


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
