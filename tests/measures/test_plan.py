"""Plans agree with the power table that they were asked to reproduce, with statsmodels, and with pilots."""

from __future__ import annotations

import time

import numpy as np
import pytest
from simulated import RATES, observations, simulated
from statsmodels.stats.power import TTestPower

from unfrozen.core.errors import UsageError
from unfrozen.measures.drop import Components
from unfrozen.measures.plan import Design, Rates, enlarge, estimate_power, make_plan, rates_from_pilot


@pytest.mark.parametrize(
    ("tasks", "trials", "error", "paired"),
    [(20, 4, 6.1, 0.32), (40, 4, 4.3, 0.61), (40, 8, 3.3, 0.84), (114, 2, 3.5, 0.81), (200, 1, 3.6, 0.78)],
)
def test_power_agrees_with_an_independent_simulation_of_the_same_rates(tasks, trials, error, paired):
    # base 60 %, ICC .49, noise .7 logits, a drop of ten points; two digits of that table are rounding.
    found = estimate_power(RATES, 0.1, Design(tasks, trials))
    assert found.power == pytest.approx(paired, abs=0.005 + 3 * 1.42 * found.monte_carlo_error)
    assert 100 * found.error == pytest.approx(error, abs=0.05 + 0.15)


def test_power_agrees_with_statsmodels_for_many_trials_of_alike_tasks():
    # Without differences between tasks and with many trials the drop of a task is nearly normal.
    rates = Rates(success=0.6, icc=0.0, noise=0.0)
    found = estimate_power(rates, 0.1, Design(16, 32))
    effect = 0.1 / np.sqrt((0.24 + 0.25) / 32)
    expected = TTestPower().power(effect, 16, 0.025, alternative="larger")
    assert found.power == pytest.approx(expected, abs=3 * found.monte_carlo_error + 0.01)


def test_power_without_a_drop_to_speak_of_is_the_level_of_the_test():
    found = estimate_power(RATES, 1e-9, Design(60, 4), repeats=4000)
    assert found.power == pytest.approx(0.025, abs=3 * np.sqrt(0.025 * 0.975 / 4000) + 0.003)


def test_pairing_is_worth_more_than_half_of_the_tasks():
    paired = estimate_power(RATES, 0.1, Design(40, 8))
    unpaired = estimate_power(RATES, 0.1, Design(40, 8), paired=False)
    assert paired.power - unpaired.power > 0.5


def test_a_plan_is_quick_and_each_option_reaches_the_power():
    start = time.process_time()
    plan = make_plan(0.1, held_out=3, baseline=True)
    assert time.process_time() - start < 10
    assert [o.design.trials for o in plan.options] == [1, 2, 4, 8, 16]
    assert all(o.power >= 0.8 - o.monte_carlo_error for o in plan.options)
    assert [o.design.episodes for o in plan.options] == sorted(o.design.episodes for o in plan.options)
    first = plan.options[0].design
    assert first.episodes == first.tasks * first.trials * (1 + 3) * 2
    assert make_plan(0.1, held_out=3, baseline=True) == plan


def test_a_plan_with_too_few_tasks_says_what_they_can_reach():
    plan = make_plan(0.1, tasks_available=12)
    assert plan.options == ()
    assert plan.largest.design == Design(12, 16)
    assert plan.largest.power < 0.8


def test_a_smaller_drop_and_a_baseline_cost_more():
    def cheapest(*args, **options):
        return make_plan(*args, trials=(4,), **options).options[0].design.tasks

    assert cheapest(0.05) > 3 * cheapest(0.1)
    assert cheapest(0.1, baseline=True) > 1.5 * cheapest(0.1)
    assert cheapest(0.1, held_out=3) < cheapest(0.1)


def test_the_rates_of_a_pilot_are_found_again():
    table = simulated(np.random.default_rng(0), tasks=1500, trials=4, held_out=2, drop=0.1)
    rates = rates_from_pilot(observations(table), "agent")
    assert rates.success == pytest.approx(0.6, abs=0.04)
    assert rates.icc == pytest.approx(0.49, abs=0.04)
    assert rates.noise == pytest.approx(0.7, abs=0.2)


def test_a_pilot_of_single_trials_is_refused():
    with pytest.raises(UsageError, match="two complete trials"):
        rates_from_pilot(observations(simulated(np.random.default_rng(0), 20, 1)), "agent")


@pytest.mark.parametrize("drop", [0.0, 0.6, 0.7, -0.1])
def test_an_impossible_drop_is_refused(drop):
    with pytest.raises(UsageError, match="impossible"):
        make_plan(drop)


def test_rates_out_of_range_are_refused():
    with pytest.raises(UsageError, match="success"):
        Rates(success=1.0)


def test_families_bound_what_more_tasks_can_do():
    few = Components(task=0.02, trial=0.2, family=0.003, tasks=40, clusters=40, trials=4.0, families=8)
    assert enlarge(few, 0.1, arms=9) is None
    assert enlarge(few, 0.2, arms=9) is not None


def test_advice_counts_every_arm():
    components = Components(task=0.02, trial=0.24, family=0.0, tasks=20, clusters=20, trials=4.0)
    more = enlarge(components, 0.1, arms=8)
    assert more.episodes == (more.tasks * more.trials - 80) * 8
