"""Builds `summary.json` (documented in docs/summary.md) from finished runs.

An *arm* is one method with all its seeds. Success is pooled over seeds and members, and intervals resample
tasks with all their trials, members and seeds; what single seeds gave stands beside it.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import unfrozen
from unfrozen.config import RunConfig, load_config
from unfrozen.core.episodes import Episode
from unfrozen.core.errors import UsageError
from unfrozen.core.records import read_episodes
from unfrozen.core.rundir import RunDirectory, read_metrics
from unfrozen.jobs.assembly import environment_of
from unfrozen.jobs.recording import mean_metrics
from unfrozen.measures.collapse import Measurement, Verdict, alarm, verdict
from unfrozen.measures.distributions import compare_donations
from unfrozen.measures.intervals import Estimate
from unfrozen.measures.panel import PanelResult, panel_result


@dataclass(frozen=True, slots=True)
class RunData:
    """One finished run, read from its folder."""

    path: Path
    config: RunConfig
    rows: tuple[Mapping[str, Any], ...]
    measured: Mapping[int, Measurement]
    """Measurements by step."""

    @property
    def last(self) -> Measurement:
        """The last measurement."""
        return self.measured[max(self.measured)]

    @property
    def first(self) -> Measurement:
        """The measurement before training."""
        return self.measured[min(self.measured)]

    @property
    def last_episodes(self) -> tuple[Episode, ...]:
        """All episodes of the last measurement."""
        return (*self.last.own.episodes, *self.last.held_out.episodes)


def read_run(path: Path) -> RunData:
    """Read a run folder. Raises UsageError where it is not one, or has no measurement yet."""
    if not (path / "config.toml").exists():
        raise UsageError(f"{path} is not a run folder: it has no config.toml")
    rows = tuple(read_metrics(path))
    measured = {row["step"]: measurement_at(path, row) for row in rows if row["measure"] is not None}
    if not measured:
        raise UsageError(f"{path} has no measurement yet; let the run finish its first one")
    return RunData(path, load_config(path / "config.toml"), rows, measured)


def measurement_at(path: Path, row: Mapping[str, Any]) -> Measurement:
    """The measurement of one metrics row, with its episodes read back."""
    measure = row["measure"]
    low, high = measure["entropy_interval"]
    own, held_out = (
        panel_result(list(read_episodes(path / "episodes" / f"{phase}-{row['step']:06d}.jsonl.zst")))
        for phase in ("own", "panel")
    )
    return Measurement(row["step"], own, held_out, Estimate(measure["policy_entropy"], low, high, 0, 0))


def manifest() -> dict[str, Any]:
    """Versions and hardware of this process, for a run's manifest.json."""
    return {
        "unfrozen": unfrozen.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "hardware": hardware(),
        "created": now(),
    }


def hardware() -> str:
    """One line: processor and cores."""
    # Which cores this process may use is known on Linux only.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.machine()}, {cores} CPU cores"


def now() -> str:
    """The present time, ISO 8601, UTC, to the second."""
    return datetime.now(UTC).replace(microsecond=0).isoformat()


def train_summary(config: RunConfig, run: RunDirectory) -> dict[str, Any]:
    """Summary of one training run."""
    data = read_run(run.path)
    arm = arm_summary([data])
    return run_head("train", config, [data]) | {
        "verdict": arm["verdict"],
        "arms": {config.method: arm},
        "crossplay": None,
        "differences": [],
        "order": None,
        "donations": donations(config, data.last_episodes),
    }


def donations(config: RunConfig, episodes: Sequence[Episode]) -> dict[str, Any] | None:
    """Simulated users' donations beside what people gave; None where the environment knows of no people."""
    human = environment_of(config).human_outcomes().get("donation")
    given = [e.outcome.metrics["donation"] for e in episodes if e.outcome and "donation" in e.outcome.metrics]
    return compare_donations(given, human).summary() if human and given else None


def run_head(job: str, config: RunConfig, runs: Sequence[RunData]) -> dict[str, Any]:
    """The fields that every summary starts with, for a job that trained."""
    first = runs[0].last.own.episodes or runs[0].last.held_out.episodes
    return summary_head(job, config, first, sum(row["seconds"] for run in runs for row in run.rows))


def summary_head(
    job: str, config: RunConfig, episodes: Sequence[Episode], seconds: float | None = None
) -> dict[str, Any]:
    """The fields that every summary starts with."""
    return {
        "job": job,
        "name": config.name,
        "created": now(),
        "unfrozen": unfrozen.__version__,
        "environment": episodes[0].environment if episodes else config.environment.name,
        "hardware": hardware(),
        "wall_seconds": seconds,
    }


