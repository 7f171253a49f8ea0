"""Generated pooling against ONNX's own definition in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from onnx import helper
from tvm import tirx

from heterocc.compiler.devices.device import TargetAttr, TargetDevice
from heterocc.compiler.lower.cpu.generate.convolution.pooling import find_pooling
from heterocc.compiler.lower.cpu.generate.read import read_fold
from heterocc.compiler.lower.cpu.lowering import CpuLowering
from heterocc.compiler.lower.cpu.rewrites.channels_last import keep_channels_last
from heterocc.compiler.lower.cpu.target import cpu_target
from heterocc.compiler.lower.pipeline import kernel_module
from tests.compiler.lower.cpu.generate.generated import ARM, Generated, runnable, target_of
from tests.compiler.lower.lowered import execute, job, model
from tests.few_examples import few

RNG = np.random.default_rng(9)
CPUS = st.sampled_from(runnable())
SIZES = st.one_of(st.integers(1, 9), st.sampled_from([15, 16, 17, 31, 33, 40]))


def largest(window: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """The maximum of all that is a number (decision 7)."""
    return np.where(np.isnan(window), -np.inf, window).max(axes)


def pooled(
    x: np.ndarray, kind: str, taps: list[int], strides: list[int], pads: list[int], dilations: list[int], counted: bool
) -> np.ndarray:
    """Windows one by one."""
    rank = len(taps)
    sizes = [
        (n + a + b - (k - 1) * d - 1) // s + 1
        for n, a, b, k, d, s in zip(x.shape[2:], pads[:rank], pads[rank:], taps, dilations, strides, strict=True)
    ]
    out = np.zeros((*x.shape[:2], *sizes))
    for place in np.ndindex(*sizes):
        picks, inside = [], 1
        for p, n, a, b, k, d, s in zip(
            place, x.shape[2:], pads[:rank], pads[rank:], taps, dilations, strides, strict=True
        ):
            at = p * s - a + d * np.arange(k)
            inside *= int(((at >= -a) & (at < n + b)).sum()) if counted else int(((at >= 0) & (at < n)).sum())
            picks.append(at[(at >= 0) & (at < n)])
        window = x.astype(np.float64)[(slice(None), slice(None), *np.ix_(*picks))]
        axes = tuple(range(2, 2 + rank))
        out[(slice(None), slice(None), *place)] = (
            largest(window, axes) if kind == "MaxPool" else window.sum(axes) / inside
        )
    return out


@given(CPUS, st.sampled_from(["MaxPool", "AveragePool"]), st.integers(1, 2), st.booleans(), st.data())
@few(20, deadline=None)
def test_windows_of_any_size_stride_padding_and_dilation_agree(
    cpu: str, kind: str, rank: int, counted: bool, data: st.DataObject
) -> None:
    def draw(low: int, high: int, count: int = rank) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    shape = [*draw(1, 4, 2), *data.draw(st.lists(SIZES, min_size=rank, max_size=rank))]
    taps, strides, dilations = draw(1, 5), draw(1, 4), draw(1, 2)
    reach = [(k - 1) * d for k, d in zip(taps, dilations, strict=True)]
    pads = [data.draw(st.integers(0, min(k - 1, r))) for k, r in zip(taps * 2, reach * 2, strict=True)]
    assume(all(n + a + b > r for n, a, b, r in zip(shape[2:], pads[:rank], pads[rank:], reach, strict=True)))
    assume(all(n > r for n, r in zip(shape[2:], reach, strict=True)))  # every window has an element outside the padding
    assume(max(taps) > 1)  # a window of one element is a copy of some
    x = RNG.standard_normal(shape).astype(np.float32)
    if kind == "MaxPool" and data.draw(st.booleans()):
        x[RNG.random(shape) < 0.3] = np.nan
    extra = {"count_include_pad": int(counted)} if kind == "AveragePool" else {}
    attributes = {"kernel_shape": taps, "strides": strides, "pads": pads, "dilations": dilations, **extra}
    nodes = [helper.make_node(kind, ["x"], ["p"], **attributes), helper.make_node("Neg", ["p"], ["y"])]
    kernel = Generated(nodes, {"x": x}, {}, target_of(cpu))
    if kernel.done is None:  # windows of one place are read as reductions over whole rows, which have schedules
        assert 1 in taps
        return
    right = -pooled(x, kind, taps, strides, pads, dilations, counted)
    np.testing.assert_allclose(kernel.run(), right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(
    ("taps", "strides", "size"),
    [
        ([1, 2], [1, 2], (5, 50)),
        ([1, 3], [2, 1], (7, 35)),
        ([1, 3], [1, 2], (3, 41)),
        ([1, 2], [3, 3], (8, 61)),
        ([2, 2], [2, 2], (14, 14)),
        ([2, 2], [2, 2], (13, 47)),
        ([2, 2], [1, 1], (9, 37)),
        ([4, 1], [3, 2], (10, 15)),
        ([2, 2], [2, 3], (6, 33)),
    ],
)
def test_windows_without_padding_that_are_read_in_place_agree(
    cpu: str, taps: list[int], strides: list[int], size: tuple[int, int]
) -> None:
    x = RNG.standard_normal((1, 3, *size)).astype(np.float32)
    node = helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=taps, strides=strides)
    kernel = Generated([node], {"x": x}, {}, target_of(cpu))
    assert kernel.done is not None
    right = pooled(x, "AveragePool", taps, strides, [0] * 4, [1, 1], counted=False)
    np.testing.assert_allclose(kernel.run(), right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(
    ("taps", "strides", "size", "pad"),
    [
        pytest.param([13, 13], [1, 1], (15, 22), 6, id="most rows in a loop"),
        pytest.param([11, 12], [3, 2], (30, 31), 2, id="all rows in a loop, by a stride"),
        pytest.param([8, 8], [8, 8], (24, 64), 0, id="rows combined first"),
        pytest.param([3, 9], [2, 9], (20, 60), 1, id="a stride of more vectors than are shuffled"),
        pytest.param([3, 3], [2, 2], (40, 70), 1, id="one plane that threads share"),
    ],
)
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
def test_large_windows_and_strides_agree(
    cpu: str, kind: str, taps: list[int], strides: list[int], size: tuple[int, int], pad: int
) -> None:
    x = RNG.standard_normal((1, 1, *size)).astype(np.float32)
    if kind == "MaxPool":
        x[RNG.random(x.shape) < 0.3] = np.nan
    node = helper.make_node(kind, ["x"], ["y"], kernel_shape=taps, strides=strides, pads=[pad] * 4)
    right = pooled(x, kind, taps, strides, [pad] * 4, [1, 1], counted=False)
    np.testing.assert_allclose(Generated([node], {"x": x}, {}, target_of(cpu)).run(), right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cpu", runnable())
def test_windows_over_planes_one_behind_the_other_are_one_kernel_and_agree(cpu: str) -> None:
    x = RNG.standard_normal((2, 3, 5, 9, 20)).astype(np.float32)
    taps, strides, pads = [3, 2, 3], [2, 1, 2], [1, 1, 1, 1, 0, 1]
    node = helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=taps, strides=strides, pads=pads)
    kernel = Generated([node], {"x": x}, {}, target_of(cpu))
    assert kernel.done is not None
    right = pooled(x, "AveragePool", taps, strides, pads, [1] * 3, counted=False)
    np.testing.assert_allclose(kernel.run(), right, rtol=1e-5, atol=1e-6)


def test_a_row_of_minus_infinity_stays_one_and_a_number_beats_it() -> None:
    x = np.full((1, 2, 9, 40), -np.inf, np.float32)
    x[0, 1, 4, 16] = -3.0
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    found = Generated([node], {"x": x}, {}, target_of(runnable()[0])).run()
    assert np.all(np.isneginf(found[0, 0])) and (found[0, 1] == -3.0).sum() == 1


def test_code_for_arm_is_built() -> None:
    x = RNG.standard_normal((1, 3, 20, 20)).astype(np.float32)
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    assert Generated([node], {"x": x}, {}, ARM).code() is not None


def has_channels_last(function: tirx.PrimFunc) -> bool:
    """Whether a kernel is pooling along whose last dimension, of several, no window lies."""
    fold = read_fold(function)
    pool = None if fold is None else find_pooling(fold)
    return pool is not None and pool.windows.across.taps == 1 and pool.windows.taps > 1


def quantised(numbers: np.ndarray, scale: float, zero: int) -> np.ndarray:
    return np.clip(np.round(numbers / scale) + zero, 0, 255).astype(np.uint8)


@given(CPUS, st.sampled_from(["MaxPool", "AveragePool"]), st.integers(1, 3), st.integers(1, 2), st.integers(0, 1))
@few(10, deadline=None)
def test_pooling_of_planes_stores_bytes(cpu: str, kind: str, taps: int, stride: int, pad: int) -> None:
    assume(taps > 1)
    x = RNG.standard_normal((2, 3, 17, 35)).astype(np.float32).round(2)
    attributes = {"kernel_shape": [taps] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
    nodes = [
        helper.make_node(kind, ["x"], ["p"], **attributes),
        helper.make_node("QuantizeLinear", ["p", "s", "z"], ["y"]),
    ]
    constants = {"s": np.array(0.03, np.float32), "z": np.array(100, np.uint8)}
    kernel = Generated(nodes, {"x": x}, constants, target_of(cpu))
    found = kernel.run("uint8").astype(np.int64)
    right = pooled(x, kind, [taps] * 2, [stride] * 2, [pad] * 4, [1, 1], counted=False)
    # Numbers half-way between two are rounded in float32.
    assert np.abs(found - (right / 0.03 + 100)).max() <= 0.501


@given(
    st.sampled_from([{}, *({"mtriple": "x86_64-linux-gnu", "mcpu": cpu} for cpu in runnable())]),
    st.sampled_from(["MaxPool", "AveragePool"]),
    st.sampled_from([4, 7, 16, 33, 160]),
    st.tuples(st.integers(1, 4), st.integers(2, 5)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(0, 1), st.integers(0, 1)),
    st.booleans(),
)
@example({}, "MaxPool", 7, (3, 3), (2, 2), (1, 1), False)  # fewer channels than half a vector of 16
@example({}, "MaxPool", 33, (3, 3), (1, 1), (1, 1), False)  # vectors that overlap
@example({}, "MaxPool", 160, (4, 4), (2, 1), (0, 0), False)  # several runs of vectors, and taps in loops
@few(20, deadline=None)
def test_pooling_of_quantised_maps_is_exact_and_has_the_channels_last(
    target: dict[str, TargetAttr],
    kind: str,
    channels: int,
    taps: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[int, int],
    counted: bool,
) -> None:
    """After a convolution of integers. Scales are powers of two, so that all numbers are exact."""
    pads = (min(pads[0], taps[0] - 1), pads[1])
    x = RNG.integers(0, 256, (2, 5, 12, 13)).astype(np.uint8)
    w = RNG.integers(-128, 128, (channels, 5, 1, 1)).astype(np.int8)
    constants = {
        "one": np.array(1, np.float32),
        "zero": np.array(0, np.uint8),
        "none": np.array(0, np.int8),
        "w": w,
        "by": np.array(256, np.float32),
        "middle": np.array(128, np.uint8),
        "half": np.array(0.5, np.float32),
        "last": np.array(7, np.uint8),
    }
    extra = {"count_include_pad": int(counted)} if kind == "AveragePool" else {}
    attributes = {"kernel_shape": taps, "strides": strides, "pads": [*pads, *pads], **extra}
    nodes = [
        helper.make_node("QLinearConv", ["x", "one", "zero", "w", "one", "none", "by", "middle"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "one", "middle"], ["f"]),
        helper.make_node(kind, ["f"], ["p"], **attributes),
        helper.make_node("QuantizeLinear", ["p", "half", "last"], ["y"]),
    ]
    device = TargetDevice("CPU", "cpu", target=target)
    work = job(model(nodes, {"x": x}, ["y"], constants), device)
    module = kernel_module(work, cpu_target(device), rewrite=keep_channels_last)
    kernels = [f for gvar, f in module.mod.functions_items() if gvar.name_hint != "main"]
    assert any(map(has_channels_last, kernels))
    lowered = CpuLowering().lower(work)
    sums = np.einsum("nchw,ocyx->nohw", x.astype(np.int64), w.astype(np.int64))
    numbers = quantised(sums, 256.0, 128).astype(np.float64) - 128
    right = pooled(numbers, kind, list(taps), list(strides), [*pads, *pads], [1, 1], counted)
    np.testing.assert_array_equal(execute(work, lowered, {"x": x})["y"], quantised(right, 0.5, 7))
