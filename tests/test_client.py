"""The closed-loop client and the look it takes at the answers; nothing depends on absolute time."""

import signal
import socket
import subprocess
import sys
import time

import pytest
from fake_server import FakeServer, Script

from autotune.engines.client import quantiles, run_block
from autotune.engines.quality import (
    compare_greedy,
    degenerate,
    failure_summary,
    quality_flags,
)
from autotune.engines.stream import Answer, StreamError, tpot_seconds
from autotune.errors import ConfigurationError
from autotune.records import Block, BlockRole, Message, Prompt, RequestResult, Sampling


def block(count, concurrency=1, **sampling):
    prompts = tuple(
        Prompt(
            id=f"p{i}",
            messages=(
                Message(role="system", content="Be brief."),
                Message(role="user", content=f"Question {i}"),
            ),
        )
        for i in range(count)
    )
    return Block(
        role=BlockRole.SEARCH,
        index=0,
        concurrency=concurrency,
        prompts=prompts,
        sampling=Sampling(**sampling),
    )


def run(server, work, timeout_seconds=30.0, **rest):
    return run_block(
        server.url, "m", work, cache_salt="salt-1", timeout_seconds=timeout_seconds, **rest
    )


def answer(prompt_id="p0", text="fine", tokens=5, finish_reason="stop", **rest):
    return RequestResult(
        prompt_id=prompt_id,
        text=text,
        completion_tokens=tokens,
        finish_reason=finish_reason,
        **rest,
    )


# ------------------------------------------------------------------------- what is sent


def test_the_request_says_everything_the_block_decides():
    work = block(1, temperature=0.5, top_p=0.9, max_tokens=33, seed=7, ignore_eos=True)
    with FakeServer() as server:
        run(server, work, extra_body={"chat_template_kwargs": {"enable_thinking": True}})
    (body,) = server.requests
    assert body == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Question 0"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 33,
        "seed": 7,
        "ignore_eos": True,
        "cache_salt": "salt-1",
        "chat_template_kwargs": {"enable_thinking": True},
    }


def test_completions_for_models_without_a_chat_template():
    with FakeServer() as server:
        result = run(server, block(1), endpoint="completions")
    assert server.paths == ["/v1/completions"]
    assert server.requests[0]["prompt"] == "Be brief.\n\nQuestion 0"
    assert result.requests[0].text == "The answer is forty-two."


@pytest.mark.parametrize("salt", ["", "org/model", "a@b", "x" * 129])
def test_a_salt_that_vllm_would_refuse(salt):
    with pytest.raises(ConfigurationError, match="salt"):
        run_block("http://127.0.0.1:9", "m", block(1), cache_salt=salt, timeout_seconds=1)


def test_extra_body_may_not_override_the_block():
    with pytest.raises(ConfigurationError, match="'temperature'"):
        run(FakeServer(), block(1), extra_body={"temperature": 1.0})


def test_a_block_without_prompts():
    with pytest.raises(ConfigurationError, match="no prompts"):
        run(FakeServer(), block(0))


# ---------------------------------------------------------------------- the closed loop


@pytest.mark.parametrize(("count", "concurrency"), [(9, 4), (3, 8), (4, None), (12, 1)])
def test_the_loop_is_always_full_and_never_fuller(count, concurrency):
    width = min(concurrency or 1, count)
    with FakeServer(gate=width, expected=count) as server:  # unfilled slots would wait for ever
        result = run(server, block(count, concurrency))
    assert failure_summary(result.requests) is None
    assert server.peak_in_flight == width
    assert len(server.requests) == count


def test_prompts_are_sent_and_returned_in_order():
    def script(index, body):
        return Script(
            chunks=(body["messages"][-1]["content"],), first_delay_seconds=0.01 * (3 - index % 3)
        )

    with FakeServer(script=script) as server:
        result = run(server, block(9, 3))
    assert [request.prompt_id for request in result.requests] == [f"p{i}" for i in range(9)]
    assert [request.text for request in result.requests] == [f"Question {i}" for i in range(9)]
    with FakeServer() as server:
        run(server, block(5))
    asked = [body["messages"][-1]["content"] for body in server.requests]
    assert asked == [f"Question {i}" for i in range(5)]


# -------------------------------------------------------------------------- measurement


