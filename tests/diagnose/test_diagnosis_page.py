"""The page of a diagnosis: every part of it, what is missing, hostile texts, and how it looks in a browser."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from unfrozen import diagnose
from unfrozen.core.episodelog import EpisodeLog
from unfrozen.diagnoseconfig import DiagnoseConfig
from unfrozen.jobs.diagnosis_summary import diagnosis_transcripts
from unfrozen.report import print_diagnosis, write_diagnosis
from unfrozen.report.diagnosis import render_diagnosis

Make = Callable[..., DiagnoseConfig]
SECTIONS = ("results", "drop", "narrowness", "behaviour", "faults", "trust", "transcripts")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HOSTILE = "</script><img src=x onerror='window.owned=1'>[bold red]{{ 7*7 }}"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A diagnosis with everything in it: a baseline, failures, narrowness."""
    from colours import write_tasks

    from unfrozen.config import validated

    folder = tmp_path_factory.mktemp("page")
    names = ("red_lover", "plain", "curt")
    data = {
        "name": "page",
        "environment": {"name": "tasks", "file": str(write_tasks(folder))},
        "agent": {"callable": "colours:fails_on_blue"},
        "baseline": {"callable": "colours:over_fitted"},
        "simulators": {name: {"callable": f"colours:{name}"} for name in names},
        "roles": {"train": ["red_lover"], "test": ["plain", "curt"]},
        "tasks": {"count": 18, "trials": 2},
        "narrowness": {"states": 6, "replies": 6},
        "rollout": {"max_failures": 1.0},
    }
    summary = diagnose(validated(DiagnoseConfig, data, "test"), folder / "run").summary
    return dict(summary), list(diagnosis_transcripts(EpisodeLog(folder / "run").episodes))


def section(page: str, name: str) -> str:
    found = re.search(rf'<section id="{name}">(.*?)</section>', page, re.S)
    return found.group(1) if found else ""


def test_the_page_has_every_part_with_its_numbers(finished: Any) -> None:
    summary, episodes = finished
    page = render_diagnosis(summary, episodes)
    assert [name for name in SECTIONS if not section(page, name)] == []
    assert "role inversion" in section(page, "faults")
    assert "How can I help you today?" in section(page, "faults")
    assert "raised RuntimeError: blue" in section(page, "trust")
    assert "beyond the drop of the baseline" in section(page, "drop")
    assert "γ" in section(page, "narrowness")
    assert "None" not in page.split("<script type")[0]
    assert "nan" not in page.split("<script type")[0].replace("nanny", "")


@pytest.mark.parametrize(
    "missing", ["narrowness", "behaviour", "drop", "excess", "opened", "spend", "failures", "simulators", "verdict"]
)
def test_a_part_that_is_missing_is_left_out(finished: Any, missing: str) -> None:
    summary, episodes = finished
    for absent in (True, False):
        less = {k: v for k, v in summary.items() if k != missing} | ({} if absent else {missing: None})
        page = render_diagnosis(less, episodes)
        assert "None" not in page.split("<script type")[0]
        console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
        print_diagnosis(less, console)
        assert "None" not in console.export_text()
    if missing in ("narrowness", "behaviour"):
        assert not section(page, missing)


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_shows_the_answer_on_one_screen(finished: Any, width: int) -> None:
    summary, _ = finished
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_diagnosis(summary, console)
    lines = console.export_text().splitlines()
    assert len(lines) <= 30
    assert all(len(line) <= width for line in lines)
    for name in ("red_lover", "plain", "curt"):
        row = next(line for line in lines if line.startswith(name))
        assert "…" not in row
        assert re.search(r"\d\.\d\d \(0\.\d\d–\d\.\d\d\)", row)


def hostile(value: Any) -> Any:
    """Every text in a summary replaced by one that would like to be markup."""
    if isinstance(value, dict):
        return {key: hostile(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [hostile(inner) for inner in value]
    return HOSTILE if isinstance(value, str) else value


def test_hostile_texts_stay_texts(finished: Any) -> None:
    summary, episodes = finished
    simulators = {f"{HOSTILE}{i}": row for i, row in enumerate(hostile(summary["simulators"]).values())}
    page = render_diagnosis(hostile(summary) | {"simulators": simulators}, episodes)
    assert "<img" not in page
    assert "49" not in section(page, "trust")
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_diagnosis(hostile(summary) | {"simulators": simulators}, console)
    assert "[bold red]" in console.export_text()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield opened
        opened.close()


STICKING_OUT = """() => [...document.querySelectorAll("body *")]
  .filter((node) => node.checkVisibility() && !node.closest(".scroll, nav, #list, .skip, svg"))
  .filter((node) => node.getBoundingClientRect().right > innerWidth + 0.5)
  .map((node) => node.tagName + "." + node.className)"""


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_opens_from_disk_without_a_request_an_error_or_anything_sticking_out(
    finished: Any, browser: Any, tmp_path: Path, width: int
) -> None:
    path = write_diagnosis(*finished, tmp_path / "report.html")
    errors: list[str] = []
    requests: list[str] = []
    context = browser.new_context(viewport={"width": width, "height": 844})
    page = context.new_page()
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(path.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert errors == []
    assert requests == [path.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(STICKING_OUT) == []
    marks = page.locator("#results .marks circle.agent")
    assert marks.count() == 3
    first, second = (marks.nth(i).bounding_box() for i in (0, 1))
    assert first["width"] > 8
    assert first["y"] < second["y"]
    assert page.locator("#drop .marks .margin").count() == 3
    page.select_option("#filter-arm", label="baseline")
    assert page.locator(".item").count() > 0
    context.close()
