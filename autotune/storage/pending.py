"""Side file for rows that a locked database did not take; one JSON line a row.

A finished measurement is expensive: it waits here until the database can be written again.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from autotune.errors import StorageError
from autotune.records import Record
from autotune.storage.url import beside

logger = logging.getLogger(__name__)


class PendingRow(Record):
    """One row, without its study's number."""

    table: Literal["spectune_window", "spectune_engine_start", "spectune_failure"]
    row: dict[str, Any]


def pending_file(url: str, study_id: str) -> Path:
    return beside(url, f"{study_id}.pending.jsonl")


def read_pending(path: Path) -> list[PendingRow]:
    """All complete rows; a line cut off by a crash had not been promised to anyone."""
    rows = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"cannot read {path}: {error}") from error
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(PendingRow.model_validate_json(line))
        except ValidationError:
            logger.warning("%s line %d is cut off and left out", path, number)
    return rows


def append_pending(path: Path, row: PendingRow) -> None:
    """Add one row and wait until it is on the disk."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+", encoding="utf-8") as file:
            if _is_cut_off(path):
                file.write("\n")
            file.write(json.dumps(row.model_dump(), allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StorageError(
            f"a measurement could be written neither to the database nor to {path}: {error}",
            hint="make room or make the folder writable; then run again",
        ) from error


def _is_cut_off(path: Path) -> bool:
    content = path.read_bytes()
    return bool(content) and not content.endswith(b"\n")
