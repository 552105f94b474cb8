"""The summary of a job in the terminal: the verdict, one line for each arm, on one screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from unfrozen.report import reading
from unfrozen.report.palette import arm_colours
from unfrozen.report.reading import MISSING, arms_of, mapping

_MAX_MEMBERS = 12
# In the order in which they stand, with the order in which they give way to a narrow terminal.
_COLUMNS: tuple[tuple[str, int], ...] = (
    ("train", 0),
    ("held out", 0),
    ("95 %", 0),
    ("entropy", 1),
    ("distinct-n", 4),
    ("episodes", 2),
    ("updates", 3),
    ("sim. updates", 5),
    ("failed", 6),
    ("time", 7),
)


def print_summary(summary: Mapping[str, Any], console: Console) -> None:
    """Print the verdict and the result table; with a single arm, also its panel.

    Columns that say least give way where the terminal is narrow. Nothing in the summary is read as markup.
    """
    # Whatever stands in a summary is printed as plain Text, so that "[red]" in a name stays "[red]".
    title = " · ".join(str(summary[key]) for key in ("job", "name", "environment") if summary.get(key))
    wall = reading.number(summary.get("wall_seconds"))
    if wall is not None:
        # A comparison's time is that of its runs together, however many ran at once.
        title += f" · {reading.duration(wall)}{' of runs' if summary.get('job') == 'compare' else ''}"
    console.print(Text(title, style="dim"))
    verdict = mapping(summary.get("verdict"))
    if verdict.get("sentence"):
        collapsed = verdict.get("collapsed")
        style = "bold" if collapsed is None else "bold red" if collapsed else "bold green"
        console.print(Text(str(verdict["sentence"]), style=style))
    arms = arms_of(summary)
    if arms:
        console.print(_result_table(arms, console.width))
    if len(arms) == 1:
        panel = mapping(next(iter(arms.values())).get("panel"))
        if panel:
            console.print(_panel_table(panel))
    order = mapping(summary.get("order"))
    if order.get("sentence"):
        console.print(Text(str(order["sentence"])))


def _result_table(arms: Mapping[str, Mapping[str, Any]], width: int) -> RichTable:
    colours = arm_colours(arms)
    values = {name: _values(arm) for name, arm in arms.items()}
    shown = [head for head, _ in _COLUMNS if any(row[head] not in (MISSING, "") for row in values.values())]
    spare = sorted(((rank, head) for head, rank in _COLUMNS if rank), reverse=True)
    widths = {head: max(len(head), *(len(row[head]) for row in values.values())) + 2 for head in shown}
    name_width = min(max(len(name) for name in arms), 24) + 4
    for _, head in spare:
        if name_width + sum(widths[each] for each in shown) <= width:
            break
        if head in shown:
            shown.remove(head)
    table = RichTable(box=None, pad_edge=False, header_style="dim")
    table.add_column("arm", overflow="ellipsis", no_wrap=True, max_width=26)
    for head in shown:
        table.add_column(head, justify="right", no_wrap=True)
    for name, row in values.items():
        label = Text.assemble(("■ ", colours[name].dark), name)
        table.add_row(label, *(Text(row[head]) for head in shown))
    return table


def _values(arm: Mapping[str, Any]) -> dict[str, str]:
    return {
        "train": reading.fraction(arm.get("train_success")),
        "held out": reading.fraction(arm.get("heldout_success")),
        "95 %": reading.bounds(arm.get("heldout_interval")),
        "entropy": reading.fraction(arm.get("policy_entropy")),
        "distinct-n": reading.fraction(arm.get("distinct_n")),
        "episodes": reading.count(arm.get("episodes")),
        "updates": reading.count(arm.get("updates")),
        "sim. updates": reading.count(arm.get("simulator_updates")),
        "failed": reading.percent(arm.get("failure_share")),
        "time": reading.duration(arm.get("wall_seconds")),
    }


def _panel_table(panel: Mapping[str, Any]) -> RichTable:
    table = RichTable(box=None, pad_edge=False, header_style="dim")
    table.add_column("panel member", overflow="ellipsis", no_wrap=True, max_width=26)
    for head in ("family", "success", "95 %", "episodes"):
        table.add_column(head, justify="left" if head == "family" else "right", no_wrap=True)
    for member, result in list(panel.items())[:_MAX_MEMBERS]:
        found = mapping(result)
        table.add_row(
            Text(str(member)),
            Text(str(found.get("family") or MISSING)),
            Text(reading.fraction(found.get("success"))),
            Text(reading.bounds(found.get("interval"))),
            Text(reading.count(found.get("episodes"))),
        )
    if len(panel) > _MAX_MEMBERS:
        table.add_row(Text(f"and {len(panel) - _MAX_MEMBERS} more in the report", style="dim"))
    return table
