"""Distinct replies, self-BLEU, Vendi, Chamfer and cluster coverage against truths worked out by hand."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unfrozen.measures.clusters import cluster_labels
from unfrozen.measures.coverage import cluster_coverage, hit_chance, own_coverage, reply_coverage
from unfrozen.measures.resampling import unit_mean
from unfrozen.measures.spread import chamfer_coverage, cosine_distance, distinct_share, self_bleu, vendi_score

REPLIES = [
    "Yes, I will donate fifty cents to the children.",
    "Yes, I will give fifty cents to them.",
    "No thanks, I need the money for rent this month.",
    "What does the charity do with the money?",
    "no",
    "Yes, I will donate a dollar to the children.",
]


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_self_bleu_is_that_of_sacrebleu_s_sentence_score() -> None:
    # sacrebleu 2.6: sentence_score(text, the others), effective order, exponential smoothing, words as ours.
    assert self_bleu(REPLIES) == pytest.approx(0.254306098819003, abs=1e-12)
    assert self_bleu(REPLIES[:2]) == pytest.approx(0.301786055603306, abs=1e-12)


def test_self_bleu_is_1_for_equal_texts_and_0_for_texts_without_a_word_in_common() -> None:
    assert self_bleu(["I will think about it."] * 4) == pytest.approx(1.0)
    assert self_bleu(["yes", "never mind that"]) == 0.0
    assert self_bleu(["", ""]) == 1.0
    with pytest.raises(ValueError, match="at least two"):
        self_bleu(["alone"])


def test_distinct_replies_see_neither_case_nor_spacing() -> None:
    assert distinct_share(["Yes.", " yes. ", "YES.", "No."]) == 0.5


def test_the_vendi_score_counts_what_is_different() -> None:
    basis = np.eye(5, dtype=np.float32)
    assert vendi_score(basis) == pytest.approx(5)
    assert vendi_score(np.repeat(basis[:1], 7, axis=0)) == pytest.approx(1)
    assert vendi_score(np.repeat(basis[:2], 4, axis=0)) == pytest.approx(2)


def test_the_vendi_score_is_the_same_from_either_gram_matrix() -> None:
    vectors = unit(np.random.default_rng(0).normal(size=(40, 8)))
    values = np.linalg.eigvalsh(vectors.astype(np.float64) @ vectors.T.astype(np.float64) / 40)
    values = values[values > 1e-12]
    assert vendi_score(vectors) == pytest.approx(float(np.exp(-(values * np.log(values)).sum())), rel=1e-6)


@given(st.integers(2, 9), st.integers(1, 6), st.integers(0, 999))
def test_mean_cosine_distance_is_that_of_all_pairs(n: int, d: int, seed: int) -> None:
    vectors = unit(np.random.default_rng(seed).normal(size=(n, d)))
    pairs = [1 - float(vectors[i] @ vectors[j]) for i, j in combinations(range(n), 2)]
    assert cosine_distance(vectors) == pytest.approx(np.mean(pairs), abs=1e-5)


def test_chamfer_coverage_is_1_for_equal_sets_and_falls_when_either_side_lacks_something() -> None:
    def distances(first: list[float], second: list[float]) -> np.ndarray:
        return np.abs(np.subtract.outer(first, second))

    assert chamfer_coverage(distances([0, 1, 2], [2, 0, 1]), 1.0) == 1
    # Nearest of 0, 1, 2 in {0}: 0, 1, 2 (mean 1); of {0}: 0. Half of 1 over a mean distance of 4/3.
    assert chamfer_coverage(distances([0, 1, 2], [0]), 4 / 3) == pytest.approx(1 - 0.5 / (4 / 3))
    assert chamfer_coverage(distances([0], [0, 1, 2]), 4 / 3) == pytest.approx(1 - 0.5 / (4 / 3))
    assert chamfer_coverage(distances([0], [9]), 1.0) == 0


@given(st.lists(st.integers(0, 4), min_size=2, max_size=4), st.integers(1, 5))
def test_hit_chances_are_those_of_all_subsets(counts: list[int], draws: int) -> None:
    total = sum(counts)
    if draws > total:
        with pytest.raises(ValueError, match="draws"):
            hit_chance(np.array(counts), draws)
        return
    replies = [cell for cell, n in enumerate(counts) for _ in range(n)]
    subsets = list(combinations(replies, draws))
    expected = [np.mean([cell in subset for subset in subsets]) for cell in range(len(counts))]
    assert hit_chance(np.array(counts), draws) == pytest.approx(expected, abs=1e-9)


def test_coverage_of_a_simulator_equal_to_its_reference_is_its_ceiling_at_any_sample_size() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(12))
    for replies, draws in ((10, 8), (60, 8), (30, 25)):
        pairs = [(rng.multinomial(40, p), rng.multinomial(replies, p)) for _ in range(400)]
        reached = np.mean([cluster_coverage(r, x, draws) for r, x in pairs])
        ceiling = np.mean([own_coverage(r, draws) for r, _ in pairs])
        assert reached == pytest.approx(ceiling, abs=0.015)


def test_a_collapsed_simulator_covers_its_one_cluster_only() -> None:
    reference = np.array([5, 3, 2])
    assert cluster_coverage(reference, np.array([16, 0, 0]), 8) == pytest.approx(0.5)
    assert own_coverage(reference, 8) > 0.9


def test_reply_coverage_of_the_same_kind_of_replies_is_at_its_ceiling_and_of_one_reply_below() -> None:
    rng = np.random.default_rng(1)
    sets = [unit(rng.normal(size=(32, 6))) for _ in range(20)]
    same = [unit(rng.normal(size=(32, 6))) for _ in range(20)]
    one = [np.repeat(s[:1], 32, axis=0) for s in same]
    alike, narrow = reply_coverage(sets, same), reply_coverage(sets, one)
    assert alike
    assert narrow
    assert alike[0] == pytest.approx(alike[1], abs=0.05)
    assert narrow[0] < alike[0] - 0.15
    assert reply_coverage([sets[0][:1]], [same[0]]) is None


def test_clusters_find_groups_that_lie_apart_and_are_the_same_for_the_same_seed() -> None:
    rng = np.random.default_rng(0)
    centres = unit(rng.normal(size=(5, 16)))
    vectors = unit(np.concatenate([c + 0.02 * rng.normal(size=(5, 16)) for c in centres]))
    texts = [f"reply {i}" for i in range(25)]
    labels = cluster_labels(texts, vectors, seed=3)
    assert (labels == cluster_labels(texts, vectors, seed=3)).all()
    groups = [set(labels[i : i + 5].tolist()) for i in range(0, 25, 5)]
    assert [len(group) for group in groups] == [1] * 5
    assert len(set.union(*groups)) == 5


def test_few_different_texts_are_a_cluster_each_and_equal_ones_share_theirs() -> None:
    texts = ["Yes.", "no", "yes.", "maybe"]
    assert cluster_labels(texts, np.eye(4, dtype=np.float32), seed=0).tolist() == [0, 1, 0, 2]


def test_an_interval_of_equal_values_has_no_width_even_at_0_and_1() -> None:
    estimate = unit_mean([1.0, 1.0, 1.0], ["a", "b", "c"], seed=0)
    assert (estimate.mean, estimate.low, estimate.high, estimate.clusters) == (1.0, 1.0, 1.0, 3)
