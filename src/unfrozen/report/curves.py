"""Which lines of a summary go into which chart: success, diversity, reward and the trained simulators.

A chart is left out when no arm has a value for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unfrozen.report.charts import Chart, Line, line_chart
from unfrozen.report.reading import arms_of, interval, mapping, number, sequence

SMALL = (350.0, 215.0)
"""View box of one small multiple."""
_WHOLE_RUN = (
    ("policy_entropy", "Policy entropy", "nats/token"),
    ("distinct_n", "Distinct-n of the agent's replies", ""),
    ("reward", "Mean training reward", ""),
    ("kl_agent", "Agent's KL to reference", "nats/token"),
)
_SIMULATOR = (
    ("consistent", "consistency", ""),
    ("reward", "reward", ""),
    ("kl", "KL to reference", "nats/token"),
)


@dataclass(frozen=True, slots=True)
class Curves:
    """All charts over steps: `success` has one for each arm, on shared axes."""

    success: tuple[Chart, ...]
    whole_run: tuple[Chart, ...]
    simulators: tuple[Chart, ...]


def read_curves(summary: Mapping[str, Any]) -> Curves:
    """Lay out every chart over steps that the summary has values for."""
    arms = arms_of(summary)
    curves = {name: curve_rows(arm) for name, arm in arms.items()}
    x_max = max((step for rows in curves.values() for step, _ in rows), default=0.0)
    base = untrained_success(summary)
    success = []
    for index, (name, rows) in enumerate(curves.items()):
        lines = success_lines(rows, index)
        if lines:
            marks = _alarms(arms[name])
            success.append(
                line_chart(
                    lines, title=name, x_max=x_max, y_range=(0, 1), arm=index, size=SMALL, marks=marks, reference=base
                )
            )
    whole = []
    for key, title, unit in _WHOLE_RUN:
        lines = [
            Line(name, index, points)
            for index, (name, rows) in enumerate(curves.items())
            if len(points := points_of(rows, key)) > 1
        ]
        if lines:
            whole.append(line_chart(lines, title=title, unit=unit, x_max=x_max, end_labels=True))
    return Curves(tuple(success), tuple(whole), tuple(_simulator_charts(curves, x_max)))


def untrained_success(summary: Mapping[str, Any]) -> float | None:
    """Held-out success of the `base` arm, where the comparison has one: the reference line of the curves."""
    for arm in arms_of(summary).values():
        if arm.get("method") == "base":
            return number(arm.get("heldout_success"))
    return None


def success_lines(rows: Sequence[tuple[float, Mapping[str, Any]]], arm: int) -> list[Line]:
    """The training line and the held-out line of one arm, each with its intervals where they are given.

    A single measurement makes no line: the untrained policy's is drawn as a reference instead.
    """
    pairs = (("training", "train_success", "train_interval"), ("held out", "heldout_success", "heldout_interval"))
    lines = []
    for label, key, bounds in pairs:
        points = points_of(rows, key)
        band = tuple((x, *ends) for x, row in rows if (ends := interval(row.get(bounds))) is not None)
        if len(points) > 1:
            lines.append(Line(label, arm, points, band, hollow=label == "training"))
    return lines


def points_of(rows: Sequence[tuple[float, Mapping[str, Any]]], key: str) -> tuple[tuple[float, float], ...]:
    """The (step, value) pairs of one key, where it was measured."""
    return tuple((step, value) for step, row in rows if (value := number(row.get(key))) is not None)


def curve_rows(arm: Mapping[str, Any]) -> list[tuple[float, Mapping[str, Any]]]:
    """The rows of an arm's curve with their steps, in the order of steps."""
    rows = [mapping(row) for row in sequence(arm.get("curve"))]
    found = [(step, row) for row in rows if (step := number(row.get("step"))) is not None]
    return sorted(found, key=lambda pair: pair[0])


def _alarms(arm: Mapping[str, Any]) -> list[tuple[float, str]]:
    alarms = [mapping(alarm) for alarm in sequence(arm.get("alarms"))]
    return [
        (step, str(alarm.get("sentence", ""))) for alarm in alarms if (step := number(alarm.get("step"))) is not None
    ]


def _simulator_charts(curves: Mapping[str, Sequence[tuple[float, Mapping[str, Any]]]], x_max: float) -> list[Chart]:
    charts = []
    for index, (arm, rows) in enumerate(curves.items()):
        nested = [(step, mapping(row.get("simulators"))) for step, row in rows]
        names = dict.fromkeys(str(name) for _, simulators in nested for name in simulators)
        for key, title, unit in _SIMULATOR:
            series = {name: [(step, mapping(simulators.get(name))) for step, simulators in nested] for name in names}
            lines = [Line(name, index, found) for name in names if len(found := points_of(series[name], key)) > 1]
            if lines:
                charts.append(
                    line_chart(
                        lines,
                        title=f"{arm}: {title}",
                        unit=unit,
                        x_max=x_max,
                        y_range=(0.0, 1.0) if key == "consistent" else None,
                        arm=index,
                        end_labels=True,
                    )
                )
    return charts
