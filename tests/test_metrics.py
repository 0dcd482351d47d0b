"""Metrics texts as real servers produced them, and the faults that hid in them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    generate_latest,
)

from autotune.engines.metrics import (
    MetricsDelta,
    Snapshot,
    check_window,
    difference,
    parse_metrics,
    upper_bound,
)
from autotune.errors import LiveSwitchError, UnusableMeasurementError
from autotune.records import SpecCounters

DRAFTS = "vllm:spec_decode_num_drafts"
TOKENS = "vllm:spec_decode_num_draft_tokens"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens"


def line(name, value, engine="0", **labels):
    pairs = {"engine": engine, "model_name": "/models/target", **labels}
    inside = ",".join(f'{key}="{text}"' for key, text in pairs.items())
    return f"{name}{{{inside}}} {value}\n"


def positions(counts, engine="0"):
    return "".join(
        line(f"{ACCEPTED}_per_pos_total", float(count), engine, position=i)
        for i, count in enumerate(counts)
    )


def server(drafts, tokens, accepted, per_pos, engine="0"):
    totals = zip((DRAFTS, TOKENS, ACCEPTED), (drafts, tokens, accepted), strict=True)
    lines = "".join(line(f"{name}_total", float(value), engine) for name, value in totals)
    return lines + positions(per_pos, engine)


LONG_RUNNING = (  # scientific notation and a _created twin for every counter
    f"# HELP {DRAFTS}_total Number of drafts.\n# TYPE {DRAFTS}_total counter\n"
    + line(f"{DRAFTS}_total", "2.04363e+06")
    + line(f"{DRAFTS}_created", "1.785538744138251e+09")
    + line(f"{TOKENS}_total", "1.0218118e+07")
    + line(f"{TOKENS}_created", "1.7855387441389015e+09")
    + line(f"{ACCEPTED}_total", "7.268642e+06")
    + line(f"{ACCEPTED}_created", "1.785538744138932e+09")
    + positions([1.883866e06, 1.732372e06, 1.489894e06, 1.204113e06])
)
DATA_PARALLEL = server(22, 110, 17, [7, 4, 2, 2, 2]) + server(15, 75, 27, [8, 5, 5, 5, 4], "1")
CURL_DUMP = f"""\
100 58595  100 58595    0     0  5684k      0 --:--:# HELP {DRAFTS}_total Number of drafts.
-# TYPE {DRAFTS}_total counter
-{line(f"{DRAFTS}_total", 42668.0)}\
 # HELP {DRAFTS}_created Number of spec decoding drafts.
