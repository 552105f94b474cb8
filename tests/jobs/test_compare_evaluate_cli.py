"""Comparing, evaluating, and the command line: as their users run them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w
from lab_config import BASE, lab_config

import unfrozen
from unfrozen.config import parse_config, to_toml, with_overrides
from unfrozen.core.errors import ConfigError, UsageError
from unfrozen.jobs.compare import compare, config_differences
from unfrozen.jobs.evaluate import evaluate
from unfrozen.jobs.train import train


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished comparison of three arms with two seeds, side by side in two processes."""
    out = tmp_path_factory.mktemp("compare") / "run"
    arms = ["base", "single", "population"]
    compare(lab_config(**{"compare.arms": arms, "compare.seeds": [0, 1], "compare.workers": 2}), out)
    return out


def test_arms_have_equal_episodes_and_equal_policy_updates_and_say_what_the_simulators_cost(comparison: Path) -> None:
    summary = json.loads((comparison / "summary.json").read_text())
    single, population = summary["arms"]["single"], summary["arms"]["population"]
    for key in ("episodes", "updates", "seeds"):
        assert single[key] == population[key]
    assert (single["simulator_updates"], population["simulator_updates"] > 0) == (0, True)
    assert set(single) >= {"train_success", "heldout_success", "heldout_interval", "policy_entropy"}
    assert [r["seed"] for r in single["seed_results"]] == [0, 1]
    assert [d["key"] for d in summary["differences"]] == ["method"]


def test_cross_play_sets_every_agent_against_every_simulator(comparison: Path) -> None:
    table = json.loads((comparison / "summary.json").read_text())["crossplay"]
    assert table["agents"] == ["base", "single", "population"]
    assert table["simulators"] == ["amber", "dune", "uniform", "population:sim-0", "population:sim-1"]
    assert all(0 <= x <= 1 for row in table["success"] for x in row)


def test_a_comparison_started_again_repeats_nothing(comparison: Path) -> None:
    stamps = {p: p.stat().st_mtime_ns for p in comparison.glob("*/metrics.jsonl")}
    arms = ["base", "single", "population"]
    compare(lab_config(**{"compare.arms": arms, "compare.seeds": [0, 1], "compare.workers": 2}), comparison)
    assert stamps == {p: p.stat().st_mtime_ns for p in comparison.glob("*/metrics.jsonl")}


def test_arms_that_differ_in_more_than_the_method_are_refused_unless_told_so(tmp_path: Path) -> None:
    """In the reference system the arms of one comparison differ in learning rate, length and KL."""
    single = lab_config(name="a", **{"compare.seeds": [0]})
    other = lab_config(name="b", method="persona", **{"compare.seeds": [0], "agent.learner.kl": 0.5})
    with pytest.raises(ConfigError, match=r"differ in more than the method: agent\.learner\.kl"):
        compare([single, other], tmp_path / "run")
    found = config_differences({"single": single, "persona": other})
    assert {d["key"] for d in found} == {"name", "method", "agent.learner.kl"}
    summary = compare([single, other], tmp_path / "run", allow_differences=True).summary
    assert {"key": "agent.learner.kl", "values": {"single": 0.01, "persona": 0.5}} in summary["differences"]


def test_an_evaluation_measures_the_start_and_the_trained_agent_on_the_same_pairs(tmp_path: Path) -> None:
    train(lab_config(), tmp_path / "run", report=False)
    (tmp_path / "run/state/step-old").mkdir()  # not a complete step
    result = evaluate(lab_config(), {"trained": tmp_path / "run"}, tmp_path / "evaluation")
    assert list(result.summary["arms"]) == ["start", "trained"]
    assert result.summary["arms"]["trained"]["panel"]["dune"]["episodes"] == 4
    # The trained agent meets the very users that the run's own last measurement met.
    measured = json.loads((tmp_path / "run/summary.json").read_text())["arms"]["single"]["panel"]
    assert result.summary["arms"]["trained"]["panel"]["uniform"]["success"] == measured["uniform"]["success"]


def test_an_agent_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing-here"):
        evaluate(lab_config(), {"x": tmp_path / "nothing-here"}, tmp_path / "e")


def test_a_resolved_config_is_a_config_again() -> None:
    config = lab_config(method="population")
    import tomllib

    assert parse_config(tomllib.loads(to_toml(config))) == config


