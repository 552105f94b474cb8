"""Intervals over clusters agree with scipy and statsmodels where those apply, and cover what they claim."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from simulated import simulated

from unfrozen.measures.inference import one_way, two_way

VALUES = st.lists(st.integers(-4, 4).map(lambda i: i / 4), min_size=2, max_size=40)


def differences(table) -> np.ndarray:
    return table.success[0, ..., 0].mean(axis=1) - table.success[0, ..., 1].mean(axis=1)


@pytest.mark.parametrize("seed", range(6))
def test_p_of_few_clusters_is_the_larger_of_scipys_sign_flip_and_t_test(seed):
    x = np.random.default_rng(seed).integers(-3, 6, size=9) / 4  # sums without rounding: ties stay ties
    flips = stats.permutation_test((x,), np.mean, permutation_type="samples", alternative="greater", n_resamples=np.inf)
    expected = max(flips.pvalue, stats.ttest_1samp(x, 0, alternative="greater").pvalue)
    assert one_way(x, np.arange(9), limit=9).p == pytest.approx(expected)


@given(VALUES, st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_the_interval_lies_above_zero_exactly_where_p_says_so(values, per_cluster):
    x = np.array(values)
    found = one_way(x, np.arange(len(x)) // per_cluster, draws=500)
    assert (found.low > 0) == (found.p <= 0.025)
    assert found.low <= found.mean + 1e-12
    assert found.mean <= found.high + 1e-12


@given(VALUES)
@settings(max_examples=100, deadline=None)
def test_turning_all_signs_mirrors_the_interval(values):
    x = np.array(values)
    there, back = one_way(x, np.arange(len(x)), draws=500), one_way(-x, np.arange(len(x)), draws=500)
    assert back.low == pytest.approx(-there.high)
    assert back.high == pytest.approx(-there.low)


@given(VALUES, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_names_of_clusters_and_the_order_of_tasks_within_them_do_not_matter(values, random):
    x = np.array(values)
    clusters = np.arange(len(x)) // 2
    order = list(range(len(x)))
    random.shuffle(order)
    # Order within the clusters only: the sums by cluster, and so every draw, stay what they are.
    order.sort(key=lambda i: clusters[i])
    shifted = one_way(x[order], clusters[order] * 7 + 3, draws=300)
    there = one_way(x, clusters, draws=300)
    assert (shifted.low, shifted.high, shifted.p) == pytest.approx((there.low, there.high, there.p))


def test_the_error_is_statsmodels_cluster_robust_one():
    rng = np.random.default_rng(3)
    clusters = rng.integers(0, 12, size=60)
    x = rng.normal(size=12)[clusters] + rng.normal(size=60)
    reference = sm.OLS(x, np.ones(60)).fit(cov_type="cluster", cov_kwds={"groups": clusters})
    assert one_way(x, clusters, limit=9).error == pytest.approx(float(reference.bse[0]))


@pytest.mark.parametrize(("tasks", "trials"), [(8, 4), (15, 4), (20, 1), (40, 4), (114, 2)])
def test_the_training_simulator_against_itself_is_covered_at_95_percent(tasks, trials):
    rng = np.random.default_rng(tasks)
    repeats = 300
    hits = [
        (found := one_way(differences(simulated(rng, tasks, trials)), np.arange(tasks), draws=600)).low
        <= 0
        <= found.high
        for _ in range(repeats)
    ]
    # Three Monte-Carlo standard errors around 95 %. A permutation test of few tasks, most of them without any
    # difference, cannot come as close: it errs on the cautious side.
    assert np.mean(hits) >= 0.95 - 0.038
    assert tasks <= 20 or np.mean(hits) <= 0.95 + 0.038


def test_a_real_drop_is_covered_too_where_tasks_share_clusters():
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(300):
        table = simulated(rng, tasks=20, drop=0.15)
        # Every task is there twice, as two tasks of one cluster: as if one had twice the tasks.
        x, clusters = np.repeat(differences(table), 2), np.repeat(np.arange(20), 2)
        found = one_way(x, clusters, draws=600)
        hits.append(found.low <= 0.15 <= found.high)
        assert found.clusters == 20
    assert 0.95 - 0.038 <= np.mean(hits) <= 0.99


def test_with_fewer_than_six_clusters_nothing_can_be_shown():
    found = one_way(np.array([0.5, 0.4, 0.6, 0.5, 0.45]), np.arange(5))
    assert (found.low, found.high) == (-1.0, 1.0)
    assert found.p > 0.025


def test_tasks_without_any_difference_leave_room_for_the_unseen():
    found = one_way(np.zeros(20), np.arange(20))
    assert found.method == "bound"
    assert found.low == pytest.approx(-(1 - 0.025 ** (1 / 20)))
    assert found.high == pytest.approx(1 - 0.025 ** (1 / 20))
    assert one_way(np.ones(20), np.arange(20)).p == pytest.approx(0.5**20)


def test_a_single_task_bounds_nothing():
    found = one_way(np.array([0.5, -0.5]), np.array([0, 0]))
    assert (found.low, found.high, found.p) == (-1.0, 1.0, 1.0)


def test_no_values_is_an_error():
    with pytest.raises(ValueError, match="no values"):
        one_way(np.array([np.nan]), np.array([0]))


def test_a_claim_about_simulators_in_general_covers_families_that_were_not_measured():
    rng = np.random.default_rng(1)
    tasks, families, repeats = 60, 8, 250
    wide, narrow = [], []
    for _ in range(repeats):
        x = 0.1 + 0.08 * rng.standard_normal(families) + 0.3 * rng.standard_normal((tasks, families))
        general = two_way(x, np.arange(tasks), np.arange(families), draws=600)
        these = one_way(x.mean(axis=1), np.arange(tasks), draws=600)
        wide.append(general.low <= 0.1 <= general.high)
        narrow.append(these.low <= 0.1 <= these.high)
    assert 0.95 - 0.042 <= np.mean(wide) <= 0.995
    assert np.mean(narrow) < 0.8


def test_the_two_way_error_is_cameron_gelbach_and_millers():
    x = np.random.default_rng(0).normal(size=(30, 8)) + np.random.default_rng(1).normal(size=8)
    rows, columns = np.indices(x.shape)
    groups = np.column_stack([rows.ravel(), columns.ravel()])
    reference = sm.OLS(x.ravel(), np.ones(x.size)).fit(cov_type="cluster", cov_kwds={"groups": groups})
    # statsmodels leaves the smaller dimension's correction to each term, as here.
    assert two_way(x, np.arange(30), np.arange(8), limit=9).error == pytest.approx(float(reference.bse[0]), rel=0.02)
