"""Reports on a study or a recording: one HTML file, Markdown, or text for a terminal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from autotune.documents import save as save
from autotune.report.data import Report

if TYPE_CHECKING:
    from autotune.store import StoredStudy

Form = Literal["html", "md", "text"]
FORMS: tuple[Form, ...] = ("html", "md", "text")
ENDINGS: dict[Form, str] = {"html": "html", "md": "md", "text": "txt"}


def study_report(study: StoredStudy) -> Report:
    """Of a stored study, finished or not."""
    from autotune.report.study import of_study

    return of_study(study)


def recording_report(path: str | Path) -> Report:
    """Of a recording. Raises ConfigurationError where the file cannot be read as one."""
    from autotune.recording import load_recording
    from autotune.report.recording import of_recording

    return of_recording(load_recording(path), Path(path).stem)


def render(report: Report, form: Form) -> str:
    """The text of the file."""
    if form == "md":
        from autotune.report.markdown import to_markdown

        return to_markdown(report)
    if form == "text":
        from autotune.report.text import to_text

        return to_text(report)
    from autotune.report.html import to_html

    return to_html(report)


def default_name(report: Report, form: Form) -> str:
    """ "spectune-2ca8d99d96.html": of the study's id or the recording's file name."""
    safe = re.sub(r"[^\w.-]+", "-", report.name).strip("-.") or "report"
    return f"spectune-{safe}.{ENDINGS[form]}"