def test_tokens_come_from_usage_not_from_chunks():
    script = Script(chunks=("five ",) * 44, completion_tokens=200)
    with FakeServer(script=lambda index, body: script) as server:
        result = run(server, block(2, 2))
    assert result.output_tokens == 400
    assert result.requests[0].completion_tokens == 200
    assert result.output_tokens_per_second == pytest.approx(400 / result.duration_seconds)


def test_time_per_token_leaves_the_first_out():
    stream = Answer(sent=100.0)
    stream.feed(b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n', 100.2)
    for number in range(44):  # 44 chunks in 8 s after a first one at 100.5
        now = 100.5 + 8.0 * number / 43
        stream.feed(b'data: {"choices": [{"delta": {"content": "ab"}}]}\n', now)
    stream.feed(b'data: {"choices": [{"delta": {}, "finish_reason": "length"}]}\n', 108.5)
    stream.feed(b'data: {"choices": [], "usage": {"completion_tokens": 200}}\n', 108.5)
    result = stream.result("p", ended=108.5)
    assert result.ttft_seconds == pytest.approx(0.5)
    assert result.end_to_end_seconds == pytest.approx(8.5)
    assert tpot_seconds(result) == pytest.approx(8.0 / 199)
    assert result.completion_tokens / 8.0 == pytest.approx(25.0)
    assert stream.gaps_seconds == pytest.approx([8.0 / 43] * 43)


@pytest.mark.parametrize("tokens", [0, 1])
def test_no_time_per_token_for_a_single_token(tokens):
    assert tpot_seconds(answer(tokens=tokens, ttft_seconds=1.0, end_to_end_seconds=1.0)) is None


def test_latencies_are_in_proportion():
    script = Script(first_delay_seconds=0.2, chunk_delay_seconds=0.02)
    with FakeServer(script=lambda index, body: script) as server:
        before = time.time()
        result = run(server, block(2, 2))
    assert before <= result.started_at <= time.time()
    assert 0.2 <= result.ttft.p50 < result.end_to_end.p50 <= result.duration_seconds
    assert result.itl.p50 < result.ttft.p50
    gaps = [r.end_to_end_seconds - r.ttft_seconds for r in result.requests]
    assert result.tpot.mean == pytest.approx(sum(gaps) / 2 / 8)


@pytest.mark.parametrize("key", ["content", "reasoning", "reasoning_content"])
@pytest.mark.parametrize("step", [1, 7, None])
def test_lines_torn_apart_and_thinking(key, step):
    script = Script(chunks=("Grüße ", "あいう", "!"), bytes_per_write=step, text_key=key)
    with FakeServer(script=lambda index, body: script) as server:
        (result,) = run(server, block(1)).requests
    assert (result.text, result.error) == ("Grüße あいう!", None)
    assert result.ttft_seconds is not None


def test_windows_line_ends_and_no_blank_after_the_colon():
    stream = Answer(sent=0.0)
    stream.feed(b'event: x\r\ndata:{"choices": [{"text": "a"}]}\r\n\r\n: note\r\nda', 1.0)
    stream.feed(b"ta: [DONE]\n", 2.0)
    assert (stream.texts, stream.done) == (["a"], True)


def test_quantiles_of_what_exists():
    found = quantiles([3.0, None, 1.0, 2.0])
    assert (found.mean, found.p50) == (2.0, 2.0)
    assert found.p50 < found.p90 < found.p99 < 3.0
    assert quantiles([None]) is None


# ----------------------------------------------------------------------------- failures

FAULTS = {
    "http": "HTTP 400: max_tokens is too large",
    "disconnect": "connection failed",
    "error": "error in the stream: EngineCore died",
    "garbage": "unreadable chunk",
    "no_usage": "without usage",
    "abort": "gave the request up",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_request_is_told_and_the_others_count(fault):
    def script(index, body):
        return Script(fault=fault if body["messages"][-1]["content"] == "Question 1" else None)

    with FakeServer(script=script) as server:
        result = run(server, block(4, 2))
    good, bad = result.requests[:1] + result.requests[2:], result.requests[1]
    assert FAULTS[fault] in bad.error
    assert (bad.ttft_seconds, bad.end_to_end_seconds, bad.completion_tokens) == (None, None, None)
    assert [request.error for request in good] == [None] * 3
    assert result.output_tokens == 27
    assert "1 of 4 requests failed: 1 x" in failure_summary(result.requests)


@pytest.mark.parametrize("fault", ["hang", "no_bytes"])
def test_a_server_that_hangs_costs_one_timeout(fault):
    with FakeServer(script=lambda index, body: Script(fault=fault)) as server:
        result = run(server, block(3, 3), timeout_seconds=0.3)
    assert {request.error for request in result.requests} == {"no answer within 0.3 s"}
    assert (result.output_tokens, result.output_tokens_per_second) == (0, None)
    assert (result.ttft, result.tpot, result.itl, result.end_to_end) == (None,) * 4


def test_no_server_at_all():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        result = run_block(url, "m", block(3, 2), cache_salt="s", timeout_seconds=5)
    assert all("connection failed" in request.error for request in result.requests)


def test_a_finish_reason_is_needed_even_with_running_usage():
    stream = Answer(sent=0.0)
    usage = b'"usage": {"completion_tokens": 3}'
    stream.feed(b'data: {"choices": [{"delta": {"content": "a"}}], ' + usage + b"}\n", 1.0)
    with pytest.raises(StreamError, match="ended early, after 1 chunks"):
        stream.result("p", 2.0)


def test_failure_summary_names_the_commonest():
    errors = ["a", "b", "a", "c", "d", None]
    results = [RequestResult(prompt_id=str(i), error=error) for i, error in enumerate(errors)]
    summary = failure_summary(results)
    assert summary == "5 of 6 requests failed: 2 x a; 1 x b; 1 x c; 1 other kinds"
    assert failure_summary([answer()]) is None


INTERRUPTED = """
import sys
from test_client import block
from autotune.engines.client import run_block
try:
    run_block(sys.argv[1], "m", block(4, 4), cache_salt="s", timeout_seconds=600)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_gets_through_a_hanging_server(request):
    with FakeServer(script=lambda index, body: Script(fault="hang")) as server:
        process = subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED, server.url],
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": f"{request.path.parent}:{request.config.rootpath}"},
        )
        deadline = time.monotonic() + 30
        while len(server.requests) < 4 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=20)
    assert out == "interrupted\n"


# ------------------------------------------------------------------------------ quality

PROSE = (
    "To find the number of apples, start from the twelve that Anna bought and take away the "
    "five she gave to her brother. That leaves seven, and after buying three more she has ten."
)
CODE = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n"
TABLE = "| N | rate |\n|---|---|\n| 1 | 0.83 |\n| 2 | 0.79 |\n| 3 | 0.71 |\n| 4 | 0.55 |\n"


@pytest.mark.parametrize(
    "text",
    [
        "!" * 900,
        "the " * 300,
        " the\n" * 300,
        "的" * 200,
        "I am sorry, but " * 20,
        "The answer is forty-two and nothing else. " * 12,
        "So " + "0" * 400,
        "".join(f"I cannot help with request number {i}. " for i in range(9)),
    ],
)
def test_degenerate_texts(text):
    assert degenerate(text)


@pytest.mark.parametrize(
    "text", ["", "yes", "ha ha ha", PROSE, CODE, TABLE, "42\n" * 3, "\n".join(map(str, range(99)))]
)
def test_healthy_texts(text):
    assert not degenerate(text)


def test_the_fastest_arm_may_be_the_broken_one():
    """Seen with a block drafter: 59 tokens/s of one repeated token against 25.8 of sense."""
    healthy = [answer(f"p{i}", PROSE, 60) for i in range(3)]
    broken = [answer(f"p{i}", "Ġ" * 900, 900, "length") for i in range(3)]
    assert quality_flags(healthy) == ()
    assert quality_flags(broken) == ("degenerate_output", "all_length_capped")
    assert quality_flags([*healthy, broken[0]]) == ("some_degenerate_output",)


def test_empty_answers():
    empty = answer(text=" \n", tokens=40)
    assert quality_flags([empty]) == ("empty_output",)
    assert quality_flags([empty, answer(), answer()]) == ("some_empty_output",)
    assert quality_flags([answer(text="", tokens=0)]) == ()
    assert quality_flags([RequestResult(prompt_id="p", error="HTTP 500")]) == ()


def test_greedy_answers_are_compared_prompt_by_prompt():
    base = [answer("a", "one two"), answer("b", "same"), answer("c", "x"), answer("a", "twice")]
    failed = RequestResult(prompt_id="c", error="timeout")
    other = [answer("b", "same"), failed, answer("a", "one twO"), answer("a", "twice more")]
    result = compare_greedy(base, other)
    assert (result.compared, result.equal) == (3, 1)
    found = [(entry.prompt_id, entry.position) for entry in result.first_differences]
    assert found == [("a", 6), ("a", 5)]
