"""`spectune report`: what the page and the Markdown say, and that foreign text stays text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from store_samples import BASE, LIVE, make_block, make_plan, make_recommendation, make_window
from tuner_samples import PUBLISHED, simulate

from autotune.cli import cli, invoke
from autotune.records import (
    Arm,
    BlockRole,
    CandidateResult,
    Interval,
    MethodSpace,
    Settings,
    SpecCounters,
    Status,
    StepTimes,
)
from autotune.report import recording_report, render, study_report
from autotune.report.data import Row
from autotune.report.events import timeline
from autotune.report.markdown import escaped, fenced
from autotune.report.sections import build
from autotune.report.text import LEGEND
from autotune.store import EngineStart, StoredWindow, load_study, open_study

MATH500 = PUBLISHED / "s01-gemma-4-31b-it-math500.json"
HOSTILE = "<script>window.hurt = 1</script><img src=x onerror='window.hurt = 2'>|`*_"


class Page(HTMLParser):
    """What a browser would make of it: elements, attributes, texts, tables, figures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.tables: list[list[list[str]]] = []
        self.texts: list[str] = []
        self._inside = ""
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self._inside = tag
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside in ("td", "th"):
            self.tables[-1][-1][-1] += data
        if self._inside not in ("script", "style"):
            self.texts.append(data)

    def handle_endtag(self, tag):
        self._inside = ""

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    @property
    def figures(self):
        return json.loads(self.scripts[0])["figures"]

    def table(self, *headings):
        """As dicts by heading: the one table that has all these headings."""
        (found,) = [t for t in self.tables if t and set(headings) <= set(t[0])]
        return [dict(zip(found[0], row, strict=True)) for row in found[1:]]


def page(report):
    return Page(render(report, "html"))


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/s.db"


def stored(url):
    return study_report(load_study(url))


# ------------------------------------------------------------------------------ recordings


def test_recording_reproduces_the_published_figures():
    """Speed-ups are the table's own throughputs divided; lengths and best N as published."""
    found = page(recording_report(MATH500))
    rows = {(r["Method"], r["N"]): r for r in found.table("Method", "Tokens/round")}
    source = json.loads(MATH500.read_text())
    assert len(rows) == len(source["points"]) == 17
    assert rows["dflash", "7"]["Speed-up"] == "2.34x"  # the post: 2.34x at N=7
    assert rows["dflash", "7"]["Tokens/round"] == "5.76"
    assert rows["gemma4_mtp", "1"]["Speed-up"] == "1.54x"  # 2097 / 1365
    assert rows["dflash", "7"]["tok/s"] == "3,197.0"
    assert "Fastest in the table: dflash N=7, 2.34x" in found.text
    (points,) = [t for t in found.figures["speedup0"]["data"] if t["x"] == [3, 7, 11, 15]
                 and t["marker"]["symbol"][0] == "diamond"]  # fmt: skip
    assert points["y"] == pytest.approx([rate / 1365 for rate in rates(source, "dflash")])


def rates(source, method):
    return [p["output_tokens_per_second"] for p in source["points"] if p["method"] == method]


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.json")), ids=lambda path: path.stem)
def test_every_published_recording_has_a_report(path):
    source = json.loads(path.read_text())
    report = recording_report(path)
    distinct = {(p["method"], p["num_speculative_tokens"], p["concurrency"])
                for p in source["points"]}  # fmt: skip
    assert {(row.method, row.n, row.load) for row in report.rows} == distinct
    assert len(report.rows) == len(distinct)
    assert source["model"] in page(report).text
    assert escaped(source["model"]) in render(report, "md")


def test_recording_without_acceptance_says_so_and_draws_nothing(tmp_path):
    document = {
        "schema": "spectune.recording/1", "model": "acme/small", "workload": "sums",
        "baseline": [{"concurrency": 1, "output_tokens_per_second": 100.0}],
        "points": [{"method": "mtp", "num_speculative_tokens": 2, "concurrency": 1,
                    "output_tokens_per_second": 80.0}],
    }  # fmt: skip
    path = tmp_path / "r.json"
    path.write_text(json.dumps(document))
    found = page(recording_report(path))
    assert "Acceptance was not measured." in found.text
    assert "Drafting and verification were not timed." in found.text
    assert "Latency was not measured." in found.text
    assert "Nothing in this table is faster than no speculation" in found.text
    assert set(found.figures) == {"speedup0"}
    (row,) = found.table("Method", "Evidence")
    assert row == {"Method": "mtp", "N": "2", "Load": "1", "Evidence": "recorded",
                   "tok/s": "80.0", "Speed-up": "0.80x"}  # fmt: skip


