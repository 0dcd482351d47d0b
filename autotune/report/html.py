"""A report as one HTML file that needs nothing else: no network, no fonts, no other file."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from autotune import __version__
from autotune.report.answer import detail, headline
from autotune.report.data import Report
from autotune.report.figures import SYMBOLS, Marks
from autotune.report.section import Built
from autotune.report.sections import build
from autotune.report.tables import lengths_text, load_table
from autotune.wording import cost_text, counted, duration

TEMPLATE = "report.html.jinja"

# Okabe and Ito's palette for colour-blind readers (jfly.uni-koeln.de/color), darkened for white
# and lightened for dark until each has a contrast of 3 to 1 with the page.
LIGHT = ("#0072b2", "#c14e00", "#00805e", "#a8548a", "#8a6d00", "#6a4fc4", "#5b5b5b", "#2f93c2")
DARK = ("#56b4e9", "#ff9249", "#2fc79a", "#e39bc6", "#e8cf3a", "#b7a3ff", "#bdbdbd", "#b5dcf5")
THEMES = {
    "light": {"page": "#ffffff", "text": "#1c1e21", "quiet": "#5c6370", "grid": "#e9ebee",
              "rule": "#9aa1ab", "draft": "#1b3a57", "verify": "#5f86ac", "rest": "#a9b4c0"},
    "dark": {"page": "#15181c", "text": "#e4e7eb", "quiet": "#9da5b0", "grid": "#282d34",
             "rule": "#6b737e", "draft": "#dbe9f7", "verify": "#7fa8d1", "rest": "#56616e"},
}  # fmt: skip
BAND_ALPHA = {"light": "24", "dark": "2e"}  # hexadecimal, of ff
SOFT_ALPHA = "70"


def to_html(report: Report) -> str:
    """The whole file. Every text is escaped; no script but the page's own may run."""
    from plotly.offline import get_plotlyjs

    built = build(report)
    environment = _jinja()
    template = environment.get_template(TEMPLATE)
    own = _source(environment, "report.js")
    library = get_plotlyjs()
    text: str = template.render(
        report=report,
        recommendation=report.recommendation,
        headline=headline(report),
        detail=detail(report),
        loads=load_table(report),
        cost=_cost(report),
        built=built,
        marks=_legend(report),
        last_words=_last_words(report),
        figures=_page_data(built),
        themes=_themes(),
        style=_source(environment, "report.css"),
        config=_config(report),
        library=library,
        script=own,
        hashes=[_hash(library), _hash(own)],
        version=__version__,
    )
    return text


def _jinja() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("autotune", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _source(environment: Any, name: str) -> str:
    source, _, _ = environment.loader.get_source(environment, name)
    return str(source)


def _config(report: Report) -> str | None:
    """The speculative configuration as it goes into vLLM; None where there is none."""
    r = report.recommendation
    if r is None or r.speculative_config is None:
        return None
    return json.dumps(r.speculative_config, ensure_ascii=False, indent=2)


def _last_words(report: Report) -> list[tuple[str, str]]:
    """What failed and the engine's own words; equal words of a method once."""
    groups: dict[tuple[str, str], list[int | None]] = {}
    for failure in report.failures:
        if failure.last_words:
            key = (failure.method, failure.last_words)
            groups.setdefault(key, []).append(failure.num_speculative_tokens)
    return [
        (method if None in ns else f"{method} N={lengths_text(ns)}", words)
        for (method, words), ns in groups.items()
    ]


def _page_data(built: Built) -> str:
    """JSON that may stand inside a script element: no character of it can end the element."""
    text = json.dumps({"figures": built.figures, "themes": _themes()}, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _themes() -> dict[str, dict[str, str]]:
    return {name: {**theme, **_palette(name)} for name, theme in THEMES.items()}


def _palette(name: str) -> dict[str, str]:
    colours = {"light": LIGHT, "dark": DARK}[name]
    lines = {f"m{i}": colour for i, colour in enumerate(colours)}
    bands = {f"band{i}": colour + BAND_ALPHA[name] for i, colour in enumerate(colours)}
    soft = {f"soft{i}": colour + SOFT_ALPHA for i, colour in enumerate(colours)}
    return {**lines, **bands, **soft}


def _hash(script: str) -> str:
    """For the page's content security policy: a script with other content does not run."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _legend(report: Report) -> list[tuple[str, int, str]]:
    """(method, slot of the palette, symbol)."""
    slots = Marks(report.methods).slots
    return [(method, slot, SYMBOLS[slot]) for method, slot in slots.items()]


def _cost(report: Report) -> str | None:
    """What the answer has cost."""
    r = report.recommendation
    if r is not None:
        return cost_text(r.cost)
    if report.kind == "recording":
        return None
    spent = "" if report.seconds is None else f", {duration(report.seconds)}"
    return f"{counted(report.starts, 'engine start')}{spent}, so far"
