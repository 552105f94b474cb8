"""Every example of docs/library.md, run as it stands against a loopback model; skipped where its framework is not.

A framework may live in a Python of its own: name it in UNFROZEN_TRL_PYTHON, UNFROZEN_VERIFIERS_PYTHON or
UNFROZEN_TAU2_PYTHON (with `unfrozen` installed there).
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from upstream import Upstream, serving

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "library"


def python_with(module: str, variable: str) -> str:
    """A Python that has a framework, or the test is skipped."""
    if os.environ.get(variable):
        return os.environ[variable]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed; name a Python that has it in {variable}")
    return sys.executable


def run(python: str, example: str, *arguments: str, timeout: float = 170, **variables: str) -> str:
    environment = {**os.environ, "HOUSE_KEY": "none", "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        [python, str(EXAMPLES / example), *arguments], capture_output=True, text=True, timeout=timeout, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_loop_of_ones_own() -> None:
    with serving() as upstream:
        said = run(sys.executable, "plain.py", "a", "b", "--base-url", upstream.url)
    assert said.count("agent ") == 3
    assert len(re.findall(r"first turn of user \d: \w+", said)) == 4


@pytest.mark.timeout(600)
def test_trl_trains_on_whole_conversations(tmp_path: Path) -> None:
    python = python_with("trl", "UNFROZEN_TRL_PYTHON")
    sys.path.insert(0, str(ROOT / "tests" / "jobs"))
    try:
        from tiny_model import write_tiny_model
    finally:
        sys.path.remove(str(ROOT / "tests" / "jobs"))
    policy = write_tiny_model(tmp_path / "tiny")
    with serving() as upstream:
        options = ("--user", "a", "b", "--base-url", upstream.url, "--steps", "2", "--out", str(tmp_path / "run"))
        said = run(python, "trl_rollout.py", policy, *options, timeout=580)
        asked = [r for r in upstream.requests if "different replies" in r["messages"][-1]["content"]]
    norms = [float(norm) for norm in re.findall(r"step \d: reward .* norm (\S+)", said)]
    assert len(norms) == 2
    assert max(norms) > 0, "the policy learned from the conversations"
    assert {request["model"] for request in asked} == {"a", "b"}


def test_verifiers_scores_an_agent_that_talks_to_a_simulated_user() -> None:
    python = python_with("verifiers", "UNFROZEN_VERIFIERS_PYTHON")
    with serving() as upstream:
        key = ("--base-url", upstream.url, "--api-key-env", "HOUSE_KEY")
        said = run(python, "verifiers_user.py", "--agent", "clerk", "--user", "customer", *key)
        models = [request["model"] for request in upstream.requests]
    assert said.count("3 turns of the agent, errors: []") == 2
    assert (models.count("clerk"), models.count("customer")) == (6, 6)


def test_tau2_plays_its_tasks_with_a_user_from_its_registry(tmp_path: Path) -> None:
    python = python_with("tau2", "UNFROZEN_TAU2_PYTHON")
    sys.path.insert(0, str(ROOT / "tests" / "serving"))
    try:
        import airline
    finally:
        sys.path.remove(str(ROOT / "tests" / "serving"))
    with serving(Upstream(airline.answer)) as upstream:
        clerk = json.dumps({"api_base": upstream.url, "api_key": "none"})
        customer = json.dumps({"base_url": upstream.url, "verbalized": True})
        models = ("--agent-llm", f"openai/{airline.CLERK}", "--user", "unfrozen", "--user-llm", airline.CUSTOMER)
        arguments = ("--agent-llm-args", clerk, "--user-llm-args", customer, "--num-tasks", "2", "--save-to", "r")
        place = ("--results-dir", str(tmp_path))
        run(
            python,
            "tau2_user.py",
            "run",
            "--domain",
            "airline",
            *models,
            *arguments,
            *place,
            LITELLM_LOCAL_MODEL_COST_MAP="1",
        )
    talks = json.loads((tmp_path / "r.json").read_text())["simulations"]
    assert [talk["termination_reason"] for talk in talks] == ["user_stop"] * 2
    users = [m for talk in talks for m in talk["messages"] if m["role"] == "user"]
    assert all(m["raw_data"]["candidates"][m["raw_data"]["index"]] == m["content"] for m in users)
