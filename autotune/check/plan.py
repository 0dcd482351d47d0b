"""From a reference to what is measured for it: workload, configuration, engine."""

from __future__ import annotations

from typing import Any

from autotune.check.bench import Configuration
from autotune.check.records import CheckSide
from autotune.engines import Engine, Offer
from autotune.errors import ConfigurationError
from autotune.machine.environment import probe_engine, probe_environment
from autotune.models.catalog import resolve_model
from autotune.plan import Measured, Request, make_plan, parse_concurrency
from autotune.records import BASELINE, MethodSpace, Plan, Settings, Target, Tier
from autotune.wording import load_text
from autotune.workload import load_workload, workload_warnings

SCHEDULE = "num_speculative_tokens_per_batch_size"


class CheckRequest(Measured):
    """What the user said beyond the reference; None: as in the reference."""

    engine_args: tuple[str, ...] | None = None


def check_plan(
    reference: CheckSide, engine: Engine, request: CheckRequest
) -> tuple[Plan, Configuration]:
    """Raises ConfigurationError where the reference does not name a configuration to measure."""
    if reference.method == BASELINE:
        raise ConfigurationError(
            f"{reference.source} recommends no speculation: there is no configuration to measure",
            hint="tune again with `spectune run` and compare the results with --against",
        )
    loads = _loads(reference, request)
    offer = engine.offer()
    if offer is not None:
        return _closed(reference, engine, offer, loads, request)
    return _open(reference, engine, loads, request)


def _loads(reference: CheckSide, request: CheckRequest) -> tuple[int | None, ...]:
    """Loads at which the reference has measured what it recommends."""
    key = (reference.method, reference.num_speculative_tokens)
    known = tuple(
        row.concurrency for row in reference.rows if (row.method, row.num_speculative_tokens) == key
    )
    wanted = parse_concurrency(request.max_concurrency)
    if missing := [str(load) for load in wanted if load not in known]:
        there = ", ".join(map(load_text, known))
        raise ConfigurationError(
            f"{reference.source} has no figures at concurrency {', '.join(missing)}",
            hint=f"there: {there}",
        )
    return wanted or known


def _closed(
    reference: CheckSide,
    engine: Engine,
    offer: Offer,
    loads: tuple[int | None, ...],
    request: CheckRequest,
) -> tuple[Plan, Configuration]:
    """A recording or a simulation brings its own workload."""
    n = reference.num_speculative_tokens
    named = None if None in loads else ",".join(map(str, loads))
    plan = make_plan(
        Request(
            engine_args=request.engine_args or (),
            methods=reference.method,
            num_speculative_tokens=str(n),
            max_concurrency=named,
            seed=request.seed,
            prompts_per_block=request.prompts_per_block,
        ),
        engine,
    )
    return plan, Configuration(plan.spaces[0], n, _tiers(reference.speculative_config))


def _open(
    reference: CheckSide, engine: Engine, loads: tuple[int | None, ...], request: CheckRequest
) -> tuple[Plan, Configuration]:
    """A real engine: the reference says what to serve, and the workload by its name."""
    config = reference.speculative_config
    if config is None:
        raise ConfigurationError(
            f"{reference.source} names no speculative_config: an engine cannot be started for it",
            hint="check the recommendation of a study on an engine, or compare with --against",
        )
    stated = _stated(reference, loads)
    model = resolve_model(request.model or reference.model, request.catalog)
    workload = load_workload(
        request.workload or reference.workload,
        num_prompts=request.num_prompts or reference.num_prompts,
        temperature=_or(request.temperature, reference.temperature),
        max_tokens=request.max_tokens or reference.max_tokens,
        top_p=request.top_p,
        seed=request.seed,
    )
    arguments = request.engine_args if request.engine_args else reference.engine_args or ()
    n = reference.num_speculative_tokens
    fixed = {k: v for k, v in config.items() if k not in ("num_speculative_tokens", SCHEDULE)}
    space = MethodSpace(method=reference.method, lengths=(n,), live_n=False, config=fixed)
    plan = Plan(
        engine=engine.name,
        target=Target(model=model.model, engine_args=arguments),
        workload=workload,
        spaces=(space,),
        concurrencies=stated,
        settings=_settings(request),
        environment=probe_environment(engine=probe_engine(request.vllm_python)),
        engine_options=engine.identity(),
        warnings=workload_warnings(workload),
    )
    return plan, Configuration(space, n, _tiers(config))


def _stated(reference: CheckSide, loads: tuple[int | None, ...]) -> tuple[int, ...]:
    """The loads, where the reference knows them: an engine must not be measured at another one."""
    stated = tuple(load for load in loads if load is not None)
    if len(stated) < len(loads):
        raise ConfigurationError(
            f"{reference.source} does not say at which load it was measured",
            hint="compare it with another result: --against FILE",
        )
    return stated


def _settings(request: CheckRequest) -> Settings:
    size = request.prompts_per_block
    return Settings(seed=request.seed, **({} if size is None else {"prompts_per_block": size}))


def _or(given: float | None, known: float | None) -> float | None:
    return known if given is None else given


def _tiers(config: dict[str, Any] | None) -> tuple[Tier, ...]:
    return tuple((first, last, n) for first, last, n in (config or {}).get(SCHEDULE, ()))
