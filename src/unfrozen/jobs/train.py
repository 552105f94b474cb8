"""Train an agent against simulated users, and watch on held-out users whether it collapses.

One training step, top to bottom: draw tasks -> draw simulators -> roll out -> score -> advantages -> update
each adapter -> snapshot -> measure -> record.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unfrozen.config import RunConfig, to_toml
from unfrozen.core.episodes import Episode
from unfrozen.core.errors import ResumableError
from unfrozen.core.files import write_json
from unfrozen.core.rundir import RunDirectory
from unfrozen.core.seeds import derive_seed, generator
from unfrozen.jobs import assembly
from unfrozen.jobs.progress import Silent, Watcher
from unfrozen.jobs.recording import by_simulator, episode_row, measure_row
from unfrozen.jobs.spending import discard_journal, spent
from unfrozen.jobs.state import restore_team, save_team
from unfrozen.jobs.summary import manifest, measurement_at, read_run, train_summary, transcripts
from unfrozen.learning.step import Team, learn, record_hardness, take_snapshots
from unfrozen.measures.collapse import Measurement, alarm
from unfrozen.measures.diversity import Diversity, measure_diversity
from unfrozen.measures.panel import measure_panel
from unfrozen.report import write_report
from unfrozen.rollout.rollout import Assignment, RolloutSettings, rollout
from unfrozen.simulators.supply import Place, Supply


@dataclass(frozen=True, slots=True)
class JobResult:
    """Where a job wrote, and its summary (see docs/summary.md)."""

    path: Path
    summary: dict[str, Any]


def train(config: RunConfig, out: Path | None = None, watch: Watcher | None = None, report: bool = True) -> JobResult:
    """Run (or resume) the training that `config` describes in folder `out` (default runs/NAME).

    Raises UsageError and its children: a bad config, a model that is not there, a folder in use, a full disk,
    too many failed episodes. What was complete is kept, and the same call resumes from it.
    """
    assembly.refuse_untrainable(config)
    path = out or Path("runs") / config.name
    with RunDirectory(path, to_toml(config), manifest()) as run:
        asyncio.run(_train(config, run, watch or Silent()))
        summary = train_summary(config, run) | {"spend": spent(config.spend, path)}
        write_json(path / "summary.json", summary)
        discard_journal(path)
        if report:
            write_report(summary, transcripts(config.method, [read_run(path)]), path / "report.html")
    return JobResult(path, summary)


async def _train(config: RunConfig, run: RunDirectory, watch: Watcher) -> None:
    done = run.last_step()
    steps = total_steps(config)
    if done == steps:
        run.rows_until(done)
        return
    cast = assembly.assemble(config, run.path)
    team = await assembly.build_team(cast)
    run.rewind(done)
    if done is not None:
        await restore_team(team, run, done)
    supply = await assembly.build_supply(cast, team.population)
    start = None if done is None else _measured_at_start(run)
    first = 0 if done is None else done + 1
    watch.begin(config.name, steps, first)
    try:
        for step in range(first, steps + 1):
            began = time.monotonic()
            row: dict[str, Any] = {"step": step, "train": None, "learners": {}, "measure": None, "alarm": None}
            if step > 0:
                episodes = await play(cast, team, supply, step, watch)
                _refuse_failures(config, episodes, step)
                row["train"], row["simulators"] = episode_row(episodes), by_simulator(episodes)
                row["seconds_rollout"] = time.monotonic() - began
                row["learners"] = await learn(team, episodes, step - 1)
                row["snapshots"] = await update_pool(team, episodes, step, run.path / "snapshots")
                run.write_episodes("train", step, episodes)
            row["seconds_train"] = time.monotonic() - began
            if step % config.panel.every == 0 or step == steps:
                measured, diversity = await measure(cast, team, step, watch)
                start = start or measured
                row["measure"], row["alarm"] = measure_row(measured, diversity), alarm(start, measured)
                run.write_episodes("own", step, measured.own.episodes)
                run.write_episodes("panel", step, measured.held_out.episodes)
            row["seconds"] = time.monotonic() - began
            await record(run, team, row, watch)
    finally:
        watch.end()
        await cast.aclose()


async def play(cast: assembly.Cast, team: Team, supply: Supply, step: int, watch: Watcher) -> list[Episode]:
    """Draw tasks and simulators for one step, and roll out."""
    config = cast.config
    await cast.flush()
    tasks = cast.environment.tasks("train")
    drawn = generator(config.seed, "tasks", step).choice(
        len(tasks), size=config.train.groups, replace=config.train.groups > len(tasks)
    )
    agent = assembly.agent_speaker(cast, team)
    assignments = [
        Assignment(
            tasks[int(row)],
            agent,
            supply.draw(Place(config.seed, step, group, sample)),
            derive_seed(config.seed, "episode", step, tasks[int(row)].id, group, sample),
            step,
            group,
            sample,
        )
        for group, row in enumerate(drawn)
        for sample in range(config.train.group_size)
    ]
    return await rollout(cast.environment, assignments, rollout_settings(config), watch.episode)


async def update_pool(team: Team, episodes: Sequence[Episode], step: int, folder: Path) -> list[str]:
    """Bring the population up to date after a step; return the snapshots that were added."""
    if team.population is None:
        return []
    record_hardness(team.population, episodes)
    return [str(ref) for ref in await take_snapshots(team, step, folder)]


async def measure(cast: assembly.Cast, team: Team, step: int, watch: Watcher) -> tuple[Measurement, Diversity]:
    """Measure the agent on its own simulators and on the held-out panel, paired by task and seed."""
    config = cast.config
    await cast.flush()
    agent = assembly.agent_speaker(cast, team)
    panel = config.panel
    count = panel.final_tasks if panel.final_tasks and step == total_steps(config) else panel.tasks
    tasks = cast.environment.tasks(panel.split)[:count]
    # The seed does not depend on the step: every measurement of a run meets the same users.
    seed = derive_seed(config.seed, "measure")
    settings = rollout_settings(config)
    own, held_out = [
        await measure_panel(cast.environment, agent, members, tasks, panel.trials, seed, settings, step, watch.episode)
        for members in (await assembly.own_simulators(cast, team), await assembly.panel_simulators(cast))
    ]
    diversity = await measure_diversity(agent, cast.environment.probes(panel.probes), panel.probe_samples, seed)
    return Measurement(step, own, held_out, diversity.entropy), diversity


async def record(run: RunDirectory, team: Team, row: dict[str, Any], watch: Watcher) -> None:
    """Write the step's metrics and the state to go on from; only then does the step count."""
    engine = team.agent.engine.throughput()
    row["speed"] = {"tokens_per_second": engine["sampled_tokens"] / max(engine["seconds"], 1e-9)}
    row["gap_alarms"] = gap_alarms(team, row["learners"])
    run.append_metrics(row)
    draft = run.begin_state(row["step"])
    run.commit_state(row["step"], await save_team(team, draft, row))
    watch.step(row)
    for sentence in (row["alarm"], *row["gap_alarms"]):
        if sentence:
            watch.note(sentence)


