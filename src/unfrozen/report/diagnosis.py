"""The page of a diagnosis: success with each simulator, the drop, why (how narrow the simulators are), faults.

Drawn from `summary.json` alone, like every page of this room; what is missing there is left out here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unfrozen.report import reading
from unfrozen.report.charts import nice_ticks
from unfrozen.report.diagnosis_reading import ROLE_NAMES, drop_line, points
from unfrozen.report.diagnosis_tables import (
    behaviour_tables,
    checkpoint_table,
    donation_table,
    fault_rows,
    narrowness_table,
)
from unfrozen.report.html import fill, write_page
from unfrozen.report.reading import MISSING, interval, mapping, number, sequence
from unfrozen.report.tables import Cell, Heading, Row, Table

AGENTS = {"agent": "agent", "baseline": "baseline", "do_nothing": "does nothing"}
"""Key of a simulator's row -> what it is called on the page."""
_METHODS = {"agent": "verbalized", "baseline": "base", "do-nothing": "cotrain"}
"""The colours that the agents wear, by the method that owns them."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A point with its interval on an axis, each in percent of the axis's width."""

    kind: str
    at: float
    low: float | None
    high: float | None
    text: str


@dataclass(frozen=True, slots=True)
class MarkRow:
    """One line of a figure: its name, a note below it, and up to three marks."""

    name: str
    note: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class DropFigure:
    """Drops in points on a common axis; `zero` and `margin` are places on it."""

    rows: tuple[MarkRow, ...]
    ticks: tuple[tuple[float, str], ...]
    zero: float
    margin: float | None


def write_diagnosis(summary: Mapping[str, Any], episodes: Iterable[Mapping[str, Any]], path: Path) -> Path:
    """Write the page of a diagnosis to `path` and return it. `episodes` are read once.

    An existing file is replaced as a whole. Raises UsageError where the file cannot be written.
    """
    return write_page(render_diagnosis(summary, episodes), path)


def render_diagnosis(summary: Mapping[str, Any], episodes: Iterable[Mapping[str, Any]]) -> str:
    """Return the page as text."""
    arms = {str(label): {"method": _METHODS.get(str(label), label)} for label in mapping(summary.get("agents"))}
    return fill(
        "diagnosis.html.j2",
        summary,
        arms,
        episodes,
        strata="agents",
        successes=_successes(summary),
        kinds=_kinds(summary),
        drops=_drop_figure(summary),
        has_baseline=bool(mapping(summary.get("excess"))),
        margin=points(mapping(summary.get("verdict")).get("margin")),
        drop_table=_drop_table(summary),
        success_table=_success_table(summary),
        caveats=[str(text) for text in sequence(mapping(summary.get("verdict")).get("caveats"))],
        opened=str(mapping(summary.get("opened")).get("sentence") or ""),
        narrowness=narrowness_table(summary),
        states=mapping(summary.get("narrowness")),
        checkpoints=checkpoint_table(summary),
        donations=donation_table(summary),
        behaviour=behaviour_tables(summary),
        reference=str(mapping(summary.get("behaviour")).get("reference") or ""),
        faults=fault_rows(summary),
        failures=_failure_table(summary),
        spend=_spend_table(summary),
        design=_design(summary),
    )


