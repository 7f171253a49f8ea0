from __future__ import annotations

import struct

import numpy as np
import pytest
import tvm_ffi

from heterocc.artifacts.errors import DeviceError
from heterocc.runtime.native import opencl_devices, typed_error
from tests.runtime.native.opencl_sample import SCALE, load, module_bytes, run_scale

pytestmark = pytest.mark.opencl

N = 64


def test_a_kernel_that_does_not_compile_gives_the_drivers_log() -> None:
    module = load(module_bytes("__kernel void scale(__global float* y) { y[0] = no_such_thing; }"))
    with pytest.raises(RuntimeError, match="no_such_thing") as caught:
        run_scale(module, np.ones(N, "float32"), 1.0, 1)
    error = typed_error(caught.value)
    assert isinstance(error, DeviceError)
    assert "kernel 'scale' does not build" in error.message


def test_all_kernels_can_be_built_before_the_first_run() -> None:
    good, bad = load(module_bytes()), load(module_bytes("__kernel void scale(__global float* y) { bad; }"))
    assert good.get_function("heterocc_build")(0) == 1
    with pytest.raises(RuntimeError, match="does not build"):
        bad.get_function("heterocc_build")(0)


def test_a_work_group_over_the_limit_names_kernel_sizes_and_limit() -> None:
    x = np.ones(1 << 16, "float32")
    with pytest.raises(
        RuntimeError, match=r"kernel 'scale' .*65536 work items in groups of 65536.*largest group is \d+"
    ):
        run_scale(load(module_bytes()), x, 1.0, 1, group=1 << 16)


def test_a_launch_with_more_work_items_than_can_be_counted_is_refused() -> None:
    with pytest.raises(ValueError, match="more work items than can be counted"):
        load(module_bytes()).get_function("scale")(None, None, 1.0, 1, 1 << 62, 8)


def with_group(x: int, y: int, z: int) -> str:
    """SCALE for groups of one size."""
    return SCALE.replace("__kernel ", f"__kernel __attribute__((reqd_work_group_size({x}, {y}, {z}))) ")


@pytest.mark.parametrize("group", [(65536, 1, 1), (1, 8192, 8)])
def test_a_kernel_whose_work_group_the_device_cannot_run_fails_when_it_is_loaded(group: tuple[int, int, int]) -> None:
    device, sizes = opencl_devices()[0], "x".join(map(str, group))
    with pytest.raises(RuntimeError, match="needs work groups") as caught:
        load(module_bytes(with_group(*group))).get_function("heterocc_build")(0)
    error = typed_error(caught.value)
    assert isinstance(error, DeviceError)
    assert f"kernel 'scale' needs work groups of {sizes} items; '{device.name}' runs it with " in error.message
    assert "x".join(map(str, device.max_group_sizes)) in error.message


def test_a_kernel_is_launched_with_the_work_group_that_its_source_says_or_not_at_all() -> None:
    module = load(module_bytes(with_group(16, 1, 1)))
    assert module.get_function("heterocc_build")(0) == 1
    x = np.ones(N, "float32")
    assert np.array_equal(run_scale(module, x, 2.0, 0, group=16), x * 2)
    with pytest.raises(RuntimeError, match="CL_INVALID_WORK_GROUP_SIZE"):
        run_scale(module, x, 2.0, 0, group=8)


@pytest.mark.parametrize("fault", ["launch:1", "build:1"])
def test_a_simulated_failure_is_a_typed_error_and_passes(fault: str) -> None:
    module = load(module_bytes())
    x = np.ones(N, "float32")
    tvm_ffi.get_global_func("heterocc.opencl.fault")(fault)
    with pytest.raises(RuntimeError) as caught:
        run_scale(module, x, 1.0, 1)
    assert isinstance(typed_error(caught.value), DeviceError)
    assert np.array_equal(run_scale(module, x, 2.0, 0), x * 2)


def test_a_module_keeps_its_bytes_and_source() -> None:
    module = load(module_bytes())
    assert SCALE.strip() in str(module.inspect_source())
    assert module.kind == "opencl"
    with pytest.raises(AttributeError):
        module.get_function("nothing")


@pytest.mark.parametrize("count", [2, 1 << 32, (1 << 64) - 1])
def test_a_count_larger_than_the_module_is_refused(count: int) -> None:
    data = module_bytes()
    start = struct.calcsize("<Q") + len("cl")
    damaged = data[:start] + struct.pack("<Q", count) + data[start + 8 :]
    with pytest.raises(ValueError, match=r"damaged|cut short"):
        load(damaged)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tags": ("blockIdx.x", "tirx.use_dyn_shared_memory")}, "local memory sized at launch"),
        ({"tags": ("blockIdx.w",)}, "unknown launch tag"),
        ({"arguments": ((2, 16, 1),)}, "argument has a type"),
        ({"arguments": ((0, 32, 4),)}, "argument has a type"),
    ],
)
def test_a_module_that_asks_for_what_is_not_there_is_refused(change: dict[str, tuple[str, ...]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load(module_bytes(**change))  # type: ignore[arg-type]


def test_a_module_of_another_format_is_refused() -> None:
    data = module_bytes()
    with pytest.raises(ValueError, match="does not hold OpenCL C source"):
        load(data.replace(b"cl", b"xx", 1))
