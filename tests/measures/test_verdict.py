"""The verdict says collapse where there is one, seldom where there is none, and how many episodes are missing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulated import observations, simulated

from unfrozen.measures import plan
from unfrozen.measures.drop import measure_drops
from unfrozen.measures.observations import Observation, Table
from unfrozen.measures.permutation import shuffle, shuffled_labels
from unfrozen.measures.plan import Design, enlarge, estimate_power
from unfrozen.measures.rates import success_rate
from unfrozen.measures.verdict import SMALL_MISSING, CollapseVerdict, decide, diagnose

DRAWS = 300


def flagged(table: Table, baseline: str | None = None, margin: float = 0.1) -> bool:
    return decide(measure_drops(table, "agent", baseline, draws=DRAWS), margin)[0] == "collapse"


def share(flags: list[bool]) -> tuple[float, float]:
    """The share of flags and three Monte-Carlo standard errors of a share of 5 %."""
    return float(np.mean(flags)), 3 * float(np.sqrt(0.05 * 0.95 / len(flags)))


# Negative and positive controls.


def test_the_training_simulator_against_itself_is_seldom_called_collapse():
    rng = np.random.default_rng(1)
    found, error = share([flagged(simulated(rng, 40, 4)) for _ in range(250)])
    assert found <= 0.025 + error


def test_three_held_out_simulators_that_do_not_matter_are_seldom_called_collapse():
    rng = np.random.default_rng(2)
    found, error = share([flagged(simulated(rng, 40, 4, held_out=3)) for _ in range(150)])
    assert found <= 0.05 + error


def test_shuffled_labels_of_an_over_fitted_agent_are_seldom_called_collapse():
    rng = np.random.default_rng(3)
    table = simulated(rng, 40, 4, held_out=2, drop=0.3, agents=("agent", "base"))
    assert flagged(table)
    assert flagged(table, "base")
    found, error = share([flagged(shuffle(table, "test", rng), "base") for _ in range(120)])
    assert found <= 0.05 + error


def test_the_permutation_test_on_real_data_tells_a_drop_from_none():
    rng = np.random.default_rng(4)
    dropped = shuffled_labels(simulated(rng, 40, 4, held_out=2, drop=0.3), "agent", shuffles=40)
    same = shuffled_labels(simulated(rng, 40, 4, held_out=2), "agent", shuffles=40)
    assert dropped.p == pytest.approx(1 / 41)
    assert same.p > 0.05
    assert dropped.flagged <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 40)


def test_shuffling_keeps_every_cluster_and_exchanges_whole_simulators():
    table = simulated(np.random.default_rng(0), 12, 2, held_out=2, lost=0.1, per_cluster=3)
    mixed = shuffle(table, "test", np.random.default_rng(1))
    for cluster in range(4):
        before, after = (t.success[:, t.clusters == cluster] for t in (table, mixed))
        columns = {before[..., s].tobytes() for s in range(3)}
        assert {after[..., s].tobytes() for s in range(3)} == columns
    assert not np.array_equal(table.success, mixed.success, equal_nan=True)
    assert np.array_equal(mixed.failed, np.isnan(mixed.success))


def test_an_over_fitted_agent_is_flagged_with_the_planned_power():
    rng = np.random.default_rng(5)
    found = np.mean([flagged(simulated(rng, 40, 4, drop=0.15)) for _ in range(200)])
    planned = estimate_power(plan.Rates(), 0.15, Design(40, 4)).power
    assert 0.5 < planned < 0.99
    assert found == pytest.approx(planned, abs=3 * np.sqrt(planned * (1 - planned) / 200) + 0.02)


def test_a_harder_simulator_is_no_collapse_once_there_is_a_baseline():
    rng = np.random.default_rng(6)
    tables = [simulated(rng, 40, 4, harder=0.25, agents=("agent", "base")) for _ in range(60)]
    assert np.mean([flagged(t) for t in tables]) > 0.9
    assert np.mean([flagged(t, "base") for t in tables]) <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / 60)


# Words.


def test_collapse_names_drop_scope_correction_and_that_difficulty_is_not_separated():
    table = simulated(np.random.default_rng(0), 40, 4, held_out=3, drop=0.3)
    verdict = diagnose(observations(table), "agent").verdict
    assert (verdict.word, verdict.collapsed, verdict.contrast) == ("collapse", True, "drop")
    assert verdict.simulators == ("other-0", "other-1", "other-2")
    assert verdict.sentence.startswith("collapse: success is ")
    for part in (
        "on these 3 simulators",
        "40 tasks x 4 trials (95 % interval, bootstrap over tasks)",
        "Holm over 3 held-out simulators",
        "difficulty is not separated from collapse: give a baseline agent",
    ):
        assert part in verdict.sentence


def test_few_tasks_are_permuted_and_the_sentence_says_so():
    clustered = simulated(np.random.default_rng(0), 40, 4, drop=0.3, per_cluster=4)
    verdict = diagnose(observations(clustered), "agent").verdict
    assert "40 tasks x 4 trials in 10 clusters (95 % interval, sign-flip permutation of the few" in verdict.sentence


def test_with_a_baseline_the_excess_is_judged_and_nothing_is_said_of_difficulty():
    table = simulated(np.random.default_rng(0), 60, 4, drop=0.35, harder=0.1, agents=("agent", "base"))
    diagnosis = diagnose(observations(table), "agent", "base")
    assert diagnosis.verdict.word == "collapse"
    assert diagnosis.verdict.contrast == "difference in differences"
    assert diagnosis.judged is diagnosis.excess
    assert "beyond the drop of the baseline 'base'" in diagnosis.verdict.sentence
    assert "not separated" not in diagnosis.verdict.sentence


def test_one_simulator_among_several_is_enough_for_collapse_after_holm():
    table = simulated(np.random.default_rng(1), 60, 8, held_out=4)
    table.success[..., 4] *= np.random.default_rng(2).random((1, 60, 8)) < 0.5
    verdict = diagnose(observations(table), "agent").verdict
    assert verdict.word == "collapse"
    assert verdict.simulators == ("other-3",)


def test_no_collapse_is_shown_where_every_interval_lies_below_the_margin():
    verdict = diagnose(observations(simulated(np.random.default_rng(0), 200, 8)), "agent").verdict
    assert (verdict.word, verdict.equivalent) == ("no collapse detected", True)
    assert "smaller than the margin of 10 points" in verdict.sentence


def test_a_drop_that_is_certain_but_smaller_than_the_margin_is_no_collapse():
    table = simulated(np.random.default_rng(0), 600, 8, drop=0.04)
    diagnosis = diagnose(observations(table), "agent")
    assert diagnosis.drop.pooled.inference.low > 0
    assert (diagnosis.verdict.word, diagnosis.verdict.equivalent) == ("no collapse detected", True)
    assert "but not 0" in diagnosis.verdict.sentence
    assert diagnose(observations(table), "agent", margin=0.02).verdict.word == "collapse"


def test_what_is_not_excluded_is_said_where_only_power_speaks_against_collapse():
    rng = np.random.default_rng(0)
    for _ in range(200):
        table = simulated(rng, 114, 2, drop=0.05)
        verdict = diagnose(observations(table), "agent", draws=DRAWS).verdict
        if verdict.word == "no collapse detected" and not verdict.equivalent:
            break
    assert "would have been found with 80 % power" in verdict.sentence
    assert "is not excluded" in verdict.sentence
    assert verdict.smallest_detectable <= 0.1


def test_with_too_few_episodes_the_advice_is_as_many_as_reach_the_power():
    verdict = diagnose(observations(simulated(np.random.default_rng(7), 20, 4)), "agent").verdict
    assert verdict.word == "too few episodes"
    assert verdict.smallest_detectable > 0.1
    assert f"run {verdict.more.episodes} more episodes" in verdict.sentence
    assert verdict.more.episodes == (verdict.more.tasks * verdict.more.trials - 20 * 4) * 2


def test_following_the_advice_reaches_the_power_on_average():
    rng = np.random.default_rng(8)
    reached = []
    for _ in range(12):
        components = measure_drops(simulated(rng, 40, 4), "agent", draws=1).pooled.components
        more = enlarge(components, 0.1, arms=2)
        reached.append(estimate_power(plan.Rates(), 0.1, Design(more.tasks, more.trials), repeats=1000).power)
    assert np.mean(reached) == pytest.approx(0.8, abs=0.06)


def test_when_tasks_run_out_more_trials_are_asked_for_and_when_they_do_not_help_that_is_said():
    rows = observations(simulated(np.random.default_rng(7), 30, 2))
    limited = diagnose(rows, "agent", tasks_available=40).verdict
    assert (limited.word, limited.more.tasks) == ("too few episodes", 40)
    assert limited.more.trials > 2
    impossible = diagnose(rows, "agent", tasks_available=30, margin=0.02).verdict
    assert impossible.more is None
    assert "more tasks" in impossible.sentence


def test_three_tasks_show_nothing():
    verdict = diagnose(observations(simulated(np.random.default_rng(0), 3, 8, drop=0.5)), "agent").verdict
    assert (verdict.word, verdict.smallest_detectable) == ("too few episodes", None)
    assert "3 independent tasks cannot show any drop" in verdict.sentence


# Failed episodes.


def losing(table: Table, successes: bool, simulator: int, lost: float) -> Table:
    """Fail a share of episodes that succeeded (or not) with one simulator."""
    rng = np.random.default_rng(0)
    failed = (table.success == successes) & (rng.random(table.success.shape) < lost)
    failed[..., [s for s in range(len(table.simulators)) if s != simulator]] = False
    return replace(table, success=np.where(failed, np.nan, table.success), failed=failed)


def test_a_collapse_that_only_the_failed_episodes_make_is_refused():
    table = losing(simulated(np.random.default_rng(0), 60, 4), True, 1, 0.8)
    assert decide(measure_drops(table, "agent"), 0.1)[0] == "collapse"
    verdict = diagnose(observations(table), "agent").verdict
    assert verdict.word == "too few episodes"
    assert "episodes failed and decide the verdict" in verdict.sentence
    assert verdict.more.episodes == table.failed.sum()


def test_no_collapse_is_refused_where_the_failed_episodes_could_hide_one():
    table = losing(simulated(np.random.default_rng(1), 200, 4, drop=0.15), False, 1, 0.9)
    assert decide(measure_drops(table, "agent"), 0.1)[0] == "no collapse detected"
    assert diagnose(observations(table), "agent").verdict.word == "too few episodes"


def test_a_few_failed_episodes_are_told_and_do_not_refuse_the_verdict():
    table = simulated(np.random.default_rng(0), 60, 4, drop=0.35, lost=0.01)
    verdict = diagnose(observations(table), "agent").verdict
    missing = measure_drops(table, "agent").pooled.missing
    assert 0 < missing.share < SMALL_MISSING
    assert verdict.word == "collapse"
    assert any(c.endswith("the verdict stands either way") and f"{missing.failed} of" in c for c in verdict.caveats)


def test_where_no_pair_is_complete_that_is_the_verdict():
    table = simulated(np.random.default_rng(0), 8, 1, lost=0.0)
    table.success[..., 1] = np.nan
    table.failed[..., 1] = True
    diagnosis = diagnose(observations(table), "agent")
    assert (diagnosis.drop, diagnosis.verdict.word, diagnosis.verdict.more) == (None, "too few episodes", None)
    assert "8 of 16 episodes failed" in diagnosis.verdict.sentence


# What stands beside it.


def test_success_is_listed_for_every_simulator_agent_and_role():
    table = simulated(np.random.default_rng(0), 30, 4, held_out=2, agents=("agent", "base", "nothing"), lost=0.05)
    diagnosis = diagnose(observations(table), "agent", "base", "nothing")
    assert [(s.simulator, s.role) for s in diagnosis.successes] == [
        ("own", "train"), ("other-0", "test"), ("other-1", "test")
    ]  # fmt: skip
    own = diagnosis.successes[0]
    assert own.agent == success_rate(table.success[0, ..., 0], table.clusters)
    assert own.do_nothing == success_rate(table.success[2, ..., 0], table.clusters)
    assert (own.episodes, own.failed) == (120, int(table.failed[0, ..., 0].sum()))


def test_an_agent_that_is_no_better_than_doing_nothing_or_has_nothing_to_lose_is_pointed_out():
    table = simulated(np.random.default_rng(0), 60, 4, agents=("agent", "nothing"))
    caveats = diagnose(observations(table), "agent", do_nothing="nothing").verdict.caveats
    assert any("an agent that does nothing succeeds" in c for c in caveats)
    poor = simulated(np.random.default_rng(0), 60, 4, rates=plan.Rates(success=0.02, icc=0.1, noise=0.1))
    assert any("hardly anything to lose" in c for c in diagnose(observations(poor), "agent").verdict.caveats)


def test_a_held_out_simulator_of_a_training_family_is_pointed_out():
    table = replace(simulated(np.random.default_rng(0), 60, 4), families=("qwen2.5", "qwen2.5"))
    caveats = diagnose(observations(table), "agent").verdict.caveats
    assert any("family 'qwen2.5', which training used" in c for c in caveats)


@pytest.mark.parametrize("margin", [0.0, 1.0, 10.0])
def test_a_margin_that_is_no_share_is_refused(margin):
    with pytest.raises(ValueError, match="margin"):
        diagnose(observations(simulated(np.random.default_rng(0), 8, 1)), "agent", margin=margin)


@pytest.mark.parametrize("baseline", [None, "base"])
@pytest.mark.parametrize("margin", [0.05, 0.1, 0.3])
def test_where_every_task_ends_alike_as_many_as_are_asked_for_are_enough(baseline: str | None, margin: float) -> None:
    def verdict(tasks: int, available: int | None = None) -> CollapseVerdict:
        played = [
            Observation(agent, simulator, role, simulator, f"task-{n}", f"task-{n}", 0, 1.0)
            for agent in ("agent", "base")
            for simulator, role in (("own", "train"), ("other", "test"))
            for n in range(tasks)
        ]
        return diagnose(played, "agent", baseline, margin=margin, tasks_available=available, draws=DRAWS).verdict

    few = verdict(7)
    assert few.word == "too few episodes"
    assert few.more is not None
    assert few.more.episodes == (few.more.tasks - 7) * (2 if baseline is None else 4)
    assert verdict(few.more.tasks - 1).word == "too few episodes"
    assert verdict(few.more.tasks).word == "no collapse detected"
    assert verdict(7, available=few.more.tasks - 1).more is None