def _kinds(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The agents that any simulator has a success for, by key and name."""
    rows = mapping(summary.get("simulators")).values()
    return [(key, name) for key, name in AGENTS.items() if any(mapping(row).get(key) for row in rows)]


def _successes(summary: Mapping[str, Any]) -> list[MarkRow]:
    rows = []
    for name, value in mapping(summary.get("simulators")).items():
        row = mapping(value)
        marks = []
        for key in AGENTS:
            found = mapping(row.get(key))
            at = number(found.get("success"))
            if at is not None:
                ends = interval(found.get("interval"))
                low, high = (100 * ends[0], 100 * ends[1]) if ends else (None, None)
                marks.append(Mark(key, 100 * at, low, high, reading.fraction(at)))
        if marks:
            role = str(row.get("role") or "")
            rows.append(MarkRow(str(name), ROLE_NAMES.get(role, role), tuple(marks)))
    return rows


def _drop_figure(summary: Mapping[str, Any]) -> DropFigure | None:
    """The drop to each held-out simulator and to all; beside it, where there is a baseline, what exceeds its drop."""
    judged = mapping(summary.get("excess"))
    kinds = [("drop", mapping(summary.get("drop"))), *([("excess", judged)] if judged else [])]
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for kind, drops in kinds:
        if number(drops.get("drop")) is not None:
            found.setdefault("all held out", {})[kind] = drops
        for name, row in mapping(drops.get("each")).items():
            found.setdefault(str(name), {})[kind] = mapping(row)
    values = [
        end
        for marks in found.values()
        for row in marks.values()
        for end in (number(row.get("drop")), *(interval(row.get("interval")) or ()))
        if end is not None
    ]
    if not values:
        return None
    margin = number(mapping(summary.get("verdict")).get("margin"))
    ticks = nice_ticks(100 * min(0.0, *values), 100 * max(margin or 0.0, *values), 5)
    low, high = ticks[0], ticks[-1]

    def across(value: float) -> float:
        return round(100 * (100 * value - low) / (high - low), 2)

    rows = []
    for name, marks in found.items():
        drawn = []
        for kind, row in marks.items():
            at = number(row.get("drop"))
            ends = interval(row.get("interval"))
            if at is not None:
                start, end = (across(ends[0]), across(ends[1])) if ends else (None, None)
                drawn.append(Mark(kind, across(at), start, end, drop_line(row).replace(" points", "", 1)))
        rows.append(MarkRow(name, "", tuple(drawn)))
    places = tuple((across(tick / 100), f"{tick:g}") for tick in ticks)
    return DropFigure(tuple(rows), places, across(0.0), None if margin is None else across(margin))


def _success_table(summary: Mapping[str, Any]) -> Table | None:
    kinds = _kinds(summary)
    simulators = mapping(summary.get("simulators"))
    if not simulators:
        return None
    headings = [Heading("simulator"), Heading("role"), Heading("family"), *(Heading(name) for _, name in kinds)]
    headings += [Heading("episodes"), Heading("failed")]
    rows = []
    for name, value in simulators.items():
        row = mapping(value)
        role = str(row.get("role") or "")
        cells = [Cell(ROLE_NAMES.get(role, role)), Cell(str(row.get("family") or MISSING))]
        cells += [_success_cell(mapping(row.get(key))) for key, _ in kinds]
        cells += [Cell(reading.count(row.get("episodes"))), Cell(reading.count(row.get("failed")))]
        rows.append(Row(str(name), None, tuple(cells)))
    return Table(tuple(headings), tuple(rows))


def _success_cell(found: Mapping[str, Any]) -> Cell:
    return Cell(reading.fraction(found.get("success")), reading.bounds(found.get("interval")))


def _drop_table(summary: Mapping[str, Any]) -> Table | None:
    judged = mapping(summary.get("excess")) or mapping(summary.get("drop"))
    if not judged:
        return None
    rows = [_drop_row("all held out", judged)]
    rows += [_drop_row(str(name), mapping(row)) for name, row in mapping(judged.get("each")).items()]
    gains = "gain over the baseline " if summary.get("excess") else ""
    heads = ("to", f"{gains}with training simulators", f"{gains}held out", "drop", "p (Holm)", "smallest it could show")
    missing = any(number(mapping(row.get("missing")).get("failed")) for row in (judged, *_each(judged)))
    headings = [Heading(head) for head in heads] + ([Heading("if the failed had spoken")] if missing else [])
    return Table(tuple(headings), tuple(Row(name, None, cells if missing else cells[:-1]) for name, cells in rows))


def _each(drops: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [mapping(row) for row in mapping(drops.get("each")).values()]


def _drop_row(name: str, row: Mapping[str, Any]) -> tuple[str, tuple[Cell, ...]]:
    p = number(row.get("p_adjusted")) if row.get("p_adjusted") is not None else number(row.get("p"))
    smallest = number(row.get("smallest_detectable"))
    missing = mapping(row.get("missing"))
    low, high = number(missing.get("low")), number(missing.get("high"))
    bounds = f"{points(low)} to {points(high)}" if low is not None and high is not None else MISSING
    method = str(row.get("method") or "")
    return name, (
        Cell(reading.fraction(row.get("own"))),
        Cell(reading.fraction(row.get("held_out"))),
        Cell(drop_line(row), method),
        Cell(MISSING if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"),
        Cell(MISSING if smallest is None else f"{points(smallest)} points"),
        Cell(bounds, f"{reading.count(missing.get('failed'))} of {reading.count(missing.get('planned'))} failed"),
    )


def _failure_table(summary: Mapping[str, Any]) -> Table | None:
    failures = [mapping(row) for row in sequence(summary.get("failures"))]
    if not failures:
        return None
    rows = [
        Row(str(row.get("cause") or ""), None, (Cell(reading.count(row.get("episodes"))), Cell(str(row.get("detail")))))
        for row in failures
    ]
    return Table((Heading("cause"), Heading("episodes"), Heading("what was said")), tuple(rows), textual=True)


def _spend_table(summary: Mapping[str, Any]) -> Table | None:
    spend = mapping(summary.get("spend"))
    models = {**mapping(spend.get("models")), "all": spend.get("total")} if spend else {}
    columns = (
        ("requests", "requests"),
        ("cache_hits", "from the cache"),
        ("prompt_tokens", "tokens in"),
        ("completion_tokens", "tokens out"),
        ("unknown_requests", "outcome unknown"),
    )
    rows = []
    for name, value in models.items():
        row = mapping(value)
        money = number(row.get("money"))
        cells = [Cell(reading.count(row.get(key))) for key, _ in columns]
        rows.append(Row(str(name), None, (*cells, Cell(MISSING if money is None else f"${money:.2f}"))))
    headings = (Heading("model"), *(Heading(head) for _, head in columns), Heading("cost"))
    return Table(headings, tuple(rows)) if rows else None


def _design(summary: Mapping[str, Any]) -> str:
    design = mapping(summary.get("design"))
    return (
        f"{reading.count(design.get('tasks'))} tasks in {reading.count(design.get('clusters'))} clusters, "
        f"{reading.count(design.get('trials'))} trials, {reading.count(design.get('episodes'))} episodes"
    )
