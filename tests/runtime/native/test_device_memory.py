"""Memory of devices, the same on every API: copies, views, what the host waits for."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from heterocc.artifacts.errors import DeviceError
from heterocc.runtime.native import typed_error
from tests.device_run import copy

STAGED = 37_000_001
"""Bytes of a copy that needs every piece of staging memory twice, and ends within one."""

View = Callable[[Any, tuple[int, ...], str], Any]


@pytest.fixture
def view(backend: str) -> View:
    def make(base: Any, shape: tuple[int, ...], dtype: str) -> Any:
        found = tvm_ffi.get_global_func(f"heterocc.{backend}.view")
        return found(base, tvm_ffi.Shape(shape), tvm_ffi.dtype(dtype))

    return make


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "int8", "uint16", "bool"])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5, 7), (1 << 20,)])
def test_what_is_copied_to_the_device_comes_back(sample: Any, shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(0)
    array = np.asarray(rng.random(shape) * 100).astype(dtype)
    assert np.array_equal(sample.to_host(sample.to_device(array)), array)


def test_a_large_copy_comes_back(sample: Any) -> None:
    array = np.random.default_rng(0).integers(0, 256, STAGED, dtype="uint8")
    assert np.array_equal(sample.to_host(sample.to_device(array)), array)


def test_an_empty_tensor_can_be_made_copied_and_freed(sample: Any) -> None:
    assert sample.to_host(sample.to_device(np.empty((0, 3), "float32"))).shape == (0, 3)


def test_device_to_device_copies_keep_the_data(sample: Any) -> None:
    array = np.arange(1000, dtype="int32")
    target = sample.empty((1000,), "int32")
    copy(sample.to_device(array), target)
    assert np.array_equal(sample.to_host(target), array)


def test_the_host_waits_for_kernels_that_use_what_it_reads_or_writes(sample: Any) -> None:
    kernel = sample.load(sample.module_bytes()).get_function("scale")
    x, y = sample.to_device(np.zeros(64, "float32")), sample.empty((64,))
    for step in range(40):
        copy(tvm_ffi.from_dlpack(np.full(64, step, "float32")), x)
        kernel(sample.pointer(y), sample.pointer(x), 2.0, 1, 8, 8)
        copy(tvm_ffi.from_dlpack(np.zeros(64, "float32")), x)
        assert (sample.to_host(y) == 2 * step + 1).all()


def test_memory_that_is_freed_while_kernels_use_it_is_not_overwritten(sample: Any) -> None:
    """A freed buffer may go to the next tensor at once; what the host writes there must wait."""
    kernel = sample.load(sample.module_bytes()).get_function("scale")
    results = []
    for step in range(60):
        x, y = sample.to_device(np.full(64, step, "float32")), sample.empty((64,))
        kernel(sample.pointer(y), sample.pointer(x), 1.0, 1, 8, 8)
        results.append(y)
        del x, y
    for step, result in enumerate(results):
        assert (sample.to_host(result) == step + 1).all()


def test_a_view_shares_its_allocation_and_keeps_it_alive(sample: Any, view: View) -> None:
    base = sample.to_device(np.arange(24, dtype="float32"))
    part = view(base, (3, 4), "int32")
    assert part.data_ptr() == base.data_ptr()
    del base
    gc.collect()
    expected = np.arange(12, dtype="float32").view("int32").reshape(3, 4)
    assert np.array_equal(sample.to_host(part), expected)


@pytest.mark.parametrize("shape", [(7,), (2, 4), (1 << 31, 1 << 31, 4)])
def test_a_view_that_does_not_fit_is_refused(sample: Any, view: View, shape: tuple[int, ...]) -> None:
    base = sample.to_device(np.zeros(6, "float32"))
    with pytest.raises(RuntimeError, match="must fit into its allocation of 24 bytes") as caught:
        view(base, shape, "float32")
    assert isinstance(typed_error(caught.value), DeviceError)


def test_a_view_of_a_cpu_tensor_is_refused(backend: str, view: View) -> None:
    label = {"opencl": "OpenCL", "vulkan": "Vulkan"}[backend]
    with pytest.raises(RuntimeError, match=f"not a tensor or device of {label}"):
        view(tvm_ffi.from_dlpack(np.zeros(4, "float32")), (4,), "float32")
