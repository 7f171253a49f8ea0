"""The output of `heterocc devices`: a stable form, readable at 80 columns, with hints for missing back ends."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from heterocc.compiler.cli import device_report as under_test
from heterocc.compiler.cli.device_report import device_report, device_table, human
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.names import resolve_devices
from heterocc.compiler.devices.present import Accelerators
from heterocc.runtime.machine import devices as runtime_devices
from heterocc.runtime.machine.found import FoundDevice, Limits, found_cuda, found_opencl, found_vulkan
from tests.sample_devices import CARD, DIE, HOPPER

DOCUMENT = Path(__file__).parents[3] / "docs" / "devices.md"


def shown(report: dict[str, Any], width: int) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, soft_wrap=True, highlight=False).print(device_table(report))
    return stream.getvalue()


def equipped(*records: FoundDevice) -> dict[str, Any]:
    report = device_report()
    extra = [{**r.to_json(), "flops_estimate": None, "bandwidth_estimate": None, "target": None} for r in records]
    return {**report, "devices": [report["devices"][0], *extra, *report["devices"][1:]]}


def test_the_form_of_the_json_is_what_the_document_says() -> None:
    report = json.loads(json.dumps(device_report()))
    assert list(report) == ["devices", "aliases", "absent"]
    documented = {name for line in DOCUMENT.read_text().splitlines() if line.startswith("| `") for name in words(line)}
    device_keys = ({f.name for f in fields(FoundDevice)} - {"own"}) | {"flops_estimate", "bandwidth_estimate", "target"}
    limits = {f.name for f in fields(Limits)}
    assert documented == device_keys | limits
    for device in report["devices"]:
        assert set(device) == device_keys
        assert set(device["limits"]) == limits
    assert {key for alias in report["aliases"].values() for key in alias} == {"label", "device", "present", "why"}
    assert all(set(absent) == {"backend", "reason", "hint"} and all(absent.values()) for absent in report["absent"])


def words(line: str) -> list[str]:
    return re.findall(r"`(\w+)`", line.split("|")[1])


def test_a_record_has_the_limits_of_its_api() -> None:
    card, die, hopper = found_vulkan(1, CARD), found_opencl(0, DIE), found_cuda(0, HOPPER)
    assert (card.label, card.unit, die.unit, hopper.unit) == ("VULKAN.1", "discrete", "integrated", "discrete")
    assert card.limits == Limits(4 << 30, 1024, (1024, 1024, 1024), 1 << 16, 8_388_606, (4 << 30) - 1, 256, 64)
    assert die.limits == Limits(4 << 30, 512, (512, 512, 512), 65536)
    assert hopper.limits == Limits(group_size=1024, shared_memory=49152, subgroup_size=32)
    assert (card.api, die.api, hopper.api) == ("Vulkan 1.4.313", "OpenCL 3.0 NEO", "CUDA 13.0")
    assert "float64" not in die.dtypes and "float16" in die.dtypes
    assert found_opencl(0, replace(DIE, type="accelerator")).unit == "other"


@pytest.mark.parametrize("width", [80, 200], ids=["a terminal", "a pipe"])
def test_the_table_is_whole_at_80_columns(width: int) -> None:
    text = shown(equipped(found_cuda(0, HOPPER), found_vulkan(0, CARD), found_opencl(1, DIE)), width)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    flat = " ".join(text.split())
    for words in (
        "NVIDIA H100 80GB HBM3",
        "discrete GPU, 132 compute units",
        "integrated GPU, 32 compute units",
        "radv Mesa 25.2.1; Vulkan 1.4.313",
        "24 GiB, 4 GiB in one buffer",
        "f64 f32 f16 i64 i32 i16 i8 u64 u32 u16 u8 bool",
        "1024 items, at most 1024 x 1024 x 1024, 64 KiB shared, subgroups of 64",
        "8388606 storage buffers, 4 GiB of each, 256 B of push constants",
    ):
        assert words in flat, words


def test_sizes_are_shown_in_units_of_1024() -> None:
    assert [human(n) for n in (128, 49152, (4 << 30) - 1, 25276502016, 1 << 42)] == [
        "128 B", "48 KiB", "4 GiB", "23.54 GiB", "4096 GiB"
    ]  # fmt: skip


def test_auto_and_gpu_say_what_they_would_choose_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    card = TargetDevice("VULKAN.1", "vulkan", 1, unit="discrete", description="a card")
    monkeypatch.setattr(
        under_test, "resolve_devices", lambda name: resolve_devices(name, present=Accelerators((card,)))
    )
    aliases = device_report()["aliases"]
    assert aliases["GPU"]["label"] == aliases["AUTO"]["label"] == "VULKAN.1"
    assert aliases["GPU"]["why"].startswith("GPU is the first discrete GPU: CUDA comes before Vulkan")
    assert aliases["AUTO"]["why"].startswith("AUTO chose GPU (a card, discrete GPU) before CPU (CPU); CPU runs")
    monkeypatch.setattr(under_test, "resolve_devices", lambda name: resolve_devices(name, present=Accelerators()))
    gpu = device_report()["aliases"]["GPU"]
    assert (gpu["label"], gpu["present"]) == (None, False) and "not checked" in gpu["why"]


def test_what_is_absent_comes_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_devices, "has_onnxruntime", lambda: False)
    monkeypatch.setattr(runtime_devices, "opencl_devices", lambda: ())
    absent = {a["backend"]: a for a in device_report()["absent"]}
    assert absent["ort"]["hint"] == "pip install 'onnxruntime>=1.31'"
    gone = fresh(HETEROCC_OPENCL_FAULT="no-driver", HETEROCC_VULKAN_FAULT="no-driver")
    absent = {a["backend"]: a for a in json.loads(gone)["absent"]}
    if "not there" not in absent["vulkan"]["reason"]:
        assert "mesa-vulkan-drivers" in absent["vulkan"]["hint"]
    if "not there" not in absent["opencl"]["reason"]:
        assert "pocl-opencl-icd" in absent["opencl"]["hint"]


def fresh(**environment: str) -> str:
    command = [sys.executable, "-m", "heterocc.compiler.cli", "devices", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
