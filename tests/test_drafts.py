"""What one request tells of its drafts: asked for, read from the stream, summed, with errors."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from fake_server import FakeServer, Script
from hypothesis import given
from hypothesis import strategies as st
from test_client import block, run
from tuner_samples import window

from autotune.acceptance_evidence import (
    acceptance_length,
    acceptance_rates,
    conditional_rates,
    told,
)
from autotune.engines import EngineOptions
from autotune.engines.drafts import drafts_arguments, drafts_flags, request_drafts
from autotune.engines.simulate import SimulateEngine
from autotune.errors import ConfigurationError
from autotune.machine.environment import EngineInfo
from autotune.records import (
    Arm,
    Block,
    BlockRole,
    Message,
    Prompt,
    RequestDrafts,
    RequestResult,
    Sampling,
    SpecCounters,
    Target,
    Window,
)

# What vLLM 0.32 for CPU put beside the usage of a chat stream: n-gram, N=4, one draft in 60 tokens.
REAL = json.loads(
    '{"speculative_decoding":{"mean_acceptance_length":1.0,"draft_acceptance_rate":0.0,'
    '"acceptance_histogram":[1,0,0,0,0],"num_spec_steps":1,"num_accepted_draft_tokens":0,'
    '"num_draft_tokens":4,"num_spec_tokens":4,"per_step_accepted":[0],"per_step_drafted":[4]}}'
)
# ... and of an answer without a draft: the arrays are not there
SILENT = json.loads(
    '{"speculative_decoding":{"mean_acceptance_length":1.0,"draft_acceptance_rate":0.0,'
    '"acceptance_histogram":[0,0,0,0,0],"num_spec_steps":0,"num_accepted_draft_tokens":0,'
    '"num_draft_tokens":0,"num_spec_tokens":4}}'
)

# (accepted, drafted) of every draft of an answer
rounds = st.lists(
    st.integers(1, 6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), max_size=40
)


def reported(steps, most=6, detailed=True):
    """What vLLM would say."""
    histogram = [sum(accepted == j for accepted, _ in steps) for j in range(most + 1)]
    said = {
        "acceptance_histogram": histogram,
        "num_spec_steps": len(steps),
        "num_draft_tokens": sum(drafted for _, drafted in steps),
        "num_spec_tokens": most,
    }
    if steps and detailed:
        said["per_step_accepted"] = [accepted for accepted, _ in steps]
        said["per_step_drafted"] = [drafted for _, drafted in steps]
    return {"speculative_decoding": said}


def at_least(lengths):
    return [sum(n >= i for n in lengths) for i in range(1, 7)]


def padded(counts):
    return [*counts, *[0] * (6 - len(counts))]


# -------------------------------------------------------------------------------- what is read


def test_what_vllm_says():
    assert request_drafts(REAL) == RequestDrafts(
        num_drafts=1, num_draft_tokens=4, accepted_per_pos=(), drafted_per_pos=(1, 1, 1, 1)
    )
    assert request_drafts(SILENT) == RequestDrafts(
        num_drafts=0, num_draft_tokens=0, drafted_per_pos=()
    )


@given(rounds)
def test_steps_become_counts(steps):
    drafts = request_drafts(reported(steps))
    assert drafts.num_drafts == len(steps)
    assert drafts.num_accepted_tokens == sum(accepted for accepted, _ in steps)
    assert padded(drafts.accepted_per_pos) == at_least([accepted for accepted, _ in steps])
    assert padded(drafts.drafted_per_pos) == at_least([drafted for _, drafted in steps])


@given(rounds.filter(bool))
def test_a_summary_does_not_tell_the_lengths(steps):
    drafts = request_drafts(reported(steps, detailed=False))
    assert padded(drafts.accepted_per_pos) == at_least([accepted for accepted, _ in steps])
    assert drafts.drafted_per_pos is None


@pytest.mark.vllm
def test_vllms_own_code_says_it_so():
    """Steps given to vLLM's accumulators: what its answer says against what its counters say."""
    protocol = pytest.importorskip("vllm.entrypoints.generate.base.protocol")
    from vllm.v1.metrics.stats import RequestSpecDecodeMetrics
    from vllm.v1.spec_decode.metrics import SpecDecodingStats

    rng = np.random.default_rng(2)
    for length in (0, 1, 40):
        answer, counters = RequestSpecDecodeMetrics.new(5), SpecDecodingStats.new(5)
        for drafted in rng.integers(1, 6, length).tolist():
            accepted = int(rng.integers(0, drafted + 1))
            answer.observe(drafted, accepted, detailed=True)
            counters.observe_draft(drafted, accepted)
        metrics = protocol.PerRequestMetrics()
        metrics.speculative_decoding = protocol.SpeculativeDecodingMetrics(**answer.to_dict())
        sent = json.loads(metrics.model_dump_json(exclude_none=True))
        drafts = request_drafts(sent)
        assert drafts.num_drafts == counters.num_drafts == length
        assert drafts.num_draft_tokens == counters.num_draft_tokens
        assert padded(drafts.accepted_per_pos)[:5] == counters.num_accepted_tokens_per_pos
        assert padded(drafts.drafted_per_pos)[:5] == counters.num_draft_tokens_per_pos


