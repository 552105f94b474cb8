"""How different the replies of one set are: distinct replies, self-BLEU, Vendi score, cosine distance, Chamfer.

All depend on the number of replies: compare sets of equal size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from unfrozen.measures.clusters import normal
from unfrozen.measures.language import words_of

BLEU_ORDER = 4

Floats = npt.NDArray[np.float64] | npt.NDArray[np.float32]


def distinct_share(texts: Sequence[str]) -> float:
    """Share of distinct texts, without case and spacing, in (0, 1]."""
    return len({normal(text) for text in texts}) / len(texts)


def self_bleu(texts: Sequence[str]) -> float:
    """Mean BLEU-4 of each text with all the others as references, in [0, 1] (Zhu et al. 2018, arXiv 1802.01886).

    BLEU as for single sentences: clipped n-gram precisions up to the text's own length (no orders that it cannot
    have), exponential smoothing of zero precisions (Chen & Cherry 2014, method 3), brevity penalty by the closest
    reference length. Words as `language.words_of`. Raises ValueError for fewer than two texts.
    """
    if len(texts) < 2:
        raise ValueError(f"self-BLEU needs at least two texts; there are {len(texts)}")
    words = [words_of(text) for text in texts]
    grams = [[_grams(w, n) for n in range(1, BLEU_ORDER + 1)] for w in words]
    # The largest count of each n-gram in any text, and in any but the one that has most: all others' is one of the two.
    most = [_two_largest([g[n] for g in grams]) for n in range(BLEU_ORDER)]
    lengths = Counter(map(len, words))
    return sum(_bleu(grams[i], len(w), most, lengths) for i, w in enumerate(words)) / len(texts)


def vendi_score(vectors: Floats) -> float:
    """Vendi score of unit vectors, shape (n, d), with cosine similarity: in [1, n] (Friedman & Dieng 2023).

    The exponential of the entropy of the eigenvalues of K / n, K the matrix of similarities (arXiv 2210.02410).
    """
    x = np.asarray(vectors, dtype=np.float64)
    # X Xᵀ and Xᵀ X have the same eigenvalues but for zeros: take the smaller one.
    gram = x @ x.T if x.shape[0] <= x.shape[1] else x.T @ x
    values = np.linalg.eigvalsh(gram / x.shape[0])
    values = values[values > 1e-12]
    return float(np.exp(-np.sum(values * np.log(values))))


def cosine_distance(vectors: Floats) -> float:
    """Mean of 1 - cosine over pairs of unit vectors, in [0, 2]. Raises ValueError for fewer than two."""
    x = np.asarray(vectors, dtype=np.float64)
    n = x.shape[0]
    if n < 2:
        raise ValueError(f"pairs need at least two vectors; there are {n}")
    total = np.square(x.sum(axis=0)).sum() - np.square(x).sum()
    return float(max(0.0, 1 - total / (n * (n - 1))))


def chamfer_coverage(cross: Floats, within: float) -> float:
    """Two-sided Chamfer coverage in [0, 1]: 1 - min(1, (mean of nearest distances, both ways) / `within`).

    `cross` are the distances of two sets, shape (n, m); `within` the mean distance between two members of the
    reference. 1: each member of either set has its like in the other; 0: as far apart as two random members.
    """
    nearest = (cross.min(axis=1).mean() + cross.min(axis=0).mean()) / 2
    if within <= 0:
        return float(nearest <= 0)
    return float(1 - min(1.0, nearest / within))


def _bleu(
    grams: Sequence[Counter[tuple[str, ...]]],
    length: int,
    most: Sequence[dict[tuple[str, ...], tuple[int, int]]],
    lengths: Counter[int],
) -> float:
    orders = min(BLEU_ORDER, length)
    if orders == 0:
        return float(lengths[0] > 1)  # silence is like silence
    total, smoothing = 0.0, 1.0
    for n in range(orders):
        matches = 0
        for gram, times in grams[n].items():
            first, second = most[n][gram]
            matches += min(times, second if times == first else first)
        possible = length - n
        if matches == 0:
            smoothing *= 2
            total -= math.log(smoothing * possible)
        else:
            total += math.log(matches / possible)
        if n == 0 and matches == 0:
            return 0.0
    others = lengths - Counter([length])
    closest = min(others, key=lambda other: (abs(other - length), other))
    return math.exp(total / orders + min(0.0, 1 - closest / length))


def _two_largest(counts: Sequence[Counter[tuple[str, ...]]]) -> dict[tuple[str, ...], tuple[int, int]]:
    largest: dict[tuple[str, ...], tuple[int, int]] = {}
    for counter in counts:
        for gram, times in counter.items():
            first, second = largest.get(gram, (0, 0))
            largest[gram] = (times, first) if times >= first else (first, max(second, times))
    return largest


def _grams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
