"""Measure agents against a panel: any start, or the end of a training run; paired by task and seed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from unfrozen.config import NAME_PATTERN, RunConfig, SpeakerSettings, to_toml
from unfrozen.core.episodes import Episode, SpeakerInfo
from unfrozen.core.errors import ConfigError, UsageError
from unfrozen.core.files import write_json
from unfrozen.core.records import write_episodes
from unfrozen.core.rundir import RunDirectory
from unfrozen.core.seeds import derive_seed
from unfrozen.core.traces import AdapterRef
from unfrozen.environments.registry import adapter_folder
from unfrozen.jobs import assembly
from unfrozen.jobs.progress import Silent, Watcher
from unfrozen.jobs.spending import discard_journal, spent
from unfrozen.jobs.summary import donations, evaluation_arm, manifest, summary_head, transcript
from unfrozen.jobs.train import JobResult, rollout_settings
from unfrozen.measures.panel import PanelResult, measure_panel
from unfrozen.report import write_report
from unfrozen.simulators.model import ModelSpeaker
from unfrozen.simulators.protocol import Speaker

START = "start"
"""Label of the agent that the config itself describes, untrained."""


def evaluate(
    config: RunConfig,
    agents: Mapping[str, Path] | None = None,
    out: Path | None = None,
    watch: Watcher | None = None,
) -> JobResult:
    """Play every agent against the config's panel and against its training simulators.

    `agents` maps a label to a finished run's folder (or an adapter folder); the agent that the config starts
    from is always measured beside them, as "start". Writes episodes, summary.json and report.html to `out`
    (default runs/NAME-evaluation). Raises UsageError where an agent is not there, the panel mixes roles, or all
    episodes of an agent fail.
    """
    for label in agents or {}:
        _refuse_label(label)
    path = out or Path("runs") / f"{config.name}-evaluation"
    with RunDirectory(path, to_toml(config), manifest()) as run:
        results = asyncio.run(_evaluate(config, agents or {}, path, watch or Silent()))
        arms = {label: evaluation_arm(label, config, *pair) for label, pair in results.items()}
        episodes = [(label, e) for label, pair in results.items() for r in pair for e in r.episodes]
        for label in results:
            write_episodes(run.path / "episodes" / f"{label}.jsonl.zst", [e for name, e in episodes if name == label])
            _refuse_silence(label, [e for name, e in episodes if name == label])
        summary: dict[str, Any] = summary_head("evaluate", config, [e for _, e in episodes]) | {
            "verdict": {"collapsed": None, "sentence": _sentence(arms, config)},
            "arms": arms,
            "crossplay": None,
            "differences": [],
            "order": None,
            "donations": donations(config, [e for _, e in episodes]),
            "spend": spent(config.spend, path),
        }
        write_json(path / "summary.json", summary)
        discard_journal(path)
        write_report(summary, (transcript(e, label, "panel") for label, e in episodes), path / "report.html")
    return JobResult(path, summary)


async def _evaluate(
    config: RunConfig, agents: Mapping[str, Path], path: Path, watch: Watcher
) -> dict[str, tuple[PanelResult, PanelResult]]:
    """label -> (own, held out)."""
    async with aclosing(assembly.assemble(config, path)) as cast:
        own = {name: await cast.simulator(name) for name in config.training_simulators()}
        held_out = await assembly.panel_simulators(cast)
        results = {}
        for label, folder in {START: None, **agents}.items():
            agent = await load_agent(cast, label, folder)
            results[label] = (
                await play_panel(cast, agent, own, watch),
                await play_panel(cast, agent, held_out, watch),
            )
    return results


async def load_agent(cast: assembly.Cast, label: str, folder: Path | None) -> Speaker:
    """The agent at the end of a run, or of an adapter folder, or (None) as the config starts it.

    Raises ConfigError where weights are given for an endpoint, which has its own.
    """
    settings = cast.config.agent
    if not settings.has_model:
        if folder is not None:
            raise ConfigError(f"agent: no model plays it, and {folder} holds weights; name a model in agent.model")
        return await cast.speaker(label, settings, "agent")
    if cast.config.on_endpoint(settings):
        if folder is not None:
            raise ConfigError(
                f"agent.model: models.{settings.model} is an endpoint, and {folder} holds weights for a local model; "
                "evaluate it with the config that it was trained with"
            )
        return cast.endpoint_speaker(settings, label, settings.family or cast.model_family(settings.model))
    if folder is None and settings.adapter is None:
        engine = cast.engine(settings.model)
        return assembly.seat(engine, settings, SpeakerInfo(label, engine.family, "frozen"), None)
    weights = adapter_folder(settings.adapter or "") if folder is None else final_adapter(folder, assembly.AGENT)
    return await load_speaker(cast, label, weights, settings, SpeakerInfo(label, "", "frozen"))


async def load_speaker(
    cast: assembly.Cast, label: str, weights: Path, settings: SpeakerSettings, info: SpeakerInfo
) -> ModelSpeaker:
    """A frozen speaker with the adapter in folder `weights`."""
    engine = cast.engine(settings.model)
    ref = AdapterRef(f"loaded:{label}", 0)
    await engine.load_version(ref, weights)
    return assembly.seat(engine, settings, replace(info, family=info.family or engine.family), ref)


def final_adapter(folder: Path, name: str) -> Path:
    """Folder of adapter `name` at the last complete step of a run, or `folder` itself if it is an adapter."""
    if (folder / "adapter_config.json").is_file():
        return folder
    steps = sorted(p for p in (folder / "state").glob("step-*") if (p / "state.json").is_file())
    if not steps or not (steps[-1] / name).is_dir():
        raise UsageError(f"{folder}: neither an adapter folder nor a run with a complete step for {name!r}")
    return steps[-1] / name


async def play_panel(
    cast: assembly.Cast, agent: Speaker, members: Mapping[str, Speaker], watch: Watcher
) -> PanelResult:
    """One agent against the given members on the panel's tasks."""
    panel = cast.config.panel
    await cast.flush()
    tasks: Sequence[Any] = cast.environment.tasks(panel.split)[: panel.final_tasks or panel.tasks]
    seed = derive_seed(cast.config.seed, "measure")
    return await measure_panel(
        cast.environment, agent, members, tasks, panel.trials, seed, rollout_settings(cast.config), 0, watch.episode
    )


