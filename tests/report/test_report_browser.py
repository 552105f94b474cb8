"""The report in a real browser, at desk and phone width: it opens from disk, works, and keeps texts inert."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from unfrozen.report import write_report

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
HOSTILE = (
    "</script x=''><script>window.owned=1</script><img src=x onerror='window.owned=2'>"
    '"><svg onload=window.owned=3><!--<script>{{ 7*7 }}</textarea><a href="javascript:window.owned=4">x</a>\u2028&lt;'
)

# The lowest contrast of any visible text with what lies behind it, and that text.
CONTRAST = """() => {
  const parse = (text) => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
  const luminance = (rgb) => rgb.slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => node
    ? over(parse(getComputedStyle(node).backgroundColor), behind(node.parentElement)) : [255, 255, 255, 1];
  let worst = [99, ""];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].filter((child) => child.nodeType === 3).map((child) => child.data).join("").trim();
    if (!own || !node.checkVisibility() || node.closest("svg, :disabled, option, script, .skip")) continue;
    const back = behind(node);
    const [a, b] = [luminance(over(parse(getComputedStyle(node).color), back)), luminance(back)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst[0]) worst = [ratio, node.className + ": " + own];
  }
  return worst;
}"""

# Elements that stick out of the window, apart from what scrolls in a box of its own.
STICKING_OUT = """() => [...document.querySelectorAll("body *")]
  .filter((node) => node.checkVisibility() && !node.closest(".scroll, nav, #list, .skip, svg"))
  .filter((node) => node.getBoundingClientRect().right > innerWidth + 0.5)
  .map((node) => node.tagName + "." + node.className)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Visit:
    """A page with what it asked of the network and what it complained about."""

    def __init__(self, browser: Any, path: Path, width: int, **options: Any) -> None:
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.context = browser.new_context(viewport={"width": width, "height": 844}, **options)
        self.context.route("**/*", self._route)
        self.page = self.context.new_page()
        self.page.set_default_timeout(10_000)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.goto(path.as_uri())

    def _route(self, route: Any) -> None:
        if route.request.url.startswith("file:"):
            route.continue_()
        else:
            route.abort()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Visit]]:
    visits: list[Visit] = []

    def open_page(path: Path, width: int = 1280, **options: Any) -> Visit:
        visits.append(Visit(browser, path, width, **options))
        return visits[-1]

    yield open_page
    for opened in visits:
        opened.context.close()


@pytest.fixture
def report(make_summary: Any, make_episodes: Any, tmp_path: Path) -> Path:
    return write_report(make_summary(), make_episodes(), tmp_path / "report.html")


@pytest.mark.parametrize("width", [1280, 390])
def test_the_report_opens_from_disk_without_a_request_or_an_error(
    report: Path, visit: Callable[..., Visit], width: int
) -> None:
    opened = visit(report, width)
    assert opened.requests == [report.as_uri()]
    assert opened.errors == []
    assert "0.96" in opened.page.locator("h1").inner_text()
    assert opened.page.locator("#curves figure").count() == 6
    assert opened.page.locator("#crossplay tbody tr").count() == 7


def test_nothing_sticks_out_at_phone_width_and_wide_tables_scroll_in_their_own_box(
    report: Path, visit: Callable[..., Visit]
) -> None:
    page = visit(report, 390).page
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate(STICKING_OUT) == []
    box = page.locator("#results .scroll").first
    assert box.evaluate("(node) => node.scrollWidth > node.clientWidth")


def test_a_long_word_in_a_transcript_does_not_widen_the_page(
    make_summary: Any, make_episode: Any, tmp_path: Path, visit: Callable[..., Visit]
) -> None:
    episodes = [make_episode("verbalized", text="x" * 600)]
    page = visit(write_report(make_summary(), episodes, tmp_path / "r.html"), 390).page
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate(STICKING_OUT) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_what_lies_behind_it(report: Path, visit: Callable[..., Visit], scheme: str) -> None:
    page = visit(report, color_scheme=scheme).page
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    ratio, text = page.evaluate(CONTRAST)
    assert ratio >= 4.5, text
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 128) == (scheme == "dark")


def test_filters_narrow_the_list_and_reset_brings_it_back(report: Path, visit: Callable[..., Visit]) -> None:
    page = visit(report).page
    everything = page.locator(".item").count()
    page.select_option("#filter-arm", label="verbalized")
    page.select_option("#filter-step", label="20")
    page.select_option("#filter-simulator", label="amber")
    rows = page.locator(".item").all_inner_texts()
    assert 0 < len(rows) < everything
    assert all("verbalized step 20" in row and "amber" in row for row in rows)
    page.select_option("#filter-outcome", label="any success")
    assert all("accepted" in row for row in page.locator(".item").all_inner_texts())
    page.click("text=Reset")
    page.wait_for_function("(count) => document.querySelectorAll('.item').length === count", arg=everything)
    page.select_option("#filter-outcome", label="failed: timeout")
    assert "Failed (timeout) after 3 tries. No reward." in page.locator("#transcript").inner_text()
    assert "no answer within 60 s" in page.locator("#transcript").inner_text()
    page.fill("#filter-text", "no such words anywhere")
    assert page.locator("#matches").inner_text() == "0 episodes"


