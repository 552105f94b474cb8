"""A whole diagnosis: what is found, what is said, what is kept, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import colours
import pytest

from unfrozen import diagnose, plan
from unfrozen.config import to_toml
from unfrozen.core.episodelog import EpisodeLog
from unfrozen.core.episodes import Episode
from unfrozen.core.errors import ConfigError, ResumableError, RunDirectoryError, UsageError
from unfrozen.diagnoseconfig import DiagnoseConfig
from unfrozen.jobs.openings import BOOK
from unfrozen.jobs.pairing import place_of
from unfrozen.jobs.progress import Silent

Make = Callable[..., DiagnoseConfig]
OVER_FITTED = {"agent.callable": "colours:over_fitted"}
MANY = {"tasks.count": 36, "tasks.trials": 2}


def test_an_agent_that_was_over_fitted_on_purpose_is_flagged(chairs: Make, tmp_path: Path) -> None:
    result = diagnose(chairs(**OVER_FITTED, **MANY), tmp_path / "run")
    summary = result.summary
    assert result.exit_code == 3
    assert summary["verdict"]["word"] == "collapse"
    assert summary["verdict"]["sentence"].startswith("collapse: ")
    assert summary["simulators"]["red_lover"]["agent"]["success"] > 0.8
    assert summary["simulators"]["plain"]["agent"]["success"] == pytest.approx(1 / 6)
    assert summary["simulators"]["plain"]["do_nothing"]["success"] == 0
    assert summary["drop"]["interval"][0] > 0.5
    assert set(summary["verdict"]["simulators"]) == {"plain", "curt"}
    assert summary == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (tmp_path / "run" / "report.html").is_file()


def test_an_agent_that_asks_first_is_not_flagged(chairs: Make, tmp_path: Path) -> None:
    result = diagnose(chairs(**MANY), tmp_path / "run")
    assert result.exit_code == 0
    assert result.summary["verdict"]["word"] == "no collapse detected"
    assert result.summary["verdict"]["equivalent"] is True


def test_a_baseline_separates_a_harder_simulator_from_collapse(chairs: Make, tmp_path: Path) -> None:
    """Against the agent itself as baseline there is nothing left: its drop is the simulators' difficulty."""
    same = chairs(**OVER_FITTED, **{"baseline.callable": "colours:over_fitted"})
    summary = diagnose(same, tmp_path / "same").summary
    assert summary["verdict"]["contrast"] == "difference in differences"
    assert summary["excess"]["drop"] == 0
    assert summary["verdict"]["collapsed"] is not True
    other = chairs(**OVER_FITTED, **{"baseline.callable": "colours:asks_first"})
    assert diagnose(other, tmp_path / "other").exit_code == 3


def test_every_agent_meets_every_simulator_on_the_same_tasks_with_the_same_seeds(chairs: Make, tmp_path: Path) -> None:
    diagnose(
        chairs(**{"baseline.callable": "colours:over_fitted", "tasks.count": 5, "tasks.trials": 2}), tmp_path / "run"
    )
    episodes = EpisodeLog(tmp_path / "run").episodes
    met = {
        (e.agent.label, e.simulator.label): sorted(
            (e.task.id, e.sample, e.seed) for e in episodes if (e.agent, e.simulator) == pair
        )
        for e in episodes
        for pair in [(e.agent, e.simulator)]
    }
    assert len(met) == 9
    assert len({str(met[a, s]) for a in ("agent", "baseline") for s in ("red_lover", "plain", "curt")}) == 1
    assert all(len(rows) == (5 if agent == "do-nothing" else 10) for (agent, _), rows in met.items())
    assert met["do-nothing", "plain"] == [row for row in met["agent", "plain"] if row[1] == 0]