# --------------------------------------------------------------------------------- studies


def finished(url, **changes):
    """A study of one method at two loads, with a recommendation written by hand."""
    block = make_block()
    rest = StepTimes(
        num_steps=10, draft_seconds_per_step=0.002, verify_seconds_per_step=0.01,
        step_seconds=0.013, coverage=0.92, tokens_per_step=2.0, requests_per_step=1.0,
    )  # fmt: skip
    candidate = CandidateResult(
        method="mtp", num_speculative_tokens=3, concurrency=8, status=Status.CONFIRMED,
        output_tokens_per_second=200.0, acceptance_length=2.5,
        speedup=Interval(value=2.0, low=1.9, high=2.1, confidence=0.95),
        predicted_speedup=Interval(value=1.8, low=1.2, high=2.6, confidence=0.95),
        per_position_acceptance_rates=(0.8, 0.5, 0.2),
        draft_seconds_per_step=0.002, verify_seconds_per_step=0.01,
    )  # fmt: skip
    failed = CandidateResult(
        method="mtp", num_speculative_tokens=1, concurrency=8, status=Status.FAILED,
        error=changes.pop("error", "the engine died"),
    )  # fmt: skip
    predicted = CandidateResult(
        method="mtp", num_speculative_tokens=2, concurrency=8, status=Status.PREDICTED,
        speedup=Interval(value=1.5, low=1.0, high=2.0, confidence=0.95),
    )  # fmt: skip
    rows = (candidate, predicted, failed)
    last_words = changes.pop("last_words", "RuntimeError: out of memory")
    with open_study(url, make_plan(**changes)) as study:
        study.engine_started(BASE, 30.0)
        study.save(BASE, block, 0, make_window(BASE, 0, block, 100.0, duration_seconds=5.0))
        study.engine_started(LIVE, 30.0)
        window = make_window(LIVE, 3, block, 200.0, steps=rest, duration_seconds=5.0)
        study.save(LIVE, block, 0, window)
        study.fail("mtp", 1, "the engine died", last_words)
        study.finish(make_recommendation(study.plan, study.id, candidates=rows))
    return stored(url)


def test_study_says_the_answer_first(url):
    found = page(finished(url))
    text = found.text
    order = [
        "Use mtp with 3 speculative tokens", "2.00x [1.90, 2.10] at 95% confidence",
        "Speculative configuration", "vllm serve acme/small --speculative-config",
        "Cost: 2 engine starts, 3 measurements, 5 s.", "Speed-up against N", "Acceptance",
        "Where a round’s time goes", "Throughput against load", "Throughput and latency",
        "N by batch size", "What was measured when", "Stopped because nothing could still win",
        "Predicted and measured", "Environment", "Acme G1", "Failed and skipped candidates",
        "the engine died", "out of memory",
    ]  # fmt: skip
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_round_time_is_drafting_verifying_and_the_rest(url):
    """13 ms a step less 2 ms drafting and 10 ms verifying leave 1 ms."""
    (row,) = page(finished(url)).table("Method", "Evidence")
    assert (row["Draft ms"], row["Verify ms"], row["Rest ms"]) == ("2.00", "10.00", "1.00")
    parts = {t["name"]: t["y"] for t in page(stored(url)).figures["time0"]["data"]}
    assert parts == {"draft": [2.0], "verify": [10.0], "rest": [pytest.approx(1.0)]}


def test_predictions_are_drawn_against_what_was_measured(url):
    (points,) = page(finished(url)).figures["predictions"]["data"]
    assert (points["x"], points["y"]) == ([1.8], [2.0])
    assert points["error_x"]["array"] == pytest.approx([0.8])
    assert points["error_x"]["arrayminus"] == pytest.approx([0.6])