def test_candidates_are_shown_with_the_drawn_one_and_private_turns_are_marked(
    report: Path, visit: Callable[..., Visit]
) -> None:
    page = visit(report).page
    page.select_option("#filter-arm", label="verbalized")
    draw = page.locator("#transcript .draw").first
    assert draw.locator(".probability").all_inner_texts() == ["55 %", "30 %", "15 %"]
    assert draw.locator(".candidate.drawn .text").inner_text() == "i like the seadrawn"
    widths = draw.locator(".bar").evaluate_all("(bars) => bars.map((bar) => bar.style.width)")
    assert [round(float(width.rstrip("%"))) for width in widths] == [55, 30, 15]
    private = page.locator("#transcript .turn.private")
    assert private.count() == 1
    assert "private" in private.locator(".speaker").inner_text()
    assert private.locator(".candidate.drawn .text").inner_text() == "$1given"
    assert "heard as then think of the sea and give" in page.locator("#transcript").inner_text()


def test_the_browser_of_transcripts_works_with_the_keyboard_alone(report: Path, visit: Callable[..., Visit]) -> None:
    page = visit(report).page
    page.focus("#list")
    selected = "document.querySelector('.item[aria-selected=true]').id"
    page.keyboard.press("ArrowDown")
    assert page.evaluate(selected) == "episode-1"
    page.keyboard.press("End")
    last = page.locator(".item").count() - 1
    assert page.evaluate(selected) == f"episode-{last}"
    assert page.evaluate("document.getElementById('list').scrollTop") > 0
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "transcript"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate(selected) == "episode-1"


def test_hostile_texts_are_shown_as_text_and_nothing_of_them_runs(
    make_summary: Any, make_episode: Any, tmp_path: Path, visit: Callable[..., Visit]
) -> None:
    summary = make_summary()
    arm = summary["arms"].pop("single")
    arm["panel"] = {HOSTILE: dict(arm["panel"]["amber"], family=HOSTILE)}
    arm["metrics"] = {HOSTILE: 0.5}
    arm["alarms"] = [{"step": 3, "sentence": HOSTILE}]
    arm["curve"][-1]["simulators"] = {HOSTILE: {"reward": 0.5}}
    summary["arms"][HOSTILE] = arm
    summary["verdict"]["sentence"] = summary["name"] = summary["hardware"] = HOSTILE
    summary["crossplay"]["simulators"][0] = HOSTILE
    summary["differences"] = [{"key": HOSTILE, "values": {HOSTILE: HOSTILE}}]
    summary["order"]["sentence"] = HOSTILE
    speaker = dict.fromkeys(("label", "family", "kind", "adapter", "persona"), HOSTILE)
    episode = make_episode("verbalized", text=HOSTILE, id=HOSTILE, agent=speaker, simulator=speaker)
    episode["turns"][1]["draw"] |= {"fallback": True, "raw": [HOSTILE]}
    episode["turns"][3] |= {"prompt": HOSTILE, "option_probabilities": {HOSTILE: 1.0}}
    episode["outcome"] |= {"state": HOSTILE, "metrics": {HOSTILE: 1.0}}
    broken = make_episode(HOSTILE, outcome=None, failure={"cause": HOSTILE, "detail": HOSTILE, "attempts": 1})
    opened = visit(write_report(summary, [episode, broken], tmp_path / "r.html"))
    page = opened.page
    for index in range(2):
        page.locator(".item").nth(index).click()
    page.select_option("#filter-arm", label="verbalized")
    assert page.evaluate("window.owned") is None
    assert page.locator("script").count() == 2
    assert page.locator("img, main a, svg[onload]").count() == 0
    assert page.locator("#transcript .said").nth(1).evaluate("(node) => node.textContent") == HOSTILE
    assert page.locator("h1").evaluate("(node) => node.textContent") == HOSTILE
    assert opened.errors == []
    assert len(opened.requests) == 1


def test_a_script_that_slipped_in_would_be_refused_by_the_page(report: Path, visit: Callable[..., Visit]) -> None:
    opened = visit(report)
    opened.page.evaluate(
        "() => document.body.append(Object.assign(document.createElement('script'), { text: 'window.owned = 1' }))"
    )
    opened.page.evaluate("() => fetch('https://example.org/').catch(() => 0)")
    assert opened.page.evaluate("window.owned") is None
    assert not [url for url in opened.requests if not url.startswith("file:")]
    assert any("Content Security Policy" in error for error in opened.errors)


def test_without_javascript_the_results_stand_and_the_page_says_what_is_missing(
    report: Path, visit: Callable[..., Visit]
) -> None:
    page = visit(report, java_script_enabled=False).page
    assert page.locator("#results tbody tr").first.is_visible()
    assert page.locator("noscript").is_visible()
    assert not page.locator("#browser").is_visible()


def test_on_paper_controls_are_gone_and_folded_parts_are_open(report: Path, visit: Callable[..., Visit]) -> None:
    page = visit(report).page
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print", color_scheme="dark")
    assert not page.locator(".filters").is_visible()
    assert not page.locator("nav").is_visible()
    assert page.locator("details:not([open])").count() == 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("#results details:not([open])").count() > 0
