"""Success rates cover near 1 and with few tasks; pass^k is unbiased."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from simulated import simulated
from statsmodels.stats.proportion import proportion_confint

from unfrozen.measures.plan import Rates
from unfrozen.measures.rates import pass_hat_k, success_rate


@pytest.mark.parametrize(("tasks", "success"), [(8, 0.6), (15, 0.9), (20, 0.95), (40, 0.6)])
def test_success_is_covered_with_few_tasks_and_near_one(tasks, success):
    rng = np.random.default_rng(tasks)
    rates = Rates(success=success, icc=0.4, noise=0.3)
    hits = []
    for _ in range(300):
        found = success_rate(simulated(rng, tasks, 4, rates=rates).success[0, ..., 0], np.arange(tasks))
        hits.append(found.low <= success <= found.high)
    assert np.mean(hits) >= 0.95 - 0.038


def test_single_trials_of_independent_tasks_have_nearly_the_exact_binomial_interval():
    success = np.array([1.0] * 30 + [0.0] * 10)[:, None]
    found = success_rate(success, np.arange(40))
    low, high = proportion_confint(30, 40, method="beta")
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.005)
    assert found.low <= low
    assert found.high >= high


def test_perfect_success_has_the_exact_interval_for_that_many_clusters():
    low, _ = proportion_confint(10, 10, method="beta")
    found = success_rate(np.ones((10, 8)), np.arange(10))
    assert (found.low, found.high) == pytest.approx((low, 1.0))


def test_copies_of_a_task_in_its_cluster_add_nothing():
    success = simulated(np.random.default_rng(0), 20, 4).success[0, ..., 0]
    once = success_rate(success, np.arange(20))
    twice = success_rate(np.repeat(success, 2, axis=0), np.repeat(np.arange(20), 2))
    assert (twice.mean, twice.clusters) == (once.mean, 20)
    assert (twice.low, twice.high) == pytest.approx((once.low, once.high), abs=0.01)


def test_no_outcome_is_no_rate():
    assert success_rate(np.full((3, 2), np.nan), np.arange(3)) is None


@pytest.mark.parametrize("k", [1, 2, 3])
def test_pass_hat_k_is_the_share_of_draws_of_k_trials_that_all_succeed(k):
    success = np.array([[1, 1, 0, 1], [0, 0, 1, 0], [1, 1, 1, 1]], dtype=float)
    draws = [np.mean([all(row[list(s)]) for s in itertools.combinations(range(4), k)]) for row in success]
    assert pass_hat_k(success, k) == pytest.approx(np.mean(draws))


def test_pass_hat_k_needs_k_outcomes_of_every_task():
    with pytest.raises(ValueError, match="needs 2 outcomes"):
        pass_hat_k(np.array([[1.0, np.nan], [1.0, 1.0]]), 2)
