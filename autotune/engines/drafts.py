"""What vLLM says about the drafts of one request: asked for, read, and held against the counters.

`--per-request-spec-decode-metrics` (vLLM 0.29 and later) puts `metrics.speculative_decoding` into
the chunk of a stream that carries the usage. No field of the request asks for it. The field is
experimental: whatever does not look as it does in vLLM 0.32 counts as not measured.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autotune.acceptance_evidence import DISAGREE
from autotune.engines.arguments import read_flags
from autotune.engines.live import version
from autotune.machine.environment import EngineInfo
from autotune.records import RequestDrafts, RequestResult, SpecCounters

FLAG = "--per-request-spec-decode-metrics"
SINCE = (0, 29)
TOLERANCE = 0.01  # requests and counters may differ by this share of a count

Count = Annotated[int, Field(ge=0)]


def drafts_arguments(
    info: EngineInfo, engine_args: Sequence[str], *, speculating: bool
) -> list[str]:
    """What the server's command line needs so that its answers tell of their drafts.

    The user's own flag stands, but vLLM refuses to start with it where nothing is drafted.
    """
    given = any(FLAG.startswith(flag) for flag, _ in read_flags(engine_args))
    if not speculating:
        return [FLAG, "none"] if given else []
    return [FLAG, "detailed"] if version(info) >= SINCE and not given else []


class _Reported(BaseModel):
    """The part of vLLM's `SpeculativeDecodingMetrics` that is read."""

    model_config = ConfigDict(strict=True)

    num_draft_tokens: Count
    num_spec_steps: Count
    acceptance_histogram: list[Count]  # [j]: drafts of which exactly j tokens were accepted
    per_step_drafted: list[Count] | None = None  # absent with `summary`, and without a draft


def request_drafts(metrics: Any) -> RequestDrafts | None:
    """The drafts of one answer from its `metrics` object; None where it does not tell of them."""
    if not isinstance(metrics, dict):
        return None
    try:
        said = _Reported.model_validate(metrics.get("speculative_decoding"))
    except ValidationError:
        return None
    lengths = said.per_step_drafted if said.num_spec_steps else []
    if sum(said.acceptance_histogram) != said.num_spec_steps or (
        lengths is not None
        and (len(lengths), sum(lengths)) != (said.num_spec_steps, said.num_draft_tokens)
    ):
        return None
    return RequestDrafts(
        num_drafts=said.num_spec_steps,
        num_draft_tokens=said.num_draft_tokens,
        accepted_per_pos=_reached(Counter(dict(enumerate(said.acceptance_histogram)))),
        drafted_per_pos=None if lengths is None else _reached(Counter(lengths)),
    )


def _reached(counts: Counter[int]) -> tuple[int, ...]:
    """Number of drafts by exact length -> of at least 1, 2, ... tokens, up to the longest."""
    longest = max((n for n, drafts in counts.items() if drafts), default=0)
    exact = [counts[n] for n in range(longest, 0, -1)]
    return tuple(itertools.accumulate(exact))[::-1]


def drafts_flags(
    requests: Sequence[RequestResult], counters: SpecCounters | None
) -> tuple[str, ...]:
    """`request_drafts_disagree`: what the requests tell does not add up to the engine's counters.

    The counters stay the truth for totals. Where no request tells, there is nothing to compare.
    """
    told = [request.drafts for request in requests if request.drafts is not None]
    if not told or counters is None:
        return ()
    return () if agree(told, counters) else (DISAGREE,)


def agree(told: Sequence[RequestDrafts], counters: SpecCounters) -> bool:
    """Whether drafts, their tokens and those accepted add up to the counters, within 1 %."""
    pairs = (
        (sum(t.num_drafts for t in told), counters.num_drafts),
        (sum(t.num_draft_tokens for t in told), counters.num_draft_tokens),
        (sum(t.num_accepted_tokens for t in told), counters.num_accepted_tokens),
    )
    return all(abs(ours - theirs) <= TOLERANCE * theirs for ours, theirs in pairs)
