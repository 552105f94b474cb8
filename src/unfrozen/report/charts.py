"""Geometry of the line charts and histograms: data in, SVG coordinates out.

Nothing is averaged or smoothed here. The template draws what these functions return; colours come from CSS, so
that one figure serves the light page, the dark page and print.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LABEL_GAP = 13.0
"""Least distance between two labels at the ends of lines, in SVG units."""
_LABEL_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class Line:
    """A line in data coordinates. `band` holds (x, low, high); `arm` is the index of the arm's colour."""

    label: str
    arm: int
    points: tuple[tuple[float, float], ...]
    band: tuple[tuple[float, float, float], ...] = ()
    hollow: bool = False
    """Drawn dashed, without dots: the training side of a pair."""


@dataclass(frozen=True, slots=True)
class DrawnLine:
    """A line in SVG units. `label_y` is None where the chart labels no lines."""

    label: str
    arm: int
    path: str
    dots: tuple[tuple[float, float], ...]
    band: str
    hollow: bool
    label_y: float | None


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick at `at` (SVG units) with its text."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A line chart, ready to draw. All lengths in SVG units of a `width` × `height` view box."""

    title: str
    unit: str
    arm: int | None
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[DrawnLine, ...]
    marks: tuple[Tick, ...]
    """Alarms: where on the x axis, and the sentence."""
    reference: float | None
    description: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a histogram, in SVG units."""

    x: float
    y: float
    width: float
    height: float
    text: str


@dataclass(frozen=True, slots=True)
class Histogram:
    """Two sets of bars over common edges."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    first: tuple[Bar, ...]
    second: tuple[Bar, ...]


def nice_ticks(low: float, high: float, target: int = 4) -> tuple[float, ...]:
    """Return round values that cover [low, high]: steps of 1, 2, 2.5 or 5 times a power of ten."""
    span = high - low
    if not span > 0:
        span = max(abs(high), 1.0)
        high = low + span
    raw = span / target
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(round(index * step, 12) for index in range(first, last + 1))


def spread(positions: Sequence[float], low: float, high: float, gap: float = LABEL_GAP) -> list[float]:
    """Move label positions apart by at least `gap` inside [low, high], keeping their order.

    Where they cannot all fit, the gap shrinks evenly.
    """
    if not positions:
        return []
    if len(positions) > 1:
        gap = min(gap, (high - low) / (len(positions) - 1))
    order = sorted(range(len(positions)), key=lambda index: (positions[index], index))
    placed: list[float] = []
    for index in order:
        at = min(max(positions[index], low), high)
        placed.append(at if not placed else max(at, placed[-1] + gap))
    ceiling = high
    for slot in range(len(placed) - 1, -1, -1):
        placed[slot] = min(placed[slot], ceiling)
        ceiling = placed[slot] - gap
    result = [0.0] * len(positions)
    for slot, index in enumerate(order):
        result[index] = placed[slot]
    return result


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    unit: str = "",
    x_max: float,
    y_range: tuple[float, float] | None = None,
    arm: int | None = None,
    size: tuple[float, float] = (360, 230),
    end_labels: bool = False,
    marks: Sequence[tuple[float, str]] = (),
    reference: float | None = None,
) -> Chart:
    """Lay out a line chart over steps 0 to `x_max`.

    `y_range` fixes the vertical axis (shared by small multiples); otherwise it covers zero and the data.
    """
    width, height = size
    longest = max((len(_short(line.label)) for line in lines), default=0)
    right = width - (6.4 * longest + 12 if end_labels else 10)
    left, top, bottom = 38.0, 12.0, height - 36.0
    y_values = nice_ticks(*(y_range or _extent(lines)))
    x_values = [value for value in nice_ticks(0, x_max) if value <= x_max * 1.001]
    y_low, y_high = y_values[0], y_values[-1]

    def across(value: float) -> float:
        return round(left + (right - left) * value / (x_max or 1), 2)

    def up(value: float) -> float:
        value = min(max(value, y_low), y_high)
        return round(bottom - (bottom - top) * (value - y_low) / (y_high - y_low), 2)

    ends = [up(line.points[-1][1]) for line in lines]
    label_ys = spread(ends, top + 2, bottom - 2) if end_labels else [None] * len(lines)
    drawn = tuple(
        DrawnLine(
            label=_short(line.label),
            arm=line.arm,
            path=_path([(across(x), up(y)) for x, y in line.points]),
            dots=tuple((across(x), up(y)) for x, y in line.points),
            band=_band([(across(x), up(low), up(high)) for x, low, high in line.band]),
            hollow=line.hollow,
            label_y=label_y,
        )
        for line, label_y in zip(lines, label_ys, strict=True)
    )
    last = "; ".join(f"{line.label} ends at {line.points[-1][1]:.3g}" for line in lines)
    return Chart(
        title,
        unit,
        arm,
        width,
        height,
        left,
        right,
        top,
        bottom,
        x_ticks=tuple(Tick(across(value), f"{value:g}") for value in x_values),
        y_ticks=tuple(Tick(up(value), f"{value:g}") for value in y_values),
        lines=drawn,
        marks=tuple(Tick(across(step), text) for step, text in marks),
        reference=None if reference is None else up(reference),
        description=f"{title}: {last}.",
    )


def histogram(
    edges: Sequence[float], first: Sequence[float], second: Sequence[float], unit: str = "$"
) -> Histogram | None:
    """Lay out two sets of shares over common bin edges, side by side in each bin; None if they do not fit.

    A bin is drawn at equal width whatever its span: the edges are printed below.
    """
    bins = len(edges) - 1
    if bins < 1 or len(first) != bins or len(second) != bins:
        return None
    width, height, left, top = 440.0, 230.0, 40.0, 12.0
    right, bottom = width - 10, height - 36.0
    y_values = nice_ticks(0, max(*first, *second, 1e-9))
    slot = (right - left) / bins

    def bars(values: Sequence[float], shift: float) -> tuple[Bar, ...]:
        built = []
        for index, value in enumerate(values):
            tall = (bottom - top) * max(value, 0) / y_values[-1]
            span = f"{unit}{edges[index]:g} to {unit}{edges[index + 1]:g}: {value:.3f}"
            x = left + slot * (index + 0.1 + 0.4 * shift)
            built.append(Bar(round(x, 2), round(bottom - tall, 2), round(0.4 * slot, 2), round(tall, 2), span))
        return tuple(built)

    every = max(1, math.ceil((bins + 1) / 6))
    ticks = [
        Tick(round(left + slot * index, 2), f"{unit}{edge:g}") for index, edge in enumerate(edges) if index % every == 0
    ]
    rows = [Tick(round(bottom - (bottom - top) * value / y_values[-1], 2), f"{value:g}") for value in y_values]
    return Histogram(
        width, height, left, right, top, bottom, tuple(ticks), tuple(rows), bars(first, 0), bars(second, 1)
    )


def _extent(lines: Sequence[Line]) -> tuple[float, float]:
    values = [y for line in lines for _, y in line.points]
    values += [end for line in lines for _, low, high in line.band for end in (low, high)]
    return min(0.0, *values), max(0.0, *values)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


def _band(points: Sequence[tuple[float, float, float]]) -> str:
    if len(points) < 2:
        return ""
    upper = [(x, high) for x, _, high in points]
    lower = [(x, low) for x, low, _ in reversed(points)]
    return _path([*upper, *lower]) + "Z"


def _short(label: str) -> str:
    return label if len(label) <= _LABEL_CHARACTERS else label[: _LABEL_CHARACTERS - 1] + "…"
