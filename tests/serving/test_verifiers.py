"""verifiers' own environment `user-sim` with its user at `unfrozen serve`; skipped without verifiers.

It may live in a virtual environment of its own (`pip install verifiers`): name its command in UNFROZEN_VF_EVAL.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command import served
from upstream import Upstream, serving

from unfrozen.serving.turnlog import read_turns

VF_EVAL = os.environ.get("UNFROZEN_VF_EVAL") or shutil.which("vf-eval")
pytestmark = pytest.mark.skipif(VF_EVAL is None, reason="verifiers is not installed; name vf-eval in UNFROZEN_VF_EVAL")


def answer(request: dict[str, Any]) -> str:
    """A clerk that agrees, and a customer that is done after two replies."""
    if request["model"] == "clerk":
        return "Of course."
    done = sum(m["role"] == "assistant" for m in request["messages"]) == 2
    said = "###DONE###" if done else "I would like something else."
    return json.dumps({"replies": [{"text": said, "probability": 1.0}]})


def test_its_user_sim_environment_talks_to_a_served_user(tmp_path: Path) -> None:
    models = {"customer": {"engine": "endpoint", "model": "customer"}}
    with serving(Upstream(answer)) as upstream:
        models["customer"]["base_url"] = upstream.url
        config = {"method": "verbalized", "models": models, "simulators": {"ann": {"model": "customer"}}}
        with served(config, tmp_path) as url:
            command = [str(VF_EVAL), "lamp_shop", "--env.id", "user-sim", "-m", "clerk"]
            command += ["--client.base-url", upstream.url, "--client.api-key-var", "HOUSE_KEY"]
            command += ["--env.user.model", "unfrozen/verbalized", "--env.user.client.type", "eval"]
            command += ["--env.user.client.base-url", url, "--env.user.client.api-key-var", "HOUSE_KEY"]
            command += ["--env.assistant.harness.id", "null", "--no-push", "-o", str(tmp_path / "out")]
            for who in ("user", "assistant"):
                command += [f"--env.{who}.runtime.type", "subprocess"]
            variables = {**os.environ, "HOUSE_KEY": "none", "PYTHONPATH": str(Path(__file__).parent)}
            done = subprocess.run(command, capture_output=True, text=True, timeout=170, env=variables)
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "talked 1.00" in done.stdout
    (log,) = (tmp_path / "served").glob("turns-*.jsonl")
    turns = list(read_turns(log))
    assert [t.turn for t in sorted(turns, key=lambda t: (t.session or "", t.turn))] == [1, 2, 3, 1, 2, 3]
    assert len({t.session for t in turns}) == 2
