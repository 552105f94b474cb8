"""Distances between samples of donations, checked against scipy and by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from unfrozen.measures.distributions import (
    DONATION_EDGES,
    compare_donations,
    histogram_l1,
    ks_distance,
    wasserstein_distance,
)

samples = st.lists(st.sampled_from([0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0]), min_size=1, max_size=40).map(
    np.array
)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # scipy's p-value, which is not looked at
@settings(deadline=None)
@given(samples, samples)
def test_ks_and_wasserstein_agree_with_scipy(first: np.ndarray, second: np.ndarray) -> None:
    assert ks_distance(first, second) == pytest.approx(stats.ks_2samp(first, second).statistic)
    assert wasserstein_distance(first, second) == pytest.approx(stats.wasserstein_distance(first, second))


@settings(deadline=None)
@given(samples, samples)
def test_distances_are_symmetric_bounded_and_nothing_to_oneself(first: np.ndarray, second: np.ndarray) -> None:
    for distance, bound in (
        (ks_distance, 1.0),
        (wasserstein_distance, 2.0),
        (lambda a, b: histogram_l1(a, b, DONATION_EDGES), 2.0),
    ):
        assert distance(first, first) == 0
        assert distance(first, second) == pytest.approx(distance(second, first))
        assert 0 <= distance(first, second) <= bound + 1e-12


def test_histogram_l1_by_hand() -> None:
    first, second = np.array([0.0, 0.0, 1.0, 2.0]), np.array([0.0, 1.0, 1.0, 1.0])
    # shares: nothing 1/2 and 1/4, $1 1/4 and 3/4, $2 1/4 and 0
    assert histogram_l1(first, second, DONATION_EDGES) == pytest.approx(0.25 + 0.5 + 0.25)


def test_round_sums_fall_into_bins_of_their_own() -> None:
    sums = np.array([0.0, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0])
    counts, _ = np.histogram(sums, bins=np.asarray(DONATION_EDGES))
    assert counts.tolist() == [1] * 7


def test_a_value_outside_the_bins_is_an_error() -> None:
    with pytest.raises(ValueError, match="outside"):
        histogram_l1(np.array([3.0]), np.array([1.0]), DONATION_EDGES)


def test_a_comparison_is_seeded_and_is_plain_json() -> None:
    human = np.random.default_rng(0).choice([0.0, 0.5, 1.0, 2.0], 200)
    first, again, other = (compare_donations([0.0, 1.0] * 20, human, seed, draws=50) for seed in (1, 1, 2))
    assert first == again
    assert first.ks.floor_mean != other.ks.floor_mean
    assert first.ks.value == other.ks.value
    record = json.loads(json.dumps(first.to_json()))
    assert (record["n"], record["n_human"]) == (40, 200)
    assert set(record["ks"]) == {"value", "floor_mean", "floor_95"}
    assert "people" in str(first)


def test_the_floor_shrinks_with_the_number_of_episodes() -> None:
    human = np.random.default_rng(0).choice([0.0, 0.5, 1.0, 2.0], 400)
    few, many = (compare_donations([1.0] * n, human, draws=100) for n in (10, 150))
    assert few.ks.floor_95 > many.ks.floor_95
    assert few.wasserstein.floor_mean > many.wasserstein.floor_mean


def test_people_against_people_pass_the_floor_about_one_time_in_twenty() -> None:
    random = np.random.default_rng(5)
    beyond = 0
    for _ in range(60):
        people = random.choice([0.0, 0.1, 0.5, 1.0, 2.0], 300)
        beyond += compare_donations(people[:60], people[60:], draws=60).wasserstein.beyond_people
    assert beyond <= 9


def test_amounts_are_clipped_and_shares_counted() -> None:
    comparison = compare_donations([0.0, 5.0], [0.0, 0.0, 700.0, 1.0], draws=10)
    assert (comparison.mean, comparison.rate) == (1.0, 0.5)
    assert (comparison.human_mean, comparison.human_rate) == (0.75, 0.5)


@pytest.mark.parametrize(("ours", "people"), [([], [1.0, 2.0]), ([1.0], [1.0]), ([float("nan")], [0.0, 1.0])])
def test_samples_that_cannot_be_compared_are_refused(ours: list[float], people: list[float]) -> None:
    with pytest.raises(ValueError, match=r"donation"):
        compare_donations(ours, people)