def changed(**fields):
    return {"speculative_decoding": {**REAL["speculative_decoding"], **fields}}


@pytest.mark.parametrize(
    "metrics",
    [
        None,
        "none",
        [],
        {},
        {"time_to_first_token_ms": 3.1},
        {"speculative_decoding": None},
        changed(num_spec_steps="1"),
        changed(num_spec_steps=2),
        changed(num_draft_tokens=5),
        changed(acceptance_histogram=[2, -1, 0, 0, 0]),
        changed(acceptance_histogram={"0": 1}),
        changed(per_step_drafted=[3, 1]),
        changed(per_step_drafted=[4.0]),
    ],
)
def test_what_is_not_understood_was_not_measured(metrics):
    assert request_drafts(metrics) is None


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_a_stream_brings_them_with_its_usage(endpoint):
    def script(index, body):
        return Script(metrics=[REAL, SILENT, None][index], bytes_per_write=7)

    with FakeServer(script) as server:
        told = [request.drafts for request in run(server, block(3), endpoint=endpoint).requests]
    assert told == [request_drafts(REAL), request_drafts(SILENT), None]


# ----------------------------------------------------------------------------- what is asked for

FLAG = "--per-request-spec-decode-metrics"


@pytest.mark.parametrize(
    ("vllm", "engine_args", "speculating", "expected"),
    [
        ("0.29.0", (), True, [FLAG, "detailed"]),
        ("0.32.1rc1.dev3+g1", ("--dtype", "float32"), True, [FLAG, "detailed"]),
        ("1.0.0", (), True, [FLAG, "detailed"]),
        ("0.28.1", (), True, []),
        ("dev", (), True, []),
        ("0.32.0", (), False, []),  # vLLM refuses it where nothing is drafted
        ("0.32.0", (FLAG, "summary"), True, []),  # the user's own
        ("0.32.0", ("--per_request_spec_decode_metrics=none",), True, []),
        ("0.32.0", ("--per-request-spec", "detailed"), True, []),
        ("0.32.0", (FLAG, "summary"), False, [FLAG, "none"]),
        ("0.32.0", ("--performance-mode", "x"), True, [FLAG, "detailed"]),
    ],
)
def test_the_flag(vllm, engine_args, speculating, expected):
    info = EngineInfo(python="/opt/python", vllm=vllm)
    assert drafts_arguments(info, engine_args, speculating=speculating) == expected


# --------------------------------------------------------------------------- requests and counters


def result(steps, prompt="p", tokens=None, reason="length", detailed=True):
    """An answer with these drafts; `tokens` None: one for the prefill and those of its drafts."""
    made = 1 + sum(accepted + 1 for accepted, _ in steps)
    return RequestResult(
        prompt_id=prompt,
        completion_tokens=made if tokens is None else tokens,
        finish_reason=reason,
        drafts=request_drafts(reported(steps, detailed=detailed)),
    )


def counted(*answers, n=6):
    """The counters of a window with these drafts."""
    steps = [step for answer in answers for step in answer]
    return SpecCounters(
        num_drafts=len(steps),
        num_draft_tokens=sum(drafted for _, drafted in steps),
        num_accepted_tokens=sum(accepted for accepted, _ in steps),
        accepted_per_pos=tuple(at_least([accepted for accepted, _ in steps])[:n]),
    )


def test_the_counters_are_the_truth():
    steps = [(1, 2)] * 300
    results = [result(steps, "a"), result(steps, "b")]
    exact = counted(steps, steps)
    assert drafts_flags(results, exact) == ()
    almost = exact.model_copy(update={"num_drafts": 597})
    assert drafts_flags(results, almost) == ()
    assert drafts_flags(results[:1], exact) == ("request_drafts_disagree",)
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        other = exact.model_copy(update={name: getattr(exact, name) + 20})
        assert drafts_flags(results, other) == ("request_drafts_disagree",)


def test_requests_that_tell_nothing_contradict_nothing():
    steps = [(1, 2)] * 3
    silent = RequestResult(prompt_id="a")
    assert drafts_flags([silent], counted(steps)) == ()
    assert drafts_flags([result(steps)], None) == ()
    # but one that is missing among others is missing in the sum
    assert drafts_flags([silent, result(steps)], counted(steps, steps)) != ()


