"""GPUs of recorded machines (tests/machines), and of what is left of a recording that is damaged.

Expected figures: MI300X 196592 MiB, MI355X 294896 MiB, MI250X 68702699520 B a device, as in the
recordings' sources; everything else is read off the recordings by eye.
"""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_samples import NAMES, load, playing, text_of

from autotune.machine import gpu_kfd, gpu_tools
from autotune.machine.gpu import GpuDevice, Gpus, probe_gpus
from autotune.machine.gpu_amd import gfx, parse_metric, parse_rocm_smi, parse_static, parse_version
from autotune.machine.gpu_nvidia import parse_query, with_instances

MIB = 2**20


@pytest.fixture
def gpus_of(tmp_path):
    """The GPUs of a recorded machine, whose recording and variables may be changed."""

    def probed(name: str, platform=None, *, now=False, change=lambda machine: None, **variables):
        machine = load(name)
        change(machine)
        machine["variables"] |= variables
        with playing(machine, tmp_path / str(random.random())):
            return probe_gpus(platform, now=now)

    return probed


# ----------------------------------------------------------------------------- whole recordings


def test_mi300x(gpus_of):
    found = gpus_of("mi300x", "rocm", now=True)
    assert (found.name, len(found.devices), found.driver) == ("AMD Instinct MI300X", 8, "6.16.6")
    assert found.memory_bytes == (196592 * MIB,) * 8 == (206141652992,) * 8
    assert (found.target, found.partition, found.power_cap_watts) == ("gfx942", "SPX/NPS1", 750)
    assert {d.memory_used_bytes for d in found.devices} == {284 * MIB}
    assert {(d.clock_mhz, d.max_clock_mhz) for d in found.devices} == {(132, 2100)}
    assert found.devices[2].temperature_celsius == 40
    assert (found.platform, found.runtime) == ("rocm", "ROCm 7.2.0")


def test_mi355x(gpus_of):
    found = gpus_of("mi355x")
    assert (found.name, found.target, found.power_cap_watts) == (
        "AMD Instinct MI355X",
        "gfx950",
        1400,
    )
    assert set(found.memory_bytes) == {294896 * MIB}
    assert found.devices[0].memory_used_bytes is None  # it was not asked for


def test_a_partitioned_gpu_under_older_keys(gpus_of):
    found = gpus_of("mi300x-cpx", now=True)
    assert (len(found.devices), found.partition) == (8, "CPX/NPS4")
    assert found.memory_bytes == (24574 * MIB,) * 8
    assert [d.power_cap_watts for d in found.devices] == [650] + [None] * 7
    assert found.power_cap_watts == 650
    assert found.devices[3].memory_used_bytes == 17153 * MIB


def test_mi250x_by_rocm_smi_and_the_kernel(gpus_of):
    """amd-smi is not there; rocm-smi of 5.7 warns first, and names no gfx target."""
    found = gpus_of("mi250x", "rocm")
    assert found.memory_bytes == (68702699520,) * 8
    assert (found.target, found.driver, found.power_cap_watts) == ("gfx90a", "5.18.13", 560)
    assert found.devices[1].power_cap_watts is None
    assert found.devices[0].clock_mhz == 800
    assert found.devices[1].temperature_celsius == 36
    assert found.partition is None


def test_no_tool_but_the_kernel(gpus_of):
    found = gpus_of("mi250x", "rocm", change=lambda machine: machine["tools"].clear())
    assert found.names == ("gfx90a",) * 8
    assert found.memory_bytes == (68702699520,) * 8
    assert gpus_of("mi250x", "cuda", change=lambda machine: machine["tools"].clear()) is None


