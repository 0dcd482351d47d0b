"""Known faults of a machine, an engine and a drafting method, with advice: shown, never applied.

The table is fault_table.py. A condition on a GPU's target or a model that is not known holds, so
that the advice is seen; one on an unknown platform or version does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field

from autotune.engines.arguments import data_parallel_size, read_flags
from autotune.engines.live import expects_v2
from autotune.machine.environment import EngineInfo
from autotune.machine.gpu import Platform
from autotune.machine.versions import release, within
from autotune.records import Environment, Plan, Record
from autotune.wording import lengths_text

Severity = Literal["wrong", "fails", "slow", "note"]
BACKEND_FLAGS = ("--attention-backend", "--attention-config", "-ac")
PIPELINE_FLAGS = ("--pipeline-parallel-size", "-pp")
NO_BACKEND = ("AUTO", "NONE", "TRUE", "FALSE")  # the latter are values of other keys
TRUE = ("1", "true")


class Fault(Record):
    """What happens, when, what to do, and who says so. Empty conditions hold everywhere."""

    id: str
    severity: Severity  # wrong: output or acceptance; fails: no measurement; note: to know
    happens: str
    advice: str
    source: str
    platforms: tuple[Platform, ...] = ()
    targets: tuple[str, ...] = ()  # gfx942, ...
    vllm: str = ""  # ">=0.24,<0.32"
    methods: tuple[str, ...] = ()  # ours; none: the baseline as well
    above_n: int = 0  # only a larger num_speculative_tokens is affected
    models: str = ""  # a regular expression that is searched in the target's name
    backends: tuple[str | None, ...] = ()  # attention backend asked for; None: left to vLLM
    aiter: bool | None = None  # VLLM_ROCM_USE_AITER
    runner_v2: bool | None = None
    sampled: bool = False  # only at a temperature above 0
    flags: tuple[str, ...] = ()  # only with one of these vLLM options
    data_parallel: bool = False
    pipeline_parallel: bool = False
    unset: str = ""  # only while this variable is not set


class Setup(Record):
    """What a fault is held against."""

    platform: Platform | None
    target: str | None
    vllm: tuple[int, ...] | None  # None: not installed, or a build without a version
    backend: str | None  # the attention backend that was asked for
    aiter: bool
    runner_v2: bool | None
    flags: frozenset[str]
    variables: dict[str, str] = Field(default_factory=dict)
    data_parallel: bool = False
    pipeline_parallel: bool = False
    model: str | None = None
    temperature: float | None = None


def setup_of(
    info: EngineInfo,
    environment: Environment,
    engine_args: Sequence[str] = (),
    model: str | None = None,
    temperature: float | None = None,
) -> Setup:
    """Raises ConfigurationError for engine arguments that cannot be read."""
    given = dict(read_flags(engine_args))
    variables = environment.variables or {}
    backend = next((given[flag] for flag in BACKEND_FLAGS if given.get(flag)), None)
    return Setup(
        platform=info.platform,
        target=environment.gpu_target,
        vllm=release(info.vllm),
        backend=_backend(backend or variables.get("VLLM_ATTENTION_BACKEND")),
        aiter=variables.get("VLLM_ROCM_USE_AITER", "").lower() in TRUE,
        runner_v2=expects_v2(info, engine_args),
        flags=frozenset(given),
        variables=variables,
        data_parallel=data_parallel_size(engine_args) > 1,
        pipeline_parallel=any(given.get(flag, "1") != "1" for flag in PIPELINE_FLAGS),
        model=model,
        temperature=temperature,
    )


def faults_for(setup: Setup, method: str | None = None, n: int | None = None) -> tuple[Fault, ...]:
    """The faults that may be met, worst first; `method` None: with any method, `n` None: any N."""
    from autotune.machine.fault_table import FAULTS

    found = [f for f in FAULTS if _applies(f, setup) and _affects(f, method, n)]
    order = ("wrong", "fails", "slow", "note")
    return tuple(sorted(found, key=lambda fault: order.index(fault.severity)))


def plan_warnings(plan: Plan, info: EngineInfo) -> tuple[str, ...]:
    """One sentence for each fault that touches what the plan will run; notes stay with doctor."""
    setup = setup_of(
        info,
        plan.environment,
        plan.target.engine_args,
        model=plan.target.model,
        temperature=plan.workload.sampling.temperature,
    )
    touched: dict[str, list[str]] = {}
    faults: dict[str, Fault] = {}
    for space in plan.spaces:
        for n in space.lengths:
            for fault in faults_for(setup, space.method, n):
                faults[fault.id] = fault
                touched.setdefault(fault.id, []).append(f"{space.method} N={n}")
    return tuple(
        _sentence(fault, touched[fault.id]) for fault in faults.values() if fault.severity != "note"
    )


def with_fault_warnings(plan: Plan, info: EngineInfo) -> Plan:
    return plan.model_copy(update={"warnings": (*plan.warnings, *plan_warnings(plan, info))})


def _applies(fault: Fault, setup: Setup) -> bool:
    """Everything but method and N."""
    return (
        (not fault.platforms or setup.platform in fault.platforms)
        and (not fault.targets or setup.target is None or _among(setup.target, fault.targets))
        and within(setup.vllm, fault.vllm)
        and (not fault.models or setup.model is None or _named(fault.models, setup.model))
        and (not fault.backends or setup.backend in fault.backends)
        and fault.aiter in (None, setup.aiter)
        and fault.runner_v2 in (None, setup.runner_v2)
        and not (fault.sampled and setup.temperature == 0)
        and (not fault.flags or bool(setup.flags.intersection(fault.flags)))
        and setup.data_parallel >= fault.data_parallel
        and setup.pipeline_parallel >= fault.pipeline_parallel
        and (not fault.unset or fault.unset not in setup.variables)
    )


def _affects(fault: Fault, method: str | None, n: int | None) -> bool:
    if method is not None and fault.methods and method not in fault.methods:
        return False
    return n is None or n > fault.above_n


def _among(found: str, targets: Iterable[str]) -> bool:
    """`found` may name several GPUs."""
    return any(target in targets for target in found.split(" + "))


def _named(pattern: str, model: str) -> bool:
    return re.search(pattern, model, re.IGNORECASE) is not None


def _backend(value: str | None) -> str | None:
    """The name in ROCM_AITER_FA, rocm_aiter_fa or {"backend": "ROCM_AITER_FA", ...}."""
    text = (value or "").strip().upper()
    if text.startswith("{"):  # JSON, or a --config file's mapping: other keys name no backend
        named = re.search(r"""["']BACKEND["']\s*:\s*["'](\w+)["']""", text)
        text = named[1] if named else ""
    found = re.match(r"[A-Z][A-Z0-9_]*", text)
    return found[0] if found and found[0] not in NO_BACKEND else None


def _lengths(numbers: list[str]) -> str:
    """ "4-6" of N; as they are where one is no number."""
    if all(number.isdecimal() for number in numbers):
        return lengths_text(sorted(map(int, numbers)))
    return ", ".join(numbers)


def _sentence(fault: Fault, candidates: list[str]) -> str:
    """ "mtp N=4-5: ...: ... (source)". A fault of the machine names no candidate."""
    by_method: dict[str, list[str]] = {}
    for candidate in candidates:
        method, _, n = candidate.partition(" N=")
        by_method.setdefault(method, []).append(n)
    who = "; ".join(f"{method} N={_lengths(ns)}" for method, ns in by_method.items())
    subject = f"{who}: " if fault.methods or fault.above_n else ""
    return f"{subject}{fault.happens}: {fault.advice} ({fault.source})"
