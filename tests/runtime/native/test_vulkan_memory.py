"""Memory of Vulkan devices: shared host memory, limits, reuse, lost devices."""

from __future__ import annotations

import ctypes
import gc
import threading
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from heterocc.artifacts.errors import DeviceError, DeviceMemoryError
from heterocc.runtime.native import typed_error, vulkan_devices
from heterocc.runtime.native.vulkan_api import Statistics, statistics, trim
from tests.runtime.native import vulkan_sample as sample
from tests.runtime.native.vulkan_sample import (
    empty,
    leave_idle_workspace,
    load,
    module_bytes,
    plugin,
    pointer,
    run_scale,
    to_device,
    to_host,
    vulkan,
)

pytestmark = pytest.mark.vulkan


def settled() -> Statistics:
    """The statistics when what earlier tests left behind is gone."""
    gc.collect()
    trim()
    return statistics()


def test_buffers_of_a_unified_device_lie_where_the_host_sees_them() -> None:
    if not vulkan_devices()[0].unified:
        pytest.skip("the first Vulkan device has memory of its own")
    tensor = to_device(np.arange(16, dtype="float32"))
    address = plugin("host_ptr")(tensor)
    seen = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (16,))
    assert np.array_equal(seen, np.arange(16, dtype="float32"))


def shared(count: int) -> tuple[np.ndarray, Any]:
    """Host memory of `count` floats at a 64-byte boundary, and a tensor over it."""
    if not vulkan_devices()[0].shares_host_memory:
        pytest.skip("the first Vulkan device does not run in the host's memory")
    memory = np.zeros(count + 16, "float32")
    start = (-memory.ctypes.data % 64) // 4
    window = memory[start : start + count]
    return window, plugin("alias")(window.ctypes.data, tvm_ffi.Shape((count,)), tvm_ffi.dtype("float32"), vulkan())