def evaluation_arm(label: str, config: RunConfig, own: PanelResult, held_out: PanelResult) -> dict[str, Any]:
    """One agent of an evaluation: no training, so no curve and no costs."""
    episodes = (*own.episodes, *held_out.episodes)
    return {
        "method": label,
        **_success("train", own.success()),
        **_success("heldout", held_out.success()),
        "policy_entropy": None,
        "episodes": len(episodes),
        "updates": 0,
        "seeds": [config.seed],
        "failure_share": _mean([float(e.failure is not None) for e in episodes]),
        "metrics": mean_metrics([e.outcome.metrics for e in held_out.episodes if e.outcome is not None]),
        "panel": _members(held_out),
        "own": _members(own),
        "curve": [],
        "seed_results": [],
        "alarms": [],
        "verdict": {"collapsed": None, "sentence": "measured once; collapse needs a run's start and end"},
    }


def arm_summary(runs: Sequence[RunData]) -> dict[str, Any]:
    """One arm: the same method with each seed."""
    method = runs[0].config.method
    own = _pooled([r.last.own for r in runs])
    held_out = _pooled([r.last.held_out for r in runs])
    ends = [r.rows[-1]["measure"] for r in runs]
    train_rows = [row["train"] for r in runs for row in r.rows if row["train"] is not None]
    learners = [(name, m) for r in runs for row in r.rows for name, m in row["learners"].items()]
    last_train = [r.rows[-1]["train"] for r in runs if r.rows[-1]["train"] is not None]
    return {
        "method": method,
        **_success("train", own.success()),
        **_success("heldout", held_out.success()),
        "policy_entropy": _mean([m["policy_entropy"] for m in ends]),
        "reply_entropy": _mean([m["reply_entropy"] for m in ends]),
        "distinct_n": _mean([m["distinct_n"] for m in ends]),
        "episodes": sum(row["episodes"] for row in train_rows),
        "updates": sum(m.get("gradient_norm") is not None for name, m in learners if name == "agent"),
        "seeds": [r.config.seed for r in runs],
        "simulator_updates": sum(m.get("gradient_norm") is not None for name, m in learners if name != "agent"),
        "zero_variance_share": _zero_variance([m for name, m in learners if name == "agent"]),
        "failure_share": _mean([row["failure_share"] for row in train_rows]),
        "truncated_share": _mean([row["truncated_share"] for row in train_rows if "truncated_share" in row]),
        "sampled_tokens": sum(row["sampled_tokens"] for row in train_rows),
        "trained_tokens": int(sum(m["tokens"] for _, m in learners)),
        "wall_seconds": sum(row["seconds"] for r in runs for row in r.rows),
        "train_seconds": sum(row["seconds_train"] for r in runs for row in r.rows),
        "mean_reward": _mean([row["reward"] for row in last_train if "reward" in row]),
        "metrics": mean_metrics([e.outcome.metrics for e in held_out.episodes if e.outcome is not None]),
        "panel": _members(held_out),
        "own": _members(own),
        "curve": [_curve_point(runs, step) for step in sorted({row["step"] for r in runs for row in r.rows})],
        "seed_results": [
            {
                "seed": r.config.seed,
                "train_success": _value(r.last.own.success()),
                "heldout_success": _value(r.last.held_out.success()),
            }
            for r in runs
        ],
        "alarms": [
            {"seed": r.config.seed, "step": step, "sentence": sentence}
            for r in runs
            for step, measured in r.measured.items()
            if (sentence := alarm(r.first, measured)) is not None
        ],
        "verdict": _verdict(verdict([(r.first, r.last) for r in runs])),
    }


def transcripts(arm: str, runs: Sequence[RunData], steps: int = 4) -> Iterator[dict[str, Any]]:
    """Episodes for the report: training at `steps` steps from first to last, and the last measurement."""
    for run in runs:
        files = sorted((run.path / "episodes").glob("train-*.jsonl.zst"))
        chosen = sorted({round(i * (len(files) - 1) / max(steps - 1, 1)) for i in range(steps)}) if files else []
        for index in chosen:
            for episode in read_episodes(files[index]):
                yield transcript(episode, arm, "train")
        for episode in run.last.held_out.episodes:
            yield transcript(episode, arm, "panel")


