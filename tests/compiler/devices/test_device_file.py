"""Device files: their fields, and all kinds of errors in them."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest

import heterocc.compiler.devices.file as device_file
from heterocc.artifacts.dtypes import CARRIED, NUMERIC_DTYPES
from heterocc.artifacts.errors import DeviceFileError, FileMissingError
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model, partition_model, query_model
from heterocc.compiler.devices.file import device_file_schema, read_device_file
from heterocc.compiler.devices.host import host_cpu
from heterocc.compiler.devices.present import accelerators
from heterocc.compiler.lower.vulkan.target import limits_of
from heterocc.compiler.placement.machine import placement_device
from heterocc.passes.cost import Link, PartitionRules
from heterocc.runtime import load
from heterocc.runtime.machine.devices import driver_reason
from tests.compiler.small import conv_net

BOARD = """
name = "BOARD"
backend = "opencl"
description = "a GPU on a board"
unit = "integrated"
memory = 2147483648
max_buffer = 536870912
dtypes = ["float32", "int32", "bool"]
refuses = ["Softmax", "com.microsoft::FusedMatMul"]
flops = 2e11
bandwidth = 12000000000
[target]
max_num_threads = 128
thread_warp_size = 4
[links.CPU]
latency = 3e-5
bandwidth = 6e9
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_device_file_states_constraints_on_partitions(tmp_path: Path) -> None:
    stated = """
        [partitions]
        never_first = ["Reshape"]
        never_last = ["Transpose"]
        only_beside = { Relu = ["Conv", "Add"], Cast = [] }
        min_nodes = 3
        min_seconds = 5e-5
        max_count = 2
    """
    device = read_device_file(write(tmp_path / "board.toml", BOARD + stated))
    beside = (("Relu", ("Conv", "Add")), ("Cast", ()))
    assert device.partitions == PartitionRules(("Reshape",), ("Transpose",), beside, 3, 5e-5, 2)
    assert placement_device(device).rules == device.partitions
    for wrong, message in (("max_count = 0", "greater than or equal to 1"), ("never = []", "unknown key")):
        with pytest.raises(DeviceFileError, match=message):
            read_device_file(write(tmp_path / "wrong.toml", f"{BOARD}[partitions]\n{wrong}\n"))
    model = conv_net(tmp_path / "m.onnx")
    path = write(tmp_path / "one.toml", BOARD + '[partitions]\nnever_first = ["Conv"]\n')
    plan = partition_model(model, devices="BOARD,CPU", device_files=path, policy="greedy").plan
    assert plan.device_of["conv1"] == "CPU" and plan.device_of["relu1"] == plan.device_of["conv2"] == "BOARD"


def test_a_device_file_describes_all_that_placement_and_lowering_ask(tmp_path: Path) -> None:
    device = read_device_file(write(tmp_path / "board.toml", BOARD))
    assert (device.name, device.backend, device.present) == ("BOARD", "opencl", False)
    assert device.target["kind"] == "opencl"
    assert device.target["max_threads_per_block"] == 128
    assert device.dtypes == {"float32", "int32", "bool"}
    assert device.refuses == {"Softmax", "com.microsoft::FusedMatMul"}
    assert (device.memory, device.max_buffer) == (2147483648, 536870912)
    assert (device.flops, device.bandwidth, device.unit) == (2e11, 1.2e10, "integrated")
    assert device.links == {"CPU": Link(3e-5, 6e9)}


def test_json_says_the_same_as_toml(tmp_path: Path) -> None:
    import tomllib

    as_json = write(tmp_path / "board.json", json.dumps(tomllib.loads(BOARD)))
    assert read_device_file(as_json) == read_device_file(write(tmp_path / "board.toml", BOARD))


def test_a_cpu_of_another_architecture_is_not_present(tmp_path: Path) -> None:
    other = "aarch64" if host_cpu().arch != "aarch64" else "x86_64"
    text = f'name = "CPU"\nbackend = "cpu"\n[target]\nmtriple = "{other}-linux-gnu"\nmcpu = "generic"\n'
    device = read_device_file(write(tmp_path / "cpu.toml", text))
    assert not device.present
    assert device.target == {"kind": "llvm", "mtriple": f"{other}-linux-gnu", "mcpu": "generic"}
    assert device.dtypes == NUMERIC_DTYPES | CARRIED.keys()