# -------------------------------------------------------------------------------------- evidence


def measured(*results, n=2, block="search:0", **more):
    """A window of N=n in which every request tells of its drafts."""
    fields = {"requests": tuple(results), **more}
    return window("ngram", n, 100.0, block=block, **fields)


def test_two_prompts_by_hand():
    # 1, 1, 1, 0 accepted of four drafts and 1, 0, 0, 0: as in test_clusters, error 1/4
    a, b = [(1, 1)] * 3 + [(0, 1)], [(1, 1)] + [(0, 1)] * 3
    windows = [measured(result(a, "a"), result(b, "b"), n=1, counters=counted(a, b, n=1))]
    (rate,) = acceptance_rates(windows, 0.95)
    assert (rate.interval.value, rate.standard_error) == (0.5, pytest.approx(0.25))
    assert (rate.basis, rate.clusters) == ("requests", 2)
    length = acceptance_length(windows, 0.95)
    assert length.interval.value == 1.5 and length.standard_error == pytest.approx(0.25)
    assert length.interval.low == pytest.approx(1 + rate.interval.low)


def test_steps_without_a_draft_count():
    # 2 of 2 accepted in 8 tokens: 8 - 1 - 2 = 5 steps. 0 of 2 in 4: 3 steps
    a, b = [(1, 1)] * 2, [(0, 1)] * 2
    windows = [measured(result(a, "a", tokens=8), result(b, "b", tokens=4), n=1)]
    assert [answer.steps for answer in told(windows)] == [5, 3]


def test_steps_are_never_fewer_than_drafts():
    """The last draft went 3 tokens past the end: 6 tokens of 2 drafts with 6 accepted."""
    windows = [measured(result([(3, 3)] * 2, tokens=6), n=3)]
    assert [answer.steps for answer in told(windows)] == [2]


def test_the_same_prompt_again_is_no_new_evidence():
    a, b = [(1, 1)] * 3 + [(0, 1)], [(1, 1)] + [(0, 1)] * 3
    once = [measured(result(a, "a"), result(b, "b"), n=1)]
    twice = [*once, measured(result(a, "a"), result(b, "b"), n=1, block="reference:0")]
    new = [*once, measured(result(a, "c"), result(b, "d"), n=1, block="search:1")]
    errors = [acceptance_length(each, 0.95).standard_error for each in (once, twice, new)]
    assert errors[1] == pytest.approx(errors[0])
    assert errors[2] < errors[0]


def test_a_single_prompt_says_that_it_is_one():
    steps = [(2, 2), (0, 2), (1, 2), (1, 2)]
    windows = [measured(result(steps), counters=counted(steps, n=2))]
    rates = acceptance_rates(windows, 0.95)
    assert [rate.basis for rate in rates] == ["drafts", "drafts"]
    assert [rate.interval.value for rate in rates] == [0.75, 0.25]
    # 2, 0, 1, 1 tokens: mean 1, variance 1/2
    length = acceptance_length(windows, 0.95)
    assert length.interval.value == 2 and length.basis == "drafts"
    assert length.standard_error == pytest.approx(math.sqrt(0.5 / 4))


def test_an_engine_that_does_not_tell_of_requests():
    a, b = [(1, 2)] * 30, [(0, 2)] * 30
    told = measured(result(a, "a"), result(b, "b"), counters=counted(a, b, n=2))
    counters_only = told.model_copy(update={"requests": ()})
    contradicted = told.model_copy(update={"flags": ("request_drafts_disagree",)})
    for windows in ([counters_only], [contradicted], [told, counters_only]):
        (first, _) = acceptance_rates(windows, 0.95)
        assert first.basis == "drafts" and first.interval.value == 0.5
        assert acceptance_length(windows, 0.95).basis == "drafts"
        assert conditional_rates(windows) is None
    (clustered, _) = acceptance_rates([told], 0.95)
    assert clustered.standard_error > 3 * first.standard_error


def test_nothing_was_counted():
    bare = window("mtp", 3, 100.0, per_position_acceptance_rates=(0.7, 0.5, 0.3))
    silent = measured(result([], "a", tokens=3), result([], "b", tokens=3), counters=counted())
    for windows in ([], [bare], [silent], [window("none", 0, 100.0)]):
        assert acceptance_rates(windows, 0.95) is None
        assert acceptance_length(windows, 0.95) is None
        assert conditional_rates(windows) is None


