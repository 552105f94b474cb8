"""Intervals cover what they claim; the verdict finds collapse where there is one and not where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from unfrozen.core.errors import ConfigError
from unfrozen.measures.collapse import Measurement, alarm, verdict
from unfrozen.measures.contrasts import contrast, order
from unfrozen.measures.intervals import Estimate, cluster_mean, paired_difference
from unfrozen.measures.panel import Cell, PanelResult, refuse_mixed_panel


def simulated(rng: np.random.Generator, tasks: int, trials: int, p: float = 0.6) -> tuple[np.ndarray, np.ndarray]:
    """Successes [tasks * trials] whose tasks differ in difficulty, so that trials of a task are not independent."""
    a = 2.0
    rates = rng.beta(a * p, a * (1 - p), size=tasks)
    return (rng.random((tasks, trials)) < rates[:, None]).astype(float).ravel(), np.repeat(np.arange(tasks), trials)


def test_a_clustered_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for repeat in range(400):
        values, clusters = simulated(rng, tasks=40, trials=4)
        estimate = cluster_mean(values.tolist(), clusters.tolist(), seed=repeat, draws=500)
        hits += estimate.low <= 0.6 <= estimate.high
    assert 0.91 <= hits / 400 <= 0.98


def test_trials_of_one_task_do_not_narrow_the_interval_as_new_tasks_would() -> None:
    values, clusters = simulated(np.random.default_rng(1), tasks=40, trials=8)
    clustered = cluster_mean(values.tolist(), clusters.tolist())
    naive = cluster_mean(values.tolist(), list(range(len(values))))
    assert clustered.high - clustered.low > 1.5 * (naive.high - naive.low)


def test_the_interval_agrees_with_scipy_where_every_cluster_is_one_value() -> None:
    x = np.random.default_rng(2).random(50)
    mine = cluster_mean(x.tolist(), list(range(50)), draws=20_000)
    theirs = stats.bootstrap((x,), np.mean, method="percentile", n_resamples=20_000, rng=0).confidence_interval
    assert mine.interval == pytest.approx([theirs.low, theirs.high], abs=0.005)


def test_all_successes_still_leave_doubt() -> None:
    estimate = cluster_mean([1.0] * 40, [i // 4 for i in range(40)])
    exact = stats.binomtest(10, 10).proportion_ci()
    assert (estimate.mean, estimate.low, estimate.high) == (1.0, pytest.approx(exact.low), 1.0)


def test_no_values_are_an_error_and_not_a_zero() -> None:
    with pytest.raises(ValueError, match="not empty"):
        cluster_mean([], [])


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 5)), min_size=1, max_size=40))
def test_a_paired_difference_is_antisymmetric(rows: list[tuple[bool, bool, int]]) -> None:
    a, b, clusters = ([float(r[0]) for r in rows], [float(r[1]) for r in rows], [r[2] for r in rows])
    assert paired_difference(a, b, clusters).mean == -paired_difference(b, a, clusters).mean


def panel(successes: np.ndarray, members: tuple[str, ...]) -> PanelResult:
    """successes [members, tasks] of 0 and 1."""
    cells = tuple(
        Cell(member, f"t{t}", (f"t{t}", 0), float(successes[m, t]), float(successes[m, t]))
        for m, member in enumerate(members)
        for t in range(successes.shape[1])
    )
    return PanelResult((), cells)


HELD = ("b", "c", "d")


def measurement(rng: np.random.Generator, own: float, held: float, entropy: float = 1.0, step: int = 0) -> Measurement:
    return Measurement(
        step,
        panel((rng.random((1, 64)) < own).astype(float), ("a",)),
        panel((rng.random((3, 64)) < held).astype(float), HELD),
        Estimate(entropy, entropy - 0.1, entropy + 0.1, 64, 64),
    )


def test_an_agent_that_gains_only_with_its_own_simulator_is_called_collapsed() -> None:
    rng = np.random.default_rng(3)
    result = verdict([(measurement(rng, 0.5, 0.5), measurement(rng, 0.95, 0.4)) for _ in range(3)])
    assert result.collapsed is True
    assert result.sentence.startswith("collapse")
    assert result.lost is not None
    assert result.lost.mean == pytest.approx(0.55, abs=0.12)


def test_an_agent_that_gains_everywhere_is_not() -> None:
    rng = np.random.default_rng(4)
    result = verdict([(measurement(rng, 0.4, 0.4), measurement(rng, 0.95, 0.95)) for _ in range(3)])
    assert result.collapsed is False


def test_an_agent_most_of_whose_gain_transfers_is_not_called_collapsed() -> None:
    rng = np.random.default_rng(9)
    result = verdict([(measurement(rng, 0.5, 0.5), measurement(rng, 0.99, 0.88)) for _ in range(3)])
    assert result.collapsed is False


def test_an_agent_that_lost_everywhere_is_weak_and_not_collapsed() -> None:
    rng = np.random.default_rng(10)
    result = verdict([(measurement(rng, 0.6, 0.6), measurement(rng, 0.4, 0.1)) for _ in range(3)])
    assert result.collapsed is not True


def test_a_panel_that_is_merely_harder_is_not_called_collapse() -> None:
    rng = np.random.default_rng(5)
    result = verdict([(measurement(rng, 0.7, 0.3), measurement(rng, 0.9, 0.5)) for _ in range(3)])
    assert result.collapsed is not True


def test_untrained_agents_are_rarely_called_collapsed() -> None:
    rng = np.random.default_rng(6)
    called = sum(
        verdict([(measurement(rng, 0.5, 0.5), measurement(rng, 0.5, 0.5))]).collapsed is True for _ in range(200)
    )
    assert called <= 0.06 * 200


def test_the_alarm_names_what_fell_and_is_silent_while_both_rise() -> None:
    rng = np.random.default_rng(7)
    start = measurement(rng, 0.5, 0.6)
    assert alarm(start, measurement(rng, 0.9, 0.9, step=10)) is None
    fallen = alarm(start, measurement(rng, 0.95, 0.3, step=20))
    assert fallen is not None
    assert "step 20" in fallen
    assert "held-out success fell" in fallen
    narrow = alarm(start, measurement(rng, 0.95, 0.6, entropy=0.3, step=30))
    assert narrow is not None
    assert "policy entropy fell from 1.00 to 0.30" in narrow
    assert alarm(start, measurement(rng, 0.5, 0.3, entropy=0.3)) is None
    assert alarm(start, measurement(rng, 0.95, 0.95, entropy=0.3)) is None, "surer, and right with strangers too"


def test_arms_are_compared_on_the_pairs_that_both_played() -> None:
    rng = np.random.default_rng(8)
    strong, weak = (panel((rng.random((3, 64)) < p).astype(float), HELD) for p in (0.9, 0.4))
    c = contrast("population", "single", {"population": {0: strong, 1: strong}, "single": {0: weak, 2: weak}})
    assert c is not None
    assert c.holds is True
    assert c.difference.count == 3 * 64
    contrasts, found = order(("population", "cotrain", "single"), {"single": {0: strong}, "population": {0: weak}})
    assert found == ["single", "population"]
    assert [c.holds for c in contrasts] == [False]


def test_a_panel_with_a_training_family_is_refused() -> None:
    refuse_mixed_panel({"a": "x"}, {"b": "y"})
    with pytest.raises(ConfigError, match=r"panel.simulators: 'b' is of family 'x'"):
        refuse_mixed_panel({"a": "x"}, {"b": "x"})