def test_a_cpu_that_this_machine_can_stand_in_for_is_present(tmp_path: Path) -> None:
    baseline = "x86-64" if host_cpu().arch == "x86_64" else "generic"
    text = f'name = "OLD"\nbackend = "cpu"\n[target]\nmcpu = "{baseline}"\n'
    assert read_device_file(write(tmp_path / "cpu.toml", text)).present


CARD = """
name = "CARD"
backend = "vulkan"
description = "a card elsewhere"
unit = "discrete"
memory = 8589934592
max_buffer = 1073741824
[target]
max_num_threads = 256
max_storage_buffer_range = 1073741824
max_per_stage_descriptor_storage_buffer = 12
supports_8bit_buffer = true
supports_int8 = true
supports_int16 = false
"""


def test_a_vulkan_device_has_the_dtypes_that_its_features_grant_and_axes_as_long_as_its_groups(tmp_path: Path) -> None:
    device = read_device_file(write(tmp_path / "card.toml", CARD))
    assert (device.backend, device.present, device.unit) == ("vulkan", False, "discrete")
    assert device.dtypes == NUMERIC_DTYPES - {"float64", "float16", "int16", "uint16"}
    assert [device.target[f"max_block_size_{axis}"] for axis in "xy"] == [256, 256]
    assert device.target["max_threads_per_block"] == 256
    more = read_device_file(write(tmp_path / "more.toml", CARD + "supports_float64 = true\nsupports_float16 = true\n"))
    assert "float64" in more.dtypes and "float16" not in more.dtypes, "halves need 16-bit buffers too"
    few = read_device_file(write(tmp_path / "few.toml", CARD + "supports_int64 = false\n"))
    assert device.dtypes - few.dtypes == {"int64", "uint64"}


@pytest.mark.vulkan
def test_a_described_vulkan_device_computes_what_the_same_device_here_does(tmp_path: Path) -> None:
    here = [d for d in accelerators().devices if d.backend == "vulkan"]
    if not here:
        pytest.skip("no Vulkan device is here")
    record = {"name": "TWIN", "backend": "vulkan", "target": dict(here[0].target)}
    twin = read_device_file(write(tmp_path / "twin.json", json.dumps(record)))
    assert twin.dtypes == here[0].dtypes
    # A file does not have a software driver's limits on loops.
    assert limits_of(twin) == dataclasses.replace(limits_of(here[0]), iterations=None)


@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_a_bundle_is_compiled_for_a_vulkan_device_that_is_elsewhere(tmp_path: Path, precision: str) -> None:
    """Code for a described device is unchecked; it runs if a device here meets its requirements."""
    granted = "supports_float16 = true\nsupports_16bit_buffer = true\n" if precision == "f16" else ""
    path = write(tmp_path / "card.toml", CARD + granted)
    report = compile_model(
        conv_net(tmp_path / "m.onnx"),
        tmp_path / "m.hcb",
        devices="CARD,CPU",
        device_files=[path],
        properties=[f"CARD.precision={precision}"],
    )
    assert set(report.plan.device_of.values()) == {"CARD"}
    assert any("CARD" in text and "not on this machine" in text for text in report.unchecked)
    note = (
        "CARD is described by a file and is not on this machine: its code is not checked; call verify_bundle on its "
        "machine"
    )
    assert note in report.notes
    with open_bundle(tmp_path / "m.hcb") as bundle:
        (device,) = bundle.manifest.variants[0].devices
    assert (device.name, device.backend) == ("CARD", "vulkan")
    assert ("storage16" in device.requires) == (precision == "f16")
    if driver_reason(device) is None:
        x = np.random.default_rng(0).random((1, 4, 8, 8), np.float32)
        with load(tmp_path / "m.hcb", "CARD") as session, load(tmp_path / "m.hcb", "CPU") as cpu:
            expected = cpu.run({"x": x})["y"]
            np.testing.assert_allclose(session.run({"x": x})["y"], expected, rtol=1e-4 if precision == "f32" else 2e-2)


def test_what_does_not_fit_a_described_device_is_refused_with_the_limit(tmp_path: Path) -> None:
    path = write(
        tmp_path / "card.toml", 'name = "TINY"\nbackend = "vulkan"\n[target]\nmax_storage_buffer_range = 1000\n'
    )
    found = query_model(conv_net(tmp_path / "m.onnx"), "TINY,CPU", device_files=[path])
    assert "a buffer of 1024 bytes, but the device allows only 1000" in str(found.reason("relu1", "TINY"))


