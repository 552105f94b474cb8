"""Reply clusters: k-means over embeddings, and the entropy of cluster counts corrected for sample size.

Clusters are fitted on the *distinct* texts of everyone's replies together. So no side is privileged: were all
simulators the same, every reply would be as likely to shape a cluster as any other. (Clusters fitted on the
reference alone favour it: a rare reference reply gets a cluster of its own that nobody else can hit.)
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.cluster.vq import kmeans2

from unfrozen.core.seeds import derive_seed
from unfrozen.measures.embeddings import Embedder, Vectors

Counts = npt.NDArray[np.int64]

FEWEST_CLUSTERS = 4
MOST_CLUSTERS = 20
_STARTS = 4
_ROUNDS = 30


@dataclass(frozen=True, slots=True)
class State:
    """Everyone's replies to one dialogue state, by who gave them: texts, unit vectors, counts of their clusters."""

    unit: str
    texts: Mapping[str, Sequence[str]]
    vectors: Mapping[str, Vectors]
    counts: Mapping[str, Counts]


def clustered(
    replies: Mapping[str, Mapping[str, Sequence[str]]],
    embedder: Embedder,
    units: Mapping[str, str],
    seed: int,
    together: bool,
) -> list[State]:
    """Embed and cluster replies (state -> who -> texts): each state by itself, or all `together`.

    By itself a state has clusters of its own; together all states share theirs.
    """
    known = {
        text: i for i, text in enumerate(dict.fromkeys(t for row in replies.values() for s in row.values() for t in s))
    }
    matrix = embedder.embed(list(known))
    states: list[State] = []
    for group in [list(replies)] if together else [[state] for state in replies]:
        texts = [text for state in group for said in replies[state].values() for text in said]
        labels = cluster_labels(texts, matrix[[known[text] for text in texts]], derive_seed(seed, group[0]))
        cells = int(labels.max()) + 1
        cluster = dict(zip((normal(text) for text in texts), labels, strict=True))
        states += [
            State(
                units.get(state, state),
                replies[state],
                {who: matrix[[known[text] for text in said]] for who, said in replies[state].items()},
                {
                    who: np.bincount([cluster[normal(text)] for text in said], minlength=cells).astype(np.int64)
                    for who, said in replies[state].items()
                },
            )
            for state in group
        ]
    return states


def cluster_labels(texts: Sequence[str], vectors: Vectors, seed: int) -> npt.NDArray[np.int64]:
    """The cluster of each text, shape (n,), numbered from 0.

    k-means (k-means++ starts, the best of four by inertia) on the distinct texts, with as many clusters as the square
    root of their number, at least `FEWEST_CLUSTERS` and at most `MOST_CLUSTERS`; fewer texts than that are a cluster
    each.
    """
    first: dict[str, int] = {}
    for row, text in enumerate(texts):
        first.setdefault(normal(text), row)
    number = {text: i for i, text in enumerate(first)}
    where = np.array([number[normal(text)] for text in texts], dtype=np.int64)
    wanted = min(MOST_CLUSTERS, max(FEWEST_CLUSTERS, round(len(first) ** 0.5)))
    if len(first) <= wanted:
        return where
    points = vectors[list(first.values())].astype(np.float64)
    fits = [_k_means(points, wanted, derive_seed(seed, "clusters", start)) for start in range(_STARTS)]
    return min(fits, key=lambda fit: fit[0])[1][where]


def _k_means(points: npt.NDArray[np.float64], k: int, seed: int) -> tuple[float, npt.NDArray[np.int64]]:
    """Sum of squared distances to the centres, and labels numbered without gaps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a cluster that ran empty: its number is closed up below
        centres, labels = kmeans2(points, k, iter=_ROUNDS, minit="++", rng=seed)
    _, dense = np.unique(labels, return_inverse=True)
    return float(np.square(points - centres[labels]).sum()), dense.astype(np.int64)


def normal(text: str) -> str:
    """A text without case and with single spaces: what counts as the same reply."""
    return " ".join(text.casefold().split())


def plain_entropy(counts: Counts) -> float:
    """Maximum-likelihood entropy in nats: too low for few replies."""
    shares = counts[counts > 0] / counts.sum()
    return float(-np.sum(shares * np.log(shares)))


def corrected_entropy(counts: Counts) -> float:
    """Entropy in nats with the Miller-Madow correction: plain + (occupied cells - 1) / (2 n) (Miller 1955).

    Not above the entropy of equal shares over all cells. Raises ValueError without counts.
    """
    total = int(counts.sum())
    if total == 0:
        raise ValueError("no counts: their entropy is not defined")
    occupied = int((counts > 0).sum())
    return min(plain_entropy(counts) + (occupied - 1) / (2 * total), float(np.log(len(counts))))