def test_timeline_holds_starts_and_windows_in_order(url):
    """30 s start, 5 s window, 30 s start, 5 s window: 70 s, shown in seconds."""
    figure = page(finished(url)).figures["timeline"]
    bars = sorted((b, x, t["name"]) for t in figure["data"]
                  for b, x in zip(t["base"], t["x"], strict=True))  # fmt: skip
    assert bars == [(0, 30, "start"), (30, 5, "search"), (35, 30, "start"), (65, 5, "search")]
    assert figure["layout"]["xaxis"]["title"]["text"] == "seconds"


def test_timeline_by_the_clock_leaves_pauses_out(url):
    """Resumed two hours later: of the pause 30 s stay."""
    with open_study(url, make_plan()) as study:
        for index, begin in enumerate((1000.0, 1010.0, 8210.0)):
            block = make_block(index)
            window = make_window(BASE, 0, block, started_at=begin, duration_seconds=10.0)
            study.save(BASE, block, 0, window)
    report = stored(url)
    assert [event.begin for event in report.events] == [0.0, 10.0, 50.0]
    assert (report.axis, report.pauses) == ("clock", 1)
    assert "Left out of the figure: 1 pause between runs." in page(report).text


def test_an_engine_start_ends_when_it_is_noted():
    """Noted at 1030 after 30 s: it began at 1000, and the window at 1031."""
    block = make_block()
    window = make_window(BASE, 0, block, started_at=1031.0, duration_seconds=4.0)
    stored = StoredWindow(arm=BASE.key, n=0, block=block.key, repeat=0, at=1035.0, window=window)
    start = EngineStart(
        arm=BASE.key, method="none", live=False, seconds=30.0, error=None, at=1030.0
    )
    events, axis, _ = timeline([stored], [start])
    assert axis == "clock"
    assert [(e.kind, e.begin, e.seconds) for e in events] == [
        ("start", 0.0, 30.0),
        ("search", 31.0, 4.0),
    ]


def section(report, name):
    (found,) = [each for each in build(report).sections if each.id == name]
    return found


def timed(report, methods, loads):
    rows = tuple(
        Row(method=f"m{i}", n=2, load=load, status="probed", verify_seconds=0.01)
        for i in range(methods)
        for load in loads
    )
    names = tuple(f"m{i}" for i in range(methods))
    more = {"loads": (1, 8, 64), "curves": (), "events": ()}
    return report.model_copy(update={"rows": rows, "methods": names, **more})


OTHERS = "Other loads: in the first table."


def test_the_time_of_other_loads_is_promised_only_where_it_is_left_out(url):
    """At most 12 panels: seven methods at two loads are 14, so one load is shown."""
    report = finished(url)
    few, many = section(timed(report, 2, (1,)), "time"), section(timed(report, 7, (1, 8)), "time")
    assert (len(few.figures), OTHERS in few.note) == (2, False)
    assert (len(many.figures), OTHERS in many.note) == (7, True)


def test_the_prompts_of_a_recording_are_not_vouched_for(url):
    assert section(finished(url), "speedup").note.endswith("on the same prompts.")
    recorded = section(recording_report(MATH500), "speedup").note
    assert recorded.endswith("without speculation, by the table’s own baseline.")


def test_why_throughput_against_load_is_missing(url):
    """Two loads, both with a candidate, one with a baseline: it is not the candidate that lacks."""
    report = finished(url).model_copy(update={"loads": (1, 8)})
    assert section(report, "loads").empty == (
        "A baseline was not measured at two or more loads that are stated."
    )


def test_why_there_is_no_trial_of_a_schedule(url):
    report = finished(url, concurrencies=(1, 8))
    assert section(report, "schedule").empty == "Not tried: the loads do not want different N."
    probed = tuple(row.model_copy(update={"status": "probed"}) for row in report.rows)
    none = report.model_copy(update={"rows": probed})
    assert section(none, "schedule").empty == "Not tried: no candidate was confirmed."


def test_a_schedule_that_was_switched_off_is_not_called_unwanted(url):
    report = finished(url, concurrencies=(1, 8), settings=Settings(schedule=False))
    assert "switched off" in section(report, "schedule").empty