def test_the_examples_in_the_documentation_are_device_files(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "devices.md").read_text()
    blocks = [block for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if "backend =" in block]
    devices = [read_device_file(write(tmp_path / f"{i}.toml", block)) for i, block in enumerate(blocks)]
    assert [d.backend for d in devices] == ["vulkan", "opencl", "cuda", "cpu"]
    assert "float16" in devices[0].dtypes


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ('backend = "cpu"', "name", "required"),
        ('name = "X"', "backend", "required"),
        ('name = "X"\nbackend = "tpu"', "backend", "'cpu', .*'opencl'"),
        ('name = "X"\nbackend = "cuda"', "", 'target.arch must name .* "sm_90"'),
        ('name = "X"\nbackend = "cuda"\ntarget = {arch = "90"}', "", 'target.arch must name .* "sm_90"'),
        ('name = "X"\nbackend = "cpu"\nspeed = 3', "speed", "unknown key"),
        ('name = "X"\nbackend = "cpu"\nmemory = "2 GB"', "memory", "integer"),
        ('name = "X"\nbackend = "cpu"\nmemory = 0', "memory", "greater than 0"),
        ('name = "X"\nbackend = "cpu"\nflops = -1.0', "flops", "greater than 0"),
        ('name = "X"\nbackend = "cpu"\nflops = nan', "flops", "finite|greater"),
        ('name = "X"\nbackend = "cpu"\ndtypes = ["float8"]', "dtypes.0", "float64"),
        ('name = "X"\nbackend = "cpu"\ndtypes = []', "dtypes", "at least 1"),
        ('name = "X"\nbackend = "cpu"\nlinks = {GPU = {speed = 3}}', "links.GPU.speed", "unknown key"),
        ('name = "X"\nbackend = "cpu"\ntarget = {mcpus = "a"}', "", "no attribute 'mcpus'"),
        ('name = "X"\nbackend = "opencl"\ntarget = {kind = "llvm"}', "", "back end opencl requires 'opencl'"),
        ('name = "X"\nbackend = "vulkan"\ntarget = {arch = "sm_90"}', "", "no attribute 'arch'"),
        ('name = "X"\nbackend = "vulkan"\ntarget = {supports_int8 = 1}', "", "supports_int8 must be true or false"),
        ('name = "X"\nbackend = "vulkan"\ntarget = {max_num_threads = "256"}', "", "must be an integer, 1 or more"),
        ('name = "X"\nbackend = "opencl"\ntarget = {max_num_threads = 0}', "", "must be an integer, 1 or more"),
        ('name = "X"\nbackend = "opencl"\ntarget = {thread_warp_size = true}', "", "must be an integer, 1 or more"),
        ('name = "AUTO"\nbackend = "cpu"', "", "reserved"),
        ('name = "ort"\nbackend = "cpu"', "", "reserved"),
        ('name = "a,b"\nbackend = "cpu"', "name", "pattern"),
    ],
)
def test_a_wrong_device_file_is_refused_with_the_place(tmp_path: Path, text: str, place: str, message: str) -> None:
    path = write(tmp_path / "x.toml", text)
    with pytest.raises(DeviceFileError, match=message) as caught:
        read_device_file(path)
    assert caught.value.where == (f"{path}: {place}" if place else str(path))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.toml", b"name = ", "not valid TOML"),
        ("x.json", b"{", "not valid JSON"),
        ("x.json", b"[" * 100_000, "not valid JSON"),
        ("x.json", b"[]", "dictionary|object|instance"),
        ("x.toml", b"\xff\xfe", "not UTF-8"),
        ("x.yaml", b"name: X", "neither .toml nor .json"),
        ("x.toml", b"#" * ((1 << 20) + 1), "more than 1048576 bytes"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(DeviceFileError, match=message):
        read_device_file(path)


def test_a_missing_device_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileMissingError, match="cannot read device file"):
        read_device_file(tmp_path / "none.toml")


def test_the_committed_schema_is_the_codes() -> None:
    committed = Path(device_file.__file__).with_name("device-file.schema.json").read_text()
    assert committed == json.dumps(device_file_schema(), indent=2) + "\n", (
        "run `python -m heterocc.compiler.devices.schema > compiler/devices/device-file.schema.json`"
    )


def test_the_schema_refuses_unknown_keys_everywhere() -> None:
    schema = device_file_schema()
    assert schema["additionalProperties"] is False
    assert all(record["additionalProperties"] is False for record in schema["$defs"].values())
