"""Training runs end to end on the lab's real models: every method, determinism, resume, and what stops a run."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from lab_config import lab_config
from safetensors.numpy import load_file

from unfrozen.config import METHODS, RunConfig
from unfrozen.core.episodes import Episode
from unfrozen.core.errors import ConfigError, ResumableError, RunDirectoryError, UsageError
from unfrozen.core.records import read_episodes
from unfrozen.jobs.train import train


def episodes(run: Path, phase: str = "train") -> list[Episode]:
    return [e for f in sorted((run / "episodes").glob(f"{phase}-*")) for e in read_episodes(f)]


def weights(run: Path) -> dict[str, dict[str, Any]]:
    last = sorted((run / "state").glob("step-*"))[-1]
    return {str(p.relative_to(last)): load_file(p) for p in sorted(last.rglob("adapter_model.safetensors"))}


def same(a: dict[str, dict[str, Any]], b: dict[str, dict[str, Any]]) -> bool:
    return a.keys() == b.keys() and all(
        a[f].keys() == b[f].keys() and all((a[f][k] == b[f][k]).all() for k in a[f]) for f in a
    )


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_by_its_one_word_and_writes_what_it_promises(method: str, tmp_path: Path) -> None:
    result = train(lab_config(method=method), tmp_path / "run")
    arm = result.summary["arms"][method]
    assert json.loads((tmp_path / "run/summary.json").read_text()) == result.summary
    assert (tmp_path / "run/report.html").stat().st_size > 10_000
    assert arm["episodes"] == (0 if method == "base" else 16)
    assert arm["updates"] == (0 if method == "base" else 2)
    assert (arm["simulator_updates"] > 0) == (method in ("cotrain", "population"))
    assert set(arm["panel"]) == {"dune", "uniform"}
    played = episodes(tmp_path / "run")
    kinds = {e.simulator.kind for e in played}
    assert (
        kinds
        <= {
            "base": set(),
            "single": {"frozen"},
            "ensemble": {"frozen"},
            "persona": {"persona(frozen)"},
            "verbalized": {"verbalized(frozen)"},
            "cotrain": {"trainable"},
            "population": {"trainable", "snapshot"},
        }[method]
    )
    # Verbalized Sampling and personas are off in evaluation, and training simulators are not held out.
    for e in episodes(tmp_path / "run", "panel"):
        assert e.simulator.kind in ("frozen", "scripted")
        assert e.simulator.family in ("dune", "scripted:uniform")


def test_the_same_config_and_seed_give_the_same_episodes_and_weights_and_another_seed_does_not(tmp_path: Path) -> None:
    config = lab_config(method="population")
    for name in ("a", "b"):
        train(config, tmp_path / name, report=False)
    train(lab_config(method="population", seed=1), tmp_path / "c", report=False)
    assert episodes(tmp_path / "a") == episodes(tmp_path / "b") != episodes(tmp_path / "c")
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not same(weights(tmp_path / "a"), weights(tmp_path / "c"))


def _train(config: dict[str, Any], out: str) -> None:
    train(RunConfig.model_validate(config), Path(out), report=False)


def test_a_run_killed_at_any_point_and_resumed_equals_the_uninterrupted_one_to_the_last_bit(tmp_path: Path) -> None:
    config = lab_config(method="population", **{"train.steps": 3})
    train(config, tmp_path / "whole", report=False)
    context = multiprocessing.get_context("spawn")
    kills = 0
    for delay in (0.0, 0.2):
        worker = context.Process(target=_train, args=(config.model_dump(mode="json"), str(tmp_path / "killed")))
        worker.start()
        target = len(list((tmp_path / "killed/state").glob("step-*"))) and _last(tmp_path / "killed")
        deadline = time.monotonic() + 60
        while worker.is_alive() and _last(tmp_path / "killed") <= target and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(delay)
        if worker.is_alive():
            os.kill(worker.pid or 0, signal.SIGKILL)
            kills += 1
        worker.join()
    train(config, tmp_path / "killed", report=False)
    assert kills
    assert episodes(tmp_path / "killed") == episodes(tmp_path / "whole")
    assert same(weights(tmp_path / "killed"), weights(tmp_path / "whole"))
    rows = [[json.loads(line) for line in (tmp_path / n / "metrics.jsonl").open()] for n in ("killed", "whole")]
    for mine, theirs in zip(*rows, strict=True):
        assert [mine[k] for k in ("step", "train", "learners", "alarm")] == [
            theirs[k] for k in ("step", "train", "learners", "alarm")
        ]


def _last(run: Path) -> int:
    steps = sorted((run / "state").glob("step-*"))
    return int(steps[-1].name[5:]) if steps else -1


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first = train(lab_config(), tmp_path / "run", report=False)
    stamp = (tmp_path / "run/metrics.jsonl").stat().st_mtime_ns
    assert train(lab_config(), tmp_path / "run", report=False).summary["arms"] == first.summary["arms"]
    assert (tmp_path / "run/metrics.jsonl").stat().st_mtime_ns == stamp


def test_the_version_that_played_is_recorded_and_snapshots_stay_what_they_were(tmp_path: Path) -> None:
    train(lab_config(method="population", **{"train.steps": 4, "train.groups": 6}), tmp_path / "run", report=False)
    played = episodes(tmp_path / "run")
    living = [e for e in played if e.simulator.kind == "trainable"]
    assert {e.simulator.adapter for e in living if e.step == 1} <= {"sim-0@0", "sim-1@0"}
    assert any(e.simulator.adapter not in ("sim-0@0", "sim-1@0") for e in living if e.step > 1)
    snapshots = [e for e in played if e.simulator.kind == "snapshot"]
    assert snapshots
    assert all(e.simulator.label == e.simulator.adapter for e in snapshots)
    folders = sorted((tmp_path / "run/snapshots").iterdir())
    assert all((f / "adapter_config.json").exists() for f in folders)
    stored = [load_file(f / "adapter_model.safetensors") for f in folders]
    assert len({tuple(float(v.sum()) for v in s.values()) for s in stored}) > 1


def test_a_snapshot_that_is_gone_stops_the_run_with_its_name(tmp_path: Path) -> None:
    config = lab_config(method="population", **{"train.steps": 3})
    train(config, tmp_path / "run", report=False)
    state = sorted((tmp_path / "run/state").glob("step-*"))[-1]
    pool = json.loads((state / "state.json").read_text())["population"]["snapshots"]
    state.rename(state.with_name("step-000002"))  # as if step 3 had not been complete
    saved = json.loads((state.with_name("step-000002") / "state.json").read_text())
    (state.with_name("step-000002") / "state.json").write_text(json.dumps(saved | {"step": 2}))
    gone = tmp_path / "run/snapshots" / pool[0]
    gone.rename(gone.with_name("elsewhere"))
    with pytest.raises(RunDirectoryError, match=pool[0]):
        train(config, tmp_path / "run", report=False)


def test_a_simulator_is_trained_on_its_own_tokens_within_its_full_context(tmp_path: Path) -> None:
    """In the reference system the simulator's trajectory held only its own tokens, without prompt or context."""
    train(lab_config(method="cotrain"), tmp_path / "run", report=False)
    for e in episodes(tmp_path / "run"):
        user, agent = e.traces["user"], e.traces["agent"]
        assert str(user.adapter).startswith("sim-0@")
        assert str(agent.adapter).startswith("agent@")
        assert len(user.segments) == len(agent.segments) == 1  # one stream, no re-encoding between turns
        assert user.segments[0].sampled == sum(t.turn.sampled_tokens for t in e.turns if t.speaker == "user")
        assert user.segments[0].sampled < len(user.segments[0].tokens)