def test_the_environment_spells_gpu(url):
    labels = [name for name, _ in finished(url).facts]
    assert {"GPU", "GPU count", "GPU target", "vLLM"} <= set(labels)
    assert not any("Gpu" in label for label in labels)


def test_what_was_only_predicted_is_no_measurement(url):
    report = finished(url)
    (row,) = [row for row in report.rows if row.status == "predicted"]
    assert (row.speedup, row.predicted.value) == (None, 1.5)
    (listed,) = page(report).table("Predicted speed-up")
    assert listed["Predicted speed-up"] == "1.50x [1.00, 2.00]"
    assert len(page(report).table("Method", "Evidence")) == 1


def test_unfinished_study_reports_what_there_is(url):
    block = make_block()
    with open_study(url, make_plan(concurrencies=(8,))) as study:
        study.save(BASE, block, 0, make_window(BASE, 0, block, 100.0))
        counters = SpecCounters(num_drafts=100, num_draft_tokens=200, num_accepted_tokens=120,
                                accepted_per_pos=(80, 40))  # fmt: skip
        window = make_window(LIVE, 2, block, 150.0, counters=counters)
        study.save(LIVE, block, 0, window)
    found = page(stored(url))
    assert "No recommendation yet: the study is interrupted" in found.text
    (row,) = found.table("Method", "Evidence")
    assert (row["N"], row["Evidence"], row["tok/s"]) == ("2", "probed", "150.0")
    assert row["Speed-up"].startswith("1.50x [")
    assert row["Tokens/round"] == "2.20"  # 1 + 120 / 100
    (line,) = found.figures["acceptance0"]["data"]
    assert line["y"] == [0.8, 0.4]
    assert "No recommendation yet" in render(stored(url), "md")


def test_study_without_a_baseline_says_so(url):
    with open_study(url, make_plan()):
        pass
    text = page(stored(url)).text
    assert "Nothing has been measured yet." in text
    assert "Nothing has been measured yet." in render(stored(url), "md")
    assert "the baseline was not measured at every load yet" in text
    assert "Nothing has been run yet." in text


def test_running_study_says_so(url):
    with open_study(url, make_plan()):
        text = page(stored(url)).text
    assert "the study is running It is being run" in text


def test_do_not_speculate(url):
    with open_study(url, make_plan()) as study:
        study.finish(
            make_recommendation(
                study.plan, study.id, decision="do_not_speculate", method="none",
                num_speculative_tokens=0, speculative_config=None, vllm_serve_args=(),
                speedup=Interval(value=0.8, low=0.7, high=0.9, confidence=0.95),
            )
        )  # fmt: skip
    text = page(stored(url)).text
    assert "Do not speculate Nothing measured is faster" in text
    assert "0.80x [0.70, 0.90]" in text
    assert "Speculative configuration" not in text


@pytest.mark.slow
def test_methods_have_one_colour_and_symbol_in_all_figures(stage):
    stage.tune(simulate("three-loads"))
    figures = page(study_report(load_study(stage.url))).figures
    looks = {}
    for key, figure in figures.items():
        for trace in figure["data"]:
            method = re.search(r"(gemma4_mtp|dflash|ngram) N=", json.dumps(trace))
            if method and trace["type"] == "scatter" and "marker" in trace:
                symbol = trace["marker"]["symbol"]
                names = {s.removesuffix("-open") for s in ([symbol] if isinstance(symbol, str)
                                                           else symbol)}  # fmt: skip
                look = (trace["marker"]["color"], *names)
                looks.setdefault(method[1], set()).add(look)
        assert figure["data"], key
    assert sorted(looks) == ["dflash", "gemma4_mtp", "ngram"]
    assert all(len(each) == 1 for each in looks.values())
    assert len(set.union(*looks.values())) == 3


# ---------------------------------------------------------------------------- foreign text


def hostile_study(url):
    space = MethodSpace(method="mtp", lengths=(1, 2, 3), drafter=HOSTILE)
    return finished(url, model=HOSTILE, spaces=(space,), error=HOSTILE,
                    last_words=f"</pre></script>{HOSTILE}")  # fmt: skip


