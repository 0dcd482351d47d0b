"""Progress on stderr: one live line on a terminal, plain time-stamped lines elsewhere."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

REPEAT_SECONDS = 30.0


class Progress(AbstractContextManager["Progress"]):
    """Call it with one line of text."""

    def __init__(self) -> None:
        self._status: Any = None
        self._last = ""
        self._said_at = 0.0
        if sys.stderr is not None and sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status("starting")

    def __enter__(self) -> Progress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, text: str) -> None:
        waiting = re.search(r"\(\d+ s\)$", text) is not None
        if self._status is not None:
            self._show(text, stays=not waiting and ":" in text)
            return
        same = re.sub(r"\(\d+ s\)$", "", text)
        if waiting and same == self._last and time.monotonic() - self._said_at < REPEAT_SECONDS:
            return
        self._last, self._said_at = same, time.monotonic()
        if sys.stderr is not None:  # closed: there is nobody to tell
            with contextlib.suppress(OSError):
                print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)

    def _show(self, text: str, *, stays: bool) -> None:
        """On the live line, and above it what stays on the screen: results.

        `text` holds an engine's own words, so nothing in it is markup.
        """
        from rich.text import Text

        self._status.update(Text(text))
        if stays:
            self._status.console.print(Text.assemble((time.strftime("%H:%M:%S "), "dim"), text))
