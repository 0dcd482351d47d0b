"""Checkpoints of a config.json alone: enough for all that is known before an engine starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def checkpoint(folder: Path, config: object = None, **keys: Any) -> str:
    """The folder, made with this config.json; `keys` are its keys where it is an object."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(keys if config is None else config))
    return str(folder)