def hostile_recording(tmp_path):
    document = {
        "schema": "spectune.recording/1", "model": HOSTILE, "workload": "</title>" + HOSTILE,
        "hardware": "</script>" + HOSTILE,
        "baseline": [{"concurrency": 1, "output_tokens_per_second": 100.0}],
        "points": [{"method": name + HOSTILE, "num_speculative_tokens": n, "concurrency": 1,
                    "output_tokens_per_second": 150.0, "per_position_acceptance": [0.5]}
                   for name in ("", "</script>") for n in (1, 2)],
    }  # fmt: skip
    path = tmp_path / "r.json"
    path.write_text(json.dumps(document))
    return recording_report(path)


def test_names_and_last_words_are_text(url, tmp_path):
    harmless = page(finished(f"sqlite:///{tmp_path}/other.db"))
    for report in (hostile_study(url), hostile_recording(tmp_path)):
        found = page(report)
        assert found.tags.count("script") == harmless.tags.count("script") == 3
        assert "img" not in found.tags
        assert not [name for name, _ in found.attributes if name.startswith("on")]
        assert HOSTILE in "".join(found.texts)
        assert "<" not in found.scripts[0]  # the data: nothing in it can end its element


def test_the_page_needs_nothing_else(url):
    found = page(finished(url))
    assert not {"link", "iframe", "object", "embed", "base"} & set(found.tags)
    assert not [value for name, value in found.attributes if name in ("src", "href", "srcset")]
    policy = next(value for _, value in found.attributes if value and "default-src" in value)
    assert policy.startswith("default-src 'none'")
    assert "'unsafe-inline'" not in policy.partition("script-src")[2]


# -------------------------------------------------------------------------------- Markdown


def cells(line):
    """As GitHub splits a row: at every pipe that no backslash precedes."""
    return re.split(r"(?<!\\)\|", line.strip().strip("|"))


def tables_of(markdown):
    found, current = [], []
    for line in [*markdown.splitlines(), ""]:
        if line.startswith("|"):
            current.append(line)
        elif current:
            found.append(current)
            current = []
    return found


def test_markdown_tables_are_valid(url, tmp_path):
    for report in (hostile_study(url), hostile_recording(tmp_path), recording_report(MATH500)):
        text = render(report, "md")
        found = tables_of(text)
        assert found
        for table in found:
            widths = {len(cells(line)) for line in table}
            assert len(widths) == 1, table
            assert all(re.fullmatch(r":?-+:?", cell) for cell in cells(table[1]))
        assert text.count("<details>") == text.count("</details>")
        assert not re.search(r"(?<!\\)<(?!/?(details|summary|sub)>)", without_fences(text))


def without_fences(text):
    return re.sub(r"(?ms)^(`{3,})\w+\n.*?^\1$", "", text)


def test_markdown_says_the_answer_and_how_to_serve_it(url):
    text = render(finished(url), "md")
    lines = text.splitlines()
    assert lines[0] == r"### acme/small on sums: Use mtp with 3 speculative tokens"
    assert "2.00x \\[1.90, 2.10\\] at 95% confidence" in lines[2]
    assert json.loads(text.split("```json\n")[1].split("```")[0]) == {
        "method": "mtp", "num_speculative_tokens": 3,
    }  # fmt: skip
    assert "| 8 | mtp N=3 | 2.00x \\[1.90, 2.10\\] | 200.0 | 100.0 | confirmed |" in lines
    assert "2 engine starts, 2 measured blocks" in text


@given(st.text())
def test_escaped_text_is_one_line_without_meaning(text):
    found = escaped(text)
    assert not re.search(r"[\r\n]", found)
    assert not re.search(r"(?<!\\)(\\\\)*[|<>`*_\[\]@#]", found)


@given(st.text(alphabet="`a\n", max_size=30))
def test_a_fence_is_longer_than_what_it_holds(text):
    (block, _) = fenced(text, "sh")
    fence = re.match("`+", block)[0]
    assert block.startswith(f"{fence}sh\n")
    assert block.endswith(f"\n{fence}")
    assert fence not in text


