"""The terminal summary: one screen, the contract's numbers, and nothing in it is read as markup."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from unfrozen.report import print_summary


def printed(summary: dict[str, Any], width: int = 80) -> list[str]:
    stream = io.StringIO()
    print_summary(summary, Console(file=stream, width=width))
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_seven_arms_fit_one_screen(make_summary: Any, width: int) -> None:
    lines = printed(make_summary(), width)
    assert len(lines) <= 24
    assert max(map(len, lines)) <= width
    assert len([line for line in lines if line.startswith("■")]) == 7


def test_an_arm_has_its_success_interval_entropy_episodes_and_updates_on_one_line(make_summary: Any) -> None:
    line = next(line for line in printed(make_summary()) if line.startswith("■ single"))
    assert line.split()[2:] == ["0.96", "0.49", "0.45–0.53", "0.31", "7,680", "120"]


def test_a_wide_terminal_also_shows_what_the_simulators_cost(make_summary: Any) -> None:
    lines = printed(make_summary(), 130)
    assert any("sim. updates" in line for line in lines)
    assert "480" in next(line for line in lines if line.startswith("■ population")).split()


def test_a_narrow_terminal_keeps_the_success_columns(make_summary: Any) -> None:
    lines = printed(make_summary(), 44)
    head = next(line for line in lines if line.startswith("arm"))
    assert head.split() == ["arm", "train", "held", "out", "95", "%"]


def test_a_single_arm_comes_with_its_panel(make_summary: Any) -> None:
    summary = make_summary()
    summary["arms"] = {"single": summary["arms"]["single"]}
    lines = printed(summary)
    assert any(line.startswith("scripted-uniform") for line in lines)
    assert len(lines) <= 24


def test_a_long_panel_says_how_many_members_are_not_shown(make_summary: Any) -> None:
    summary = make_summary()
    arm = summary["arms"]["single"]
    arm["panel"] = {f"member {index}": arm["panel"]["amber"] for index in range(30)}
    summary["arms"] = {"single": arm}
    assert any("and 18 more in the report" in line for line in printed(summary))


def test_missing_values_are_dashes_and_columns_without_values_are_gone(make_summary: Any) -> None:
    summary = make_summary()
    for arm in summary["arms"].values():
        arm["policy_entropy"] = None
    summary["arms"]["single"]["train_success"] = None
    lines = printed(summary)
    assert not any("entropy" in line for line in lines)
    assert next(line for line in lines if line.startswith("■ single")).split()[2] == "—"


def test_names_and_sentences_are_printed_as_they_are(make_summary: Any) -> None:
    summary = make_summary()
    summary["arms"]["[red]x[/red]"] = summary["arms"].pop("single")
    summary["verdict"]["sentence"] = "[bold]not markup[/bold] [/]"
    text = "\n".join(printed(summary))
    assert "[red]x[/red]" in text
    assert "[bold]not markup[/bold] [/]" in text


def test_an_empty_summary_prints_without_an_error() -> None:
    assert printed({}) == [""]
