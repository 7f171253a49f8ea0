from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from opencl_sample import empty, opencl, to_device, to_host

from heterocc.artifacts.errors import DeviceError, DeviceMemoryError
from heterocc.runtime.native import opencl_devices, trim, typed_error

pytestmark = pytest.mark.opencl


def plugin(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = tvm_ffi.get_global_func(f"heterocc.opencl.{name}")
    return found


def copy(source: Any, target: Any) -> None:
    tvm_ffi.get_global_func("runtime.TVMTensorCopyFromTo")(source, target)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "int8", "uint16", "bool"])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5, 7), (1 << 20,)])
def test_what_is_copied_to_the_device_comes_back(shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(0)
    array = np.asarray(rng.random(shape) * 100).astype(dtype)
    assert np.array_equal(to_host(to_device(array)), array)


def test_an_empty_tensor_can_be_made_copied_and_freed() -> None:
    assert to_host(to_device(np.empty((0, 3), "float32"))).shape == (0, 3)


def test_device_to_device_copies_keep_the_data() -> None:
    array = np.arange(1000, dtype="int32")
    target = empty((1000,), "int32")
    copy(to_device(array), target)
    assert np.array_equal(to_host(target), array)


def test_a_view_shares_its_allocation_and_keeps_it_alive() -> None:
    base = to_device(np.arange(24, dtype="float32"))
    view = plugin("view")(base, tvm_ffi.Shape((3, 4)), tvm_ffi.dtype("int32"))
    assert view.data_ptr() == base.data_ptr()
    del base
    gc.collect()
    expected = np.arange(12, dtype="float32").view("int32").reshape(3, 4)
    assert np.array_equal(to_host(view), expected)


@pytest.mark.parametrize("shape", [(7,), (2, 4), (1 << 31, 1 << 31, 4)])
def test_a_view_that_does_not_fit_is_refused(shape: tuple[int, ...]) -> None:
    base = to_device(np.zeros(6, "float32"))
    with pytest.raises(RuntimeError, match="must fit into its allocation of 24 bytes") as caught:
        plugin("view")(base, tvm_ffi.Shape(shape), tvm_ffi.dtype("float32"))
    assert isinstance(typed_error(caught.value), DeviceError)


def test_a_view_of_a_cpu_tensor_is_refused() -> None:
    with pytest.raises(RuntimeError, match="not a tensor or device of OpenCL"):
        plugin("view")(tvm_ffi.from_dlpack(np.zeros(4, "float32")), tvm_ffi.Shape((4,)), tvm_ffi.dtype("float32"))


def test_host_memory_of_a_cpu_device_is_used_without_a_copy() -> None:
    if not opencl_devices()[0].shares_host_memory:
        pytest.skip("the first OpenCL device has memory of its own")
    memory = np.zeros(1024 + 16, "float32")
    start = (-memory.ctypes.data % 64) // 4
    window = memory[start : start + 1024]
    alias = plugin("alias")(window.ctypes.data, tvm_ffi.Shape((1024,)), tvm_ffi.dtype("float32"), opencl())
    assert plugin("host_ptr")(alias) == window.ctypes.data
    window[:] = 3
    assert (to_host(alias) == 3).all()
    copy(to_device(np.full(1024, 5, "float32")), alias)
    tvm_ffi.get_global_func("runtime.Device_StreamSync")(opencl(), 0)
    assert (window == 5).all()
    assert (memory[:start] == 0).all()


def test_an_alias_of_unaligned_memory_is_refused() -> None:
    if not opencl_devices()[0].shares_host_memory:
        pytest.skip("the first OpenCL device has memory of its own")
    memory = np.zeros(64, "float32")
    address = memory.ctypes.data + (4 if memory.ctypes.data % 64 == 0 else 0)
    with pytest.raises(RuntimeError, match="64-byte boundary"):
        plugin("alias")(address, tvm_ffi.Shape((4,)), tvm_ffi.dtype("float32"), opencl())


def test_a_buffer_over_the_devices_limit_is_a_memory_error() -> None:
    limit = opencl_devices()[0].max_alloc
    with pytest.raises(RuntimeError, match="limit for one buffer") as caught:
        empty((limit + 1,), "int8")
    error = typed_error(caught.value, where="device OPENCL")
    assert isinstance(error, DeviceMemoryError)
    assert "CL_INVALID_BUFFER_SIZE" in error.message
    assert error.hint is not None


def test_a_failed_allocation_is_a_memory_error_and_the_next_one_works() -> None:
    trim()  # nothing idle that the plug-in could free before it tries again
    plugin("fault")("alloc:2")
    first = empty((4,))
    with pytest.raises(RuntimeError, match="CL_MEM_OBJECT_ALLOCATION_FAILURE") as caught:
        empty((4,))
    assert isinstance(typed_error(caught.value), DeviceMemoryError)
    assert empty((4,)).data_ptr() != first.data_ptr()


def test_an_allocation_that_fails_frees_idle_workspaces_and_tries_again() -> None:
    trim()
    _leave_idle_workspace()
    plugin("fault")("alloc:1")
    assert empty((4,)) is not None
    assert trim() == 0


def _leave_idle_workspace() -> None:
    """Takes and gives back a workspace as TVM's host code does."""

    library = ctypes.CDLL("libtvm_runtime.so")
    library.TVMBackendAllocWorkspace.restype = ctypes.c_void_p
    library.TVMBackendAllocWorkspace.argtypes = [
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_uint64,
        ctypes.c_int,
        ctypes.c_int,
    ]
    library.TVMBackendFreeWorkspace.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    workspace = library.TVMBackendAllocWorkspace(4, 0, 1 << 20, 2, 32)
    assert workspace
    assert library.TVMBackendFreeWorkspace(4, 0, workspace) == 0


def test_a_freed_workspace_is_given_out_again() -> None:
    trim()
    _leave_idle_workspace()
    _leave_idle_workspace()
    assert trim() == 1 << 20


def test_a_device_that_does_not_exist_is_named() -> None:
    with pytest.raises(RuntimeError, match="no OpenCL device 99"):
        empty((4,), device=tvm_ffi.device("opencl", 99))