# ------------------------------------------------------------------------------------ text


def test_text_plots_speedups_on_one_scale(url):
    """From 1x at column 0 to 2.1x at column 47: 1.9 is at 38.5, 2.0 at 42.7."""
    lines = render(finished(url), "text").splitlines()
    assert lines[0] == "acme/small on sums: Use mtp with 3 speculative tokens"
    (line,) = [line for line in lines if line.startswith("mtp N=3  2.00x [1.90, 2.10]  ")]
    assert line.removeprefix("mtp N=3  2.00x [1.90, 2.10]  ") == "|" + " " * 37 + "-----#----"


def test_text_explains_marks_only_where_there_are_some(url):
    assert LEGEND in render(finished(url), "text")
    nothing = finished(url).model_copy(update={"rows": ()})
    assert LEGEND not in render(nothing, "text")


def test_text_cannot_steer_the_terminal(url):
    text = render(finished(url, model="a\x1b[2Jb\nc"), "text")
    assert text.startswith("a?[2Jb?c on sums: ")


def test_text_of_a_recording(tmp_path):
    result = run("--recording", MATH500, "--format", "text")
    assert "Fastest in the table: dflash N=7, 2.34x" in result.stdout
    (best,) = [line for line in result.stdout.splitlines() if line.startswith("dflash N=7 ")]
    assert best.endswith("#")
    assert len(result.stdout.splitlines()[4]) <= 100


# ----------------------------------------------------------------------------- the command


def run(*arguments):
    return CliRunner().invoke(cli, ["report", *map(str, arguments)], catch_exceptions=False)


def test_writes_a_file_named_after_the_study(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = finished(url).name
    result = run("--storage", url)
    assert result.stdout == f"spectune-{name}.html\n"
    assert Path(f"spectune-{name}.html").read_text().startswith("<!doctype html>")
    result = run(name[:4], "--storage", url, "--format", "md", "--json")
    assert json.loads(result.stdout) == {
        "report": f"spectune-{name}.md", "format": "md", "study": name,
        "bytes": Path(f"spectune-{name}.md").stat().st_size,
    }  # fmt: skip


def test_recording_to_stdout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("--recording", MATH500, "--format", "md", "-o", "-")
    assert result.stdout.startswith("### google/gemma-4-31B-it on MATH500: Fastest in the table")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("abc", "--recording", "r.json"), "exclude each other"),
        (("--recording", str(MATH500), "-o", "-", "--json"), "use -o FILE"),
        (("--recording", str(MATH500), "--format", "text", "--json"), "use -o FILE"),
        (("--recording", "nowhere.json"), "cannot read recording nowhere.json"),
        (("--storage", "sqlite:///nowhere.db"), "there are no studies"),
        (("--recording", str(MATH500), "-o", "no/such/folder/r.html"), "cannot write"),
    ],
)
def test_bad_input_is_exit_code_2(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert invoke(["report", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_a_thousand_windows_stay_under_ten_megabytes(url):
    with open_study(url, make_plan(concurrencies=(8,))) as study:
        for index in range(500):
            block = make_block(index, BlockRole.SEARCH)
            for arm, n, rate in ((BASE, 0, 100.0), (LIVE, 1 + index % 3, 150.0)):
                window = make_window(arm, n, block, rate + index % 7, duration_seconds=1.0)
                study.save(arm, block, 0, window)
    report = stored(url)
    assert len(report.events) == 1000
    assert len(render(report, "html").encode()) < 10e6


def test_confirmed_start_and_schedule_have_names(url):
    arm = Arm(method="mtp", num_speculative_tokens=3, generation=1)
    scheduled = Arm(method="mtp", num_speculative_tokens=3, schedule=((1, 4, 3), (5, 9, 1)),
                    generation=1)  # fmt: skip
    with open_study(url, make_plan()) as study:
        for each in (BASE, LIVE, arm, scheduled):
            study.engine_started(each, 3.0)
    labels = page(stored(url)).figures["timeline"]["layout"]["yaxis"]["ticktext"]
    assert labels == ["no speculation", "mtp, live N", "mtp N=3, fresh", "mtp, N by batch size"]
