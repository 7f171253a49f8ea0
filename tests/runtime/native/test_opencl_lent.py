"""Memory that OpenCL devices lend to the host: whose it is, and what becomes of who does not ask."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from heterocc.artifacts.errors import DeviceError, DeviceMemoryError
from heterocc.runtime.native import typed_error
from heterocc.runtime.plan.lending_turns import Side
from tests.fresh_process import fresh
from tests.runtime.native.opencl_sample import empty, load, module_bytes, pointer, to_device, to_host

pytestmark = pytest.mark.opencl

N = 64


def plugin(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = tvm_ffi.get_global_func(f"heterocc.opencl.{name}")
    return found


def lend(count: int = N) -> tuple[Any, np.ndarray]:
    """A tensor of floats in lent memory, and the same as the host sees it."""
    empty((1,))  # loads the plug-in
    tensor = plugin("lend")(0, 4 * count)
    memory = (ctypes.c_float * count).from_address(plugin("host_ptr")(tensor))
    return tensor, np.frombuffer(memory, np.float32)


def turn(side: Side, *tensors: Any) -> None:
    plugin("turn")(tvm_ffi.Array(list(tensors)), tvm_ffi.Array([int(side)] * len(tensors)))()


def scale(target: Any, source: Any) -> None:
    """target = 2 source + 1."""
    load(module_bytes()).get_function("scale")(pointer(target), pointer(source), 2.0, 1, N // 8, 8)


def test_host_and_device_pass_memory_back_and_forth_and_nothing_is_copied() -> None:
    (x, there), (y, back) = lend(), lend()
    assert there.ctypes.data % 64 == 0
    before = list(plugin("statistics")(0))
    for step in range(5):
        there[:] = np.arange(N) + step
        turn(Side.DEVICE, x, y)
        scale(y, x)
        turn(Side.HOST, y, x)
        np.testing.assert_array_equal(back, 2 * (np.arange(N) + step) + 1)
    copies, nbytes, maps = (int(b) - int(a) for a, b in zip(before, plugin("statistics")(0), strict=True))
    assert (copies, nbytes, maps) == (0, 0, 10)


def test_what_is_mapped_for_reading_is_read_by_both() -> None:
    (x, there), y = lend(), empty((N,))
    there[:] = 3
    turn(Side.BOTH, x)
    scale(y, x)
    assert (there == 3).all()
    assert (to_host(y) == 7).all()


def test_a_kernel_is_not_launched_on_memory_that_is_mapped_for_the_host() -> None:
    (x, _), y = lend(), to_device(np.zeros(N, np.float32))
    with pytest.raises(RuntimeError, match="argument 1 of kernel 'scale' is mapped for the host") as caught:
        scale(y, x)
    assert isinstance(typed_error(caught.value), DeviceError)
    assert (to_host(y) == 0).all()


@pytest.mark.parametrize("side", list(Side))
def test_copies_find_the_memory_on_whichever_side_it_is(side: Side) -> None:
    tensor, there = lend()
    there[:] = np.arange(N)
    part = plugin("view")(tensor, tvm_ffi.Shape((N,)), tvm_ffi.dtype("float32"))
    turn(side, tensor)
    np.testing.assert_array_equal(to_host(part), np.arange(N))


def test_a_view_of_lent_memory_turns_with_it_and_keeps_it_alive() -> None:
    tensor, there = lend(3 * N)
    there[:] = 1
    part = plugin("view")(tensor, tvm_ffi.Shape((N,)), tvm_ffi.dtype("float32"))
    turn(Side.DEVICE, part)
    scale(part, part)
    turn(Side.HOST, tensor)
    del tensor
    gc.collect()
    assert (there[:N] == 3).all()
    assert (there[N:] == 1).all()


def test_lent_memory_may_go_while_the_device_still_works_on_it() -> None:
    module = load(module_bytes()).get_function("scale")
    results = []
    for step in range(40):
        tensor, there = lend()
        there[:] = step
        turn(Side.DEVICE, tensor)
        results.append(empty((N,)))
        module(pointer(results[-1]), pointer(tensor), 2.0, 1, N // 8, 8)
        plugin("turn")(tvm_ffi.Array([tensor]), tvm_ffi.Array([int(Side.HOST)]))  # nobody waits
        del tensor, there
    for step, result in enumerate(results):
        assert (to_host(result) == 2 * step + 1).all()


def test_a_device_without_memory_to_lend_is_a_memory_error_and_lends_later() -> None:
    """No memory at all: of memory that other tests left in the pool, a first failure would be made good."""
    empty((1,))  # loads the plug-in
    plugin("fault")("alloc:1+")
    try:
        with pytest.raises(RuntimeError, match="CL_MEM_OBJECT_ALLOCATION_FAILURE") as caught:
            plugin("lend")(0, 4 * N)
    finally:
        plugin("fault")("")
    assert isinstance(typed_error(caught.value), DeviceMemoryError)
    lend()


def test_a_map_that_fails_is_a_typed_error_and_the_memory_can_be_mapped_again() -> None:
    tensor, there = lend()
    there[:] = 5
    turn(Side.DEVICE, tensor)
    plugin("fault")("map:1")
    with pytest.raises(RuntimeError, match="CL_MAP_FAILURE") as caught:
        turn(Side.HOST, tensor)
    assert isinstance(typed_error(caught.value), DeviceError)
    turn(Side.HOST, tensor)
    assert (there == 5).all()


def test_memory_that_the_driver_moves_is_an_error() -> None:
    tensor, there = lend()
    there[:] = 5
    turn(Side.DEVICE, tensor)
    plugin("fault")("move:1")
    with pytest.raises(RuntimeError, match="where the host cannot use it: at another address than before"):
        turn(Side.HOST, tensor)
    turn(Side.HOST, tensor)
    assert (there == 5).all()


def test_memory_that_is_not_lent_cannot_be_turned() -> None:
    with pytest.raises(RuntimeError, match="not in lent memory"):
        turn(Side.HOST, to_device(np.zeros(4, np.float32)))


def test_what_lends_is_a_device_that_shares_memory_and_whose_driver_leaves_it_in_place() -> None:
    program = "from heterocc.runtime.native import load_opencl; load_opencl(); import tvm_ffi\n"
    program += "print(tvm_ffi.get_global_func('heterocc.opencl.lends')(0))"
    faults = ("", "discrete", "foreign", "foreign,discrete", "integrated", "integrated,move:2")
    printed = {fault: fresh(program, HETEROCC_OPENCL_FAULT=fault).strip() for fault in faults}
    assert [fault for fault, lends in printed.items() if lends == "True"] == ["foreign", "integrated"]


def test_only_a_cpu_of_pocls_whose_memory_is_the_hosts_works_at_host_pointers() -> None:
    program = "from heterocc.runtime.native import opencl_devices\ndevice = opencl_devices()[0]\n"
    program += "print(device.type, device.unified, device.shares_host_memory)"
    printed = {fault: fresh(program, HETEROCC_OPENCL_FAULT=fault).strip() for fault in ("", "discrete", "foreign")}
    assert printed == {"": "cpu True True", "discrete": "cpu False False", "foreign": "cpu True False"}


MOVED = """
import tvm_ffi
from heterocc.runtime.native import load_opencl
load_opencl()
get = lambda name: tvm_ffi.get_global_func("heterocc.opencl." + name)
tensor = get("lend")(0, 256)
print(get("lends")(0))
get("fault")("move:1")
for side in (0, 2):
    try:
        get("turn")(tvm_ffi.Array([tensor]), tvm_ffi.Array([side]))()
    except RuntimeError as error:
        print("load the bundle again" in str(error))
print(get("lends")(0))
"""


def test_a_device_whose_memory_has_moved_once_lends_no_more() -> None:
    assert fresh(MOVED, HETEROCC_OPENCL_FAULT="integrated").split() == ["True", "True", "False"]


FORGETFUL = """
import ctypes, numpy as np, tvm_ffi
from heterocc.runtime.native import load_opencl
load_opencl()
get = lambda name: tvm_ffi.get_global_func("heterocc.opencl." + name)
tensor = get("lend")(0, 256)
there = np.frombuffer((ctypes.c_float * 64).from_address(get("host_ptr")(tensor)), np.float32)
turn = lambda side: get("turn")(tvm_ffi.Array([tensor]), tvm_ffi.Array([side]))()
there[:] = 3
turn(0)
print(np.isnan(there).all())
there[:] = 4
turn(2)
print((there == 3).all())
"""


def test_an_incoherent_device_shows_who_touches_memory_that_is_not_mapped() -> None:
    assert fresh(FORGETFUL, HETEROCC_OPENCL_FAULT="incoherent").split() == ["True", "True"]
