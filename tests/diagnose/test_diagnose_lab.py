"""The lab, whose answer is known: the agent of the README's example has collapsed, and the best play has not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unfrozen import diagnose, parse_config, train
from unfrozen.config import read_toml, validated, with_overrides
from unfrozen.core.errors import UsageError
from unfrozen.diagnoseconfig import DiagnoseConfig, load_diagnosis

EXAMPLE = Path(__file__).parents[2] / "examples" / "diagnose-lab.toml"
torch = pytest.importorskip("torch")


def lab(**overrides: Any) -> DiagnoseConfig:
    """The example, on fewer tasks."""
    few = {"tasks.count": 30, "tasks.trials": 1, "narrowness.states": 4, "narrowness.replies": 6}
    return validated(DiagnoseConfig, with_overrides(read_toml(EXAMPLE), {**few, **overrides}), "test")


def test_the_example_is_valid_as_it_stands() -> None:
    config = load_diagnosis(EXAMPLE)
    assert config.roles.test == ("dune", "grove", "uniform")


def test_an_agent_that_appeals_to_the_training_users_motive_has_collapsed(tmp_path: Path) -> None:
    summary = diagnose(lab(), tmp_path / "run").summary
    assert summary["verdict"]["word"] == "collapse"
    assert summary["simulators"]["amber"]["agent"]["success"] > 0.8
    assert summary["simulators"]["dune"]["agent"]["success"] < 0.2
    assert summary["simulators"]["amber"]["do_nothing"]["success"] == 0
    narrow = summary["narrowness"]["simulators"]
    vendi = {name: row["spread"]["vendi"]["mean"] for name, row in narrow.items()}
    assert vendi["uniform"] > max(vendi["amber"], vendi["dune"], vendi["grove"])


def test_the_best_play_has_not_and_a_resumed_job_ends_with_the_same_numbers(tmp_path: Path) -> None:
    config = lab(**{"agent.scripted": "ask-then-match", "question.margin": 0.2, "roles.test": ["dune", "grove"]})
    whole = diagnose(config, tmp_path / "run")
    assert whole.exit_code == 0
    assert whole.summary["verdict"]["word"] == "no collapse detected"
    log = tmp_path / "run" / "episodes.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[: len(lines) // 2]))
    again = diagnose(config, tmp_path / "run").summary
    for key in ("verdict", "simulators", "drop", "behaviour"):
        assert again[key] == whole.summary[key]


def test_an_adapter_of_a_run_or_of_a_folder_is_diagnosed_beside_its_start(tmp_path: Path) -> None:
    """Not a trained agent, only weights from a folder: what counts is that they are the ones that speak."""
    config = lab(
        **{
            "agent": {"model": "main", "adapter": "lab:birch", "max_tokens": 16},
            "baseline": {"model": "main", "max_tokens": 16},
            "tasks.count": 8,
            "narrowness.states": 0,
        }
    )
    summary = diagnose(config, tmp_path / "run").summary
    assert summary["agents"]["agent"]["adapter"] == "agent@0"
    assert summary["agents"]["baseline"]["adapter"] is None
    assert summary["verdict"]["contrast"] == "difference in differences"


def test_the_agent_of_a_training_run_is_its_last_complete_step(tmp_path: Path) -> None:
    run = {
        "environment": {"name": "lab"},
        "models": {"main": {"model": "lab", "threads": 1}},
        "agent": {"max_tokens": 16, "lora": {"rank": 4, "alpha": 8.0}},
        "simulators": {"amber": {"adapter": "lab:amber", "max_tokens": 16}, "uniform": {"scripted": "uniform"}},
        "train": {"simulators": ["amber"], "steps": 1, "groups": 1, "group_size": 2},
        "panel": {"simulators": ["uniform"], "tasks": 1, "probes": 1, "probe_samples": 1},
    }
    train(parse_config(run), tmp_path / "trained")
    agent = {"model": "main", "max_tokens": 16}
    few = {"tasks.count": 6, "narrowness.states": 0}
    trained = diagnose(lab(agent=agent | {"adapter": str(tmp_path / "trained")}, **few), tmp_path / "a").summary
    assert trained["agents"]["agent"]["adapter"] == "agent@0"
    bare = diagnose(lab(agent=agent, **few), tmp_path / "b").summary
    assert trained["opened"]["this"]["agent"] != bare["opened"]["this"]["agent"]
    assert [o["named"] for o in bare["opened"]["earlier"]] == [str(tmp_path / "trained")]
    with pytest.raises(UsageError, match="neither an adapter folder nor a run"):
        diagnose(lab(agent=agent | {"adapter": str(tmp_path)}, **few), tmp_path / "c")


def test_checkpoints_are_compared_on_validation_simulators_and_the_best_is_named(tmp_path: Path) -> None:
    config = lab(
        **{
            "agent": {"model": "main", "max_tokens": 16},
            "checkpoints": {"early": "lab:birch", "late": "lab:cedar"},
            "roles.test": ["dune", "uniform"],
            "roles.validation": ["grove"],
            "tasks.count": 8,
            "narrowness.states": 0,
        }
    )
    summary = diagnose(config, tmp_path / "run", validation=True).summary
    chosen = summary["checkpoints"]
    assert set(chosen["each"]) == {"early", "late"}
    held_out = {label: row["drop"]["held_out"] for label, row in chosen["each"].items()}
    assert held_out[chosen["best"]] == max(held_out.values())
    assert [row["best_is_better_by"] is None for label, row in chosen["each"].items()] == [
        label == chosen["best"] for label in chosen["each"]
    ]
    assert f"checkpoint '{chosen['best']}' has the best held-out success of 2" in summary["verdict"]["sentence"]
    assert set(summary["agents"]) == {"early", "late", "do-nothing"}
    assert "Checkpoints to choose among" in (tmp_path / "run" / "report.html").read_text()
