"""Serving from a config and from a run: what is served, who may ask, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from lab_config import BASE, lab_config
from upstream import Upstream, serving

import unfrozen
from unfrozen.core.errors import ConfigError, RunDirectoryError, UsageError
from unfrozen.core.messages import Message
from unfrozen.environments.lab import language as lang
from unfrozen.environments.lab.wordings import NOTE_PROMPT, USER_SYSTEM
from unfrozen.jobs.serve import load_serve_config, load_simulator, open_simulators, serve
from unfrozen.jobs.train import train
from unfrozen.serving.turnlog import read_turns
from unfrozen.simulators.sessions import Sessions

FIRST = [{"role": "system", "content": "You want a refund."}, {"role": "user", "content": "How can I help?"}]
LAB_FIRST = [{"role": "system", "content": USER_SYSTEM}, {"role": "user", "content": NOTE_PROMPT}]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that trained a population of two, with snapshots."""
    out = tmp_path_factory.mktemp("run") / "population"
    train(lab_config(method="population", **{"train.steps": 3, "compare.arms": ["ensemble", "population"]}), out)
    return out


def write(path: Path, config: Mapping[str, Any]) -> Path:
    path.write_text(tomli_w.dumps(dict(config)))
    return path


def endpoint_config(url: str, **more: Any) -> dict[str, Any]:
    """The least that serves something."""
    models = {"theirs": {"engine": "endpoint", "base_url": url, "model": "some-model"}}
    return {"models": models, "simulators": {"warm": {"model": "theirs"}, "cold": {"model": "theirs"}}, **more}


def served_names(path: Path) -> list[str]:
    config, run = load_serve_config(path)

    async def names() -> list[str]:
        async with open_simulators(config, run) as served:
            return list(served)

    return asyncio.run(names())


def test_a_config_for_serving_needs_models_and_simulators_only(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.toml", endpoint_config("http://127.0.0.1:9/v1", compare={"arms": ["ensemble", "persona"]})
    )
    assert served_names(path) == [
        "unfrozen/single",
        "unfrozen/ensemble",
        "unfrozen/persona",
        "simulator/warm",
        "simulator/cold",
    ]


