"""Drops are paired by task and trial, corrected by Holm, bounded for what is missing, and split into variances."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import observations, simulated
from statsmodels.stats.multitest import multipletests

from unfrozen.core.episodes import Episode, Failure, Outcome, SpeakerInfo, Task
from unfrozen.measures.drop import holm, measure_drops
from unfrozen.measures.observations import Observation, from_episodes, tabulate
from unfrozen.measures.verdict import diagnose


def seen(simulator, role, task, trial, success, agent="agent", cluster=None):
    return Observation(agent, simulator, role, simulator, task, cluster or task, trial, success)


def test_the_drop_is_the_mean_over_tasks_of_paired_differences():
    rows = [
        seen("own", "train", "a", 0, 1.0), seen("other", "test", "a", 0, 0.0),
        seen("own", "train", "a", 1, 1.0), seen("other", "test", "a", 1, 1.0),
        seen("own", "train", "b", 0, 0.0), seen("other", "test", "b", 0, 0.0),
    ]  # fmt: skip
    drops = measure_drops(tabulate(rows), "agent")
    assert drops.pooled.inference.mean == pytest.approx((0.5 + 0.0) / 2)
    assert (drops.pooled.own, drops.pooled.held_out) == (0.5, 0.25)


def test_a_trial_whose_partner_failed_is_left_out_on_both_sides():
    rows = [
        seen("own", "train", "a", 0, 1.0), seen("other", "test", "a", 0, None),
        seen("own", "train", "a", 1, 0.0), seen("other", "test", "a", 1, 0.0),
        seen("own", "train", "b", 0, 1.0),
    ]  # fmt: skip
    drops = measure_drops(tabulate(rows), "agent")
    assert (drops.pooled.own, drops.pooled.held_out, drops.pooled.components.tasks) == (0.0, 0.0, 1)


def test_several_training_simulators_count_as_their_mean():
    rows = [
        seen("own", "train", "a", 0, 1.0), seen("own-2", "train", "a", 0, 0.0), seen("other", "test", "a", 0, 0.0)
    ]  # fmt: skip
    assert measure_drops(tabulate(rows), "agent").pooled.inference.mean == 0.5


def test_only_the_asked_role_is_held_out():
    rows = [
        seen("own", "train", "a", 0, 1.0),
        seen("seen-once", "validation", "a", 0, 1.0),
        seen("other", "test", "a", 0, 0.0),
    ]
    assert [d.simulator for d in measure_drops(tabulate(rows), "agent").each] == ["other"]
    assert [d.simulator for d in measure_drops(tabulate(rows), "agent", held_out="validation").each] == ["seen-once"]


@given(st.integers(0, 10_000), st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_the_order_of_episodes_does_not_matter(seed, random):
    rows = observations(simulated(np.random.default_rng(seed), tasks=8, trials=2, held_out=2, lost=0.1))
    there = measure_drops(tabulate(rows), "agent", draws=200)
    random.shuffle(rows)
    back = measure_drops(tabulate(rows), "agent", draws=200)
    assert back.pooled == there.pooled
    assert sorted(back.each, key=lambda d: d.simulator) == sorted(there.each, key=lambda d: d.simulator)


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_exchanging_training_and_held_out_labels_turns_the_sign(seed):
    table = simulated(np.random.default_rng(seed), tasks=10, trials=3, drop=0.2)
    there = measure_drops(table, "agent", draws=200).pooled.inference
    back = measure_drops(replace(table, roles=("test", "train")), "agent", draws=200).pooled.inference
    assert (back.mean, back.low, back.high) == pytest.approx((-there.mean, -there.high, -there.low))


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_how_difficult_a_task_is_cancels(seed):
    rng = np.random.default_rng(seed)
    table = simulated(rng, tasks=10, trials=3, drop=0.2)
    halved = replace(table, success=table.success / 2)
    shifted = replace(halved, success=halved.success + rng.random((1, 10, 1, 1)) / 2)
    first, second = (measure_drops(t, "agent", draws=200).pooled.inference for t in (halved, shifted))
    assert (first.mean, first.low, first.high) == pytest.approx((second.mean, second.low, second.high))


def test_trials_are_paired_by_number_not_by_place():
    rows = observations(simulated(np.random.default_rng(0), tasks=6, trials=3, drop=0.3))
    renumbered = [replace(o, trial=10 - o.trial) for o in rows]
    there, back = (measure_drops(tabulate(o), "agent").pooled for o in (rows, renumbered))
    assert there.inference == back.inference
    assert there.components.trial == pytest.approx(back.components.trial)


def test_the_difference_in_differences_is_the_difference_of_the_drops():
    table = simulated(np.random.default_rng(0), held_out=2, drop=0.2, harder=0.1, agents=("agent", "base"))
    agent, base, both = (measure_drops(table, *who) for who in (("agent",), ("base",), ("agent", "base")))
    for a, b, both_of in zip(
        (agent.pooled, *agent.each), (base.pooled, *base.each), (both.pooled, *both.each), strict=True
    ):
        assert both_of.inference.mean == pytest.approx(a.inference.mean - b.inference.mean)
        assert both_of.own == pytest.approx(a.own - b.own)


@given(st.lists(st.integers(0, 1000).map(lambda i: i / 1000), min_size=1, max_size=12))
@settings(max_examples=12, deadline=None)  # statsmodels takes a tenth of a second a call
def test_holm_agrees_with_statsmodels(p):
    assert holm(p) == pytest.approx(list(multipletests(p, method="holm")[1]))


def test_missing_episodes_are_bounded_by_every_way_of_filling_them():
    table = simulated(np.random.default_rng(2), tasks=3, trials=2, held_out=1, lost=0.35, agents=("agent", "base"))
    assert 3 <= table.failed.sum() <= 12
    cells = np.argwhere(table.failed)
    means = []
    for values in itertools.product((0.0, 1.0), repeat=len(cells)):
        success = table.success.copy()
        success[tuple(cells.T)] = values
        filled = replace(table, success=success, failed=np.zeros_like(table.failed))
        means.append(measure_drops(filled, "agent", "base", draws=1).pooled.inference.mean)
    missing = measure_drops(table, "agent", "base").pooled.missing
    assert (missing.low, missing.high) == pytest.approx((min(means), max(means)))
    assert (missing.failed, missing.planned) == (len(cells), table.failed.size)


def test_a_simulator_with_which_nothing_was_completed_is_named():
    table = simulated(np.random.default_rng(0), tasks=8, held_out=2)
    table.success[..., 2] = np.nan
    table.failed[..., 2] = True
    drops = measure_drops(table, "agent")
    assert (drops.unmeasured, [d.simulator for d in drops.each]) == (("other-1",), ["other-0"])


def test_eight_held_out_families_speak_of_simulators_in_general():
    rng = np.random.default_rng(0)
    eight = measure_drops(simulated(rng, tasks=10, held_out=8), "agent")
    seven = measure_drops(simulated(rng, tasks=10, held_out=7), "agent")
    assert (eight.scope, eight.pooled.inference.method) == ("simulators in general", "two-way")
    assert (seven.scope, seven.pooled.inference.method) == ("these simulators", "sign-flip")
    assert all(d.inference.method == "sign-flip" for d in eight.each)


def test_the_variance_is_split_between_tasks_and_trials():
    found = measure_drops(simulated(np.random.default_rng(0), tasks=4000, trials=6, drop=0.1), "agent", draws=1)
    components = found.pooled.components
    # Of a trial: E[p (1 - p)] on both sides, that is (1 - icc) p (1 - p) for 60 % and for 50 %.
    assert components.trial == pytest.approx(0.51 * (0.24 + 0.25), rel=0.05)
    assert components.task == pytest.approx(0.0153, rel=0.35)
    variance = found.pooled.inference.error**2
    assert components.task / 4000 + components.trial / 24000 == pytest.approx(variance)


def test_the_smallest_detectable_drop_is_found_in_four_of_five_measurements():
    rng = np.random.default_rng(0)
    # 63 tasks x 4 trials: about ten points; see the plan.
    found = [measure_drops(simulated(rng, tasks=63, drop=0.1), "agent", draws=400).pooled for _ in range(200)]
    assert np.median([d.smallest_detectable for d in found]) == pytest.approx(0.1, abs=0.006)
    assert np.mean([d.inference.low > 0 for d in found]) == pytest.approx(0.8, abs=0.085)


def test_episodes_become_observations_with_their_roles():
    def episode(simulator, sample, outcome, failure=None):
        info = SpeakerInfo("mine", "m", "frozen")
        user = SpeakerInfo(simulator, f"{simulator}-family", "frozen")
        task = Task("task", "test", "person")
        return Episode("e", "lab@1", task, 0, 0, sample, 1, info, user, (), outcome, failure)

    found = from_episodes(
        [
            episode("birch", 0, Outcome("won", 1.0, True)),
            episode("cedar", 0, None, Failure("timeout", "slow", 3)),
        ],
        {"birch": "train", "cedar": "test"},
    )
    assert found == [
        Observation("mine", "birch", "train", "birch-family", "task", "person", 0, 1.0),
        Observation("mine", "cedar", "test", "cedar-family", "task", "person", 0, None),
    ]


def test_contradictory_observations_are_refused():
    with pytest.raises(ValueError, match="twice"):
        tabulate([seen("own", "train", "a", 0, 1.0)] * 2)
    with pytest.raises(ValueError, match="described as"):
        tabulate([seen("own", "train", "a", 0, 1.0), seen("own", "test", "a", 1, 1.0)])
    with pytest.raises(ValueError, match="not in"):
        seen("own", "train", "a", 0, 2.0)
    with pytest.raises(ValueError, match="no simulator has the role 'test'"):
        diagnose([seen("own", "train", "a", 0, 1.0)], "agent")
    with pytest.raises(ValueError, match="'nobody' was not observed; there is: agent"):
        diagnose([seen("own", "train", "a", 0, 1.0), seen("other", "test", "a", 0, 1.0)], "nobody")
