from __future__ import annotations

import struct
import threading

import numpy as np
import pytest
import tvm_ffi
from opencl_sample import SCALE, empty, load, module_bytes, pointer, to_device, to_host

from heterocc.artifacts.errors import BundleError, DeviceError
from heterocc.runtime.native import typed_error

pytestmark = pytest.mark.opencl

N = 64


def run_scale(module: object, x: np.ndarray, factor: float, bias: int, group: int = 8) -> np.ndarray:
    source, target = to_device(x), empty(x.shape)
    kernel = module.get_function("scale")  # type: ignore[attr-defined]
    kernel(pointer(target), pointer(source), factor, bias, x.size // group, group)
    return to_host(target)


def test_a_kernel_gets_its_buffers_and_scalars() -> None:
    x = np.arange(N, dtype="float32")
    assert np.array_equal(run_scale(load(module_bytes()), x, 0.5, -3), x * np.float32(0.5) - 3)


def test_a_launch_over_an_empty_range_does_nothing() -> None:
    target = to_device(np.ones(N, "float32"))
    load(module_bytes()).get_function("scale")(pointer(target), pointer(target), 2.0, 0, 0, 8)
    assert (to_host(target) == 1).all()


def test_many_threads_may_call_one_kernel() -> None:
    module = load(module_bytes())
    wrong: list[str] = []

    def work(seed: int) -> None:
        x = np.full(N, seed, "float32")
        for step in range(25):
            if not np.array_equal(run_scale(module, x, float(step), seed), x * step + seed):
                wrong.append(f"thread {seed}, step {step}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


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


@pytest.mark.parametrize("fault", ["launch:1", "build:1"])
def test_a_simulated_failure_is_a_typed_error_and_passes(fault: str) -> None:
    module = load(module_bytes())
    x = np.ones(N, "float32")
    tvm_ffi.get_global_func("heterocc.opencl.fault")(fault)
    with pytest.raises(RuntimeError) as caught:
        run_scale(module, x, 1.0, 1)
    assert isinstance(typed_error(caught.value), DeviceError)
    assert np.array_equal(run_scale(module, x, 2.0, 0), x * 2)


def test_a_kernel_called_with_too_few_arguments_is_refused() -> None:
    tensor = empty((N,))
    with pytest.raises(ValueError, match="with 2 arguments, not 6"):
        load(module_bytes()).get_function("scale")(pointer(tensor), pointer(tensor))


def test_a_kernel_called_with_a_number_for_a_buffer_is_refused() -> None:
    tensor = empty((N,))
    with pytest.raises(ValueError, match="argument 1 of kernel 'scale' is no buffer"):
        load(module_bytes()).get_function("scale")(pointer(tensor), 4096, 1.0, 0, 8, 8)


def test_a_module_keeps_its_bytes_and_source() -> None:
    module = load(module_bytes())
    assert SCALE.strip() in str(module.inspect_source())
    assert module.kind == "opencl"
    with pytest.raises(AttributeError):
        module.get_function("nothing")


def test_a_module_cut_short_anywhere_is_refused() -> None:
    data = module_bytes()
    for size in range(len(data)):
        with pytest.raises(ValueError) as caught:
            load(data[:size])
        assert isinstance(typed_error(caught.value), BundleError)


def test_a_module_with_any_header_byte_changed_loads_or_is_refused() -> None:
    data = module_bytes()
    refused = 0
    for place in range(len(data) - len(SCALE)):
        for value in (0x00, 0x01, 0x7F, 0xFF):
            damaged = bytearray(data)
            damaged[place] = value
            try:
                load(bytes(damaged))
            except ValueError as error:
                assert isinstance(typed_error(error), BundleError)
                refused += 1
    assert refused > 400  # of some 700; the rest are equal bytes, or the type of a scalar


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


def test_bytes_after_the_end_are_refused() -> None:
    with pytest.raises(ValueError, match="bytes after its end"):
        load(module_bytes() + b"\0")
