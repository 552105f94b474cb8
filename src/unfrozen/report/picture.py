"""The picture of the collapse: training against held-out success over steps, one panel for each arm."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unfrozen.core.errors import UsageError
from unfrozen.core.files import write_atomically
from unfrozen.report.charts import Line, spread
from unfrozen.report.curves import curve_rows, success_lines, untrained_success
from unfrozen.report.palette import arm_colours
from unfrozen.report.reading import arms_of

_INK, _MUTED, _RULE = "#1c1e21", "#5c6370", "#dedfdb"
_MAX_COLUMNS = 3


def collapse_picture(summary: Mapping[str, Any], path_png: Path) -> Path:
    """Write the picture as a PNG of 1,800 pixels' width, made to be shown at 900; return the path.

    Arms without a curve get no panel; the held-out success of the `base` arm is a dotted line in every panel.
    Raises UsageError where no arm has a curve, or the file cannot be written.
    """
    if path_png.suffix.lower() != ".png":
        raise UsageError(f"{path_png}: the picture is a PNG; name a file that ends in .png")
    # Imported here: matplotlib is slow to load, and most commands draw nothing.
    from matplotlib.figure import Figure

    arms = arms_of(summary)
    colours = arm_colours(arms)
    curves = {name: success_lines(curve_rows(arm), index) for index, (name, arm) in enumerate(arms.items())}
    panels = {name: lines for name, lines in curves.items() if lines}
    if not panels:
        raise UsageError(f"{path_png}: no picture, the summary has no arm with a curve; train or compare first")
    columns = min(_MAX_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(9, 0.75 + 2.15 * rows), dpi=200, facecolor="white", layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    base = untrained_success(summary)
    for axes, (name, lines) in zip(grid.flat, panels.items(), strict=False):
        _panel(axes, name, lines, colours[name].light, base)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for column in range(columns):
        lowest = grid[(len(panels) - 1 - column) // columns, column]
        lowest.set_xlabel("training step", fontsize=9, color=_MUTED)
        lowest.tick_params(labelbottom=True)
    for row in range(rows):
        grid[row, 0].set_ylabel("success", fontsize=9, color=_MUTED)
    figure.legend(
        handles=_legend(base), loc="outside upper left", ncols=4, frameon=False, fontsize=9.5, labelcolor=_INK
    )
    image = io.BytesIO()
    figure.savefig(image, format="png", metadata={"Software": None})
    write_atomically(path_png, image.getvalue())
    return path_png


def _panel(axes: Any, name: str, lines: list[Line], colour: str, base: float | None) -> None:
    if base is not None:
        axes.axhline(base, color=_MUTED, linewidth=1, linestyle=(0, (1, 2)))
    label_ys = spread([line.points[-1][1] for line in lines], 0.0, 1.0, gap=0.085)
    for line, label_y in zip(lines, label_ys, strict=True):
        x, y = zip(*line.points, strict=True)
        if line.band:
            at, low, high = zip(*line.band, strict=True)
            axes.fill_between(at, low, high, color=colour, alpha=0.10 if line.hollow else 0.22, linewidth=0)
        if line.hollow:
            axes.plot(x, y, color=colour, linewidth=1.3, linestyle=(0, (4, 2)))
        else:
            axes.plot(x, y, color=colour, linewidth=2, marker="o", markersize=3.2)
        axes.annotate(
            f"{y[-1]:.2f}",
            (x[-1], label_y),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=colour,
            fontweight="normal" if line.hollow else "bold",
            annotation_clip=False,
        )
    axes.set_title(name, loc="left", fontsize=11, fontweight="bold", color=colour)
    axes.set_ylim(0, 1.04)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "0.5", "", "1"])
    axes.margins(x=0.02)
    axes.grid(axis="y", color=_RULE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=8.5, labelcolor=_MUTED)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_RULE)


def _legend(base: float | None) -> list[Any]:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=_INK, linewidth=1.3, linestyle=(0, (4, 2)), label="with its training simulators"),
        Line2D([], [], color=_INK, linewidth=2, marker="o", markersize=3.2, label="with held-out simulators"),
    ]
    if base is not None:
        label = "untrained, held out"
        handles.append(Line2D([], [], color=_MUTED, linewidth=1, linestyle=(0, (1, 2)), label=label))
    return handles