def test_h100(gpus_of):
    found = gpus_of("h100", "cuda")
    assert (found.name, found.target, found.driver) == (
        "NVIDIA H100 80GB HBM3",
        "sm_90",
        "580.65.06",
    )
    assert found.memory_bytes == (81559 * MIB,) * 4
    assert [d.memory_used_bytes // MIB for d in found.devices] == [71830, 4, 4, 4]
    assert (found.power_cap_watts, found.devices[0].max_clock_mhz) == (700, 1980)
    assert found.partition is None


def test_a_mig_gpu_is_its_instances(gpus_of):
    """Unless one is named a process sees the first; its memory is not the GPU's."""
    found = gpus_of("a100-mig")
    assert found.names == ("NVIDIA A100-SXM4-40GB",)
    assert (found.partition, found.memory_bytes, found.power_cap_watts) == (
        "MIG 3g.20gb",
        (None,),
        None,
    )
    named = gpus_of("a100-mig", CUDA_VISIBLE_DEVICES="MIG-c7384736-a75d-5afc-978f-d2f1294409fd")
    assert named.partition == "MIG 1g.5gb"


def test_mig_without_instances(gpus_of):
    found = gpus_of("a100-mig", change=lambda machine: machine["tools"].pop("nvidia-smi -L"))
    assert (found.partition, found.memory_bytes) == ("MIG", (None,))


def test_a_processor_only(gpus_of):
    assert gpus_of("cpu") is None


def test_visible_devices_keep_what_belongs_to_them(gpus_of):
    found = gpus_of("h100", CUDA_VISIBLE_DEVICES="2,0")
    assert [d.memory_used_bytes // MIB for d in found.devices] == [4, 71830]
    uuid = "GPU-f81d4fae-7dec-11d0-a765-00a0c91e6bf0"
    assert gpus_of("h100", CUDA_VISIBLE_DEVICES=uuid).devices[0].uuid == uuid


def test_an_old_driver_that_does_not_know_a_field(tmp_path):
    """It answers nothing then; the name and the driver are asked for once more."""
    machine = load("cpu")
    with playing(machine, tmp_path):
        tool = tmp_path / "tools" / "nvidia-smi"
        tool.write_text(
            '#!/bin/sh\ncase $1 in *compute_cap*) echo \'Field "compute_cap" is not a valid field '
            "to query.'; exit 2;; esac\necho 'Tesla V100-SXM2-16GB, 418.87.00'\n"
        )
        tool.chmod(0o755)
        found = probe_gpus("cuda")
    assert (found.names, found.driver) == (("Tesla V100-SXM2-16GB",), "418.87.00")
    assert found.memory_bytes == (None,)


def test_metrics_that_do_not_fit_are_left_out(gpus_of, caplog):
    found = gpus_of(
        "mi300x", now=True, change=lambda m: m["tools"]["amd-smi metric"]["gpu_data"].pop()
    )
    assert len(found.devices) == 8
    assert found.devices[0].memory_used_bytes is None
    assert "tells of 7 of 8 GPUs" in caplog.text


# ---------------------------------------------------------------------------- spellings of facts


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ({"value": 196592, "unit": "MB"}, 206141652992),
        ({"value": "196592", "unit": "MB"}, 206141652992),
        ({"value": 192, "unit": "GB"}, 192 * 2**30),
        ("196592 MB", 206141652992),
        (196592, 206141652992),
        ({"value": 196592, "unit": "PB"}, None),
        ({"value": "N/A", "unit": "MB"}, None),
        ({"value": -1, "unit": "MB"}, None),
        ("N/A", None), (None, None), ([], None), (True, None), (0, None), (float("nan"), None),
        (float("inf"), None), (10**400, None), ("9" * 5000, None),
    ],
)  # fmt: skip
def test_memory_in_every_spelling(value, size):
    card = {"asic": {"market_name": "A"}, "vram": {"size": value}}
    assert parse_static(json.dumps([card])).memory_bytes == (size,)


@pytest.mark.parametrize(
    ("limit", "watts"),
    [
        (
            {"ppt0": {"socket_power_limit": {"value": 600, "unit": "W"}, "max_power_limit": 750}},
            600,
        ),
        (
            {"socket_power": {"value": 300, "unit": "W"}, "max_power": {"value": 310, "unit": "W"}},
            300,
        ),
        ({"current_power": "560 W"}, 560),
        ({"power": 500}, 500),
        ({"ppt0": {"socket_power_limit": "N/A"}}, None),
        ({"socket_power": {"value": 0, "unit": "W"}}, None),  # a Strix Halo says 0
        ({"socket_power": {"value": 300, "unit": "mW"}}, None),
        ({"max_power": 750}, None),  # what may be set is not what is in force
    ],
)
def test_power_cap_in_every_spelling(limit, watts):
    card = {"asic": {"market_name": "A"}, "limit": limit}
    assert parse_static(json.dumps([card])).power_cap_watts == watts


@pytest.mark.parametrize(
    ("text", "target"),
    [("gfx942", "gfx942"), ("gfx942:sramecc+:xnack-", "gfx942"), ("GFX90A", "gfx90a"),
     ("gfx9010", "gfx90a"), ("N/A", None), ("9.4.2", None), (942, None), (None, None)],
)  # fmt: skip
def test_targets(text, target):
    assert gfx(text) == target


@pytest.mark.parametrize(
    ("version", "target"),
    [(90402, "gfx942"), (90010, "gfx90a"), (90500, "gfx950"), (110501, "gfx1151"), (0, None)],
)
def test_targets_of_the_kernel(version, target):
    assert gpu_kfd.target_name(version) == target


def test_only_amds_nodes_of_the_kernel_count(gpus_of):
    """nouveau's devices stand in the same topology."""

    def foreign(machine):
        machine["tools"].clear()
        for node in machine["kfd"][4:]:
            node["properties"] = node["properties"].replace("vendor_id 4098", "vendor_id 4318")

    assert len(gpus_of("mi250x", "rocm", change=foreign).devices) == 2


