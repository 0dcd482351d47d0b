"""Releases of vLLM and ranges of them."""

from __future__ import annotations

import re


def release(version: str | None) -> tuple[int, ...] | None:
    """(0, 27, 2) of "0.27.2rc1.dev256+g1f2e3d"; None of "0.1.dev3912+g1f2e3d", a build of a
    checkout without tags, whose number says nothing."""
    found = re.match(r"(\d{1,9}(?:\.\d{1,9})*)", version or "")
    if found is None or re.match(r"0\.(0|1)\.dev", version or ""):
        return None
    return (*map(int, found[1].split(".")), 0, 0)[:3]


def within(version: tuple[int, ...] | None, ranges: str) -> bool:
    """Whether a release is in a range like ">=0.24,<0.32"; an unknown one is only in ""."""
    if not ranges:
        return True
    if version is None:
        return False
    for part in ranges.split(","):
        bound = release(part.lstrip("<>="))
        if bound is None or not re.match(r"(>=|<)\d", part):
            raise ValueError(f"{ranges!r} is no range of versions such as >=0.24,<0.32")
        if (version >= bound) != part.startswith(">="):
            return False
    return True
