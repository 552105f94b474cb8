"""Geometry of the figures: ticks are round and cover the data, labels do not overlap, points land where they should."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unfrozen.report.charts import LABEL_GAP, Line, histogram, line_chart, nice_ticks, spread

FINITE = st.floats(-1e6, 1e6, allow_subnormal=False)


@given(FINITE, st.floats(1e-3, 1e6))
def test_ticks_cover_the_range_in_equal_steps(low: float, span: float) -> None:
    high = low + span
    ticks = nice_ticks(low, high)
    slack = span * 1e-3
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack
    assert 2 <= len(ticks) <= 8
    steps = [after - before for before, after in pairwise(ticks)]
    assert max(steps) == pytest.approx(min(steps), rel=1e-3)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, (0, 0.25, 0.5, 0.75, 1)),
        (0, 40, (0, 10, 20, 30, 40)),
        (0, 1.62, (0, 0.5, 1, 1.5, 2)),
        (0, 0, (0, 0.25, 0.5, 0.75, 1)),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, expected: tuple[float, ...]) -> None:
    assert nice_ticks(low, high) == expected


@given(st.lists(st.floats(0, 200), max_size=30))
def test_labels_keep_their_order_their_distance_and_their_bounds(positions: list[float]) -> None:
    placed = spread(positions, 10, 190)
    assert len(placed) == len(positions)
    ordered = sorted(zip(positions, placed, strict=True))
    gap = min(LABEL_GAP, 180 / max(1, len(positions) - 1))
    for (_, above), (_, below) in pairwise(ordered):
        assert below - above >= gap - 1e-6
    assert all(10 - 1e-6 <= at <= 190 + 1e-6 for at in placed)


def test_labels_that_are_far_apart_stay_where_their_lines_end() -> None:
    assert spread([150.0, 20.0, 80.0], 0, 200) == [150.0, 20.0, 80.0]


def test_points_of_a_chart_land_on_its_axes() -> None:
    chart = line_chart([Line("a", 0, ((0, 0.0), (40, 1.0)))], title="t", x_max=40, y_range=(0, 1), reference=0.5)
    assert chart.lines[0].dots == ((chart.left, chart.bottom), (chart.right, chart.top))
    assert chart.reference == pytest.approx((chart.top + chart.bottom) / 2)
    assert "a ends at 1" in chart.description


def test_a_negative_value_lowers_the_axis() -> None:
    chart = line_chart([Line("kl", 0, ((0, -0.02), (1, 0.03)))], title="t", x_max=1)
    assert float(chart.y_ticks[0].text) <= -0.02
    assert all(chart.top <= y <= chart.bottom for _, y in chart.lines[0].dots)


def test_a_chart_of_a_single_step_is_drawn() -> None:
    chart = line_chart([Line("a", 0, ((0, 0.4),), ((0, 0.3, 0.5),))], title="t", x_max=0)
    assert chart.lines[0].dots[0][0] == chart.left
    assert chart.lines[0].band == ""


def test_bars_are_as_tall_as_their_shares() -> None:
    figure = histogram([0, 1, 2], [0.2, 0.4], [0.4, 0.0])
    assert figure is not None
    low, high = figure.first
    assert high.height == pytest.approx(2 * low.height, abs=0.02)
    assert figure.second[1].height == 0
    assert low.x + low.width <= figure.second[0].x + 0.02


def test_bars_that_do_not_fit_their_edges_are_not_drawn() -> None:
    assert histogram([0, 1], [0.5, 0.5], [1.0]) is None
    assert histogram([], [], []) is None
