"""The fault bench: a diagnosis against a server of which a fifth of all answers is spoiled, killed in the middle.

`python tests/diagnose/fault_bench.py --tasks 84` is the full size, 504 episodes; the test runs the same. It checks
that every episode is complete or marked with its cause, none is scored wrongly, none is lost or played twice, and
that the ledger says what the server billed, as far as a client can know it:

- an answer that arrived is counted to the token;
- a request whose answer was lost on the way (a reset, a body cut short, a kill) may have been billed or not. No
  client can know. It stands in the ledger as unknown, with the most that it can have cost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import tomli_w
from upstream import REPLY_FAULTS, TRANSPORT_FAULTS, Upstream, improvise, serving

from unfrozen.core.episodelog import EPISODE_LOG, EpisodeLog
from unfrozen.core.episodes import Episode, SpeakerInfo, Turn
from unfrozen.core.seeds import derive_seed
from unfrozen.environments.own import OwnTasks, OwnTasksConfig
from unfrozen.jobs.pairing import place_of
from unfrozen.rollout.conversation import converse
from unfrozen.simulators.protocol import View

FAULTS = (*TRANSPORT_FAULTS, *REPLY_FAULTS)
SHARE = 0.2
MARKER = "[SOLVED]"
TRIALS = 2
CONCURRENCY = 32
SIMULATORS = {"mine": "alpha-user", "other": "beta-user", "third": "gamma-user"}
ENDING = "###STOP###"


def answer(request: dict[str, Any]) -> str:
    """What the server says where it behaves: some words, and for a user in every fourth turn the marker."""
    said = improvise(request)
    return f"{said} {MARKER}" if "user" in request["model"] and zlib.crc32(said.encode()) % 4 == 0 else said


def write_config(folder: Path, url: str, tasks: int) -> Path:
    """A diagnosis in which every speaker is an endpoint."""
    lines = [
        {"id": f"t{i:03d}", "goal": f"You want thing number {i}.", "agent": "You help.", "exchanges": 4}
        | {"success": {"rule": "marker", "marker": MARKER}}
        for i in range(tasks)
    ]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    models = {
        name: {"engine": "endpoint", "model": name, "base_url": url} for name in ("an-agent", *SIMULATORS.values())
    }
    config = {
        "name": "bench",
        "environment": {"name": "tasks", "file": str(folder / "tasks.jsonl")},
        "models": models,
        "agent": {"model": "an-agent"},
        "simulators": {name: {"model": model} for name, model in SIMULATORS.items()},
        "roles": {"train": ["mine"], "test": ["other", "third"]},
        "tasks": {"trials": TRIALS, "do_nothing": 0},
        "narrowness": {"states": 4, "replies": 4},
        "rollout": {"concurrency": CONCURRENCY},
    }
    file = folder / "bench.toml"
    file.write_text(tomli_w.dumps(config))
    return file


@dataclass
class Result:
    """What the bench saw; `wrong` lists everything that should not be, in words."""

    episodes: int = 0
    complete: int = 0
    failed: int = 0
    truncated: int = 0
    before_kill: int = 0
    requests: int = 0
    spoiled: int = 0
    unknown: int = 0
    known_tokens: int = 0
    billed_tokens: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


def run_bench(folder: Path, tasks: int, kill: bool = True, seed: int = 0) -> Result:
    """Run the whole thing in `folder`."""
    began = time.monotonic()
    rates = {name: SHARE / len(FAULTS) for name in FAULTS}
    server = Upstream(answer, faults=rates, seed=seed, slow=0.05, retry_after=0.05, latency=0.005, keep=False)
    result = Result()
    with serving(server):
        config, out = write_config(folder, server.url, tasks), folder / "run"
        command = [sys.executable, "-m", "unfrozen", "diagnose", str(config), "--out", str(out)]
        before = b""
        if kill:
            before = _killed(command, out / EPISODE_LOG, tasks * len(SIMULATORS) * TRIALS // 3)
            result.before_kill = before.count(b"\n")
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode not in (0, 3):
        result.wrong.append(f"exit code {done.returncode}: {done.stderr[-500:]}")
        return result
    if not (out / EPISODE_LOG).read_bytes().startswith(before):
        result.wrong.append("the episodes that had ended before the kill are not there as they were")
    episodes = EpisodeLog(out).episodes
    _count(result, episodes, tasks)
    result.wrong += asyncio.run(_misread(folder, episodes))
    _compare_spend(result, json.loads((out / "summary.json").read_text())["spend"]["total"], server, kill)
    result.seconds = time.monotonic() - began
    return result


def _killed(command: list[str], log: Path, episodes: int) -> bytes:
    """Start the job, end it by SIGKILL once so many episodes have ended; returns the whole lines of its log."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and (not log.exists() or log.read_bytes().count(b"\n") < episodes):
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(0.3)  # what was under way arrives at the server
    data = log.read_bytes()
    return data[: data.rfind(b"\n") + 1]


