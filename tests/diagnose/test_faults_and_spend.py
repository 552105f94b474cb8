"""Diagnoses with endpoints: under faults, killed in the middle, out of budget; and what a dry run says beforehand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fault_bench import SIMULATORS, answer, run_bench, write_config
from upstream import Upstream, serving

from unfrozen import diagnose, load_diagnosis
from unfrozen.config import read_toml, validated, with_overrides
from unfrozen.core.episodelog import EpisodeLog
from unfrozen.core.errors import ResumableError
from unfrozen.diagnoseconfig import DiagnoseConfig
from unfrozen.jobs.dryrun import dry_run

sys.path.insert(0, str(Path(__file__).parents[1]))


def small(folder: Path, url: str, **overrides: Any) -> DiagnoseConfig:
    return validated(DiagnoseConfig, with_overrides(read_toml(write_config(folder, url, 4)), overrides), "test")


def test_under_faults_and_a_kill_nothing_is_lost_played_twice_or_scored_wrongly_and_the_spend_is_right(
    tmp_path: Path,
) -> None:
    """The fault bench at a sixth of its size; `fault_bench.py --tasks 84` is the whole of it."""
    result = run_bench(tmp_path, tasks=14, seed=1)
    assert result.wrong == []
    assert result.episodes == 14 * 3 * 2
    assert 0 < result.before_kill < result.episodes
    assert result.spoiled > 0.1 * result.requests


def test_a_budget_stops_a_diagnosis_and_a_larger_one_goes_on_without_asking_twice(tmp_path: Path) -> None:
    with serving(Upstream(answer)) as server:
        with pytest.raises(ResumableError, match=r"spend\.requests = 60.* run the same command again"):
            diagnose(small(tmp_path, server.url, **{"spend.requests": 60}), tmp_path / "run")
        assert server.count <= 60
        first = (tmp_path / "run" / "episodes.jsonl").read_bytes()
        summary = diagnose(small(tmp_path, server.url), tmp_path / "run").summary
        assert (tmp_path / "run" / "episodes.jsonl").read_bytes().startswith(first)
        total = server.count
        assert summary["spend"]["total"]["requests"] == total
        assert summary["design"]["episodes"] == 4 * 3 * 2
    with serving(Upstream(answer)) as server:
        whole = diagnose(small(tmp_path, server.url), tmp_path / "whole").summary
        # What was under way when the budget ran out may be asked again.
        assert total <= server.count + 32
    assert whole["simulators"] == summary["simulators"]


def test_a_dry_run_asks_nothing_and_bounds_what_will_be_asked(tmp_path: Path) -> None:
    with serving(Upstream(answer)) as server:
        config = small(tmp_path, server.url)
        expected = dry_run(config)
        assert server.count == 0
        summary = diagnose(config, tmp_path / "run").summary
        assert expected.episodes == summary["design"]["episodes"]
        assert set(expected.loads) == {"an-agent", *SIMULATORS.values()}
        for model, row in summary["spend"]["models"].items():
            load = expected.loads[model]
            assert row["requests"] + row["cache_hits"] <= load.calls <= 4 * (row["requests"] + row["cache_hits"])
            assert row["prompt_tokens"] <= load.prompt_tokens
            assert row["completion_tokens"] <= load.completion_tokens
    assert [line for line in expected.lines() if line.startswith("models.an-agent: at most 96 calls")]
    shown = subprocess.run(
        [sys.executable, "-m", "unfrozen", "diagnose", str(tmp_path / "bench.toml"), "--dry-run"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "24 episodes, and 48 replies to dialogue states" in shown.stdout


def test_a_judge_is_asked_through_the_same_ledger_and_its_words_are_kept(tmp_path: Path) -> None:
    def speak(request: dict[str, Any]) -> str:
        if request["model"] == "a-judge":
            return '{"reason": "It was polite.", "success": true}'
        return answer(request)

    write_config(tmp_path, "http://127.0.0.1:1/v1", 4)
    tasks = (tmp_path / "tasks.jsonl").read_text()
    rule = '{"rule": "judge", "question": "Was it polite?"}'
    (tmp_path / "judged.jsonl").write_text(tasks.replace('{"rule": "marker", "marker": "[SOLVED]"}', rule))
    with serving(Upstream(speak)) as server:
        config = small(
            tmp_path,
            server.url,
            **{
                "environment.file": str(tmp_path / "judged.jsonl"),
                "environment.judge": "judge",
                "models.judge": {"engine": "endpoint", "model": "a-judge", "base_url": server.url},
            },
        )
        expected = dry_run(config)
        summary = diagnose(config, tmp_path / "run").summary
        judged = [r for r in server.requests if r["model"] == "a-judge"]
    assert len(judged) == 4 * 3 * 2 == expected.loads["judge"].calls
    assert summary["spend"]["models"]["a-judge"]["requests"] == len(judged)
    assert summary["simulators"]["mine"]["agent"]["success"] == 1.0
    assert "It was polite." in (tmp_path / "run" / "report.html").read_text()


def test_the_example_for_endpoints_is_a_valid_diagnosis(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    monkeypatch.chdir(root)
    config = load_diagnosis(root / "examples" / "diagnose-endpoint.toml")
    monkeypatch.setenv("OPENROUTER_API_KEY", "sk-of-the-example")
    expected = dry_run(config)
    assert expected.episodes > 0
    assert all(money is None or money > 0 for money in expected.money.values())


def test_a_simulator_under_verbalized_sampling_shows_its_candidates_in_the_report(tmp_path: Path) -> None:
    with serving(Upstream()) as server:
        verbal = {"simulators.other.verbalized": {"k": 3}, "tasks.trials": 1}
        summary = diagnose(small(tmp_path, server.url, **verbal), tmp_path / "run").summary
    episodes = EpisodeLog(tmp_path / "run").episodes
    draws = {e.simulator.label: [t.turn.draw for t in e.turns if t.speaker == "user"] for e in episodes}
    assert all(draw is not None and len(draw.candidates) == 3 for draw in draws["other"])
    assert all(draw is None for draw in draws["mine"])
    assert summary["simulators"]["other"]["role"] == "test"
    page = (tmp_path / "run" / "report.html").read_text()
    assert "verbalized(endpoint)" in page
    assert '"candidates":[[' in page
