"""The `summary.json` of a diagnosis (documented in docs/summary.md), from what the measures found."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import unfrozen
from unfrozen.core.episodes import Episode, Split
from unfrozen.diagnoseconfig import DiagnoseConfig
from unfrozen.jobs.openings import Opened
from unfrozen.jobs.recording import mean_metrics
from unfrozen.jobs.summary import hardware, now, transcript
from unfrozen.measures.behaviour import Behaviour
from unfrozen.measures.drop import Drop, Drops
from unfrozen.measures.intervals import Estimate, paired_difference
from unfrozen.measures.narrowness import Narrowness
from unfrozen.measures.panel import paired_successes, panel_result
from unfrozen.measures.verdict import Diagnosis


def diagnosis_summary(
    config: DiagnoseConfig,
    role: Split,
    diagnoses: Mapping[str, Diagnosis],
    episodes: Sequence[Episode],
    narrowness: Narrowness | None,
    behaviour: Behaviour,
    donations: Mapping[str, Any],
    opened: Opened | None,
    spend: Mapping[str, Any] | None,
    seconds: float,
) -> dict[str, Any]:
    """Everything that the terminal, the report and a pipeline read.

    `diagnoses` holds one agent, or the checkpoints to choose among: then the numbers are those of the best.
    """
    best = max(diagnoses, key=lambda label: _held_out(diagnoses[label]))
    diagnosis = diagnoses[best]
    verdict = diagnosis.verdict
    choice = f"checkpoint {best!r} has the best held-out success of {len(diagnoses)}: " if len(diagnoses) > 1 else ""
    caveats = [*verdict.caveats, *([opened.sentence] if opened and opened.earlier else [])]
    if role == "validation":
        caveats.append("a number on validation simulators is for choosing: test the choice once on others")
    summary = {
        "job": "diagnose",
        "name": config.name,
        "created": now(),
        "unfrozen": unfrozen.__version__,
        "environment": episodes[0].environment,
        "hardware": hardware(),
        "wall_seconds": seconds,
        "verdict": {
            "collapsed": {"collapse": True, "no collapse detected": False}.get(verdict.word),
            "word": verdict.word,
            "sentence": f"{choice}{verdict.sentence}",
            "caveats": caveats,
            "contrast": verdict.contrast,
            "margin": verdict.margin,
            "alpha": verdict.alpha,
            "correction": verdict.correction,
            "simulators": list(verdict.simulators),
            "equivalent": verdict.equivalent,
            "smallest_detectable": verdict.smallest_detectable,
            "more": None if verdict.more is None else asdict(verdict.more),
        },
        "held_out": role,
        "opened": None if opened is None else opened.to_json(),
        "design": {
            "tasks": len({e.task.id for e in episodes}),
            "clusters": len({e.task.cluster for e in episodes}),
            "trials": config.tasks.trials,
            "do_nothing_trials": config.tasks.do_nothing,
            "episodes": len(episodes),
        },
        "agents": _agents(episodes),
        "checkpoints": _checkpoints(best, diagnoses, episodes) if len(diagnoses) > 1 else None,
        "simulators": {
            row.simulator: {
                "role": row.role,
                "family": row.family,
                "agent": _estimate(row.agent),
                "baseline": _estimate(row.baseline),
                "do_nothing": _estimate(row.do_nothing),
                "episodes": row.episodes,
                "failed": row.failed,
                "drop": _drop_of(diagnosis.drop, row.simulator),
                "judged": _drop_of(diagnosis.judged, row.simulator),
            }
            for row in diagnosis.successes
        },
        "drop": _drops(diagnosis.drop),
        "baseline_drop": _drops(diagnosis.baseline_drop),
        "excess": _drops(diagnosis.excess),
        "failures": _failures(episodes),
        "narrowness": None if narrowness is None else narrowness.to_json(),
        "behaviour": behaviour.to_json(),
        "donations": donations,
        "spend": spend,
    }
    # As it is read back: lists, and no number that is none.
    plain: dict[str, Any] = json.loads(json.dumps(summary, allow_nan=False))
    return plain


def diagnosis_transcripts(episodes: Sequence[Episode]) -> Iterator[dict[str, Any]]:
    """The episodes as the report's transcript browser shows them."""
    for episode in episodes:
        yield transcript(episode, episode.agent.label, "diagnosis")


def _held_out(diagnosis: Diagnosis) -> float:
    return -1.0 if diagnosis.drop is None else diagnosis.drop.pooled.held_out


def _checkpoints(best: str, diagnoses: Mapping[str, Diagnosis], episodes: Sequence[Episode]) -> dict[str, Any]:
    """Each checkpoint's success, and how much better the best is held out, paired by simulator, task and trial."""
    held_out = {row.simulator for row in diagnoses[best].successes if row.role != "train"}
    met = [e for e in episodes if e.simulator.label in held_out]
    results = {label: panel_result([e for e in met if e.agent.label == label]) for label in diagnoses}
    rows = {}
    for label, diagnosis in diagnoses.items():
        ahead, behind, clusters = paired_successes(results[best], results[label])
        better = paired_difference(ahead, behind, clusters) if clusters and label != best else None
        rows[label] = {
            "drop": _drops(diagnosis.drop),
            "word": diagnosis.verdict.word,
            "best_is_better_by": None if better is None else {"mean": better.mean, "interval": better.interval},
        }
    return {"best": best, "each": rows}


def _agents(episodes: Sequence[Episode]) -> dict[str, Any]:
    found = {}
    for label in dict.fromkeys(e.agent.label for e in episodes):
        mine = [e for e in episodes if e.agent.label == label]
        info = mine[0].agent
        found[label] = {
            "family": info.family,
            "kind": info.kind,
            "adapter": info.adapter,
            "episodes": len(mine),
            "failed": sum(e.failure is not None for e in mine),
            "metrics": mean_metrics([e.outcome.metrics for e in mine if e.outcome is not None]),
        }
    return found


def _failures(episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    counts = Counter((e.failure.cause, e.failure.detail) for e in episodes if e.failure is not None)
    return [{"cause": cause, "detail": detail, "episodes": n} for (cause, detail), n in counts.most_common(20)]


def _estimate(found: Estimate | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"success": found.mean, "interval": found.interval, "episodes": found.count, "clusters": found.clusters}


def _drops(found: Drops | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        **_drop(found.pooled),
        "scope": found.scope,
        "unmeasured": list(found.unmeasured),
        "each": {str(drop.simulator): _drop(drop) for drop in found.each},
    }


def _drop_of(found: Drops | None, simulator: str) -> dict[str, Any] | None:
    for drop in found.each if found else ():
        if drop.simulator == simulator:
            return _drop(drop)
    return None


def _drop(drop: Drop) -> dict[str, Any]:
    inference = drop.inference
    return {
        "own": drop.own,
        "held_out": drop.held_out,
        "drop": inference.mean,
        "interval": [inference.low, inference.high],
        "p": inference.p,
        "p_adjusted": drop.p_adjusted,
        "method": inference.method,
        "smallest_detectable": drop.smallest_detectable,
        "missing": {**asdict(drop.missing), "share": drop.missing.share},
        "tasks": drop.components.tasks,
        "clusters": drop.components.clusters,
    }