def _refuse_label(label: str) -> None:
    """Raise UsageError for a label that cannot name a file, or that would hide the start."""
    if not re.fullmatch(NAME_PATTERN, label):
        raise UsageError(f"agent label {label!r}: use letters, digits, '.', '_' and '-' (--agent LABEL=FOLDER)")
    if label == START:
        raise UsageError(f"agent label {label!r} is taken by the agent that the config starts from; choose another")


def _refuse_silence(label: str, episodes: Sequence[Episode]) -> None:
    """Raise UsageError where every episode of an agent failed: nothing was measured, and a table would hide why."""
    failures = [e.failure for e in episodes if e.failure is not None]
    if failures and len(failures) == len(episodes):
        causes = "; ".join(list(dict.fromkeys(f"{f.cause}: {f.detail}" for f in failures))[:3])
        raise UsageError(f"agent {label!r}: all {len(episodes)} episodes failed ({causes})")


def _sentence(arms: Mapping[str, Mapping[str, Any]], config: RunConfig) -> str:
    parts = [
        f"{label} {arm['heldout_success']:.2f}" for label, arm in arms.items() if arm["heldout_success"] is not None
    ]
    if parts:
        return "held-out success: " + ", ".join(parts)
    why = "no episode with the panel is complete" if config.panel.simulators else "panel.simulators is empty"
    return f"no held-out success: {why}"