-# TYPE {DRAFTS}_created gauge
"""
OLD_ENGINE = """\
vllm:spec_decode_draft_acceptance_rate{model_name="org/target"} 0.72
vllm:spec_decode_efficiency{model_name="org/target"} 0.598
vllm:spec_decode_num_accepted_tokens_total{model_name="org/target"} 8547.0
vllm:spec_decode_num_draft_tokens_total{model_name="org/target"} 13311.0
vllm:spec_decode_num_emitted_tokens_total{model_name="org/target"} 10616.0
"""
BASELINE = line("vllm:num_requests_running", 0.0) + line("vllm:generation_tokens_total", 51200.0)
IN_FLIGHT = (
    line("vllm:generation_tokens_total", 48210.0)
    + line("vllm:request_generation_tokens_sum", 46000.0)
    + line("vllm:num_requests_running", 3.0)
)


def delta(drafts, tokens, accepted, per_pos=(), generation_tokens=None, **rest):
    counters = SpecCounters(
        num_drafts=drafts,
        num_draft_tokens=tokens,
        num_accepted_tokens=accepted,
        accepted_per_pos=tuple(per_pos),
    )
    return MetricsDelta(counters=counters, generation_tokens=generation_tokens, **rest)


def judge(change, n, tokens, requests=8, **rest):
    return check_window(change, n=n, output_tokens_by_usage=tokens, num_requests=requests, **rest)


# ------------------------------------------------------------------------------- reading


def test_names_are_matched_whole():
    spec = parse_metrics(LONG_RUNNING).counters
    assert (spec.num_drafts, spec.num_draft_tokens) == (2043630, 10218118)
    assert spec.num_accepted_tokens == 7268642
    assert spec.acceptance_length == pytest.approx(4.5567, abs=1e-4)
    assert spec.per_position_rates == pytest.approx([0.9218, 0.8477, 0.729, 0.5892], abs=1e-4)


def test_what_the_client_library_of_vllm_writes():
    registry = CollectorRegistry()
    labels = ("model_name", "engine")
    for name in (DRAFTS, TOKENS, ACCEPTED, "vllm:generation_tokens", "vllm:prompt_tokens_cached"):
        Counter(name, "text", labels, registry=registry).labels("m", "0").inc(12)
    per_pos = Counter(f"{ACCEPTED}_per_pos", "text", (*labels, "position"), registry=registry)
    per_pos.labels("m", "0", "0").inc(8)
    per_pos.labels("m", "0", "1").inc(4)
    Gauge("vllm:num_requests_waiting", "text", labels, registry=registry).labels("m", "0").set(2)
    ProcessCollector(registry=registry)
    snapshot = parse_metrics(generate_latest(registry).decode())
    engine = snapshot.engines["0"]
    assert snapshot.counters.accepted_per_pos == (8, 4)
    assert set(engine.counters.values()) == {12}
    assert "prompt_tokens" not in engine.counters
    assert (engine.requests_running, engine.requests_waiting) == (None, 2)
    assert len(engine.created) == 6
    assert snapshot.damaged_lines == 0


def test_a_position_that_is_not_exported_is_said_and_not_made_zero():
    change = MetricsDelta(counters=parse_metrics(LONG_RUNNING).counters)
    assert len(change.counters.accepted_per_pos) == 4
    assert "positions_missing" in judge(change, 5, 9_000_000)
    missing = change.counters.num_accepted_tokens - sum(change.counters.accepted_per_pos)
    assert missing / change.counters.num_drafts == pytest.approx(0.469, abs=1e-3)


def test_engines_are_summed_before_dividing():
    snapshot = parse_metrics(DATA_PARALLEL)
    spec = snapshot.counters
    assert set(snapshot.engines) == {"0", "1"}
    assert (spec.num_drafts, spec.num_draft_tokens, spec.num_accepted_tokens) == (37, 185, 44)
    assert spec.acceptance_length == pytest.approx(2.1892, abs=1e-4)
    rates = [0.4054, 0.2432, 0.1892, 0.1892, 0.1622]
    assert spec.per_position_rates == pytest.approx(rates, abs=1e-4)


def test_damaged_lines_are_counted_and_never_read():
    snapshot = parse_metrics(CURL_DUMP)
    assert snapshot.counters is None
    assert snapshot.damaged_lines >= 4
    whole = parse_metrics(CURL_DUMP + DATA_PARALLEL)
    assert whole.counters == parse_metrics(DATA_PARALLEL).counters


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-3.0", "12abc", ""])
def test_impossible_values_are_damage(value):
    snapshot = parse_metrics(line(f"{DRAFTS}_total", value))
    assert (snapshot.counters, snapshot.damaged_lines) == (None, 1)


def test_the_old_engine_is_refused_by_name():
    with pytest.raises(UnusableMeasurementError, match="too old"):
        parse_metrics(OLD_ENGINE)


def test_draft_tokens_without_drafts_are_too_old_too():
    with pytest.raises(UnusableMeasurementError, match="too old"):
        parse_metrics(line(f"{TOKENS}_total", 13311.0))


def test_both_spellings_of_a_counter():
    assert parse_metrics(line(DRAFTS, 7.0)).counters.num_drafts == 7
    both = line(DRAFTS, 7.0) + line(f"{DRAFTS}_total", 7.0)
    assert parse_metrics(both).counters.num_drafts == 7


def test_braces_in_a_model_name():
    text = line(f"{DRAFTS}_total", 7.0).replace("/models/target", 'odd } \\" {name')
    assert parse_metrics(text).counters.num_drafts == 7


# --------------------------------------------------------------------------- differences


def test_a_baseline_has_no_counters_and_that_is_right():
    change = difference(parse_metrics(BASELINE.replace("51200", "100")), parse_metrics(BASELINE))
    assert change.counters is None
    assert change.generation_tokens == 51100
    assert judge(change, 0, 51100) == ()
    with pytest.raises(UnusableMeasurementError, match="not active"):
        judge(change, 3, 51100)


@pytest.mark.parametrize("twin", [f"{DRAFTS}_created", "process_start_time_seconds"])
def test_a_restart_that_hides_behind_a_plausible_difference(twin):
    before = line(f"{DRAFTS}_total", 1000.0) + line(twin, 1.785538744e09)
    after = line(f"{DRAFTS}_total", 1400.0) + line(twin, 1.785541002e09)
    with pytest.raises(UnusableMeasurementError, match="restarted"):
        difference(parse_metrics(before), parse_metrics(after))
    same = line(f"{DRAFTS}_total", 1400.0) + line(twin, 1.785538744e09)
    change = difference(parse_metrics(before), parse_metrics(same))
    assert change.counters.num_drafts == 400


def test_a_counter_that_fell():
    before, after = parse_metrics(server(9, 9, 5, [5])), parse_metrics(server(9, 9, 4, [4]))
    with pytest.raises(UnusableMeasurementError, match="fell from 5 to 4"):
        difference(before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (DATA_PARALLEL, server(30, 150, 20, [8, 4, 4, 2, 2])),  # one engine is gone
        (BASELINE, BASELINE + DATA_PARALLEL),  # another server with the same port
        (BASELINE + DATA_PARALLEL, BASELINE),
        (CURL_DUMP, DATA_PARALLEL),  # nothing legible to subtract
    ],
)
def test_series_that_come_or_go(before, after):
    with pytest.raises(UnusableMeasurementError):
        difference(parse_metrics(before), parse_metrics(after))


def test_requests_in_flight_void_a_window():
    quiet = parse_metrics(IN_FLIGHT.replace(" 3.0", " 0.0"))
    busy = parse_metrics(IN_FLIGHT)
    assert (quiet.requests_in_flight, busy.requests_in_flight) == (0, 3)
    assert busy.engines["0"].counters == {"generation_tokens": 48210}
    with pytest.raises(UnusableMeasurementError, match="3 requests were still in flight"):
        difference(quiet, busy)
    with pytest.raises(UnusableMeasurementError, match="before the window"):
        difference(busy, quiet)


def test_positions_that_appear_later_count_from_zero_and_gaps_are_zero():
    before = parse_metrics(server(10, 40, 5, [5]))
    gap = line(f"{ACCEPTED}_per_pos_total", 3.0, position=3)
    after = parse_metrics(server(20, 80, 15, [12]) + gap)
    assert difference(before, after).counters.accepted_per_pos == (7, 0, 0, 3)


def test_preemptions():
    before, after = (line("vllm:num_preemptions_total", count) for count in (1, 3))
    change = difference(parse_metrics(before), parse_metrics(after))
    assert change.preemptions == 2
    assert judge(change, 0, 50) == ("preempted", "engine_tokens_unknown")


ENGINE = st.lists(st.integers(0, 10**9), min_size=7, max_size=7)


@given(
    before=st.dictionaries(st.sampled_from("0123"), ENGINE, min_size=1),
    data=st.data(),
)
def test_differences_are_pooled_over_engines(before, data):
    change = {engine: data.draw(ENGINE, engine) for engine in before}

    def snapshot(values):
        text = "".join(
            server(drafts, tokens, accepted, per_pos, engine)
            + line("vllm:generation_tokens_total", float(generated), engine)
            for engine, (drafts, tokens, accepted, generated, *per_pos) in values.items()
        )
        return parse_metrics(text)

    after = {
        engine: [old + new for old, new in zip(before[engine], change[engine], strict=True)]
        for engine in before
    }
    result = difference(snapshot(before), snapshot(after))
    pooled = [sum(column) for column in zip(*change.values(), strict=True)]
    spec = result.counters
    assert [spec.num_drafts, spec.num_draft_tokens, spec.num_accepted_tokens] == pooled[:3]
    assert result.generation_tokens == pooled[3]
    assert list(spec.accepted_per_pos) == pooled[4:]
    assert difference(Snapshot(), snapshot(change)).counters == spec


# ---------------------------------------------------------------------------- judgement


def test_bypassed_speculation():
    text = line("vllm:generation_tokens_total", 20480.0) + server(0, 0, 0, [0])
    change = difference(Snapshot(), parse_metrics(text))
    assert change.counters.acceptance_length is None
    assert change.counters.per_position_rates is None
    with pytest.raises(UnusableMeasurementError, match="20480 tokens generated, zero drafts"):
        judge(change, 4, 20480)


def test_answers_of_one_token_need_no_draft():
    assert judge(delta(0, 0, 0, [0], generation_tokens=8), 4, 8, requests=8) == ()


def test_drafts_may_be_shorter_than_n():
    text = server(29, 141, 88, [27, 22, 17, 12, 10], engine="2")
    change = difference(Snapshot(), parse_metrics(text))
    assert change.counters.acceptance_length == pytest.approx(4.034, abs=1e-3)
    assert judge(change, 5, 117) == ("engine_tokens_unknown",)


@pytest.mark.parametrize(
    "change",
    [
        delta(100, 301, 90, [50, 30, 10]),  # more than 3 a draft
        delta(100, 300, 90, [50, 30, 9, 1]),  # accepted at the fourth position
    ],
)
def test_another_n_than_the_one_set(change):
    with pytest.raises(LiveSwitchError, match="N=3"):
        judge(change, 3, 200)


def test_without_speculation_nothing_may_be_drafted():
    assert judge(delta(0, 0, 0, [0, 0], generation_tokens=200), 0, 200) == ()
    with pytest.raises(LiveSwitchError):
        judge(delta(5, 5, 0, [0]), 0, 200)


def test_a_broken_drafter_is_not_a_slow_one():
    broken = delta(1464, 4392, 12, [10, 1, 1])
    with pytest.raises(UnusableMeasurementError, match="broken drafter, not a slow one"):
        judge(broken, 3, 1500)
    assert "weak_drafts" in judge(broken, 3, 1500, weak_drafts_ok=True)


@pytest.mark.parametrize(("accepted", "drafts"), [(0, 20), (7, 110), (118, 1000)])
def test_too_little_evidence_against_a_drafter(accepted, drafts):
    assert judge(delta(drafts, drafts, accepted, [accepted], generation_tokens=2000), 1, 2000) == ()


def test_upper_bound_of_a_share():
    assert upper_bound(0, 29) == pytest.approx(1 - 0.05 ** (1 / 29))  # closed form for none
    assert upper_bound(29, 29) == 1.0


def test_client_and_engine_must_count_the_same_tokens():
    change = delta(1000, 3000, 1500, [800, 500, 200], generation_tokens=2500)
    assert judge(change, 3, 2480) == ()  # within 1 %
    with pytest.raises(UnusableMeasurementError, match="2500 tokens, the answers report 1000"):
        judge(change, 3, 1000)
    small = delta(10, 30, 15, [8, 5, 2], generation_tokens=25)
    assert judge(small, 3, 20, requests=8) == ()  # no more than one a request


def test_damage_is_flagged():
    assert "damaged_metrics" in judge(delta(10, 10, 8, [8], damaged_lines=2), 1, 18)
