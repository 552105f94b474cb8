"""A classifier two-sample test (C2ST): can simulated users be told from the reference by how they behave?

AUC 0.5 means that they cannot, 1 that every talk gives itself away (Lopez-Paz & Oquab 2017, arXiv 1610.06545). The
classifier is a ridge regression on the fingerprint's features and their squares, that is, a regularised linear
discriminant. Its predictions are linear in the labels, so that the permutation test is a matrix product and needs
no fit of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from unfrozen.core.seeds import generator
from unfrozen.measures.fingerprint import FEATURES, Features

Floats = npt.NDArray[np.float64]

FOLDS = 5
PERMUTATIONS = 200
RIDGE = 1.0
FEWEST_TALKS = 10
_TELLING = 3


@dataclass(frozen=True, slots=True)
class TwoSample:
    """Cross-validated AUC, with no task on both sides of a fold, and the permutation p-value of "they are alike".

    `telling` are the features that separate the two best by themselves, with their own AUC (above 0.5: the simulator
    has more of it).
    """

    auc: float
    p_value: float
    talks: int
    reference_talks: int
    telling: Mapping[str, float]


def two_sample_test(own: Features, reference: Features, seed: int = 0) -> TwoSample | None:
    """Test whether a simulator's talks can be told from the reference's.

    Labels are permuted within the tasks that both sides played, and whole among tasks that one side played. None
    where a side has fewer than `FEWEST_TALKS` talks, or its tasks are too few to hold some out.
    """
    if min(len(own), len(reference)) < FEWEST_TALKS:
        return None
    plain = np.concatenate([own.matrix, reference.matrix])
    labels = np.concatenate([np.ones(len(own)), np.zeros(len(reference))])
    tasks = np.unique([*own.tasks, *reference.tasks], return_inverse=True)[1]
    fold = _folds(tasks, labels, seed)
    if any(len(np.unique(labels[fold == f])) < 2 for f in range(FOLDS)):
        return None
    shuffled = np.column_stack([labels, _permutations(labels, tasks, generator(seed, "permutations"))])
    aucs = _cross_validated(_design(plain), shuffled, fold)
    single = {name: float(_auc(plain[:, [i]], labels[:, None])[0]) for i, name in enumerate(FEATURES)}
    telling = sorted(single, key=lambda name: -abs(single[name] - 0.5))[:_TELLING]
    return TwoSample(
        auc=float(aucs[0]),
        p_value=float((1 + np.sum(aucs[1:] >= aucs[0])) / (1 + PERMUTATIONS)),
        talks=len(own),
        reference_talks=len(reference),
        telling={name: single[name] for name in telling},
    )


def _design(plain: Floats) -> Floats:
    """Features and their squares, each with mean 0 and variance 1, and a constant."""
    scaled = _scaled(plain)
    return np.column_stack([np.ones(len(plain)), scaled, _scaled(np.square(scaled))])


def _scaled(matrix: Floats) -> Floats:
    spread = matrix.std(axis=0)
    return np.asarray((matrix - matrix.mean(axis=0)) / np.where(spread > 0, spread, 1.0), dtype=np.float64)


def _folds(tasks: npt.NDArray[np.int64], labels: Floats, seed: int) -> npt.NDArray[np.int64]:
    """The fold of each talk: tasks are dealt round, those of both sides and those of either apart."""
    fold_of = np.zeros(tasks.max() + 1, dtype=np.int64)
    share = np.bincount(tasks, weights=labels) / np.bincount(tasks)
    for kind in (share == 1, share == 0, (share > 0) & (share < 1)):
        members = generator(seed, "folds").permutation(np.flatnonzero(kind))
        fold_of[members] = np.arange(len(members)) % FOLDS
    return fold_of[tasks]


def _permutations(labels: Floats, tasks: npt.NDArray[np.int64], random: np.random.Generator) -> Floats:
    """Labels as they might have been, shape (talks, PERMUTATIONS)."""
    share = np.bincount(tasks, weights=labels) / np.bincount(tasks)
    pure = np.flatnonzero((share == 0) | (share == 1))
    mixed = [np.flatnonzero(tasks == task) for task in np.flatnonzero((share > 0) & (share < 1))]
    columns = []
    for _ in range(PERMUTATIONS):
        of_task = np.zeros(len(share))
        of_task[pure] = random.permutation(share[pure])
        column = of_task[tasks]
        for rows in mixed:
            column[rows] = random.permutation(labels[rows])
        columns.append(column)
    return np.stack(columns, axis=1)


def _cross_validated(design: Floats, labels: Floats, fold: npt.NDArray[np.int64]) -> Floats:
    """Mean AUC over folds for each column of labels, shape (columns,)."""
    penalty = RIDGE * np.eye(design.shape[1])
    penalty[0, 0] = 0.0
    aucs = []
    for f in range(FOLDS):
        train, test = design[fold != f], design[fold == f]
        weights = np.linalg.solve(train.T @ train + penalty, train.T @ labels[fold != f])
        aucs.append(_auc(test @ weights, labels[fold == f]))
    # A permutation may leave a fold with one side only: it has no AUC there.
    return np.asarray(np.nanmean(np.stack(aucs), axis=0), dtype=np.float64)


def _auc(scores: Floats, labels: Floats) -> Floats:
    """Area under the ROC curve of each column of scores (Mann-Whitney, ties count half); NaN with one side only."""
    ranks = rankdata(scores, axis=0)
    ones = labels.sum(axis=0)
    zeros = len(labels) - ones
    pairs = np.where(ones * zeros > 0, ones * zeros, np.nan)
    return np.asarray(((ranks * labels).sum(axis=0) - ones * (ones + 1) / 2) / pairs, dtype=np.float64)
