"""A check as JUnit XML: one case a metric and load."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from autotune.check import change_text, where
from autotune.check.records import CheckReport, Verdict
from autotune.check.render import difference_lines, value_text
from autotune.check.verdicts import label, margin_text

SUITE = "spectune check"
# characters that XML 1.0 does not hold, whatever a file or an engine says
FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: CheckReport) -> str:
    """Regressions are failures. What is inconclusive is an error where it decides, else skipped.

    The suite fails exactly when the exit code is not 0.
    """
    suite = ElementTree.Element("testsuite", name=SUITE, timestamp=report.created_at[:19])
    for verdict in report.verdicts:
        _case(suite, verdict, report)
    overall = ElementTree.SubElement(suite, "testcase", classname=SUITE, name="outcome")
    if report.exit_code:
        kind = "failure" if report.outcome == "regression" else "error"
        found = ElementTree.SubElement(overall, kind, message=_clean(report.summary))
        found.text = _clean("\n".join(difference_lines(report)))
    for kind in ("failure", "error", "skipped"):
        name = {"failure": "failures", "error": "errors"}.get(kind, kind)
        suite.set(name, str(sum(case.find(kind) is not None for case in suite)))
    suite.set("tests", str(len(suite)))
    root = ElementTree.Element("testsuites", dict(suite.attrib))
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ElementTree.Element, v: Verdict, report: CheckReport) -> None:
    name = f"{label(v.metric)}{where(v)}"
    case = ElementTree.SubElement(
        suite, "testcase", classname=_clean(f"{SUITE}.{v.subject}"), name=_clean(name)
    )
    before, now = value_text(v, v.reference), value_text(v, v.measured)
    words = f"{v.word}: {before} before, {now} now, {change_text(v)}"
    words += f" (margin {margin_text(v.metric, v.margin)})"
    if v.word == "regression":
        ElementTree.SubElement(case, "failure", message=_clean(words)).text = _clean(v.note)
    elif v.gates and not v.ruled_out and report.exit_code:
        ElementTree.SubElement(case, "error", message=_clean(words)).text = _clean(v.note)
    elif v.word == "inconclusive":
        ElementTree.SubElement(case, "skipped", message=_clean(words))
    ElementTree.SubElement(case, "system-out").text = _clean(f"{words} {v.note}".strip())


def _clean(text: str) -> str:
    return FORBIDDEN.sub("�", text)
