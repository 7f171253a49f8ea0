"""Vulkan devices as the compiler sees them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import onnx
import pytest

from heterocc.compiler import compile_model
from heterocc.compiler.devices.present import accelerators, target_device
from heterocc.runtime import load
from heterocc.runtime.machine.found import found_vulkan
from heterocc.runtime.native import vulkan_unavailable_reason
from tests import sample_devices
from tests.fresh_process import fresh

CARD = dataclasses.replace(
    sample_devices.CARD,
    memory=8 << 30,
    max_alloc=1 << 30,
    storage_range=1 << 31,
    storage_buffers=12,
    shared_memory=48 << 10,
    max_group_sizes=(1024, 512, 64),
    subgroup_operations=0x35,
    fp64=False,
    nan64=False,
)


def test_the_limits_of_a_vulkan_device_are_target_attributes() -> None:
    device = target_device(found_vulkan(1, CARD))
    assert (device.name, device.backend, device.index, device.unit) == ("VULKAN.1", "vulkan", 1, "discrete")
    assert (device.memory, device.max_buffer) == (8 << 30, 1 << 30)
    wanted = {
        "kind": "vulkan",
        "max_num_threads": 256,
        "max_block_size_y": 512,
        "max_push_constants_size": 256,
        "max_storage_buffer_range": 1 << 31,
        "max_per_stage_descriptor_storage_buffer": 12,
        "max_shared_memory_per_block": 48 << 10,
        "supports_float64": False,
        "supports_8bit_buffer": True,
        "supports_nan32": True,
        "supports_nan64": False,
        "supported_subgroup_operations": 0x35,
    }
    assert {key: device.target[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("change", "unit"), [({"integrated": True}, "integrated"), ({"type": "cpu"}, "cpu"), ({"software": True}, "cpu")]
)
def test_what_shares_the_hosts_memory_or_cores_is_no_discrete_gpu(change: dict[str, Any], unit: str) -> None:
    assert target_device(found_vulkan(0, dataclasses.replace(CARD, **change))).unit == unit


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        ({"fp16": False}, {"float16"}),
        ({"storage16": False}, {"float16", "int16", "uint16"}),
        ({"storage8": False}, {"int8", "uint8", "bool"}),
        ({"int64": False}, {"int64", "uint64"}),
    ],
)
def test_a_dtype_needs_both_arithmetic_and_storage(change: dict[str, bool], lost: set[str]) -> None:
    full = target_device(found_vulkan(0, CARD)).dtypes
    assert full - target_device(found_vulkan(0, dataclasses.replace(CARD, **change))).dtypes == lost
    assert "float64" not in full
    assert {"float32", "int32", "uint32"} <= full


@pytest.mark.vulkan
def test_the_driver_here_is_found() -> None:
    reason = vulkan_unavailable_reason()
    if reason is not None:
        pytest.skip(f"no Vulkan device: {reason}")
    found = [d for d in accelerators().devices if d.backend == "vulkan"]
    assert found[0].name == "VULKAN"
    assert all(d.memory and d.max_buffer and d.max_buffer <= d.memory for d in found)


def test_what_code_may_require_the_runtime_knows_by_the_same_name() -> None:
    from heterocc.compiler.lower.vulkan.lowering import _REQUIRED

    names = [f.name for f in dataclasses.fields(CARD) if f.type == "bool"]
    able = dataclasses.replace(CARD, **dict.fromkeys(names, True))
    assert set(able.features) == set(_REQUIRED.values())


@pytest.mark.vulkan
def test_a_bundle_that_asks_for_nan_says_so_to_a_device_that_keeps_none(tmp_path: Path) -> None:
    here = next((d for d in accelerators().devices if d.backend == "vulkan"), None)
    if here is None or not here.target["supports_nan32"]:
        pytest.skip("no Vulkan device that keeps NaN is here")
    model = onnx.parser.parse_model("""
      <ir_version: 9, opset_import: ["" : 17]>
      g (float[4,8] x) => (float[4,8] y) { y = Relu(x) }""")
    onnx.save(model, tmp_path / "m.onnx")
    compile_model(tmp_path / "m.onnx", tmp_path / "m.hcb", devices="VULKAN,CPU", cpu_variant=False)
    program = f"""
from heterocc.artifacts.errors import HeteroccError
from heterocc.runtime import load
try:
    load({str(tmp_path / "m.hcb")!r})
except HeteroccError as error:
    print(error)
"""
    said = fresh(program, HETEROCC_VULKAN_FAULT="no-nan")
    assert re.search(r"device VULKAN \(.*\) lacks nan32", said), said


@pytest.mark.vulkan
def test_a_node_that_writes_booleans_stays_on_vulkan(tmp_path: Path) -> None:
    here = next((d for d in accelerators().devices if d.backend == "vulkan"), None)
    if here is None or "bool" not in here.dtypes:
        pytest.skip("no Vulkan device with 8-bit buffers is here")
    model = onnx.parser.parse_model("""
      <ir_version: 9, opset_import: ["" : 17]>
      g (float[4,8] x, float[4,8] y) => (bool[4,8] z) { z = Less(x, y) }""")
    onnx.save(model, tmp_path / "m.onnx")
    report = compile_model(tmp_path / "m.onnx", tmp_path / "m.hcb", devices="VULKAN,CPU")
    assert report.moved == ()
    assert set(report.plan.device_of.values()) == {"VULKAN"}
    with load(tmp_path / "m.hcb") as session:
        assert set(session.variant.devices[0].requires) - {"nan32"} == {"storage8"}
