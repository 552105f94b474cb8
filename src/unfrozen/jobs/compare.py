"""Compare methods: arms that differ only in the method, at equal episodes and equal policy updates, over seeds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from unfrozen.config import TRAINABLE_USERS, CompareSection, RunConfig
from unfrozen.core.episodes import SpeakerInfo
from unfrozen.core.errors import ConfigError
from unfrozen.core.files import write_json
from unfrozen.jobs import assembly
from unfrozen.jobs.evaluate import final_adapter, load_agent, load_speaker, play_panel
from unfrozen.jobs.parallel import run_all
from unfrozen.jobs.progress import Silent, Watcher
from unfrozen.jobs.summary import RunData, arm_summary, donations, read_run, run_head, transcripts
from unfrozen.jobs.train import JobResult
from unfrozen.measures.contrasts import Contrast, order
from unfrozen.report import write_report
from unfrozen.simulators.protocol import Speaker

PAPER_ORDER = ("population", "cotrain", "verbalized", "single")
"""Best first, as arXiv 2608.12253 reports held-out success."""

_MAY_DIFFER = ("name", "seed", "method", "compare.")
"""Keys in which the arms of a comparison always differ."""


def compare(
    configs: RunConfig | Sequence[RunConfig],
    out: Path | None = None,
    allow_differences: bool = False,
    watch: Watcher | None = None,
) -> JobResult:
    """Train every arm with every seed, and say how they compare with held-out simulators.

    One config with `compare.arms` makes arms that differ in the word `method` alone. Several configs are one
    arm each; they are refused (ConfigError naming the keys) where they differ elsewhere, unless
    `allow_differences`: then the report shows the differences. Runs that are complete are not repeated.
    """
    sources = [configs] if isinstance(configs, RunConfig) else list(configs)
    first = sources[0]
    arms = _arms(sources)
    differences = config_differences(arms)
    unwanted = [d["key"] for d in differences if not _may_differ(d["key"])]
    if unwanted and not allow_differences:
        raise ConfigError(
            f"the arms differ in more than the method: {', '.join(unwanted)}; make them equal, or say that it is "
            "meant (--allow-differences)"
        )
    path = out or Path("runs") / first.name
    runs = {(arm, seed): path / f"{arm}-seed{seed}" for arm in arms for seed in first.compare.seeds}
    run_all(
        {folder: _run_config(arms[arm], arm, seed) for (arm, seed), folder in runs.items()},
        first.compare.workers,
        watch or Silent(),
    )
    data = {arm: [read_run(runs[arm, seed]) for seed in first.compare.seeds] for arm in arms}
    summary = _summarise(first, data)
    summary["differences"] = differences
    summary["crossplay"] = asyncio.run(_crossplay(first, arms, {arm: data[arm][0].path for arm in arms}))
    write_json(path / "summary.json", summary)
    shown = (t for arm in arms for t in transcripts(arm, data[arm]))
    write_report(summary, shown, path / "report.html")
    return JobResult(path, summary)


def config_differences(arms: Mapping[str, RunConfig]) -> list[dict[str, Any]]:
    """Every dotted key in which the arms are not all equal, with each arm's value."""
    flat = {arm: dict(_flatten(config.model_dump(mode="json"))) for arm, config in arms.items()}
    keys = dict.fromkeys(key for values in flat.values() for key in values)
    found = []
    for key in keys:
        values = {arm: row.get(key) for arm, row in flat.items()}
        if any(value != next(iter(values.values())) for value in values.values()):
            found.append({"key": key, "values": values})
    return found


def _arms(sources: Sequence[RunConfig]) -> dict[str, RunConfig]:
    if len(sources) == 1:
        methods = sources[0].compare.arms
        if len(methods) < 2:
            raise ConfigError("compare.arms needs at least two methods, or give several config files")
        return {method: sources[0].model_copy(update={"method": method}) for method in methods}
    arms: dict[str, RunConfig] = {}
    for config in sources:
        label = config.method if config.method not in arms else config.name
        if label in arms:
            raise ConfigError(f"two arms are called {label!r}: give the configs different names")
        arms[label] = config
    return arms


def _run_config(config: RunConfig, arm: str, seed: int) -> RunConfig:
    # Without its `compare` section a run is the same whatever it is compared with: it can be used again.
    return config.model_copy(update={"name": f"{arm}-seed{seed}", "seed": seed, "compare": CompareSection()})