def test_partitions_without_modes():
    modes = {"compute_partition": "N/A", "memory_partition": "N/A", "partition_id": 0}
    card = {"asic": {"market_name": "A"}, "partition": modes}
    assert parse_static(json.dumps([card])).partition is None


def test_gpus_that_differ():
    one = GpuDevice(name="A", target="gfx942", power_cap_watts=750)
    other = GpuDevice(name="B", target="gfx950", power_cap_watts=600)
    both = Gpus(devices=(one, other, one))
    assert (both.name, both.target, both.power_cap_watts) == ("A + B", "gfx942 + gfx950", 600)
    assert Gpus(devices=()).name is None


# --------------------------------------------------------------------------------- damaged output

PARSERS = {
    "amd-smi static": parse_static,
    "amd-smi metric": parse_metric,
    "amd-smi version": parse_version,
    "rocm-smi": parse_rocm_smi,
    "nvidia-smi --query-gpu": parse_query,
    "nvidia-smi -L": lambda text: with_instances(Gpus(devices=(GpuDevice(name="A"),)), text),
}
RECORDED = [(key, text_of(output)) for name in NAMES for key, output in load(name)["tools"].items()]


def test_all_recorded_outputs_are_parsed():
    for key, text in RECORDED:
        assert PARSERS[key](text), key


@given(st.sampled_from(RECORDED), st.floats(0, 1))
def test_a_truncated_output_never_counts_too_few(recorded, share):
    """Half a list is no list: fewer GPUs would be a fact that is wrong."""
    key, text = recorded
    whole = PARSERS[key](text)
    cut = PARSERS[key](text[: int(len(text.rstrip()) * share)])
    if key.startswith("amd-smi") or key == "rocm-smi":
        assert cut in (None, [], whole)


MARKS = [
    "N/A",
    "NaN",
    "null",
    "-1",
    "1e999",
    '"',
    "{",
    "}",
    "[",
    "]",
    ",",
    "\x00",
    "\ufeff",
    "é",
    " ",
]


@given(
    st.sampled_from(RECORDED),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 40), st.sampled_from(MARKS)), max_size=5),
)
def test_a_mutated_output_is_no_error(recorded, edits):
    key, text = recorded
    for share, length, mark in edits:
        at = int(len(text) * share)
        text = text[:at] + mark + text[at + length :]
    found = PARSERS[key](text)
    for device in found.devices if isinstance(found, Gpus) else ():
        assert device.name
        for figure in (device.memory_bytes, device.power_cap_watts, device.max_clock_mhz):
            assert figure is None or 0 < figure < gpu_tools.LARGEST


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = (
    PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(st.text(max_size=8), PLAIN, max_size=3)
)


@given(st.data())
def test_wrong_types_anywhere_are_no_error(data):
    """One value of a recording, at any depth, becomes anything that JSON can hold."""
    key, text = data.draw(
        st.sampled_from([r for r in RECORDED if r[1].lstrip().startswith(("{", "["))])
    )
    place = document = json.loads(text)
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        step = data.draw(st.sampled_from(sorted(keys, key=str)))
        inner = place[step]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.integers(0, 3)) == 0:
            break
        place = inner
    place[step] = data.draw(VALUES)
    PARSERS[key](json.dumps(document))


@pytest.mark.parametrize("word", ["N/A", None, [], {}, float("nan"), "", -5])
def test_nothing_known_of_any_gpu(word):
    def everywhere(value):
        if isinstance(value, dict):
            return {key: everywhere(inner) for key, inner in value.items()}
        return [everywhere(inner) for inner in value] if isinstance(value, list) else word

    static = json.dumps(everywhere(load("mi300x")["tools"]["amd-smi static"]))
    assert parse_static(static) is None
    metric = parse_metric(json.dumps(everywhere(load("mi300x")["tools"]["amd-smi metric"])))
    assert [set(card.values()) for card in metric] == [{None}] * 8


@pytest.mark.parametrize("text", ["[" * 100_000, '{"gpu_data": ' * 50_000])
def test_nesting_without_end(text):
    assert parse_static(text) is None


def test_a_damaged_tool_makes_way_for_the_next(gpus_of, caplog):
    def damaged(machine):
        whole = text_of(machine["tools"]["amd-smi static"])
        machine["tools"]["amd-smi static"] = whole[: len(whole) // 2]
        machine["tools"]["rocm-smi"] = {"card0": {"Card Series": "AMD Instinct MI300X"}}

    found = gpus_of("mi300x", "rocm", change=damaged)
    assert found.names == ("AMD Instinct MI300X",)
    assert "amd-smi printed nothing usable" in caplog.text