def gap_alarms(team: Team, learned: Mapping[str, Mapping[str, float]]) -> list[str]:
    """One sentence for every adapter whose sampler and trainer differ by more than its `gap_alarm`."""
    return [
        f"{name}: sampler and trainer differ by {metrics['gap']:.3g} nats per token, more than gap_alarm = "
        f"{team.learners()[name].settings.gap_alarm:g}: its updates are biased"
        for name, metrics in learned.items()
        if metrics.get("gap", 0.0) > team.learners()[name].settings.gap_alarm
    ]


def total_steps(config: RunConfig) -> int:
    """Training steps of a run: `base` is the untrained policy and is only measured."""
    return 0 if config.method == "base" else config.train.steps


def rollout_settings(config: RunConfig) -> RolloutSettings:
    """As the rollout wants it."""
    return RolloutSettings(config.rollout.concurrency, config.rollout.attempts, config.rollout.timeout)


def _refuse_failures(config: RunConfig, episodes: Sequence[Episode], step: int) -> None:
    failed = [e.failure for e in episodes if e.failure is not None]
    if len(failed) > config.rollout.max_failures * len(episodes):
        causes = "; ".join(dict.fromkeys(f"{f.cause}: {f.detail}" for f in failed[:3]))
        raise ResumableError(
            f"step {step}: {len(failed)} of {len(episodes)} episodes failed, more than rollout.max_failures = "
            f"{config.rollout.max_failures:g} allows ({causes})"
        )


def _measured_at_start(run: RunDirectory) -> Measurement | None:
    """The measurement of step 0, read back, for the alarm of a resumed run."""
    rows = run.metrics()
    return measurement_at(run.path, rows[0]) if rows and rows[0]["measure"] is not None else None