def test_a_position_that_was_not_drafted_was_not_wrong():
    # drafts of 3, 3, 1, 1 tokens: position 3 was right in 1 of 2, but in 1 of 4 drafts
    windows = [measured(result([(3, 3), (1, 3)], "a"), result([(1, 1), (0, 1)], "b"), n=4)]
    assert conditional_rates(windows) == pytest.approx((3 / 4, 1 / 2, 1 / 2))
    rates = [rate.interval.value for rate in acceptance_rates(windows, 0.95)]
    assert rates == pytest.approx([3 / 4, 1 / 4, 1 / 4, 0])
    summary = [measured(result([(3, 3)], "a", detailed=False), result([(1, 1)], "b"), n=4)]
    assert conditional_rates(summary) is None


@given(st.lists(rounds.filter(bool), min_size=2, max_size=6))
def test_drafts_of_full_length_have_one_rate(answers):
    full = [[(accepted, 6) for accepted, _ in steps] for steps in answers]
    windows = [measured(*(result(steps, f"{i}") for i, steps in enumerate(full)), n=6)]
    rates = [rate.interval.value for rate in acceptance_rates(windows, 0.95)]
    assert conditional_rates(windows) == pytest.approx(rates)
    assert rates == sorted(rates, reverse=True)
    assert acceptance_length(windows, 0.95).interval.value == pytest.approx(1 + sum(rates))


# ---------------------------------------------------------------------------- a known truth

RATES = (0.8, 0.6, 0.4, 0.2)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """200 windows of 12 simulated requests, drafted by RATES."""
    scenario = {
        "schema": "spectune.scenario/1",
        "name": "known",
        "gpu": "H100",
        "model": {
            "name": "dense",
            "parameters_billion": 10,
            "layers": 10,
            "attention_width": 1000,
            "kv_bytes_per_token": 1e5,
        },
        "methods": [
            {
                "method": "mtp",
                "lengths": [4],
                "acceptance": {"rates": RATES},
                "drafting": {"style": "sequential"},
            }
        ],
        "concurrencies": [4],
    }
    path = tmp_path_factory.mktemp("scenario") / "known.json"
    path.write_text(json.dumps(scenario))
    session = SimulateEngine(EngineOptions(simulation=str(path))).open(
        Target(model="m"), Arm(method="mtp", num_speculative_tokens=4), lambda line: None
    )
    prompts = tuple(
        Prompt(id=f"p{i}", messages=(Message(role="user", content="?"),)) for i in range(12)
    )
    return [
        session.run(
            Block(
                role=BlockRole.SEARCH,
                index=i,
                concurrency=4,
                prompts=prompts,
                sampling=Sampling(max_tokens=96),
            )
        )
        for i in range(200)
    ]


def test_simulated_requests_add_up_to_the_counters(drawn):
    for each in drawn:
        assert drafts_flags(each.requests, each.counters) == ()
        assert sum(r.completion_tokens for r in each.requests) == each.output_tokens
        assert len({r.prompt_id for r in each.requests}) == len(each.requests) == 12
    pooled = np.sum([r.drafts.accepted_per_pos for w in drawn for r in w.requests], axis=0)
    assert pooled.tolist() == np.sum([w.counters.accepted_per_pos for w in drawn], axis=0).tolist()


def test_intervals_hold_the_truth_as_often_as_they_say(drawn):
    held = []
    for each in drawn:
        rates, length = acceptance_rates([each], 0.95), acceptance_length([each], 0.95)
        intervals = [(r.interval, p) for r, p in zip(rates, RATES, strict=True)]
        intervals.append((length.interval, 1 + sum(RATES)))
        held.append([i.low <= truth <= i.high for i, truth in intervals])
    for share in np.mean(held, axis=0):
        assert 0.90 <= share <= 0.99  # 200 windows: the standard error is 1.5 %


# ------------------------------------------------------------------------------ what was stored


def test_windows_of_earlier_versions_still_load():
    old = {
        "method": "mtp", "num_speculative_tokens": 2, "live": True, "block": "search:0:c8",
        "concurrency": 8, "output_tokens_per_second": 100.0,
        "requests": [{"prompt_id": "a", "completion_tokens": 9, "finish_reason": "stop"}],
    }  # fmt: skip
    loaded = Window.model_validate_json(json.dumps(old))
    assert loaded.requests[0].drafts is None
    assert told([loaded]) is None


def test_a_negative_count_is_refused():
    with pytest.raises(ValueError, match="num_drafts"):
        RequestDrafts(num_drafts=-1, num_draft_tokens=0)


def test_bad_user_arguments_are_still_the_users_fault():
    info = EngineInfo(python="/opt/python", vllm="0.32.0")
    with pytest.raises(ConfigurationError, match="cannot read --config"):
        drafts_arguments(info, ("--config", "/no/such.yaml"), speculating=True)
