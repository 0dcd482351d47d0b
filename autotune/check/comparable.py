"""May two sides be compared at all? Fields that differ, and those that forbid it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from autotune.check.records import CheckSide, Difference
from autotune.errors import ConfigurationError

# of the environment: compared as they are
SAME = ("gpu", "gpu_count", "gpu_partition")
MAJOR = ("vllm", "runtime")  # only their major version: newer versions are what a check is for
SIDES = (
    "model", "engine", "workload", "workload_sha256", "temperature", "max_tokens", "engine_args",
)  # fmt: skip
CHOICE = {"num_speculative_tokens", "num_speculative_tokens_per_batch_size"}  # has its verdict
BROKEN = "broken_reference"
FIELDS = (*SIDES, *SAME, *MAJOR, "cpu", BROKEN)


def parse_allowed(text: str | None) -> frozenset[str]:
    """ "gpu,vllm" -> the fields that may differ; "all" is all of them."""
    names = {part.strip().replace("-", "_") for part in (text or "").split(",")} - {""}
    if "all" in names:
        return frozenset(FIELDS)
    if unknown := names - set(FIELDS):
        raise ConfigurationError(
            f"--allow: unknown field {', '.join(sorted(unknown))}",
            hint=f"known: {', '.join(FIELDS)}, all",
        )
    return frozenset(names)


def differences(
    reference: CheckSide, measured: CheckSide, allowed: frozenset[str]
) -> tuple[Difference, ...]:
    """Fields whose values both sides state and that are not equal."""
    found = []
    hashed = None not in (reference.workload_sha256, measured.workload_sha256)
    for field in SIDES:
        if hashed and field in ("workload", "temperature", "max_tokens"):
            continue  # in the hash; a file of another name may hold the same prompts
        one, other = getattr(reference, field), getattr(measured, field)
        if None not in (one, other) and one != other:
            found.append(_difference(field, one, other, field not in allowed))
    found += _configurations(reference, measured)
    return (*found, *_environments(reference.environment, measured.environment, allowed))


def _configurations(reference: CheckSide, measured: CheckSide) -> list[Difference]:
    """Another drafter, or another key of its configuration, of one method: said, never refused."""
    one, other = reference.speculative_config, measured.speculative_config
    if one is None or other is None or reference.method != measured.method:
        return []
    return [
        _difference(f"speculative_config.{key}", one.get(key), other.get(key), False)
        for key in sorted((one.keys() | other.keys()) - CHOICE)
        if one.get(key) != other.get(key)
    ]


def _environments(
    one: dict[str, Any], other: dict[str, Any], allowed: frozenset[str]
) -> tuple[Difference, ...]:
    found = []
    for field in sorted(one.keys() & other.keys()):
        values = one[field], other[field]
        if None in values or values[0] == values[1]:
            continue
        refused = field in SAME
        if field in MAJOR:
            refused = major(values[0]) != major(values[1])
        elif field == "cpu":  # what computes, where there is no GPU
            refused = not one.get("gpu") and not other.get("gpu")
        found.append(_difference(field, *values, refused and field not in allowed))
    gpus = one.get("gpu"), other.get("gpu")
    if (gpus[0] is None) != (gpus[1] is None) and one and other and _says_runtime(one, other):
        found.append(_difference("gpu", *gpus, "gpu" not in allowed))
    return tuple(found)


def _says_runtime(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Both sides know what they ran on: no GPU then means a CPU, not an unknown."""
    return one.get("runtime") is not None and other.get("runtime") is not None


def major(version: Any) -> str:
    """ "ROCm 7.2.0" -> "ROCm 7", "0.32.0" -> "0", "CPU" -> "CPU"."""
    text = str(version)
    found = re.search(r"\d+", text)
    return text if found is None else text[: found.end()]


def _difference(field: str, one: Any, other: Any, refused: bool) -> Difference:
    def words(value: Any) -> str:
        if isinstance(value, list | tuple):
            return " ".join(map(str, value)) or "(none)"
        return "not stated" if value is None else str(value)

    return Difference(field=field, reference=words(one), measured=words(other), refused=refused)


def refused(found: Sequence[Difference]) -> list[Difference]:
    return [difference for difference in found if difference.refused]


def same_machine(found: Sequence[Difference], reference: CheckSide, measured: CheckSide) -> bool:
    """Whether absolute figures may be compared: both sides name the hardware, and it is equal."""
    hardware = {"gpu", "gpu_count", "gpu_partition", "cpu", "engine"}
    one, other = reference.environment, measured.environment
    named = any(one.get(field) and other.get(field) for field in ("gpu", "cpu"))
    return named and not hardware & {difference.field for difference in found}