def _count(result: Result, episodes: list[Episode], tasks: int) -> None:
    wanted = tasks * len(SIMULATORS) * TRIALS
    places = {place_of(e) for e in episodes}
    if len(episodes) != wanted or len(places) != wanted:
        result.wrong.append(f"{len(episodes)} episodes at {len(places)} places, wanted {wanted}")
    result.episodes = len(episodes)
    result.complete = sum(e.outcome is not None for e in episodes)
    result.failed = sum(e.failure is not None and bool(e.failure.detail) for e in episodes)
    result.truncated = sum(any(t.turn.truncated for t in e.turns) for e in episodes)
    if result.complete + result.failed != len(episodes):
        result.wrong.append("an episode is neither complete nor marked with its cause")


@dataclass
class Recorded:
    """Plays recorded turns again, and holds each against what the server says where it behaves."""

    episode: Episode
    role: str
    model: str
    info: SpeakerInfo = field(init=False)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.info = self.episode.agent
        self.records: Iterator[Any] = iter([t for t in self.episode.turns if t.speaker == self.role])

    async def reply(self, view: View, seed: int) -> Turn:
        """The recorded turn. What it says must be what was asked for, cut and marked so, or the ending fault."""
        record = next(self.records)
        messages = [m.to_openai() for m in view.messages]
        if view.start.system:
            messages = [{"role": "system", "content": view.start.system}, *messages]
        seeds = [record.seed, *(derive_seed(record.seed, "silence", i) for i in range(4))]
        right = [answer({"model": self.model, "messages": messages, "seed": s & 0x7FFFFFFF}).strip() for s in seeds]
        said, turn = record.turn.message.content, record.turn
        cut = turn.truncated and any(r.startswith(said) for r in right)
        if not (said in right or cut or said == ENDING):
            self.wrong.append(f"{self.episode.id}: {self.role} said {said!r}, the server {right[0]!r}")
        return Turn(turn.message)


async def _misread(folder: Path, episodes: list[Episode]) -> list[str]:
    """Play every complete episode again through a scene of its own: the same words must give the same score."""
    environment = OwnTasks(OwnTasksConfig(file=str(folder / "tasks.jsonl")))
    wrong = []
    for episode in episodes:
        if episode.outcome is None:
            continue
        agent = Recorded(episode, "agent", "an-agent")
        user = Recorded(episode, "user", SIMULATORS[episode.simulator.label])
        talk = await converse(environment.open(episode.task, 0), {"agent": agent, "user": user}, episode.seed)
        wrong += agent.wrong + user.wrong
        marked = any(MARKER in t.turn.message.content for t in episode.turns if t.speaker == "user")
        if not (talk.outcome.success == episode.outcome.success == marked):
            wrong.append(f"{episode.id}: scored {episode.outcome.success}, and the marker was said: {marked}")
    return wrong


def _compare_spend(result: Result, spend: Mapping[str, Any], server: Upstream, killed: bool) -> None:
    known = spend["prompt_tokens"] + spend["completion_tokens"]
    billed = server.billed["prompt"] + server.billed["completion"]
    lost = server.lost["prompt"] + server.lost["completion"]
    result.requests, result.spoiled = server.count, server.count - server.served["ok"]
    result.unknown, result.known_tokens, result.billed_tokens = spend["unknown_requests"], known, billed
    under_way = spend["unknown_tokens_at_most"]
    # Without a kill every whole answer is known. What a kill caught under way stands as unknown.
    if not (known == billed if not killed else known <= billed <= known + under_way):
        result.wrong.append(f"the ledger knows {known} tokens, the server billed {billed}")
    if lost > under_way:
        result.wrong.append(f"{lost} tokens were lost on the way, the ledger allows for {under_way}")
    # A request is written down before it is sent: a kill can catch it in between.
    if not server.count <= spend["requests"] <= server.count + (CONCURRENCY if killed else 0):
        result.wrong.append(f"the ledger counts {spend['requests']} requests, the server {server.count}")


def main() -> None:
    """Run at the size that is asked for, and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=84, help="84 tasks x 3 simulators x 2 trials = 504 episodes")
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults")
    parser.add_argument("--no-kill", action="store_true", help="let it run through")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = run_bench(Path(folder), arguments.tasks, not arguments.no_kill, arguments.seed)
    for name, value in vars(result).items():
        print(f"{name}: {value}")
    sys.exit(1 if result.wrong else 0)


if __name__ == "__main__":
    main()