def test_too_many_failed_episodes_stop_the_run_and_say_why(tmp_path: Path) -> None:
    config = lab_config(**{"rollout.timeout": 1e-6, "rollout.attempts": 1})
    with pytest.raises(ResumableError, match=r"step 1: 8 of 8 episodes failed.*max_failures.*timeout"):
        train(config, tmp_path / "run", report=False)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"train.stepz": 1}, r"unknown key 'train\.stepz'"),
        ({"train.steps": "many"}, r"train\.steps.*'many'"),
        ({"train.simulators": ["nobody"]}, r"train\.simulators names 'nobody'"),
        ({"method": "magic"}, r"method.*'magic'"),
        ({"method": "ensemble", "ensemble.simulators": []}, r"ensemble\.simulators"),
        ({"method": "cotrain", "train.simulators": ["uniform"]}, r"simulators\.uniform is scripted"),
        ({"method": "population", "population.rewards": {"adversarial": 0}}, r"population\.rewards"),
        ({"population.rewards": {"bribery": 1}}, r"population\.rewards.*bribery"),
        ({"environment.name": "labb"}, r"environment\.name.*'labb'.*lab, persuasion"),
        ({"environment.colour": "red"}, r"environment\.colour"),
        ({"panel.simulators": ["amber"]}, r"panel\.simulators: 'amber' is of family 'amber', which training uses"),
        ({"models.main.model": "no-such-model-anywhere"}, r"no-such-model-anywhere"),
        ({"simulators.dune.adapter": "/no/such/folder"}, r"/no/such/folder"),
        ({"simulators.dune.adapter": "lab:nowhere"}, r"nowhere"),
    ],
)
def test_a_bad_config_gets_one_line_that_names_the_key(overrides: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, UsageError), match=says) as caught:
        train(lab_config(**overrides), tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_an_ensemble_member_cannot_be_in_the_panel_even_where_another_arm_uses_it() -> None:
    with pytest.raises(ConfigError, match="birch"):
        train(lab_config(**{"panel.simulators": ["birch"], "compare.arms": ["single", "ensemble"]}))
