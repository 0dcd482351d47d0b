"""Before any engine start: what cannot work is skipped, with the reason; doubts become warnings.

First vLLM's own validators, asked with exactly the arguments that its server would get
(`validation.py`, in a side process: `client.py`, `worker.py`); then what vLLM does not check, or
only late (`rules.py`), memory (`memory.py`, `memory_estimate.py`) and graph capture sizes
(`capture.py`).
"""

from __future__ import annotations

from autotune.engines import Progress
from autotune.engines.arguments import check_engine_args, data_parallel_size, read_flags
from autotune.models.facts import read_facts
from autotune.preflight.capture import capture_advice, uncaptured
from autotune.preflight.client import EngineFacts, ValidatorError
from autotune.preflight.ledger import Ledger
from autotune.preflight.memory import look_at_memory
from autotune.preflight.rules import Situation, findings
from autotune.preflight.validation import Asked, ask_vllm
from autotune.records import MethodSpace, Plan


def preflight(
    plan: Plan,
    engine: Asked,
    *,
    named: frozenset[str],
    progress: Progress,
    device_bytes: int | None = None,
) -> Plan:
    """The plan without what cannot work; `device_bytes` is the memory of one GPU, if known.

    Raises ConfigurationError where the user's own arguments are refused, and where a method is
    that the user asked for by name. Whatever could not be checked is a warning, never silence.
    """
    check_engine_args(plan.target.engine_args)
    ledger = Ledger(plan)
    try:
        ask_vllm(ledger, engine, progress)
    except ValidatorError as error:
        ledger.warnings.append(f"not checked with vLLM's own validators before a start: {error}")
    _too_long(ledger)
    look_at_memory(ledger, device_bytes)
    for space in ledger.spaces():
        _apply_rules(ledger, space)
        _advise_capture(ledger, space)
    checked = ledger.outcome(named)
    before, after = (sum(len(s.lengths) for s in p.spaces) for p in (plan, checked))
    progress(f"preflight: {after} of {before} candidates stay")
    return checked


def _apply_rules(ledger: Ledger, space: MethodSpace) -> None:
    target = ledger.plan.target
    situation = Situation(
        space=space,
        drafter=read_facts(space.drafter) if space.drafter else None,
        facts=ledger.baseline,
        flags=dict(read_flags(target.engine_args)),
        request_tokens=ledger.request_tokens,
    )
    for finding in findings(situation):
        if finding.refuse:
            ledger.refuse(space.method, space.lengths, finding.text)
        else:
            ledger.warnings.append(finding.text)


def _advise_capture(ledger: Ledger, space: MethodSpace) -> None:
    known = {n: ledger.facts.get((space.method, n), EngineFacts()) for n in space.lengths}
    sizes = {
        n: () if facts.cudagraph_mode == "NONE" else facts.capture_sizes
        for n, facts in known.items()
    }
    found = uncaptured(
        ledger.plan.concurrencies,
        sizes,
        ledger.baseline.max_num_seqs,
        data_parallel_size(ledger.plan.target.engine_args),
    )
    if advice := capture_advice(space.method, found):
        ledger.warnings.append(advice)


def _too_long(ledger: Ledger) -> None:
    """Requests that the engine will not take at all."""
    limit, tokens = ledger.baseline.max_model_len, ledger.request_tokens or ()
    longer = [count for count in tokens if limit and count > limit]
    if longer:
        ledger.warnings.append(
            f"{len(longer)} of {len(tokens)} requests need up to {max(longer)} tokens with their "
            f"longest answer; the engine takes {limit} (--max-model-len)"
        )