def test_the_config_of_the_page_about_serving_serves_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
    (config,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    (tmp_path / "simulators.toml").write_text(config)
    assert served_names(tmp_path / "simulators.toml") == ["unfrozen/verbalized", "simulator/customer"]


def test_a_training_config_serves_every_frozen_arm(tmp_path: Path) -> None:
    path = write(tmp_path / "lab.toml", {**BASE, "compare": {"arms": ["base", "single", "verbalized", "population"]}})
    assert served_names(path)[:2] == ["unfrozen/single", "unfrozen/verbalized"]


def test_a_trained_population_is_served_with_its_pool_and_drawn_as_in_training(trained: Path) -> None:
    config, run = load_serve_config(trained)
    state = json.loads((trained / "state" / "step-000003" / "state.json").read_text())["population"]

    async def play() -> tuple[Counter[str | None], list[str]]:
        async with open_simulators(config, run) as served:
            assert set(served) >= {"unfrozen/population", "unfrozen/ensemble", "simulator/dune"}
            sessions = Sessions(served["unfrozen/population"].supply)
            replies = [await sessions.reply(USER_SYSTEM, (Message("user", NOTE_PROMPT),)) for _ in range(120)]
            return Counter(r.session.speaker.info.adapter for r in replies), [r.text for r in replies]

    adapters, notes = asyncio.run(play())
    assert set(adapters) == {*state["living"].values(), *state["snapshots"]}
    readable = [act for act in map(lang.parse_user, notes) if act is not None and act.kind == "note"]
    assert len(readable) > len(notes) / 2


def test_a_run_without_its_snapshots_says_which_is_missing(trained: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(trained, broken)
    shutil.rmtree(broken / "snapshots")
    with pytest.raises(RunDirectoryError, match="snapshots"):
        served_names(broken)
    shutil.rmtree(broken / "state")
    with pytest.raises(RunDirectoryError, match="no complete step"):
        served_names(broken)


def test_a_population_that_nobody_trained_cannot_be_served(tmp_path: Path) -> None:
    path = write(tmp_path / "lab.toml", {**BASE, "method": "population"})
    with pytest.raises(ConfigError, match="serve the folder of that run"):
        served_names(path)


def test_a_trained_population_answers_in_process(trained: Path) -> None:
    with load_simulator(trained) as user:
        replies = [user.reply(LAB_FIRST, session=f"talk-{i}", seed=1) for i in range(20)]
        again = user.reply(LAB_FIRST, session="talk-0", seed=1)
    assert len({r.session.speaker.info.adapter for r in replies}) > 1
    assert again.text == replies[0].text
    with pytest.raises(UsageError, match="there is: unfrozen/population"):
        load_simulator(trained, "unfrozen/none")


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"host": "0.0.0.0"}, "--allow-anonymous"),
        ({"api_key_env": "UNFROZEN_TEST_KEY"}, "UNFROZEN_TEST_KEY is not set"),
        ({"api_key_env": "sk-secret"}, "api_key_env"),
        ({"prot": 1}, "unfrozen config serve"),
        ({"host": "192.0.2.1"}, "--allow-anonymous"),
    ],
)
def test_what_cannot_be_served_safely_is_not_served(section: dict[str, Any], says: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.toml", endpoint_config("http://127.0.0.1:9/v1", serve=section))
    with pytest.raises(UsageError, match=says):
        serve(load_serve_config(path)[0], out=tmp_path / "out")


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        path = write(tmp_path / "a.toml", endpoint_config("http://127.0.0.1:9/v1", serve={"port": port}))
        with pytest.raises(UsageError, match="choose another"):
            serve(load_serve_config(path)[0], out=tmp_path / "out")


def ask(
    url: str, messages: list[dict[str, Any]], key: str = "", model: str = "unfrozen/verbalized", **fields: Any
) -> dict[str, Any]:
    body = json.dumps({"model": model, "messages": messages, **fields}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/chat/completions", body, headers), timeout=30) as answer:
        return dict(json.load(answer))


@contextmanager
def command(path: Path, out: Path, key: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`unfrozen serve` as its users run it, and the address that it prints."""
    arguments = ["serve", str(path), "--port", "0", "--out", str(out), "--set", "serve.api_key_env=HOUSE_KEY"]
    process = subprocess.Popen(
        [sys.executable, "-m", "unfrozen", *arguments],
        env={**os.environ, "HOUSE_KEY": key},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("serving http://127.0.0.1:"), first + process.stdout.read()
        yield process, first.split()[1]
    finally:
        process.kill()
        process.wait()


def test_what_is_in_flight_is_finished_when_the_server_is_told_to_stop(tmp_path: Path) -> None:
    with (
        serving(Upstream(latency=1.0)) as upstream,
        command(
            write(tmp_path / "a.toml", endpoint_config(upstream.url, method="verbalized")),
            tmp_path / "out",
            "sesame-open",
        ) as (process, url),
    ):
        answers: list[dict[str, Any]] = []
        client = threading.Thread(target=lambda: answers.append(ask(url, FIRST, "sesame-open")))
        client.start()
        wait_for_request(upstream)
        process.send_signal(signal.SIGTERM)
        client.join(20)
        assert answers[0]["choices"][0]["message"]["content"]
        assert process.wait(20) == 0
        with pytest.raises(urllib.error.URLError):
            ask(url, FIRST, "sesame-open")
        assert process.stdout is not None
        said = process.stdout.read()
    (log,) = (tmp_path / "out").glob("turns-*.jsonl")
    (turn,) = read_turns(log)
    assert turn.reply is not None
    assert turn.reply.draw is not None
    everything = said + "".join(p.read_text() for p in (tmp_path / "out").iterdir())
    assert "sesame-open" not in everything


def test_a_run_served_by_the_command_answers_with_its_local_model(trained: Path, tmp_path: Path) -> None:
    with command(trained, tmp_path / "out", "k") as (_, url):
        draw = {"draw": True, "session": "talk-1"}
        with ThreadPoolExecutor(8) as pool:
            said = list(pool.map(lambda _: ask(url, LAB_FIRST, "k", "unfrozen/population", unfrozen=draw), range(8)))
    assert len({json.dumps(body["unfrozen"]["simulator"]) for body in said}) == 1
    assert said[0]["unfrozen"]["simulator"]["adapter"].startswith("sim-")
    for body in said:
        usage = body["usage"]
        assert usage["prompt_tokens"] > usage["completion_tokens"] > 0


def test_a_server_killed_in_the_middle_has_every_finished_turn_in_its_log(tmp_path: Path) -> None:
    with serving() as upstream:
        path = write(tmp_path / "a.toml", endpoint_config(upstream.url, method="verbalized"))
        with command(path, tmp_path / "out", "k") as (process, url):
            for _ in range(5):
                ask(url, FIRST, "k")
            process.kill()
            process.wait()
        (log,) = (tmp_path / "out").glob("turns-*.jsonl")
        assert len(list(read_turns(log))) == 5


def wait_for_request(upstream: Upstream) -> None:
    end = time.monotonic() + 20
    while not upstream.requests and time.monotonic() < end:
        time.sleep(0.01)
    assert upstream.requests


def test_the_package_offers_serving_by_name() -> None:
    assert unfrozen.serve is serve
    assert unfrozen.load_simulator is load_simulator
