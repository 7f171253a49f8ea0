"""Depthwise convolutions that read their inputs where they are, against a sum over taps in float64."""

from __future__ import annotations

import ctypes
import mmap
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
import tvm
from onnx import helper

from heterocc.compiler.lower.cpu.generate.convolution.depthwise import propose_planes
from tests.compiler.lower.cpu.generate.convolution.test_convolution import Case, check
from tests.compiler.lower.cpu.generate.generated import Generated, runnable, target_of


def case(
    size: tuple[int, int], kernel: int, stride: int, *, groups: int = 19, batch: int = 1, outputs: int = 1
) -> Case:
    """A depthwise convolution with the padding that keeps the size."""
    pads = (kernel // 2,) * 2
    return Case(batch, groups, 1, outputs, size, (kernel,) * 2, (stride,) * 2, (1, 1), pads, pads)


SIZES = [
    ((2, 24), 3, 1),
    ((4, 16), 5, 1),
    ((7, 7), 3, 2),
    ((9, 33), 4, 2),
    ((6, 47), 7, 2),
    ((40, 12), 3, 1),
    ((17, 65), 3, 1),
    ((11, 65), 5, 2),
    ((27, 40), 5, 1),
    ((43, 35), 5, 2),
    ((15, 33), 3, 3),
    ((29, 65), 5, 4),
]


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(("size", "kernel", "stride"), SIZES)
def test_planes_of_all_sizes_agree(cpu: str, size: tuple[int, int], kernel: int, stride: int) -> None:
    check(cpu, case(size, kernel, stride, groups=3, batch=2))


def test_planes_of_one_vector_and_many_taps_have_four_rows_in_a_tile() -> None:
    """In tiles of three rows, which two vectors have with AVX2, 7x7 by 2 of 7x7 takes 1.7 times as long."""
    x, w = np.zeros((1, 64, 7, 7), np.float32), np.zeros((64, 1, 7, 7), np.float32)
    nodes, forms = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[3] * 4, group=64)], (propose_planes,)
    kernel = Generated(nodes, {"x": x}, {"w": w}, target_of("x86-64-v3"), forms=forms)
    assert kernel.done is not None
    assert "alloc_buffer((32,))" in kernel.done[0].script()


def test_planes_of_many_taps_by_a_stride_have_several_rows_in_a_tile_and_copies_of_the_columns_apart() -> None:
    """11x11 by 2 of 960 channels at 18x18 took 1.7 to 2.5 times as long with one, and a shuffle for each tap."""
    x, w = np.zeros((1, 8, 18, 18), np.float32), np.zeros((8, 1, 11, 11), np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[5] * 4, strides=[2, 2], group=8)]
    kernel = Generated(nodes, {"x": x}, {"w": w}, target_of("x86-64-v3"), forms=(propose_planes,))
    assert kernel.done is not None
    code = kernel.done[0].script()
    assert "alloc_buffer((40,))" in code  # nine rows are tiles of five and of four, in vectors of eight
    assert code.count("Shuffle") == 4  # all of them of the copies: two phases of rows of inputs or of padding


