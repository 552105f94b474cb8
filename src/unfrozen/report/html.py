"""The HTML report: one file that opens from disk, with its styles, figures, script and transcripts inside.

The page asks nothing of a network, and its content security policy forbids it to: only the one script whose
hash is named there may run, so that even a text that slipped through the escaping could not.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from unfrozen.core.files import write_atomically
from unfrozen.report import reading, tables
from unfrozen.report.charts import Histogram, histogram
from unfrozen.report.curves import read_curves
from unfrozen.report.palette import OTHER, arm_colours
from unfrozen.report.reading import arms_of, interval, mapping, number, sequence
from unfrozen.report.transcripts import sample_episodes, to_json


@dataclass(frozen=True, slots=True)
class Measure:
    """A success with its interval and the values of single seeds, each in percent of the axis."""

    at: float
    text: str
    low: float | None
    high: float | None
    seeds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class OverviewRow:
    """Training against held-out success of one arm, for the figure at the top."""

    name: str
    arm: int
    train: Measure | None
    heldout: Measure | None
    collapsed: bool | None


def write_report(summary: Mapping[str, Any], episodes: Iterable[Mapping[str, Any]], path: Path) -> Path:
    """Write the report of a job to `path` and return it.

    `summary` is what docs/summary.md describes; `episodes` are episode records with "arm" and "phase", read once.
    An existing file is replaced as a whole. Raises UsageError where the file cannot be written.
    """
    return write_page(render(summary, episodes), path)


def write_page(page: str, path: Path) -> Path:
    """Write a page in place of the one that was there, and return its path."""
    # Half a surrogate pair in a label has no UTF-8 form; as a character reference it shows as "unknown".
    write_atomically(path, page.encode("utf-8", errors="xmlcharrefreplace"))
    return path


def render(summary: Mapping[str, Any], episodes: Iterable[Mapping[str, Any]]) -> str:
    """Return the page as text."""
    arms = arms_of(summary)
    donations = mapping(summary.get("donations"))
    return fill(
        "report.html.j2",
        summary,
        arms,
        episodes,
        strata="arms and steps",
        overview=_overview(arms),
        verdicts=_verdicts(arms, str(mapping(summary.get("verdict")).get("sentence"))),
        curves=read_curves(summary),
        results=tables.results_table(summary),
        metrics=tables.metrics_table(summary),
        seeds=tables.seed_table(summary),
        panel=tables.panel_table(summary),
        panel_details=tables.panel_details(summary),
        crossplay=tables.crossplay_table(summary),
        crossplay_episodes=reading.count(mapping(summary.get("crossplay")).get("episodes")),
        trust=tables.trust_table(summary),
        cost=tables.cost_table(summary),
        differences=tables.difference_table(summary),
        order=_order(summary),
        donations=tables.donation_tables(summary),
        donation_bars=_donation_bars(donations),
    )


def fill(
    template: str,
    summary: Mapping[str, Any],
    arms: Mapping[str, Mapping[str, Any]],
    episodes: Iterable[Mapping[str, Any]],
    **parts: Any,
) -> str:
    """Fill a page's template: the frame (verdict, facts, colours, transcripts) and its own parts."""
    environment = Environment(
        loader=PackageLoader("unfrozen.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["words"] = reading.words
    sample = sample_episodes(episodes, list(arms))
    script = _asset("transcripts.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    embedded = {"arms": {name: index for index, name in enumerate(arms)}, "episodes": list(sample.records)}
    return environment.get_template(template).render(
        title=str(summary.get("name") or "run"),
        head=_head(summary),
        facts=_facts(summary),
        # The style sheet and the script are ours; everything else on the page is escaped.
        style=Markup(_asset("report.css")),
        script=Markup(script),
        script_hash=digest,
        colours=[*arm_colours(arms).values(), OTHER],
        shown=len(sample.records),
        total=sample.total,
        # Escaped for a script element by to_json; HTML entities would not be decoded there.
        episodes_json=Markup(to_json(embedded)),
        **parts,
    )


def _asset(name: str) -> str:
    return (files("unfrozen.report") / "templates" / name).read_text(encoding="utf-8")


def _head(summary: Mapping[str, Any]) -> dict[str, Any]:
    verdict = mapping(summary.get("verdict"))
    collapsed = verdict.get("collapsed")
    state = ("collapsed" if collapsed else "held") if isinstance(collapsed, bool) else "open"
    return {
        "job": str(summary.get("job") or ""),
        "name": str(summary.get("name") or ""),
        "environment": str(summary.get("environment") or ""),
        "sentence": str(verdict.get("sentence") or "No verdict was reached."),
        "state": state,
        "mark": {"collapsed": "Collapsed", "held": "Not collapsed", "open": "No verdict"}[state],
    }


def _facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    wall = number(summary.get("wall_seconds"))
    facts = [
        ("made", str(summary.get("created") or "")[:16].replace("T", " ")),
        ("time of all runs" if summary.get("job") == "compare" else "time", reading.duration(wall) if wall else ""),
        ("hardware", str(summary.get("hardware") or "")),
        ("unfrozen", str(summary.get("unfrozen") or "")),
    ]
    return [(name, text) for name, text in facts if text]


def _measure(arm: Mapping[str, Any], key: str, bounds: str) -> Measure | None:
    value = number(arm.get(key))
    if value is None:
        return None
    ends = interval(arm.get(bounds))
    rows = sequence(arm.get("seed_results"))
    # One seed alone is the arm itself.
    seeds = [number(mapping(row).get(key)) for row in rows] if len(rows) > 1 else []
    return Measure(
        at=_percent(value),
        text=reading.fraction(value),
        low=_percent(ends[0]) if ends else None,
        high=_percent(ends[1]) if ends else None,
        seeds=tuple(_percent(seed) for seed in seeds if seed is not None),
    )


def _percent(value: float) -> float:
    return round(100 * min(max(value, 0.0), 1.0), 2)


def _overview(arms: Mapping[str, Mapping[str, Any]]) -> list[OverviewRow]:
    rows = []
    for index, (name, arm) in enumerate(arms.items()):
        train = _measure(arm, "train_success", "train_interval")
        heldout = _measure(arm, "heldout_success", "heldout_interval")
        if train or heldout:
            collapsed = mapping(arm.get("verdict")).get("collapsed")
            rows.append(OverviewRow(name, index, train, heldout, collapsed if isinstance(collapsed, bool) else None))
    return rows


def _verdicts(arms: Mapping[str, Mapping[str, Any]], headline: str) -> list[dict[str, Any]]:
    """What is said of each arm in words, beyond the headline: its verdict and its alarms."""
    found = []
    for index, (name, arm) in enumerate(arms.items()):
        sentence = str(mapping(arm.get("verdict")).get("sentence") or "")
        alarms = [mapping(alarm) for alarm in sequence(arm.get("alarms"))]
        said = [(_when(alarm), str(alarm.get("sentence") or "")) for alarm in alarms]
        sentence = "" if sentence == headline else sentence
        if sentence or said:
            found.append({"name": name, "arm": index, "sentence": sentence, "alarms": said})
    return found


def _when(alarm: Mapping[str, Any]) -> str:
    parts = [f"{key} {alarm[key]}" for key in ("seed", "step") if alarm.get(key) is not None]
    return ", ".join(parts)


def _order(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    order = mapping(summary.get("order"))
    if not order:
        return None
    indices = {name: index for index, name in enumerate(arms_of(summary))}
    lists = {
        key: [(str(name), indices.get(str(name))) for name in sequence(order.get(key))] for key in ("expected", "found")
    }
    return {**lists, "sentence": str(order.get("sentence") or "")}


def _donation_bars(donations: Mapping[str, Any]) -> Histogram | None:
    bars = mapping(donations.get("histogram"))
    edges, simulated, human = (
        [number(value) for value in sequence(bars.get(key))] for key in ("edges", "simulated", "human")
    )
    known = [[value for value in values if value is not None] for values in (edges, simulated, human)]
    return histogram(known[0], known[1], known[2])
