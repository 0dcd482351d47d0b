"""From what the user asked for to a Plan: resolve model, workload, environment, candidates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from autotune.comparison import require_sampler
from autotune.engines import Engine, Offer, Progress
from autotune.errors import ConfigurationError
from autotune.limits import parse_goodput
from autotune.machine.environment import device_memory, probe_engine, probe_environment
from autotune.machine.faults import with_fault_warnings
from autotune.machine.variables import engine_variables
from autotune.models.candidates import build_spaces
from autotune.models.catalog import resolve_model
from autotune.models.discover import with_discovered
from autotune.models.speculative_options import parse_options
from autotune.models.wanted import parse_drafters, parse_lengths, parse_methods
from autotune.preflight import preflight
from autotune.preflight.validation import Asked
from autotune.priors import prior
from autotune.records import (
    Message,
    MethodSpace,
    Plan,
    Prior,
    Prompt,
    Record,
    SamplerName,
    Settings,
    Skipped,
    Target,
    Workload,
)
from autotune.wording import load_text
from autotune.workload import held_out_warning, load_workload, workload_warnings

Effort = Literal["fast", "default", "rigorous"]

DEFAULT_CONCURRENCY = (8,)
EFFORT = {
    "fast": {
        "search_blocks": 1,
        "confirm_blocks": 4,
        "confirm_each_load": False,
        "schedule": False,
    },  # fewer: Student's t is 12.7 with two
    "default": {"search_blocks": 4, "confirm_blocks": 4},
    "rigorous": {"search_blocks": 8, "confirm_blocks": 8, "confirm_fresh": True},
}
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


class Measured(Record):
    """What is measured and how, in the words of the command line; None: not said."""

    model: str | None = None
    workload: str | None = None
    max_concurrency: str | None = None
    num_prompts: int | None = None
    prompts_per_block: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int = 0
    vllm_python: str | None = None
    catalog: str | None = None


class Request(Measured):
    """What the user wants to be tuned."""

    engine_args: tuple[str, ...] = ()
    methods: str | None = None
    drafters: tuple[str, ...] = ()
    speculative_options: tuple[str, ...] = ()
    discover: bool = False
    num_speculative_tokens: str | None = None
    budget: str | None = None
    effort: Effort = "default"
    live_n: bool = True
    goodput: str | None = None
    schedule: bool | None = None  # None: by effort
    sampler: SamplerName = "spectune"
    max_candidates: int | None = None
    preflight: bool = True


def make_plan(request: Request, engine: Engine, progress: Progress = lambda _: None) -> Plan:
    """Raises ConfigurationError for everything that the user can mend.

    On a vLLM engine the candidates go through the preflight: what cannot work is skipped.
    """
    offer = engine.offer()
    plan = _closed_plan(request, engine, offer) if offer else _open_plan(request, engine, progress)
    return with_priors(plan)


def _named(request: Request) -> frozenset[str]:
    """Methods that the user wants by name: refusing one of them is an error, not a skip."""
    methods = parse_methods(request.methods) if request.methods else []
    return frozenset((*methods, *parse_drafters(request.drafters)))


def with_priors(plan: Plan, known: Mapping[str, Prior] | None = None) -> Plan:
    """The plan with what is assumed of each method; `known` replaces the packaged table."""
    spaces = [s.model_copy(update={"prior": prior(s.method, known)}) for s in plan.spaces]
    return plan.model_copy(update={"spaces": tuple(spaces)})


def _open_plan(request: Request, engine: Engine, progress: Progress) -> Plan:
    """A real engine: model and workload are the user's, candidates come from the catalogue."""
    if request.model is None:
        raise ConfigurationError("no model was given", hint="--model NAME_OR_PATH")
    if request.workload is None:
        raise ConfigurationError("no workload was given", hint="--workload math, or a JSONL file")
    model = resolve_model(request.model, request.catalog)
    model, discovered = with_discovered(model) if request.discover else (model, ())
    workload = load_workload(
        request.workload,
        num_prompts=request.num_prompts,
        temperature=request.temperature,
        max_tokens=request.max_tokens,
        top_p=request.top_p,
        seed=request.seed,
    )
    info = probe_engine(request.vllm_python)
    spaces, skipped, warnings = build_spaces(
        model,
        methods=parse_methods(request.methods) if request.methods else None,
        drafters=parse_drafters(request.drafters),
        lengths=_lengths(request),
        environment=info,
        options=parse_options(request.speculative_options),
    )
    loads = parse_concurrency(request.max_concurrency) or DEFAULT_CONCURRENCY
    settings = make_settings(request, repeats=True, outputs=True)
    shared = held_out_warning(workload, loads, settings.confirm_blocks, settings.prompts_per_block)
    plan = Plan(
        engine=engine.name,
        target=Target(model=model.model, engine_args=request.engine_args),
        workload=workload,
        spaces=_need_some(spaces, skipped),
        skipped=skipped,
        concurrencies=loads,
        settings=settings,
        environment=probe_environment(engine=info),
        engine_options=engine.identity(),
        variables=engine_variables(info),
        warnings=(*discovered, *warnings, *workload_warnings(workload), *shared),
    )
    if request.preflight and isinstance(engine, Asked):
        plan = preflight(
            plan, engine, named=_named(request), progress=progress,
            device_bytes=device_memory(info),
        )  # fmt: skip
        _need_some(plan.spaces, plan.skipped)
    return with_fault_warnings(plan, info)


