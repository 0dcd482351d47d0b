"""The control file: one number, the N that is asked for, shared by memory map.

Reading a mapped integer costs well under a microsecond, so the scheduler can look at every step.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

ENVIRONMENT_VARIABLE = "SPECTUNE_CONTROL"
AS_CONFIGURED = -1  # no N asked for: the engine's own schedule applies
_FORMAT = struct.Struct("<8si")
_MAGIC = b"spectune"


class ControlFile:
    """Writer side, owned by the tuner. The file exists until `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(_FORMAT.pack(_MAGIC, AS_CONFIGURED))
        path.chmod(0o600)

    def set(self, n: int) -> None:
        """Ask for N from the next scheduler step on (in place: readers have the file mapped)."""
        with self.path.open("r+b") as file:
            file.write(_FORMAT.pack(_MAGIC, n))

    def close(self) -> None:
        self.path.unlink(missing_ok=True)


class ControlReader:
    """Reader side, inside the engine. Raises ValueError for a file that is not ours."""

    def __init__(self, path: str) -> None:
        with Path(path).open("rb") as file:
            self._map = mmap.mmap(file.fileno(), _FORMAT.size, access=mmap.ACCESS_READ)
        magic, _ = _FORMAT.unpack(self._map[: _FORMAT.size])
        if magic != _MAGIC:
            raise ValueError(f"{path} is not a spectune control file")

    @classmethod
    def from_environment(cls) -> ControlReader | None:
        """The reader named by SPECTUNE_CONTROL, or None where spectune did not start us."""
        path = os.environ.get(ENVIRONMENT_VARIABLE)
        return cls(path) if path else None

    def requested(self) -> int:
        return int(_FORMAT.unpack(self._map[: _FORMAT.size])[1])
