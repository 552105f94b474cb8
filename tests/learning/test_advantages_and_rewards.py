"""Advantages and simulator rewards, against their formulas and the faults that they must not repeat."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unfrozen.learning.advantages import advantages
from unfrozen.learning.rewards import Played, simulator_rewards
from unfrozen.learning.schedule import ScheduleSettings

batches = st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 3)), min_size=1, max_size=40)


@given(batches)
def test_group_advantages_sum_to_zero_in_every_group(batch: list[tuple[float, int]]) -> None:
    rewards, groups = [r for r, _ in batch], [g for _, g in batch]
    values = np.array(advantages(rewards, groups, "group").values)
    for g in set(groups):
        assert values[np.array(groups) == g].sum() == pytest.approx(0, abs=1e-9)


@given(batches)
def test_leave_one_out_is_the_reward_minus_the_mean_of_the_others(batch: list[tuple[float, int]]) -> None:
    rewards, groups = [r for r, _ in batch], [g for _, g in batch]
    values = advantages(rewards, groups, "leave_one_out").values
    for i, (r, g) in enumerate(batch):
        others = [rewards[j] for j in range(len(batch)) if groups[j] == g and j != i]
        expected = r - sum(others) / len(others) if others and len({*others, r}) > 1 else 0.0
        assert values[i] == pytest.approx(expected, abs=1e-9)


@given(batches)
def test_batch_advantages_are_centred_over_everything(batch: list[tuple[float, int]]) -> None:
    rewards, groups = [r for r, _ in batch], [g for _, g in batch]
    assert advantages(rewards, groups, "batch").values == pytest.approx(np.array(rewards) - np.mean(rewards), abs=1e-9)


@given(batches)
def test_adding_a_constant_to_every_reward_changes_no_advantage(batch: list[tuple[float, int]]) -> None:
    rewards, groups = [r for r, _ in batch], [g for _, g in batch]
    rounded = [round(r, 3) for r in rewards]
    for name in ("group", "leave_one_out", "batch"):
        a = advantages(rounded, groups, name).values
        b = advantages([r + 8 for r in rounded], groups, name).values
        assert a == pytest.approx(b, abs=1e-6)


def test_losing_episodes_have_negative_advantages() -> None:
    """The reference system's launchers left every advantage at or above zero."""
    assert advantages([1, 0, 0, 1], [0, 0, 0, 0], "group").values == (0.5, -0.5, -0.5, 0.5)


def test_groups_without_variance_are_counted_and_teach_nothing() -> None:
    result = advantages([1, 1, 0, 1], ["a", "a", "b", "b"], "group")
    assert (result.groups, result.zero_variance_groups) == (2, 1)
    assert result.values[:2] == (0.0, 0.0)


def test_scaling_divides_by_the_standard_deviation_of_the_group() -> None:
    assert advantages([1, 0, 3, 0], [0, 0, 1, 1], "group", "std").values == pytest.approx([1, -1, 1, -1])


def _played(groups: Sequence[Sequence[int]]) -> list[Played]:
    return [Played(g, 0.85 * s, bool(s)) for g, row in enumerate(groups) for s in row]


def test_the_curriculum_reward_is_highest_when_the_agent_wins_half_of_the_group() -> None:
    half, most, all_ = simulator_rewards(_played([[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]), {"curriculum": 1.0})[::4]
    assert half == pytest.approx(1.0)
    assert most == pytest.approx(math.exp(-((0.1875 - 0.25) ** 2) / 0.02))
    assert all_ == pytest.approx(math.exp(-(0.25**2) / 0.02))


def test_a_group_baseline_would_cancel_the_curriculum_reward_and_a_batch_baseline_does_not() -> None:
    played = _played([[1, 1, 0, 0], [1, 1, 1, 1]])
    rewards = simulator_rewards(played, {"curriculum": 1.0})
    groups = [p.group for p in played]
    assert set(advantages(rewards, groups, "group").values) == {0.0}
    assert advantages(rewards, groups, "batch").values[0] > 0 > advantages(rewards, groups, "batch").values[-1]


def test_simulator_rewards_combine_with_weights() -> None:
    played = [Played(0, 0.85, True, -1.5), Played(0, 0.0, False, -0.5)]
    assert simulator_rewards(played, {"adversarial": 1.0, "realism": 0.1}) == pytest.approx([0.0, 0.95])
    assert simulator_rewards(played, {"cooperative": 2.0}) == pytest.approx([1.7, 0.0])


def test_realism_without_a_likelihood_is_refused() -> None:
    with pytest.raises(ValueError, match="realism"):
        simulator_rewards([Played(0, 1.0, True)], {"realism": 1.0})


def test_schedules_update_whom_they_say() -> None:
    every = ScheduleSettings(warm_up=2)
    assert [every.updates_simulators(s) for s in range(4)] == [False, False, True, True]
    assert all(every.updates_agent(s) for s in range(4))
    turns = ScheduleSettings(kind="alternate", agent_steps=2, simulator_steps=1, warm_up=1)
    assert [turns.updates_agent(s) for s in range(7)] == [True, True, True, False, True, True, False]
    assert [turns.updates_simulators(s) for s in range(7)] == [False, False, False, True, False, False, True]