def _closed_plan(request: Request, engine: Engine, offer: Offer) -> Plan:
    """A recording or a simulation: it decides what there is; the user may narrow it."""
    if request.goodput is not None and not offer.latencies:
        raise ConfigurationError(
            f"engine {engine.name} measures no latencies: --goodput cannot be kept",
            hint="leave --goodput out, or run it on an engine",
        )
    wanted = parse_concurrency(request.max_concurrency)
    missing = sorted(set(wanted) - set(offer.concurrencies), key=str)
    if missing:
        known = ", ".join(map(load_text, offer.concurrencies))
        raise ConfigurationError(
            f"no measurement at concurrency {', '.join(map(str, missing))}", hint=f"there: {known}"
        )
    # The prompts of the recorded run are not known: two stand for them and nothing is sent.
    stand_in = tuple(
        Prompt(id=f"recorded-{i}", messages=(Message(role="user", content="recorded"),))
        for i in range(2)
    )
    return Plan(
        engine=engine.name,
        target=Target(model=offer.model, engine_args=request.engine_args),
        workload=Workload(name=offer.workload, prompts=stand_in),
        spaces=_need_some(_narrowed(request, offer.spaces), offer.skipped),
        skipped=offer.skipped,
        concurrencies=wanted or offer.concurrencies,
        settings=make_settings(request, repeats=offer.repeats, outputs=False),
        environment=offer.environment,
        engine_options=engine.identity(),
        sends_prompts=False,
    )


def _narrowed(request: Request, spaces: tuple[MethodSpace, ...]) -> tuple[MethodSpace, ...]:
    known = [space.method for space in spaces]
    names = [n.strip() for n in request.methods.split(",")] if request.methods else known
    for name in names:
        if name not in known:
            raise ConfigurationError(
                f"method {name!r} is not there", hint=f"there: {', '.join(known)}"
            )
    lengths = _lengths(request)
    kept = []
    for space in spaces:
        allowed = tuple(n for n in space.lengths if lengths is None or n in lengths)
        if space.method in names and allowed:
            larger = (n for n in space.lengths if n > allowed[-1])
            kept.append(
                space.model_copy(update={"lengths": allowed, "next_length": next(larger, None)})
            )
    return tuple(kept)


def _need_some(
    spaces: tuple[MethodSpace, ...], skipped: tuple[Skipped, ...]
) -> tuple[MethodSpace, ...]:
    if not spaces:
        reasons = "; ".join(f"{s.method}: {s.reason}" for s in skipped)
        raise ConfigurationError(
            f"nothing is left to try ({reasons or 'no method and N remain'})",
            hint="see `spectune models NAME`; name a drafter with --drafter METHOD=ID_OR_PATH",
        )
    return spaces


def _lengths(request: Request) -> tuple[int, ...] | None:
    text = request.num_speculative_tokens
    return parse_lengths(text) if text else None


def make_settings(request: Request, *, repeats: bool, outputs: bool) -> Settings:
    """Presets of effort, reduced to what the engine can give."""
    effort = EFFORT[request.effort] if repeats else {"search_blocks": 1, "confirm_blocks": 1}
    own = {"prompts_per_block": request.prompts_per_block, "schedule": request.schedule}
    given = {name: value for name, value in own.items() if value is not None}
    return Settings(
        **{**effort, **given},
        repeats=repeats,
        greedy_prompts=Settings().greedy_prompts if outputs else 0,
        limits=parse_goodput(request.goodput) if request.goodput is not None else None,
        budget_seconds=parse_duration(request.budget, "--budget") if request.budget else None,
        live_n=request.live_n,
        seed=request.seed,
        sampler=require_sampler(request.sampler),
        max_candidates=request.max_candidates,
    )


def parse_concurrency(text: str | None) -> tuple[int | None, ...]:
    """ "1,8,32" -> (1, 8, 32), ascending; empty when nothing was said."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and 1 <= int(part) <= 65536 for part in parts):
        raise ConfigurationError(
            f"--max-concurrency {text!r} is not a list of positive numbers", hint="write 1,8,32"
        )
    return tuple(sorted({int(part) for part in parts}))


def parse_duration(text: str, option: str) -> float:
    """ "90", "90s", "30m", "2h", "1.5h" -> seconds; `option` names it in the message."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    if found is None or float(found[1]) <= 0:
        raise ConfigurationError(
            f"{option} {text!r} is not a duration", hint="write 90s, 30m or 2h"
        )
    return float(found[1]) * UNITS[found[2]]
