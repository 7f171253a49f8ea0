from __future__ import annotations

import ast
import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from heterocc.artifacts.errors import DeviceError, DeviceMemoryError
from heterocc.runtime.native import opencl_devices, typed_error
from heterocc.runtime.native.opencl_api import trim
from tests.fresh_process import fresh
from tests.runtime.native.opencl_sample import (
    empty,
    leave_idle_workspace,
    load,
    module_bytes,
    opencl,
    pointer,
    to_device,
    to_host,
)

pytestmark = pytest.mark.opencl


def plugin(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = tvm_ffi.get_global_func(f"heterocc.opencl.{name}")
    return found


def copy(source: Any, target: Any) -> None:
    tvm_ffi.get_global_func("runtime.TVMTensorCopyFromTo")(source, target)


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
    leave_idle_workspace()
    plugin("fault")("alloc:1")
    assert empty((4,)) is not None
    assert trim() == 0


APART = """
import sys
import numpy as np
import tvm_ffi
from tests.runtime.native.opencl_sample import empty, leave_idle_workspace, to_device, to_host
from heterocc.runtime.native import typed_error
from heterocc.runtime.native.opencl_api import trim

def failure():
    try:
        empty((1 << 26,), "int8")
    except RuntimeError as error:
        return type(typed_error(error)).__name__, str(error)

def mapped():
    return 1024 * int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1])

empty((4,))
trim()
fault = tvm_ffi.get_global_func("heterocc.opencl.fault")
"""


def evaluated(program: str) -> list[Any]:
    """The results of a program, one expression per line, with PoCL simulated as a device with separate memory."""
    lines = "".join(f"print(repr({line}))\n" for line in program.split("; "))
    return [ast.literal_eval(line) for line in fresh(APART + lines, HETEROCC_OPENCL_FAULT="discrete").splitlines()]


def test_memory_that_the_driver_does_not_find_for_a_new_buffer_is_a_memory_error_at_once() -> None:
    program = "fault('migrate:1'); failure(); to_host(to_device(np.arange(3))).tolist(); fault('')"
    _, (name, text), values, waiting = evaluated(program)
    assert name == "DeviceMemoryError"
    assert "clEnqueueMigrateMemObjects failed with CL_OUT_OF_RESOURCES (-5)" in text
    assert (values, waiting) == ([0, 1, 2], "")


def test_idle_workspaces_are_freed_if_the_driver_does_not_find_memory() -> None:
    *_, failed, idle, waiting = evaluated("leave_idle_workspace(); fault('migrate:1'); failure(); trim(); fault('')")
    assert (failed, idle, waiting) == (None, 0, "")


def test_buffers_without_memory_are_released_and_memory_does_not_grow() -> None:
    *_, before, failed, after = evaluated("fault('migrate:1+'); mapped(); [failure() for _ in range(40)]; mapped()")
    assert [name for name, _ in failed] == ["DeviceMemoryError"] * 40
    assert after - before < 10 << 26


def test_a_freed_workspace_is_given_out_again() -> None:
    trim()
    leave_idle_workspace()
    leave_idle_workspace()
    assert trim() == 1 << 20


def test_a_device_that_does_not_exist_is_named() -> None:
    with pytest.raises(RuntimeError, match="no OpenCL device 99"):
        empty((4,), device=tvm_ffi.device("opencl", 99))


def scaled(module: Any, x: np.ndarray, factor: float) -> np.ndarray:
    source, target = to_device(x), empty(x.shape)
    module.get_function("scale")(pointer(target), pointer(source), factor, 0, 8, 8)
    return to_host(target)


@pytest.mark.parametrize("command", [1, 2, 3])
def test_a_lost_device_fails_what_was_on_it_and_opens_anew(command: int) -> None:
    module = load(module_bytes())
    x = np.ones(64, "float32")
    old = to_device(x)
    assert np.array_equal(scaled(module, x, 2.0), x * 2)
    plugin("fault")(f"lost:{command}")
    with pytest.raises(RuntimeError, match=r"CL_INVALID_COMMAND_QUEUE .* load the bundle again") as caught:
        scaled(module, x, 3.0)
    assert isinstance(typed_error(caught.value), DeviceError)
    with pytest.raises(RuntimeError, match="was lost"):
        to_host(old)
    fresh = empty((64,))
    with pytest.raises(RuntimeError, match="argument 1 of kernel 'scale' is of a device that was lost"):
        module.get_function("scale")(pointer(fresh), pointer(old), 1.0, 0, 8, 8)
    assert np.array_equal(scaled(module, x, 4.0), x * 4)
    del old
    gc.collect()
    assert np.array_equal(scaled(module, x, 5.0), x * 5)


def test_waiting_for_a_device_that_another_thread_lost_and_opened_again_is_an_error() -> None:
    module = load(module_bytes())
    source, target = to_device(np.ones(64, "float32")), empty((64,))
    module.get_function("scale")(pointer(target), pointer(source), 1.0, 0, 8, 8)

    def lose() -> None:
        plugin("fault")("lost:1")
        with pytest.raises(RuntimeError, match="was lost"):
            to_device(np.ones(4, "float32"))
        to_device(np.ones(4, "float32"))

    thread = threading.Thread(target=lose)
    thread.start()
    thread.join()
    with pytest.raises(RuntimeError, match="was lost"):
        tvm_ffi.get_global_func("runtime.Device_StreamSync")(opencl(), 0)
    tvm_ffi.get_global_func("runtime.Device_StreamSync")(opencl(), 0)


def test_a_workspace_of_a_lost_device_is_not_given_out_again() -> None:
    trim()
    leave_idle_workspace()
    plugin("fault")("lost:1")
    with pytest.raises(RuntimeError, match="was lost"):
        to_device(np.ones(4, "float32"))
    leave_idle_workspace()
    assert trim() == 1 << 20
