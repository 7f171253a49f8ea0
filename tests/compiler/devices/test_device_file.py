"""Device files: what they say, and every way they can be wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import heterocc.compiler.devices.file as device_file
from heterocc.artifacts.errors import DeviceFileError, FileMissingError
from heterocc.compiler.devices.file import NUMERIC_DTYPES, device_file_schema, read_device_file
from heterocc.compiler.devices.host import host_cpu
from heterocc.passes.cost import Link

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
    assert device.dtypes == NUMERIC_DTYPES


def test_a_cpu_that_this_machine_can_stand_in_for_is_present(tmp_path: Path) -> None:
    baseline = "x86-64" if host_cpu().arch == "x86_64" else "generic"
    text = f'name = "OLD"\nbackend = "cpu"\n[target]\nmcpu = "{baseline}"\n'
    assert read_device_file(write(tmp_path / "cpu.toml", text)).present


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
        ('name = "X"\nbackend = "opencl"\ntarget = {kind = "llvm"}', "", "back end opencl has 'opencl'"),
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
        ("x.toml", b"name = ", "not TOML"),
        ("x.json", b"{", "not JSON"),
        ("x.json", b"[" * 100_000, "not JSON"),
        ("x.json", b"[]", "dictionary|object|instance"),
        ("x.toml", b"\xff\xfe", "not UTF-8"),
        ("x.yaml", b"name: X", "is .toml or .json"),
        ("x.toml", b"#" * ((1 << 20) + 1), "at most"),
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
