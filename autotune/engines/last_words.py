"""What a dead engine's log says about why: the exception or abort, not the noise around it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

TAIL_BYTES = 256 * 1024
CONTINUATION_LINES = 6  # of a message that runs over several lines

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
# "(EngineCore pid=12) ERROR 11-29 12:00:00 [core.py:866] text", as vLLM prefixes every line
_SOURCE = re.compile(r"(?:\([^()]*\bpid=\d+[^()]*\) ?|\[rank\d+\]: ?)*")
_HEADER = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (\[[^\]]*\]) ?")

_TRACEBACK = "Traceback (most recent call last)"
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Expired)(?::|$)")
_WHAT = re.compile(r"\s*what\(\):")
_REFUSAL = re.compile(r"[\w.-]+(?: [\w-]+)?: error: ")  # argparse; the usage before it is noise
_ABORT = re.compile(
    r"terminate called|^\s*what\(\):|out of memory|OutOfMemory|oom-kill|Assertion .* failed"
    r"|Check failed|(?:HIP|CUDA|NCCL|RCCL|HSA) (?:runtime )?error|HSA_STATUS_ERROR"
    r"|Memory access fault|double free|free\(\): invalid|^[\w.-]+(?: [\w-]+)?: error: ",
    re.IGNORECASE,
)
# True, but only that somebody else died: shown after the cause, alone only where none is known.
_CONSEQUENCE = re.compile(
    r"root cause|EngineDeadError|(?:died|exited) unexpectedly|CancelledError|SystemExit"
    r"|KeyboardInterrupt|BrokenPipeError|ConnectionResetError|Fatal Python error|Bus error"
    r"|terminate called without an active exception|Segmentation fault|^Aborted|^Killed|core dumped"
)
_NOTICE = re.compile(r"(?:died|exited) unexpectedly")  # worth reading even in a warning
_NOISE = re.compile(r"\s*(?:For further information visit|\^+$)")
REASON_CHARACTERS = 300


class Line(NamedTuple):
    source: str  # the process that wrote it
    header: str  # level and place in the code, equal for all lines of one message; "" if printed
    text: str


def last_words(log_path: Path, lines: int = 20) -> str:
    """The most telling end of a log, at most `lines` lines; "" for an empty or missing log.

    Prefers the last exception (with the end of its traceback), C++ abort or out-of-memory
    message; without any, the log's last lines. Reads only the last 256 KiB.
    """
    raw = [line for line in _tail(log_path) if line.strip()]
    parsed = [_parse(line) for line in raw]
    causes, consequences = _find(parsed)
    if causes:
        after = [parsed[i].text for i in consequences if i > causes[-1]]
        after = list(dict.fromkeys(after))[-min(3, max(lines - 1, 0)) :] if lines > 1 else []
        return "\n".join([*_block(parsed, causes[-1], lines - len(after)), *after])
    if consequences and parsed[consequences[0]].header:
        return "\n".join(list(dict.fromkeys(parsed[i].text for i in consequences))[:lines])
    if consequences:
        return "\n".join(line.text for line in parsed[consequences[0] :][:lines])
    return "\n".join(raw[-lines:])


def with_log(words: str, log_path: Path) -> str:
    """Last words and where the whole log is."""
    return "\n".join([*filter(None, [words]), f"engine log: {log_path}"])


def reason(words: str) -> str:
    """The cause within last words, on one line for a table: the exception and its message."""
    lines = [line for line in words.split("\n") if not _NOISE.match(line)]
    said = [line for line in lines if not _CONSEQUENCE.search(line)]
    causes = [i for i, line in enumerate(said) if _EXCEPTION.match(line) or _ABORT.search(line)]
    if causes:
        said = said[causes[-1] :]
    else:
        said = [line for line in lines if _CONSEQUENCE.search(line)][:1] or lines[-1:]
    text = " ".join(" ".join(said).split()).partition(" [type=")[0]
    text = re.sub(r"^(?:\w+\.)+(?=[A-Z]\w*:)", "", text)  # the exception's module
    return text if len(text) <= REASON_CHARACTERS else text[: REASON_CHARACTERS - 3] + "..."


def _tail(log_path: Path) -> list[str]:
    try:
        with log_path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
    except FileNotFoundError:
        return []
    found = []
    for line in data.decode("utf-8", errors="replace").split("\n"):
        visible = _ANSI.sub("", line).rstrip().rpartition("\r")[2]  # progress bars overwrite
        found.append(_CONTROL.sub("", visible).rstrip())
    return found[1:] if size > TAIL_BYTES else found  # the first one is cut


def _parse(line: str) -> Line:
    source = _SOURCE.match(line)
    rest = line[source.end() :] if source else line
    header = _HEADER.match(rest)
    return Line(
        source.group() if source else "",
        " ".join(header.groups()) if header else "",
        rest[header.end() :] if header else rest,
    )


def _find(parsed: list[Line]) -> tuple[list[int], list[int]]:
    """Where causes and mere consequences stand."""
    causes, consequences = [], []
    previous: dict[str, str] = {}  # processes interleave: everything is per source
    in_traceback: dict[str, bool] = {}  # source: is it one of an ignored exception?
    for index, (source, header, text) in enumerate(parsed):
        if header.startswith(("DEBUG", "INFO", "WARNING")):
            if _NOTICE.search(text):
                consequences.append(index)
            continue
        before, previous[source] = previous.get(source, ""), text
        if text.startswith(_TRACEBACK):
            in_traceback[source] = before.startswith("Exception ignored")
            continue
        if _is_indented(text) and not _WHAT.match(text):
            continue
        ignored = in_traceback.pop(source, None)
        if ignored:
            continue
        if _CONSEQUENCE.search(text):
            consequences.append(index)
        elif ignored is False or _EXCEPTION.match(text) or _ABORT.search(text):
            causes.append(index)
    return causes, consequences


def _block(parsed: list[Line], at: int, lines: int) -> list[str]:
    """The cause at `at`: what led to it in its own traceback, and the rest of its message."""
    source, header, _ = parsed[at]
    same = [i for i, line in enumerate(parsed) if (line.source, line.header) == (source, header)]
    here = same.index(at)
    start = here
    refused = _REFUSAL.match(parsed[at].text)
    while not refused and start > 0 and _leads(parsed[same[start - 1]].text):
        start -= 1
        if parsed[same[start]].text.startswith(_TRACEBACK):
            break
    end = here + 1
    while end < len(same) and end - here <= CONTINUATION_LINES:
        text = parsed[same[end]].text
        goes_on = header or _is_indented(text) or " " not in text  # a lone name: pydantic's field
        if text.startswith(_TRACEBACK) or not goes_on:
            break
        end += 1
    end = min(end, here + max(1, lines))
    return [parsed[i].text for i in same[max(start, end - lines) : end]]


def _is_indented(text: str) -> bool:
    return text.startswith((" ", "\t"))


def _leads(text: str) -> bool:
    return _is_indented(text) or text.startswith(_TRACEBACK) or _ABORT.search(text) is not None
