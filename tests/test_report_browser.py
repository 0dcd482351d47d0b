"""The report in a real browser, offline: nothing fails, nothing is fetched, all is drawn."""

from __future__ import annotations

import shutil

import pytest
from test_report import MATH500, hostile_recording, hostile_study
from tuner_samples import simulate

from autotune.report import recording_report, render, study_report
from autotune.report.html import DARK, LIGHT, THEMES
from autotune.store import load_study

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}

playwright = pytest.importorskip("playwright.sync_api")
browser_needed = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


class Visit:
    """One page in one window; notes whatever goes wrong."""

    def __init__(self, browser, file, scheme, size):
        self.context = browser.new_context(
            offline=True,
            color_scheme=scheme,
            viewport=size,
            permissions=["clipboard-read", "clipboard-write"],
        )
        self.page = self.context.new_page()
        self.problems = []
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", self._request)
        self.page.goto(file.as_uri())
        self.page.wait_for_load_state("load")

    def _request(self, request):
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.problems.append(request.url)

    def ask(self, script):
        return self.page.evaluate(script)


def written(folder, report, name="r"):
    file = folder / f"{name}.html"
    file.write_text(render(report, "html"))
    return file


@pytest.fixture
def file(request, stage, tmp_path):
    kind = request.param
    if kind == "recording":
        return written(tmp_path, recording_report(MATH500))
    if kind == "hostile":
        return written(tmp_path, hostile_study(f"sqlite:///{tmp_path}/s.db"))
    if kind == "hostile recording":
        return written(tmp_path, hostile_recording(tmp_path))
    stage.tune(simulate(kind))
    return written(tmp_path, study_report(load_study(stage.url)))


DRAWN = """[...document.querySelectorAll('[data-figure]')].map(
    place => place.querySelectorAll('svg .trace path').length)"""
WIDER_THAN_PAGE = """[...document.querySelectorAll('.plot svg')].filter(
    svg => svg.getBoundingClientRect().right > document.documentElement.clientWidth).length"""
ALL_KINDS = ("three-loads", "faulty", "recording", "hostile", "hostile recording")


class TestInABrowser:
    pytestmark = browser_needed

    @pytest.mark.parametrize("file", ALL_KINDS, indirect=True)
    def test_phone_and_desk_light_and_dark(self, browser, file):
        self.look(browser, file, "light", PHONE)
        self.look(browser, file, "dark", DESK)

    @pytest.mark.parametrize("file", ["three-loads"], indirect=True)
    def test_the_other_themes(self, browser, file):
        self.look(browser, file, "dark", PHONE)
        self.look(browser, file, "light", DESK)

    def look(self, browser, file, scheme, size):
        visit = Visit(browser, file, scheme, size)
        assert visit.problems == []
        assert visit.ask("typeof window.hurt") == "undefined"
        drawn = visit.ask(DRAWN)
        assert drawn
        assert all(drawn), drawn
        assert visit.ask("document.documentElement.scrollWidth") == size["width"]
        assert visit.ask(WIDER_THAN_PAGE) == 0
        page = visit.ask("getComputedStyle(document.body).backgroundColor")
        text = visit.ask("getComputedStyle(document.querySelector('.xtick text')).fill")
        assert (page, text) == (rgb(THEMES[scheme]["page"]), rgb(THEMES[scheme]["text"]))
        visit.context.close()

    @pytest.mark.parametrize("file", ["recording"], indirect=True)
    def test_the_button_changes_page_and_figures(self, browser, file):
        visit = Visit(browser, file, "light", DESK)
        fill = "getComputedStyle(document.querySelector('.xtick text')).fill"
        back = "getComputedStyle(document.body).backgroundColor"
        seen = []
        for _ in range(3):
            visit.page.click("#theme")
            seen.append((visit.page.inner_text("#theme"), visit.ask(fill), visit.ask(back)))
        light = rgb(THEMES["light"]["text"]), rgb(THEMES["light"]["page"])
        dark = rgb(THEMES["dark"]["text"]), rgb(THEMES["dark"]["page"])
        assert seen == [
            ("Theme: light", *light), ("Theme: dark", *dark), ("Theme: auto", *light),
        ]  # fmt: skip
        visit.page.emulate_media(color_scheme="dark")
        playwright.expect(visit.page.locator(".xtick text").first).to_have_css("fill", dark[0])
        assert visit.ask(back) == dark[1]
        visit.page.click("#theme")
        visit.page.reload()
        assert visit.page.inner_text("#theme") == "Theme: light"
        assert visit.problems == []
        visit.context.close()

    @pytest.mark.parametrize("file", ["hostile"], indirect=True)
    def test_the_configuration_is_copied(self, browser, file):
        visit = Visit(browser, file, "light", DESK)
        visit.page.click(".copy >> nth=0")
        playwright.expect(visit.page.locator(".copy").first).to_have_text("Copied")
        copied = visit.ask("navigator.clipboard.readText()")
        assert copied == '{\n  "method": "mtp",\n  "num_speculative_tokens": 3\n}'
        visit.context.close()


def rgb(colour):
    return "rgb({}, {}, {})".format(*channels(colour))


def channels(colour):
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def luminance(colour):
    """WCAG 2.2, relative luminance."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (channel / 255 for channel in channels(colour))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("scheme", "colours"), [("light", LIGHT), ("dark", DARK)])
def test_colours_are_seen_on_their_page(scheme, colours):
    """WCAG 2.2: 3 to 1 for graphics, 4.5 to 1 for text."""
    theme = THEMES[scheme]
    assert min(contrast(colour, theme["page"]) for colour in colours) >= 3
    assert min(contrast(theme[name], theme["page"]) for name in ("text", "quiet")) >= 4.5