def test_host_memory_of_a_cpu_device_is_used_without_a_copy() -> None:
    window, alias = shared(1000)
    assert plugin("host_ptr")(alias) == window.ctypes.data
    window[:] = 3
    assert (to_host(alias) == 3).all()
    before = statistics().copies
    y, kernel = empty((1000,)), load(module_bytes()).get_function("scale")
    kernel(pointer(y), pointer(alias), 2.0, 1, 125, 8)
    kernel(pointer(alias), pointer(y), 1.0, 0, 125, 8)
    sample.synchronize()
    assert (window == 7).all()
    assert statistics().copies == before
    assert (window.base[1016 - 16 + (window.ctypes.data - window.base.ctypes.data) // 4 :] == 0).all()


def test_tensors_over_the_same_host_memory_are_one_to_kernels() -> None:
    """Two aliases have separate buffers: only their addresses show that one command must wait for the other."""
    window, first = shared(64)
    second = plugin("alias")(window.ctypes.data, tvm_ffi.Shape((64,)), tvm_ffi.dtype("float32"), vulkan())
    target, kernel = empty((64,)), load(module_bytes()).get_function("scale")
    x = to_device(np.ones(64, "float32"))
    before = statistics().barriers
    kernel(pointer(first), pointer(x), 5.0, 0, 8, 8)
    kernel(pointer(target), pointer(second), 1.0, 1, 8, 8)
    assert statistics().barriers > before
    assert (to_host(target) == 6).all()


def test_an_alias_is_freed_only_when_kernels_are_done_with_it() -> None:
    window, alias = shared(64)
    x, kernel = to_device(np.ones(64, "float32")), load(module_bytes()).get_function("scale")
    kernel(pointer(alias), pointer(x), 5.0, 0, 8, 8)
    del alias
    gc.collect()
    assert (window == 5).all()


def test_an_alias_of_unaligned_memory_is_refused() -> None:
    if not vulkan_devices()[0].shares_host_memory:
        pytest.skip("the first Vulkan device does not run in the host's memory")
    memory = np.zeros(64, "float32")
    address = memory.ctypes.data + (4 if memory.ctypes.data % 64 == 0 else 0)
    with pytest.raises(RuntimeError, match="64-byte boundary"):
        plugin("alias")(address, tvm_ffi.Shape((4,)), tvm_ffi.dtype("float32"), vulkan())


def test_a_buffer_over_the_devices_limit_is_a_memory_error() -> None:
    limit = vulkan_devices()[0].max_alloc
    with pytest.raises(RuntimeError, match=f"a buffer of {limit + 1} bytes .* limit of {limit} bytes") as caught:
        empty((limit + 1,), "int8")
    error = typed_error(caught.value, where="device VULKAN")
    assert isinstance(error, DeviceMemoryError)
    assert error.hint is not None


def test_a_failed_allocation_is_a_memory_error_and_the_next_one_works() -> None:
    trim()  # nothing idle that the plug-in could free before it tries again
    plugin("fault")("alloc:2")
    first = empty((4,))
    with pytest.raises(RuntimeError, match=r"VK_ERROR_OUT_OF_DEVICE_MEMORY \(-2\): the device has no memory") as caught:
        empty((4,))
    assert isinstance(typed_error(caught.value), DeviceMemoryError)
    assert empty((4,)).data_ptr() != first.data_ptr()


def test_an_allocation_that_fails_frees_idle_memory_and_tries_again() -> None:
    before = settled().used
    leave_idle_workspace()
    assert statistics().used == before + (1 << 20)
    plugin("fault")("alloc:1")
    tensor = empty((4,))
    assert statistics().used == before + 64
    assert to_host(tensor).shape == (4,)


def test_a_freed_workspace_is_given_out_again() -> None:
    trim()
    leave_idle_workspace()
    used = statistics().used
    leave_idle_workspace()
    assert statistics().used == used


def test_tensors_share_blocks_and_large_ones_go_back_to_the_driver() -> None:
    start = settled()
    small = [empty((1000,)) for _ in range(100)]
    assert statistics().used == start.used + 100 * 4032
    held = statistics().held
    assert held <= start.held + (64 << 20)
    large = empty((40 << 20,), "uint8")
    assert statistics().held == held + (40 << 20)
    del large
    assert statistics().held == held
    del small
    trim()
    assert (statistics().held, statistics().used) == (start.held, start.used)


def test_memory_does_not_grow_over_many_modules_tensors_and_runs() -> None:
    x = np.ones(64, "float32")
    run_scale(load(module_bytes()), x, 2.0, 1)
    gc.collect()
    before, resident = statistics(), _resident()
    for _ in range(300):
        run_scale(load(module_bytes()), x, 2.0, 1)
    gc.collect()
    sample.synchronize()
    after = statistics()
    assert (after.held, after.used) == (before.held, before.used)
    assert _resident() - resident < 8 << 20


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123  # not a file of ours
        return int(file.read().split()[1]) * 4096


def test_a_device_that_does_not_exist_is_named() -> None:
    with pytest.raises(RuntimeError, match="no Vulkan device 99"):
        empty((4,), device=tvm_ffi.device("vulkan", 99))


def test_many_threads_may_allocate_copy_and_free() -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for size in rng.integers(1, 200_000, 40):
            array = rng.integers(0, 256, size, dtype="uint8")
            if not np.array_equal(to_host(to_device(array)), array):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_lost_device_fails_what_was_on_it_and_opens_anew() -> None:
    module = load(module_bytes())
    x = np.ones(64, "float32")
    old = to_device(x)
    assert np.array_equal(run_scale(module, x, 2.0, 0), x * 2)
    plugin("fault")("lost:1")
    with pytest.raises(RuntimeError, match=r"VK_ERROR_DEVICE_LOST .* load the bundle again") as caught:
        run_scale(module, x, 3.0, 0)
    assert isinstance(typed_error(caught.value), DeviceError)
    with pytest.raises(RuntimeError, match="was lost"):
        to_host(old)
    fresh = empty((64,))
    with pytest.raises(RuntimeError, match="argument 1 of kernel 'scale' is of a device that was lost"):
        module.get_function("scale")(pointer(fresh), pointer(old), 1.0, 0, 8, 8)
    assert np.array_equal(run_scale(module, x, 4.0, 0), x * 4)
    del old
    gc.collect()
    assert np.array_equal(run_scale(module, x, 5.0, 0), x * 5)