@pytest.mark.parametrize("cpu", runnable())
def test_dilated_unpadded_and_multiplied_planes_that_threads_share_agree(cpu: str) -> None:
    check(cpu, Case(1, 31, 1, 1, (20, 45), (3, 3), (1, 1), (2, 3), (2, 3), (2, 3)))
    check(cpu, Case(1, 70, 1, 2, (23, 29), (3, 3), (1, 2), (1, 1), (0, 0), (0, 0)))
    check(cpu, Case(2, 33, 1, 1, (14, 31), (2, 5), (2, 1), (1, 1), (1, 0), (0, 4)))


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation"),
    [
        ((23, 37), (13, 13), 1, 1),
        pytest.param((26, 30), (11, 15), 2, 1, marks=pytest.mark.slow),
        ((33, 29), (9, 13), 1, 2),
        pytest.param((20, 33), (17, 16), 1, 1, marks=pytest.mark.slow),
        pytest.param((14, 14), (27, 27), 1, 1, id="most rows in the padding"),
        pytest.param((7, 20), (11, 13), 1, 3, id="most dilated rows in the padding"),
        pytest.param((70, 70), (11, 11), 1, 1, id="two chunks of rows"),
    ],
)
def test_planes_with_so_many_taps_that_their_rows_are_in_a_loop_agree(
    cpu: str, size: tuple[int, int], kernel: tuple[int, int], stride: int, dilation: int
) -> None:
    reach = [(k - 1) * dilation for k in kernel]
    before, after = (reach[0] // 2, reach[1] // 2), (reach[0] - reach[0] // 2, reach[1] - reach[1] // 2)
    check(cpu, Case(1, 3, 1, 1, size, kernel, (stride,) * 2, (dilation,) * 2, before, after))


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(("taps", "stride", "pad", "length"), [(5, 3, 2, 40), (7, 5, 3, 50), (9, 4, 3, 64)])
def test_signals_whose_padding_is_no_multiple_of_the_stride_agree(
    cpu: str, taps: int, stride: int, pad: int, length: int
) -> None:
    check(cpu, Case(1, 6, 1, 1, (length,), (taps,), (stride,), (1,), (pad,), (pad,)))


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation", "before", "after"),
    [
        ((5, 9, 20), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
        ((6, 11, 33), (5, 3, 3), (1, 2, 2), (1, 1, 1), (2, 1, 1), (2, 1, 1)),
        ((9, 7, 17), (3, 1, 1), (2, 1, 1), (2, 1, 1), (3, 0, 0), (0, 0, 0)),
        ((1, 8, 16), (3, 3, 5), (1, 1, 1), (1, 1, 1), (2, 0, 1), (3, 1, 2)),
    ],
)
def test_planes_one_behind_the_other_agree(
    cpu: str, size: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...],
    before: tuple[int, ...], after: tuple[int, ...],
) -> None:  # fmt: skip
    for batch, groups, outputs in ((2, 3, 1), (1, 67, 2)):
        assert check(cpu, Case(batch, groups, 1, outputs, size, kernel, stride, dilation, before, after))


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(("size", "kernel", "stride"), [((16, 16), 3, 1), ((34, 33), 5, 2), ((9, 9), 3, 1)])
def test_the_last_row_of_an_unpadded_plane_ends_with_the_plane(
    cpu: str, size: tuple[int, int], kernel: int, stride: int
) -> None:
    # Threads share planes, so that a number stored into the next one could replace a result there.
    rng = np.random.default_rng(4)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 2, *size), (2, 1, kernel, kernel)))
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], group=2, strides=[stride] * 2)]
    made = Generated(nodes, {"x": x}, {"w": w}, target_of(cpu))
    want = made.run()
    memory = np.frombuffer(mmap.mmap(-1, want.nbytes + 256), np.float32)  # aligned as TVM requires
    memory[:] = 5
    found = memory[: want.size].reshape(want.shape)
    made.code()["f"](tvm.runtime.tensor(x), tvm.runtime.tensor(w), tvm.runtime.from_dlpack(found))
    assert np.array_equal(found, want)
    assert (memory[want.size :] == 5).all()


def _guarded(array: np.ndarray, at_end: bool) -> np.ndarray:
    """A copy of an array that ends, or begins, at a page that cannot be accessed."""
    page = mmap.PAGESIZE
    pages = -(-array.nbytes // page)
    memory = mmap.mmap(-1, (pages + 2) * page)
    first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    for guard in (first, first + (pages + 1) * page):
        assert libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0) == 0
    offset = (pages + 1) * page - array.nbytes if at_end else page
    copy = np.frombuffer(memory, np.float32, array.size, offset).reshape(array.shape)
    copy[:] = array
    return copy


def run_between_guards(cpu: str, size: tuple[int, int], stride: int, pad: int) -> bool:
    """Run a kernel on arrays between guards; whether its results are those of the same kernel on others."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((1, 16, *size)).astype(np.float32)
    w = rng.standard_normal((16, 1, 3, 3)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], group=16, pads=[pad] * 4, strides=[stride] * 2)]
    kernel = Generated(nodes, {"x": x}, {"w": w}, target_of(cpu))
    code, want = kernel.code()["f"], kernel.run()
    same = True
    for at_end in (True, False):
        given, found = _guarded(x, at_end), _guarded(np.zeros_like(want), at_end)
        code(tvm.runtime.from_dlpack(given), tvm.runtime.tensor(w), tvm.runtime.from_dlpack(found))
        same = same and np.array_equal(found, want)
    return same


@pytest.mark.slow
def test_nothing_before_or_after_the_tensors_is_read_or_written() -> None:
    sizes = ((7, 7), (14, 14), (16, 16), (8, 28), (5, 33), (6, 66))
    cases = [(cpu, size, stride, pad) for cpu in runnable() for size in sizes for stride in (1, 2) for pad in (0, 1)]
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        assert all(process.map(run_between_guards, *zip(*cases, strict=True)))