class StopsAfter(Silent):
    """Ends a job in the middle, as Ctrl-C does."""

    def __init__(self, count: int) -> None:
        self.left = count

    def episode(self, episode: Episode) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_a_job_that_was_stopped_repeats_no_finished_episode_and_ends_with_the_same_result(
    chairs: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = chairs(**OVER_FITTED, **{"narrowness.states": 4, "narrowness.replies": 4})
    whole = diagnose(config, tmp_path / "whole").summary
    with pytest.raises(KeyboardInterrupt):
        diagnose(config, tmp_path / "run", watch=StopsAfter(30))
    log = tmp_path / "run" / "episodes.jsonl"
    before = log.read_bytes()
    with log.open("ab") as file:
        file.write(b'{"id": "a line that a kill cut sho')
    calls = Counter[str]()
    original = colours.plain

    def counted(messages: colours.Messages) -> str:
        calls[messages[0]["content"]] += 1
        return original(messages)

    monkeypatch.setattr(colours, "plain", counted)
    resumed = diagnose(config, tmp_path / "run").summary
    assert log.read_bytes().startswith(before)
    places = Counter(place_of(e) for e in EpisodeLog(tmp_path / "run").episodes)
    assert set(places.values()) == {1}
    assert len(places) == whole["design"]["episodes"] == 12 * 3 * 2
    assert len(calls) < 12, "tasks that were finished are not played again"
    varying = ("created", "wall_seconds", "opened")
    assert {k: v for k, v in resumed.items() if k not in varying} == {
        k: v for k, v in whole.items() if k not in varying
    }


def test_a_finished_job_started_again_plays_nothing(chairs: Make, tmp_path: Path) -> None:
    diagnose(chairs(), tmp_path / "run")
    diagnose(chairs(), tmp_path / "run", watch=StopsAfter(1))


def test_a_log_that_is_damaged_is_refused_by_line_and_another_config_does_not_take_it_over(
    chairs: Make, tmp_path: Path
) -> None:
    config = chairs()
    with pytest.raises(KeyboardInterrupt):
        diagnose(config, tmp_path / "run", watch=StopsAfter(3))
    with pytest.raises(RunDirectoryError, match="another configuration"):
        diagnose(chairs(**{"tasks.trials": 2}), tmp_path / "run")
    log = tmp_path / "run" / "episodes.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"id"', b'"di"', 1))
    with pytest.raises(RunDirectoryError, match=r"episodes\.jsonl, line 1: not an episode record"):
        diagnose(config, tmp_path / "run")


def test_episodes_of_tasks_that_have_changed_since_are_not_mixed_with_new_ones(chairs: Make, tmp_path: Path) -> None:
    config = chairs()
    with pytest.raises(KeyboardInterrupt):
        diagnose(config, tmp_path / "run", watch=StopsAfter(3))
    file = tmp_path / "chairs.jsonl"
    file.write_text(file.read_text().replace("[SOLD]", "[BOUGHT]"))
    with pytest.raises(RunDirectoryError, match=r"holds episodes of chairs@\w+, and the environment is chairs@\w+ now"):
        diagnose(config, tmp_path / "run")


def test_failed_episodes_are_marked_with_their_cause_bound_the_result_and_can_be_tried_again(
    chairs: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = chairs(**{"agent.callable": "colours:fails_on_blue", "rollout.max_failures": 0.5})
    summary = diagnose(config, tmp_path / "run").summary
    failed = [e for e in EpisodeLog(tmp_path / "run").episodes if e.failure is not None]
    assert {(e.failure.cause, e.failure.detail) for e in failed if e.failure} == {
        ("infrastructure", "agent raised RuntimeError: blue")
    }
    assert all(e.outcome is None for e in failed)
    assert summary["failures"] == [
        {"cause": "infrastructure", "detail": "agent raised RuntimeError: blue", "episodes": len(failed)}
    ]
    assert summary["simulators"]["plain"]["failed"] == 2
    missing = summary["drop"]["missing"]
    assert missing["failed"] > 0
    assert missing["low"] <= summary["drop"]["drop"] < missing["high"]
    again = diagnose(config, tmp_path / "run").summary
    assert again["simulators"]["plain"]["failed"] == 2, "a failed episode is a finished one"
    monkeypatch.setattr(colours, "fails_on_blue", colours.asks_first)
    mended = diagnose(config, tmp_path / "run", retry_failed=True).summary
    assert mended["failures"] == []
    assert mended["simulators"]["plain"]["episodes"] == 12


def test_too_many_failures_stop_the_job_and_say_why(chairs: Make, tmp_path: Path) -> None:
    config = chairs(**{"agent.callable": "colours:fails_on_blue", "rollout.max_failures": 0.05})
    with pytest.raises(ResumableError, match=r"max_failures = 0\.05 \(infrastructure: agent raised RuntimeError: blue"):
        diagnose(config, tmp_path / "run")


def test_an_agent_without_one_complete_episode_is_no_measurement(
    chairs: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(colours, "over_fitted", lambda messages: None)
    config = chairs(**OVER_FITTED, **{"rollout.max_failures": 1.0})
    with pytest.raises(UsageError, match=r"agent: all 36 episodes failed \(format: agent returned None"):
        diagnose(config, tmp_path / "run")


def test_the_test_simulators_are_opened_once_and_a_second_agent_is_told_so(chairs: Make, tmp_path: Path) -> None:
    first = diagnose(chairs(), tmp_path / "first").summary
    assert first["opened"]["earlier"] == []
    assert "not before for another agent" in first["opened"]["sentence"]
    diagnose(chairs(), tmp_path / "first")
    assert len((tmp_path / BOOK).read_text().splitlines()) == 1, "a job that is resumed opens nothing anew"
    second = diagnose(chairs(**OVER_FITTED), tmp_path / "second").summary
    assert [o["run"] for o in second["opened"]["earlier"]] == ["first"]
    assert any("opened before: 1 other agent" in caveat for caveat in second["verdict"]["caveats"])
    again = diagnose(chairs(), tmp_path / "third").summary
    assert [o["run"] for o in again["opened"]["earlier"]] == ["second"], "its own opening is no other's"


def test_a_book_of_openings_that_a_full_disk_cut_short_is_read_and_a_damaged_one_is_refused(
    chairs: Make, tmp_path: Path
) -> None:
    diagnose(chairs(), tmp_path / "one")
    book = tmp_path / BOOK
    line = book.read_bytes()
    book.write_bytes(line + line[:40])
    assert diagnose(chairs(), tmp_path / "two").summary["opened"]["earlier"] == []
    assert [b'"run": "one"' in row for row in book.read_bytes().splitlines()] == [True, False]
    book.write_bytes(b"\xff\xfe\n" + line)
    with pytest.raises(UsageError, match=r"test-openings\.jsonl, line 1: not an opening .* or remove it"):
        diagnose(chairs(), tmp_path / "three")


def test_validation_never_meets_the_test_simulators(chairs: Make, tmp_path: Path) -> None:
    config = chairs(**{"roles.test": ["plain"], "roles.validation": ["curt"]})
    summary = diagnose(config, tmp_path / "validation", validation=True).summary
    assert {name: row["role"] for name, row in summary["simulators"].items()} == {
        "red_lover": "train",
        "curt": "validation",
    }
    episodes = EpisodeLog(tmp_path / "validation").episodes
    assert {e.task.split for e in episodes} == {"validation"}
    assert summary["opened"] is None
    assert not (tmp_path / BOOK).exists()
    with pytest.raises(ConfigError, match=r"roles\.validation is empty"):
        diagnose(chairs(), tmp_path / "none", validation=True)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"roles.test": ["plain", "red_lover"]}, r"roles\.test: 'red_lover' is in roles\.train too"),
        ({"roles.test": []}, r"roles\.test is empty"),
        ({"roles.test": ["nobody"]}, r"roles\.test names 'nobody'"),
        ({"agent": {}}, r"agent\.model names 'main', which has no \[models\.main\]"),
        ({"agent.scripted": "x"}, "scripted and callable are both set"),
        (
            {"narrowness.embeddings": {"base_url": "host", "model": "m"}},
            "embeddings.base_url: base_url must",
        ),
        ({"agent.callable": ""}, r"agent\.callable: String should have at least 1 character"),
        ({"agent.callable": None, "agent.model": "x"}, r"agent\.model names 'x'"),
    ],
)
def test_a_config_that_mixes_roles_or_lacks_a_part_is_refused(chairs: Make, overrides: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        chairs(**overrides)


def test_held_out_means_another_family(chairs: Make, tmp_path: Path) -> None:
    config = chairs(**{"simulators.plain.family": "qwen", "simulators.red_lover.family": "Qwen"})
    with pytest.raises(ConfigError, match=r"roles\.test: 'plain' is of family 'qwen', which training uses"):
        diagnose(config, tmp_path / "run")
    config = chairs(
        **{
            "roles.test": ["plain"],
            "roles.validation": ["curt"],
            "simulators.plain.family": "qwen",
            "simulators.curt.family": "qwen",
        }
    )
    with pytest.raises(ConfigError, match=r"roles\.test: 'plain' is of family 'qwen', which validation uses"):
        diagnose(config, tmp_path / "run")


def test_the_command_prints_success_with_each_simulator_and_exits_with_3_on_collapse(
    chairs: Make, tmp_path: Path
) -> None:
    file = tmp_path / "chairs.toml"
    file.write_text(to_toml(chairs(**OVER_FITTED, **{"tasks.trials": 2})))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "unfrozen", *arguments]
        environment = {"PYTHONPATH": str(Path(__file__).parent), "COLUMNS": "100", "PATH": "/usr/bin:/bin"}
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120)

    found = run("diagnose", str(file))
    assert found.returncode == 3, found.stderr
    assert "collapse: success is 83 %" in found.stdout
    for name in ("red_lover", "plain", "curt"):
        assert any(line.startswith(name) for line in found.stdout.splitlines())
    assert "report: runs/chairs/report.html" in found.stdout
    shown = run("report", "runs/chairs")
    assert shown.returncode == 0
    assert "collapse: success is 83 %" in shown.stdout
    fine = run("diagnose", str(file), "--set", "agent.callable=colours:asks_first", "--out", "runs/fine")
    assert fine.returncode == 0, fine.stderr
    wrong = run("diagnose", str(file), "--set", "agent.callable=colours:gone", "--out", "runs/gone")
    assert wrong.returncode == 2
    assert "error: agent.callable: 'colours:gone' cannot be loaded: AttributeError" in wrong.stderr