def transcript(episode: Episode, arm: str, phase: str) -> dict[str, Any]:
    """One episode as the report shows it: no tokens, one flat dict a turn."""
    return {
        "arm": arm,
        "phase": phase,
        "id": episode.id,
        "environment": episode.environment,
        "task": {"id": episode.task.id, "split": episode.task.split},
        "step": episode.step,
        "group": episode.group,
        "sample": episode.sample,
        "seed": episode.seed,
        "agent": _info(episode.agent),
        "simulator": _info(episode.simulator),
        "turns": [
            {
                "speaker": t.speaker,
                "text": t.turn.message.content,
                "heard": t.heard,
                "private": t.private,
                "truncated": t.turn.truncated,
                "reasoning": t.turn.reasoning,
                "draw": None
                if t.turn.draw is None
                else {
                    "candidates": [{"text": str(c), "probability": c.probability} for c in t.turn.draw.candidates],
                    "index": t.turn.draw.index,
                    "fallback": t.turn.draw.fallback,
                    "raw": list(t.turn.draw.raw),
                },
                "option_probabilities": t.turn.option_probabilities,
            }
            for t in episode.turns
        ],
        "outcome": None
        if episode.outcome is None
        else {
            "state": episode.outcome.state,
            "reward": episode.outcome.reward,
            "success": episode.outcome.success,
            "truncated": episode.outcome.truncated,
            "metrics": dict(episode.outcome.metrics),
            "note": episode.outcome.note,
        },
        "failure": None
        if episode.failure is None
        else {
            "cause": episode.failure.cause,
            "detail": episode.failure.detail,
            "attempts": episode.failure.attempts,
        },
    }


def _info(info: Any) -> dict[str, Any]:
    return {name: getattr(info, name) for name in ("label", "family", "kind", "adapter", "persona")}


def _curve_point(runs: Sequence[RunData], step: int) -> dict[str, Any]:
    rows = [row for r in runs for row in r.rows if row["step"] == step]
    measured = [r.measured[step] for r in runs if step in r.measured]
    measures = [row["measure"] for row in rows if row["measure"] is not None]
    names = dict.fromkeys(name for row in rows for name in row["learners"] if name != "agent")
    return {
        "step": step,
        **_success("train", _pooled([m.own for m in measured]).success()),
        **_success("heldout", _pooled([m.held_out for m in measured]).success()),
        "policy_entropy": _mean([m["policy_entropy"] for m in measures]),
        "distinct_n": _mean([m["distinct_n"] for m in measures]),
        "reward": _mean([row["train"]["reward"] for row in rows if row["train"] and "reward" in row["train"]]),
        "kl_agent": _mean([row["learners"]["agent"]["kl"] for row in rows if "kl" in row["learners"].get("agent", {})]),
        "simulators": {name: _simulator_point(rows, name) for name in names},
    }


def _simulator_point(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    learned = [row["learners"][name] for row in rows if name in row["learners"]]
    played = [
        row["simulators"][name]["metrics"] for row in rows if "metrics" in row.get("simulators", {}).get(name, {})
    ]
    point = {
        "reward": _mean([m["reward"] for m in learned if "reward" in m]),
        "kl": _mean([m["kl"] for m in learned if "kl" in m]),
    }
    return point | mean_metrics(played)


def _pooled(results: Sequence[PanelResult]) -> PanelResult:
    return PanelResult(tuple(e for r in results for e in r.episodes), tuple(c for r in results for c in r.cells))


def _members(result: PanelResult) -> dict[str, Any]:
    members = {}
    for label in result.members():
        success = result.success([label])
        cells = [c for c in result.cells if c.member == label]
        family = next(e.simulator.family for e in result.episodes if e.simulator.label == label)
        members[label] = {
            "family": family,
            "success": _value(success),
            "interval": success.interval if success else None,
            "episodes": len(cells),
            "reward": _mean([c.reward for c in cells]),
        }
    return members


def _success(prefix: str, estimate: Estimate | None) -> dict[str, Any]:
    return {
        f"{prefix}_success": _value(estimate),
        f"{prefix}_interval": estimate.interval if estimate else None,
    }


def _verdict(v: Verdict) -> dict[str, Any]:
    lost = {"mean": v.lost.mean, "interval": v.lost.interval} if v.lost else None
    return {"collapsed": v.collapsed, "sentence": v.sentence, "lost": lost}


def _zero_variance(metrics: Sequence[Mapping[str, float]]) -> float | None:
    groups = sum(m.get("groups", 0.0) for m in metrics)
    return sum(m.get("zero_variance_groups", 0.0) for m in metrics) / groups if groups else None


def _value(estimate: Estimate | None) -> float | None:
    return estimate.mean if estimate else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