def _may_differ(key: str) -> bool:
    return any(key == free or (free.endswith(".") and key.startswith(free)) for free in _MAY_DIFFER)


def _flatten(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [pair for key, inner in value.items() for pair in _flatten(inner, f"{prefix}{key}.")]
    return [(prefix.removesuffix("."), value)]


def _summarise(config: RunConfig, data: Mapping[str, Sequence[RunData]]) -> dict[str, Any]:
    arms = {arm: arm_summary(runs) for arm, runs in data.items()}
    results = {arm: {r.config.seed: r.last.held_out for r in runs} for arm, runs in data.items()}
    contrasts, found = order(PAPER_ORDER, results)
    collapsed = [arm for arm, summary in arms.items() if summary["verdict"]["collapsed"]]
    return run_head("compare", config, [r for runs in data.values() for r in runs]) | {
        "verdict": {"collapsed": bool(collapsed), "sentence": _headline(arms, collapsed)},
        "arms": arms,
        "order": {
            "expected": [arm for arm in PAPER_ORDER if arm in arms],
            "found": found,
            "sentence": "; ".join(_said(c) for c in contrasts),
            "contrasts": [
                {"first": c.first, "second": c.second, "mean": c.difference.mean, "interval": c.difference.interval}
                for c in contrasts
            ],
        }
        if contrasts
        else None,
        "donations": donations(
            config,
            [e for runs in data.values() for r in runs for m in (r.last.own, r.last.held_out) for e in m.episodes],
        ),
    }


def _headline(arms: Mapping[str, Mapping[str, Any]], collapsed: Sequence[str]) -> str:
    """Who collapsed and who did best with held-out simulators, in one sentence."""

    def numbers(arm: str) -> str:
        own, held = arms[arm]["train_success"], arms[arm]["heldout_success"]
        return f"{arm} ({own:.2f} with its own simulators, {held:.2f} held out)"

    measured = [arm for arm in arms if None not in (arms[arm]["train_success"], arms[arm]["heldout_success"])]
    if not measured:
        return "no verdict: no arm was measured on its own and on held-out simulators"
    found = ", ".join(numbers(arm) for arm in collapsed if arm in measured) or "none of the arms"
    best = max(measured, key=lambda arm: arms[arm]["heldout_success"])
    return f"collapsed: {found}; best held out: {numbers(best)}"


def _said(c: Contrast) -> str:
    d = c.difference
    verb = {True: "beats", False: "loses to", None: "is not told apart from"}[c.holds]
    return f"{c.first} {verb} {c.second} ({100 * d.mean:+.0f} points [{100 * d.low:+.0f}, {100 * d.high:+.0f}])"


async def _crossplay(config: RunConfig, arms: Mapping[str, RunConfig], paths: Mapping[str, Path]) -> dict[str, Any]:
    """Every arm's final agent (first seed) against every simulator: frozen ones and the trained ones of each arm."""
    async with aclosing(assembly.assemble(config)) as cast:
        simulators: dict[str, Speaker] = {
            name: await cast.simulator(name) for name in (*config.all_training_simulators(), *config.panel.simulators)
        }
        for arm, path in paths.items():
            if arms[arm].method in TRAINABLE_USERS:
                simulators |= await _trained_simulators(cast, arm, path)
        table = []
        for arm, path in paths.items():
            agent = await load_agent(cast, arm, path)
            result = await play_panel(cast, agent, simulators, Silent())
            estimates = [result.success([name]) for name in simulators]
            table.append([None if e is None else e.mean for e in estimates])
    return {
        "agents": list(paths),
        "simulators": list(simulators),
        "success": table,
        "episodes": (config.panel.final_tasks or config.panel.tasks) * config.panel.trials,
    }


async def _trained_simulators(cast: assembly.Cast, arm: str, path: Path) -> dict[str, Speaker]:
    """The living simulators at the end of a run."""
    names = cast.config.train.simulators
    trained: dict[str, Speaker] = {}
    for i in range(1 if arm == "cotrain" else cast.config.population.size):
        start = names[i % len(names)]
        label = f"{arm}:sim-{i}"
        info = SpeakerInfo(label, cast.family(start), "frozen")
        weights = final_adapter(path, f"sim-{i}")
        trained[label] = await load_speaker(cast, label, weights, cast.config.simulators[start], info)
    return trained