def test_a_terminal_that_knows_ascii_only_costs_characters_and_no_result(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"job": "diagnose"}')
    command = [sys.executable, "-m", "unfrozen", "report", str(tmp_path)]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    shown = subprocess.run(command, env=ascii_only, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr
    assert "? tasks" in shown.stdout


def test_a_plan_says_what_a_drop_costs_in_episodes_and_refuses_what_is_no_pilot(tmp_path: Path) -> None:
    found = plan(drop=0.2, held_out=2)
    assert found.plan.options
    assert all(option.design.held_out == 2 for option in found.plan.options)
    assert min(o.design.episodes for o in plan(drop=0.3, held_out=2).plan.options) < min(
        o.design.episodes for o in found.plan.options
    )
    with pytest.raises(UsageError, match="not the folder of a diagnosis"):
        plan(tmp_path)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"drop": 0.0}, "a drop of 0 points is impossible"),
        ({"drop": float("nan")}, "a drop of nan points is impossible"),
        ({"power": 0.0}, "power 0.0 must lie between 0 and 1"),
        ({"power": 1.0}, "power 1.0 must lie between 0 and 1"),
        ({"held_out": 0}, "0 held-out simulators be at least one"),
        ({"tasks": 0}, "0 tasks cannot show any drop; it takes at least 6"),
        ({"noise": float("inf")}, "noise inf at 0 or above"),
    ],
)
def test_a_plan_takes_nothing_for_unset_that_was_given(given: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan(**given)


def test_a_plan_does_not_simulate_more_tasks_than_anybody_plays() -> None:
    assert plan(drop=0.2, tasks=10**12).plan.options == plan(drop=0.2).plan.options


def test_a_plan_from_a_pilot_that_has_hardly_begun_says_so(chairs: Make, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        diagnose(chairs(**{"rollout.concurrency": 1}), tmp_path / "pilot", watch=StopsAfter(1))
    with pytest.raises(UsageError, match="let the pilot finish first"):
        plan(tmp_path / "pilot")
    (tmp_path / "pilot" / "episodes.jsonl").write_text("")
    with pytest.raises(UsageError, match="no observations; let the pilot finish first"):
        plan(tmp_path / "pilot")


def test_a_plan_from_a_pilot_takes_its_rates_tasks_and_simulators(chairs: Make, tmp_path: Path) -> None:
    diagnose(chairs(**OVER_FITTED, **{"tasks.trials": 2}), tmp_path / "pilot")
    found = plan(tmp_path / "pilot", drop=0.2)
    assert found.plan.rates.success == pytest.approx(10 / 12)
    assert {option.design.held_out for option in found.plan.options} <= {2}
    assert all(option.design.tasks <= 36 for option in found.plan.options)
    assert f"rates of {tmp_path / 'pilot'}" in next(iter(found.lines()))
