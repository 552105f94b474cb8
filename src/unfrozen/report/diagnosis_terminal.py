"""A diagnosis in the terminal, on one screen: the verdict, success with each simulator, the drop, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from unfrozen.report import reading
from unfrozen.report.diagnosis_reading import checkpoint_rows, drop_line, fault_lines, narrow_rows, success
from unfrozen.report.reading import mapping, sequence

_MAX_SIMULATORS = 12
_WIDE = 100
STYLES = {True: "bold red", False: "bold green", None: "bold"}


def print_diagnosis(summary: Mapping[str, Any], console: Console) -> None:
    """Print the answer. Nothing in the summary is read as markup."""
    verdict = mapping(summary.get("verdict"))
    title = " · ".join(str(summary[key]) for key in ("job", "name", "environment") if summary.get(key))
    wall = reading.number(summary.get("wall_seconds"))
    console.print(Text(title + (f" · {reading.duration(wall)}" if wall is not None else ""), style="dim"))
    console.print(
        Text(str(verdict.get("sentence") or "No verdict."), style=STYLES.get(verdict.get("collapsed"), "bold"))
    )
    console.print(_success_table(summary, console.width))
    if (checkpoints := _checkpoint_table(summary)) is not None:
        console.print(checkpoints)
    if (narrow := _narrow_table(summary)) is not None:
        console.print(narrow)
    for line in _lines(summary):
        console.print(Text(line))
    for caveat in sequence(verdict.get("caveats")):
        console.print(Text(f"but: {caveat}", style="yellow"))


def _success_table(summary: Mapping[str, Any], width: int) -> RichTable:
    """One line for each simulator. A narrow terminal has no room for the baseline's intervals."""
    simulators = mapping(summary.get("simulators"))
    columns = [
        (key, head)
        for key, head in (("agent", "agent (95 %)"), ("baseline", "baseline"), ("do_nothing", "do nothing"))
        if any(mapping(row).get(key) for row in simulators.values())
    ]
    table = RichTable(box=None, pad_edge=False, header_style="dim")
    table.add_column("simulator", overflow="ellipsis", no_wrap=True, max_width=28)
    table.add_column("role", no_wrap=True)
    for _, head in columns:
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("drop (points)", justify="right", no_wrap=True)
    bare = {"do_nothing"} | ({"baseline"} if width < _WIDE else set())
    for name, row in list(simulators.items())[:_MAX_SIMULATORS]:
        found = mapping(row)
        cells = [
            reading.fraction(mapping(found.get(key)).get("success"))
            if key in bare
            else success(mapping(found.get(key)))
            for key, _ in columns
        ]
        drop = drop_line(mapping(found.get("drop"))).replace(" points", "", 1) if found.get("drop") else ""
        table.add_row(Text(str(name)), Text(str(found.get("role") or "")), *(Text(cell) for cell in cells), Text(drop))
    if len(simulators) > _MAX_SIMULATORS:
        table.add_row(Text(f"and {len(simulators) - _MAX_SIMULATORS} more in the report", style="dim"))
    return table


def _checkpoint_table(summary: Mapping[str, Any]) -> RichTable | None:
    """Every checkpoint that was to be chosen among, the best one marked."""
    section = mapping(summary.get("checkpoints"))
    if not section:
        return None
    table = RichTable(box=None, pad_edge=False, header_style="dim")
    table.add_column("checkpoint", overflow="ellipsis", no_wrap=True, max_width=28)
    for head in ("train", "held out", "drop (points)", "best is better by"):
        table.add_column(head, justify="right", no_wrap=True)
    for label, own, held_out, drop, better in checkpoint_rows(summary):
        style = "bold" if label == section.get("best") else ""
        table.add_row(*(Text(cell, style=style) for cell in (label, own, held_out, drop, better)))
    return table


def _narrow_table(summary: Mapping[str, Any]) -> RichTable | None:
    """Sharpening, coverage and effective replies of each simulator."""
    rows = narrow_rows(summary)
    if not rows:
        return None
    each = reading.count(mapping(summary.get("narrowness")).get("replies_per_state"))
    table = RichTable(box=None, pad_edge=False, header_style="dim")
    table.add_column("how narrow", overflow="ellipsis", no_wrap=True, max_width=28)
    for head in ("γ (95 %)", "covers", f"effective of {each} replies"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("beside", no_wrap=True)
    for row in rows[:_MAX_SIMULATORS]:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _lines(summary: Mapping[str, Any]) -> list[str]:
    """The lines below the table: what could have been found, how narrow the simulators are, what went wrong."""
    lines = []
    design = mapping(summary.get("design"))
    smallest = reading.number(mapping(summary.get("verdict")).get("smallest_detectable"))
    played = (
        f"{reading.count(design.get('tasks'))} tasks x {reading.count(design.get('trials'))} trials, "
        f"{reading.count(design.get('episodes'))} episodes"
    )
    found = f"; the smallest drop they could have shown: {100 * smallest:.0f} points" if smallest is not None else ""
    lines.append(f"{played}{found}")
    excess = mapping(summary.get("excess"))
    if excess:
        own, base = (drop_line(mapping(summary.get(key))) for key in ("drop", "baseline_drop"))
        lines.append(f"drop: {own}; of the baseline: {base}; difference: {drop_line(excess)}")
    lines += [f"faults: {name}: {text}" for name, text in fault_lines(summary)]
    for failure in sequence(summary.get("failures"))[:3]:
        row = mapping(failure)
        lines.append(f"failed: {reading.count(row.get('episodes'))} x {row.get('cause')}: {row.get('detail')}")
    spend = mapping(mapping(summary.get("spend")).get("total"))
    if spend:
        money = reading.number(spend.get("money"))
        lines.append(
            f"spent: {reading.count(spend.get('requests'))} requests, "
            f"{reading.count((spend.get('prompt_tokens') or 0) + (spend.get('completion_tokens') or 0))} tokens"
            + (f", ${money:.2f}" if money is not None else "")
        )
    opened = mapping(summary.get("opened"))
    if opened.get("sentence") and not opened.get("earlier"):
        lines.append(str(opened["sentence"]))
    return lines
