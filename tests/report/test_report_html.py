"""The page as text: what it shows, what it leaves out, and that nothing in it can become markup or load anything."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unfrozen.report import write_report
from unfrozen.report.html import render
from unfrozen.report.reading import duration, fraction, percent
from unfrozen.report.transcripts import to_json


def section(page: str, name: str) -> str:
    found = re.search(rf'<section id="{name}">(.*?)</section>', page, re.S)
    return found.group(1) if found else ""


def cells(html: str) -> list[str]:
    return [re.sub(r"<.*?>", " ", cell).strip() for cell in re.findall(r"<td.*?</td>", html, re.S)]


def test_a_comparison_shows_every_part(make_summary: Any, make_episodes: Any) -> None:
    page = render(make_summary(), make_episodes())
    parts = ("results", "curves", "diversity", "panel", "crossplay", "donations", "cost", "differences", "transcripts")
    assert [name for name in parts if not section(page, name)] == []
    assert "0.45–0.53" in section(page, "results")
    assert "simulator updates" in section(page, "cost")
    assert "groups without variance" in section(page, "cost")
    assert "400 of 1,008 episodes, drawn evenly" in section(page, "transcripts")


def test_the_page_names_nothing_that_a_browser_would_fetch(make_summary: Any, make_episodes: Any) -> None:
    page = render(make_summary(), make_episodes())
    markup = page.split("<script type")[0]
    targets = re.findall(r"""\b(?:src|srcset|href|action|data|poster)\s*=\s*["']?([^"'\s>]*)""", markup)
    assert len(targets) >= 8
    assert [target for target in targets if not target.startswith("#")] == []
    assert "@import" not in page
    assert "url(" not in page
    assert "//" not in markup


def test_the_policy_names_the_hash_of_the_script_that_is_there(make_summary: Any, make_episodes: Any) -> None:
    page = render(make_summary(), make_episodes())
    scripts = re.findall(r"<script>(.*?)</script>", page, re.S)
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "innerHTML" not in scripts[0]
    assert "insertAdjacentHTML" not in scripts[0]


@pytest.mark.parametrize(
    "missing", ["curve", "panel", "metrics", "seed_results", "alarms", "verdict", "heldout_interval", "train_success"]
)
def test_a_missing_part_of_an_arm_is_left_out_and_never_zero(
    make_summary: Any, make_episodes: Any, missing: str
) -> None:
    for absent in (True, False):
        summary = make_summary()
        for arm in summary["arms"].values():
            if absent:
                del arm[missing]
            else:
                arm[missing] = None
        page = render(summary, make_episodes())
        assert "None" not in page.split("<script type")[0]
        if missing == "curve":
            assert not section(page, "curves")
        if missing == "panel":
            assert not section(page, "panel")
        if missing == "train_success":
            assert ">training success<" not in section(page, "results")
            assert 'class="train"' not in section(page, "results").split('class="overview"')[1]


def test_a_value_that_is_missing_in_one_arm_is_a_dash_there(make_summary: Any) -> None:
    summary = make_summary()
    summary["arms"]["single"]["policy_entropy"] = None
    summary["arms"]["persona"]["policy_entropy"] = float("nan")
    rows = re.findall(r"<tr>.*?</tr>", section(render(summary, []), "results"), re.S)
    entropies = [cells(row)[2] for row in rows if len(cells(row)) == 5][:3]
    assert entropies == ["1.62", "—", "—"]


def test_steps_without_a_measurement_are_not_drawn(make_summary: Any) -> None:
    summary = make_summary()
    curve = [{"step": step, "train_success": 0.5 if step < 3 else None} for step in range(6)]
    summary["arms"] = {"single": {"method": "single", "curve": curve}}
    lines = re.findall(r'class="line" d="(.*?)"', section(render(summary, []), "curves"))
    assert len(lines) == 1
    assert lines[0].count("L") == 2


def test_an_evaluation_and_an_almost_empty_summary_make_a_page(make_summary: Any, make_episodes: Any) -> None:
    summary = make_summary()
    arm = {key: value for key, value in summary["arms"]["single"].items() if key not in ("curve", "train_success")}
    one = {
        "job": "evaluate",
        "name": "check",
        "arms": {"agent": arm},
        "crossplay": None,
        "verdict": {"collapsed": None},
    }
    page = render(one, [])
    assert "No verdict<" in page
    assert section(page, "panel")
    assert not section(page, "curves")
    assert not section(page, "transcripts")
    assert "No verdict was reached." in render({}, [])


def test_the_untrained_policy_is_a_reference_line_and_not_a_curve_of_one_point(make_summary: Any) -> None:
    curves = section(render(make_summary(), []), "curves")
    assert "base" not in curves.replace("baseline", "")
    assert curves.count('class="reference"') == 6
    assert "base" not in section(render(make_summary(), []), "diversity")


def test_alarms_and_verdicts_of_arms_are_told_in_words(make_summary: Any) -> None:
    results = section(render(make_summary(), []), "results")
    assert results.count("<b>Alarm, seed 1, step 20.</b>") == 2
    assert "population gained 0.45 in training and 0.45 held out." in results


def test_simulators_of_training_stand_beside_the_panel_and_are_named_as_such(make_summary: Any) -> None:
    summary = make_summary()
    summary["arms"]["single"]["own"] = {"own-one": {"family": "amber", "success": 0.96, "episodes": 64}}
    panel = section(render(summary, []), "panel")
    row = next(row for row in panel.split("<tr>") if "own-one" in row)
    assert cells(row) == ["training", "own-one", "amber", "0.96", "—", "—", "64"]
    assert "own-one" not in panel.split("<details>")[0]


def test_unplayed_cells_of_cross_play_stay_empty(make_summary: Any) -> None:
    row = section(render(make_summary(), []), "crossplay").split("base</th>")[1].split("</tr>")[0]
    assert cells(row)[3] == "—"
    assert row.count("--heat") == 7


def test_an_arm_wears_one_colour_everywhere(make_summary: Any, make_episodes: Any) -> None:
    page = render(make_summary(), make_episodes())
    for index, name in enumerate(make_summary()["arms"]):
        found = re.findall(rf'var\(--arm-(\d+)\)"></span>(?:<span>)?{name}<', page)
        assert len(found) > 5
        assert set(found) == {str(index)}
    embedded = json.loads(page.split('id="episodes">')[1].split("</script>")[0])
    assert embedded["arms"] == {name: index for index, name in enumerate(make_summary()["arms"])}


def test_the_report_replaces_an_older_one_and_leaves_no_other_file(
    make_summary: Any, make_episodes: Any, tmp_path: Path
) -> None:
    path = tmp_path / "deep" / "report.html"
    assert write_report(make_summary(), [], path) == path
    write_report(make_summary(), iter(make_episodes()), path)
    first = path.read_bytes()
    assert b"400 of 1,008" in first
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]
    write_report(make_summary(), reversed(make_episodes()), path)
    assert path.read_bytes() == first


def test_half_a_surrogate_pair_does_not_stop_the_report(make_summary: Any, make_episode: Any, tmp_path: Path) -> None:
    summary = make_summary()
    summary["verdict"]["sentence"] = "half \ud83d"
    path = write_report(summary, [make_episode(text="half \ud83d")], tmp_path / "report.html")
    assert "half &#55357;" in path.read_text("utf-8")


@given(
    st.recursive(
        st.text() | st.integers() | st.booleans(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_embedded_json_cannot_leave_its_script_element_and_reads_back_unchanged(value: Any) -> None:
    text = to_json(value)
    assert not set(text) & set("<>&")
    assert text.isascii()
    assert json.loads(text) == value


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (fraction(0.934), "0.93"), (fraction(None), "—"), (fraction(True), "—"), (percent(0.0312), "3.1 %"),
        (percent(0.0001), "< 0.1 %"), (percent(0), "0.0 %"), (duration(4.2), "4.2 s"), (duration(59.7), "1 min 00 s"),
        (duration(192), "3 min 12 s"), (duration(7500), "2 h 05 min"), (duration(3599.9), "1 h 00 min"),
    ],
)  # fmt: skip
def test_values_are_written_for_people(written: str, expected: str) -> None:
    assert written == expected