def test_the_public_names_are_there_and_importing_them_needs_no_torch() -> None:
    for name in unfrozen.__all__:
        assert getattr(unfrozen, name)
    code = (
        "import sys; import unfrozen; from unfrozen import train, compare, evaluate, load_config; import unfrozen.cli;"
        "assert not {'torch', 'transformers', 'peft'} & set(sys.modules), 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def cli(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "unfrozen", *args], cwd=cwd, capture_output=True, text=True)


def test_the_command_line_trains_prints_and_writes_and_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(tomli_w.dumps(BASE))
    done = cli("train", "run.toml", "--set", "train.steps=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "small: step 1/1" in done.stderr
    assert "held out" in done.stdout
    assert (tmp_path / "runs/small/report.html").exists()
    other = cli("train", "run.toml", "--set", "train.steps=2", cwd=tmp_path)
    assert other.returncode == 2
    assert "another configuration" in other.stderr
    again = cli("report", "runs/small", cwd=tmp_path)
    assert again.returncode == 0
    assert again.stdout.strip() in done.stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("train", "missing.toml"), "missing.toml: no such file"),
        (("train", "broken.toml"), "not valid TOML"),
        (("train", "run.toml", "--set", "agent.learner.kl=-1"), "agent.learner.kl"),
        (("train", "run.toml", "--set", "nonsense"), "key=value"),
        (("train", "run.toml", "--set", "=3"), "key=value"),
        (("train", "run.toml", "--set", "train.=3"), "key=value"),
        (("train", "run.toml", "--set", "seed=1\nmethod='base'"), "more than one key"),
        (("train", "run.toml", "--set", "name=.."), "name"),
        (("compare", "run.toml", "--set", 'compare.arms=["single","single"]'), "compare.arms: each"),
        (("compare", "run.toml", "--set", "compare.seeds=[0,0]"), "compare.seeds: each"),
        (("compare", "run.toml", "--set", "compare.seeds=[]"), "compare.seeds: at least one"),
        (("evaluate", "run.toml", "--agent", "../x=broken.toml"), "agent label '../x'"),
        (("evaluate", "run.toml", "--agent", "start=broken.toml"), "'start' is taken"),
        (("evaluate", "run.toml", "--agent", "a=x", "--agent", "a=y"), "another agent is called 'a'"),
        (("train", "run.toml", "--set", "models.main.threads=100000000000"), "models.main.threads"),
        (("train", "run.toml", "--set", "agent.learner.learning_rate=1e300"), "agent.learner.learning_rate"),
        (("train", "run.toml", "--set", "agent.lora.alpha=1e300"), "agent.lora.alpha"),
        (("train", "run.toml", "--set", "agent.lora.rank=100000000"), "agent.lora.rank"),
        (("imitate", "run.toml"), "`unfrozen config imitate` prints"),
        (("config", "agent.lora.x"), "agent.lora has: no sections"),
        (("report", "no-summary"), "summary.json: cannot be read"),
        (("report", "no-object"), "summary.json: not the summary"),
        (("train", "run.toml", "--set", "environment.name=os:getcwd"), "os:getcwd' returned str, which lacks name"),
        (("train", "run.toml", "--set", "environment.name=own:fails"), "own:fails' cannot be built: ValueError: boom"),
        (("train", "run.toml", "--set", "environment.name=:x"), "':x' cannot be built"),
        (("report", "nowhere"), "no summary.json"),
        (("models", "no-such-model"), "no-such-model"),
        (("config", "no-such-section"), "no-such-section"),
    ],
)
def test_a_mistake_on_the_command_line_gets_one_line_and_exit_code_2(
    args: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    (tmp_path / "run.toml").write_text(tomli_w.dumps(BASE))
    (tmp_path / "broken.toml").write_text("name = ")
    (tmp_path / "own.py").write_text("def fails(**_):\n    raise ValueError('boom \\n \\x1b[31mred')\n")
    for folder, text in (("no-summary", "{bad"), ("no-object", "[1]")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "summary.json").write_text(text)
    done = cli(*args, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_job_says_one_line_and_the_same_command_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "run.toml").write_text(tomli_w.dumps(BASE))
    command = [sys.executable, "-m", "unfrozen", "train", "run.toml", "--set", "train.steps=12"]
    running = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests may themselves run in the background of a shell, where Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert running.stderr is not None
    assert "step 0/12" in running.stderr.readline()
    running.send_signal(number)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert said.splitlines()[-1] == "stopped; run the same command again to resume"
    assert "Traceback" not in said
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 0
    assert "resuming at step" in again.stderr


def test_a_path_is_printed_as_it_is_and_never_read_as_markup(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(tomli_w.dumps(BASE))
    done = cli("train", "run.toml", "--set", "train.steps=0", "--out", "a [/bold] [red]b", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "report: a [/bold] [red]b/report.html" in done.stdout


def test_every_configuration_key_is_documented() -> None:
    from pydantic import BaseModel

    from unfrozen.config import RunConfig
    from unfrozen.configdoc import _section, describe
    from unfrozen.jobs.imitate import ImitateConfig

    def check(model: type[BaseModel], path: str) -> None:
        for name, field in model.model_fields.items():
            assert field.description, f"{path}.{name} has no docstring"
            inner = _section(field.annotation)
            if inner:
                check(inner, f"{path}.{name}")

    check(RunConfig, "config")
    check(ImitateConfig, "imitate")
    assert "  steps : int, default 40" in list(describe(RunConfig))
    assert with_overrides({"a": {"b": 1}}, {"a.c": 2}) == {"a": {"b": 1, "c": 2}}


def test_an_evaluation_without_held_out_success_says_whether_there_was_a_panel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "def good(messages):\n    return 'x'\ndef bad(messages):\n    raise RuntimeError\n"
    (tmp_path / "panel_speakers_of_test.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    task = {"id": "a", "goal": "g", "split": "validation", "success": {"rule": "marker", "marker": "[OK]"}}
    (tmp_path / "t.jsonl").write_text(json.dumps(task))

    def sentence(panel: list[str], out: str) -> str:
        config = parse_config(
            {
                "environment": {"name": "tasks", "file": str(tmp_path / "t.jsonl")},
                "models": {},
                "agent": {"callable": "panel_speakers_of_test:good"},
                "simulators": {name: {"callable": f"panel_speakers_of_test:{name}"} for name in ("good", "bad")},
                "train": {"simulators": ["good"]},
                "panel": {"simulators": panel, "tasks": 1},
            }
        )
        return str(evaluate(config, out=tmp_path / out).summary["verdict"]["sentence"])

    assert sentence([], "empty") == "no held-out success: panel.simulators is empty"
    assert sentence(["bad"], "failed") == "no held-out success: no episode with the panel is complete"
