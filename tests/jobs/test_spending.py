"""Jobs with endpoints: what they cost is in the summary, a budget stops them, and they resume without asking twice."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from upstream import CANDIDATE_FAULTS, REPLY_FAULTS, TRANSPORT_FAULTS, Upstream, serving

from unfrozen.config import RunConfig, parse_config, to_toml, with_overrides
from unfrozen.core.errors import ConfigError, ResumableError, RunDirectoryError
from unfrozen.core.records import episode_from_json, episode_to_json, read_episodes
from unfrozen.engines.endpoint import Ledger
from unfrozen.jobs.dryrun import evaluation_dry_run
from unfrozen.jobs.evaluate import evaluate
from unfrozen.jobs.spending import open_spending, spent
from unfrozen.modelconfig import ModelSettings, SpendSettings

CORPUS = Path(__file__).parents[1] / "data" / "persuasion" / "csv"


def config(url: str, **overrides: Any) -> RunConfig:
    """An endpoint agent against a scripted persuadee and one that is an endpoint too."""
    base: dict[str, Any] = {
        "name": "spending",
        "environment": {"name": "persuasion", "corpus": str(CORPUS), "exchanges": 2},
        "models": {"mine": {"engine": "endpoint", "model": "some-model", "base_url": url}},
        "agent": {"model": "mine"},
        "simulators": {"undecided": {"scripted": "undecided"}, "served": {"model": "mine", "family": "another"}},
        "train": {"simulators": ["undecided"]},
        "panel": {"simulators": ["served"], "tasks": 1, "trials": 4, "split": "validation"},
        "rollout": {"concurrency": 4},
    }
    return parse_config(with_overrides(base, overrides))


def files(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def test_an_evaluation_says_what_it_cost(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("[models]\nsome-model = { input = 1000.0, output = 1000.0 }\n")
    with serving() as server:
        summary = evaluate(config(server.url, **{"spend.prices": str(prices)}), out=tmp_path / "run").summary
        tokens = server.billed["prompt"] + server.billed["completion"]
    row = summary["spend"]["models"]["some-model"]
    assert row["requests"] == server.count > 10
    assert row["prompt_tokens"] + row["completion_tokens"] == tokens
    assert summary["spend"]["total"]["money"] == pytest.approx(tokens / 1000)
    assert summary == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "spend.jsonl" in files(tmp_path / "run")
    assert not {f for f in files(tmp_path / "run") if f.startswith("replies")}, "a complete job keeps no journal"


def test_a_dry_run_of_an_evaluation_asks_nothing_and_bounds_what_will_be_asked(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(to_toml(config("http://127.0.0.1:1/v1")))
    with serving() as server:
        expected = evaluation_dry_run(config(server.url))
        assert server.count == 0
        summary = evaluate(config(server.url), out=tmp_path / "run").summary
    assert expected.episodes == len(list(read_episodes(tmp_path / "run" / "episodes" / "start.jsonl.zst"))) == 8
    row, load = summary["spend"]["models"]["some-model"], expected.loads["mine"]
    assert row["requests"] <= load.calls <= 4 * row["requests"]
    assert row["prompt_tokens"] <= load.prompt_tokens
    assert row["completion_tokens"] <= load.completion_tokens
    shown = subprocess.run(
        [sys.executable, "-m", "unfrozen", "evaluate", "run.toml", "--dry-run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert shown.stdout.splitlines()[0] == "8 episodes"
    assert f"models.mine: at most {load.calls} calls" in shown.stdout
    assert files(tmp_path) == {"run.toml", "run"}


def test_a_job_without_endpoints_opens_nothing_and_has_no_spend(tmp_path: Path) -> None:
    spending = open_spending(SpendSettings(), [ModelSettings(model="lab")], tmp_path)
    spending.close()
    assert files(tmp_path) == set()
    assert spent(SpendSettings(), tmp_path) is None


def test_a_budget_stops_an_evaluation_and_a_larger_one_goes_on_without_asking_twice(tmp_path: Path) -> None:
    with serving() as server:
        whole = evaluate(config(server.url), out=tmp_path / "whole")
        needed = server.count
    with serving() as server:
        # The same address, so that it is the same configuration.
        small = config(server.url, **{"spend.requests": needed // 2})
        with pytest.raises(ResumableError, match=r"spend\.requests = .* run the same command again"):
            evaluate(small, out=tmp_path / "run")
        assert server.count <= needed // 2
        sent = server.count
        with pytest.raises(ResumableError):
            evaluate(small, out=tmp_path / "run")
        assert server.count == sent, "the budget counts what was spent before"
        result = evaluate(config(server.url, **{"spend.requests": needed + 10}), out=tmp_path / "run")
        # What was under way when the budget stopped the others may be asked again.
        assert needed <= server.count <= needed + 4
        spend = result.summary["spend"]["total"]
        assert spend["requests"] == server.count
        assert spend["cache_hits"] >= sent - 4
    arms = [r.summary["arms"]["start"]["heldout_success"] for r in (whole, result)]
    assert arms[0] == arms[1]
    outcomes = [
        [(e.id, [t.turn.message for t in e.turns]) for e in read_episodes(tmp_path / name / "episodes/start.jsonl.zst")]
        for name in ("whole", "run")
    ]
    assert outcomes[0] == outcomes[1]


def test_a_budget_that_is_used_up_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    with serving() as server:
        file = tmp_path / "run.toml"
        file.write_text(to_toml(config(server.url, **{"spend.requests": 3})))
        command = [sys.executable, "-m", "unfrozen", "evaluate", str(file), "--out", str(tmp_path / "run")]
        stopped = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert stopped.returncode == 75
        assert "error: the budget is used up: spend.requests = 3" in stopped.stderr.replace("\n", " ")
        done = subprocess.run([*command, "--set", "spend.requests=100"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr


def test_a_budget_in_money_wants_a_price_before_anything_is_sent(tmp_path: Path) -> None:
    with serving() as server:
        with pytest.raises(ConfigError, match=r"spend\.money: no price is known for model 'some-model' \(models\.mine"):
            evaluate(config(server.url, **{"spend.money": 1.0}), out=tmp_path / "run")
        assert server.count == 0


def test_only_limits_may_change_between_starts(tmp_path: Path) -> None:
    with serving() as server:
        evaluate(config(server.url), out=tmp_path / "run")
        evaluate(config(server.url, **{"spend.tokens": 10**6}), out=tmp_path / "run")
        assert "tokens = 1000000" in (tmp_path / "run" / "config.toml").read_text()
        with pytest.raises(RunDirectoryError, match=r"another configuration .*panel\.trials"):
            evaluate(config(server.url, **{"panel.trials": 2}), out=tmp_path / "run")


def test_a_killed_evaluation_resumes_and_its_ledger_holds_both_starts(tmp_path: Path) -> None:
    with serving(Upstream(latency=0.05)) as server:
        run = config(server.url, **{"panel.trials": 10})
        file = tmp_path / "run.toml"
        file.write_text(to_toml(run))
        command = [sys.executable, "-m", "unfrozen", "evaluate", str(file), "--out", str(tmp_path / "run")]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while server.billed["requests"] < 20 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(0.2)
        before = server.count
        result = evaluate(run, out=tmp_path / "run")
        spend = result.summary["spend"]["total"]
        # A request is written down before it is sent: up to four had not left when the process was killed.
        assert server.count <= spend["requests"] <= server.count + 4
        assert spend["cache_hits"] >= before - 2 * 4, "all but what was under way at the kill"
        assert spend["unknown_requests"] <= 4
        known = spend["prompt_tokens"] + spend["completion_tokens"]
        billed = server.billed["prompt"] + server.billed["completion"]
        assert known <= billed <= known + spend["unknown_tokens_at_most"]


def test_a_frozen_model_is_never_asked_twice_over_runs(tmp_path: Path) -> None:
    with serving() as server:
        kept = {"models.mine.cache": True, "spend.cache": str(tmp_path / "answers.sqlite")}
        first = evaluate(config(server.url, **kept), out=tmp_path / "one").summary
        count = server.count
        again = evaluate(config(server.url, **kept), out=tmp_path / "two").summary
        assert server.count == count
        assert again["arms"]["start"]["panel"] == first["arms"]["start"]["panel"]
        assert again["spend"]["total"]["requests"] == 0
        # Pairs begin alike: the agent's first turn has one seed for all simulators, and one answer serves both.
        asked = first["spend"]["total"]["requests"] + first["spend"]["total"]["cache_hits"]
        assert again["spend"]["total"]["cache_hits"] == asked
        evaluate(config(server.url, **kept, seed=1), out=tmp_path / "three")
        assert server.count > count, "another seed is another sample"


def test_under_faults_every_episode_is_complete_or_has_its_cause(tmp_path: Path) -> None:
    """A fifth of all replies is spoiled, candidates too; nothing is lost, and the spend is right to the token."""
    everything = (*TRANSPORT_FAULTS, *REPLY_FAULTS, *CANDIDATE_FAULTS)
    faults = {name: 0.2 / len(everything) for name in everything}
    with serving(Upstream(faults=faults, seed=1, slow=0.01, retry_after=0.02)) as server:
        run = config(
            server.url,
            **{"panel.trials": 32, "rollout.concurrency": 32, "rollout.attempts": 1},
        )
        result = evaluate(run, out=tmp_path / "run")
        episodes = list(read_episodes(tmp_path / "run" / "episodes" / "start.jsonl.zst"))
        assert len(episodes) == 2 * 32
        for episode in episodes:
            assert (episode.outcome is None) == (episode.failure is not None)
            if episode.failure is not None:
                assert episode.failure.cause in ("format", "infrastructure")
                assert episode.failure.detail
            for turn in episode.turns:
                assert turn.turn.message.content.strip()
        assert sum(e.outcome is not None for e in episodes) > 0.9 * len(episodes)
        spend = result.summary["spend"]["total"]
        assert spend["requests"] == server.count
        assert spend["prompt_tokens"] == server.billed["prompt"]
        assert spend["completion_tokens"] == server.billed["completion"]
        assert spend["unknown_requests"] == server.lost["requests"] + server.served["reset"]


def test_reasoning_is_in_the_record_and_in_no_dialogue(tmp_path: Path) -> None:
    def think(request: dict[str, Any]) -> str:
        asked = request["messages"][-1]["content"]
        return "<think>a secret plan</think>" + ('{"choice": "$0.50"}' if '"choice"' in asked else "Would you give?")

    with serving(Upstream(think)) as server:
        evaluate(config(server.url), out=tmp_path / "run")
        assert not any("secret plan" in str(request) for request in server.requests)
    episodes = list(read_episodes(tmp_path / "run" / "episodes" / "start.jsonl.zst"))
    spoken = [t.turn for e in episodes for t in e.turns if t.turn.sampled_tokens]
    assert all(turn.reasoning == "a secret plan" for turn in spoken)
    assert not any("secret plan" in turn.message.content for turn in spoken)
    line = json.loads(episode_to_json(episodes[0]))
    assert episode_from_json(json.dumps(line)) == episodes[0]
    for record in line["turns"]:
        for key in ("reasoning", "token_ids", "logprobs"):
            del record["turn"][key]
    old = episode_from_json(json.dumps(line))
    assert [t.turn.message for t in old.turns] == [t.turn.message for t in episodes[0].turns]
    assert all(t.turn.reasoning == "" for t in old.turns)


def test_a_ledger_that_is_only_looked_at_is_not_changed(tmp_path: Path) -> None:
    with serving() as server:
        evaluate(config(server.url), out=tmp_path / "run")
    before = (tmp_path / "run" / "spend.jsonl").read_bytes()
    assert Ledger(tmp_path / "run").total().requests > 0
    assert (tmp_path / "run" / "spend.jsonl").read_bytes() == before


def test_the_example_of_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "endpoints.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^`([\w.-]+)`:\n\n```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    (tmp_path / "prices.toml").write_text(shown["prices.toml"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENROUTER_API_KEY", "sk-of-the-example")
    monkeypatch.setenv("UNFROZEN_CACHE", str(tmp_path / "cache"))
    with serving() as server:
        data = with_overrides(
            tomllib.loads(shown["endpoints.toml"]),
            {
                "environment.corpus": str(CORPUS),
                "models.mine.base_url": server.url,
                "models.judge-them.base_url": server.url,
                "panel.split": "validation",
                "panel.tasks": 1,
            },
        )
        spend = evaluate(parse_config(data)).summary["spend"]
    assert set(spend["models"]) == {"the-name-that-the-server-knows", "openai/gpt-4o-mini"}
    assert spend["unpriced"] == []
    assert spend["total"]["money"] > 0
    assert spend["prices"].startswith("prices.toml of 2026-11-30, then the built-in table")
    assert (tmp_path / "cache" / "responses.sqlite").exists()
