"""Products of 8-bit integers against exact sums, for each instruction set that this machine has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from hypothesis import example, given
from hypothesis import strategies as st
from onnx import helper

from heterocc.compiler.devices.device import TargetAttr, TargetDevice
from heterocc.compiler.devices.host import host_cpu
from heterocc.compiler.lower.cpu.generate.integers.limited import LimitedPanels
from heterocc.compiler.lower.cpu.generate.integers.matrix_product import terms_of
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.tiles import runs
from heterocc.compiler.lower.cpu.lowering import CpuLowering
from heterocc.compiler.lower.cpu.target import cpu_target
from tests.compiler.lower.cpu.generate.generated import AVX2, AVX512, Generated, runnable, with_core
from tests.compiler.lower.lowered import execute, job, model
from tests.few_examples import few

node = helper.make_node
SIZES = st.one_of(st.integers(2, 9), st.sampled_from([15, 16, 17, 31, 33, 64, 100, 130]))
AMX = "sapphirerapids"
LEVELS: dict[str, tuple[str, ...]] = dict.fromkeys((AMX, "znver4", AVX512), ("-prefer-256-bit",))
"""CPUs with attributes of their own: with products of matrices, of four bytes, and with vectors as wide."""


def devices() -> list[dict[str, TargetAttr]]:
    """Attributes of a target for each form of the products that this machine runs, the portable one last."""
    wide = [n for n, f in ((AMX, "amx-int8"), ("znver4", "avx512vnni")) if f in host_cpu().features]
    return [attributes(n) for n in dict.fromkeys([*wide, *runnable(), "x86-64"])]


def attributes(name: str) -> dict[str, TargetAttr]:
    """Attributes of a target for a CPU."""
    triple = {"mtriple": "x86_64-linux-gnu"}
    return {**triple, "mcpu": name, **({"mattr": LEVELS[name]} if name in LEVELS else {})}


DEVICES = st.sampled_from(devices())
ZERO = np.array(131, np.uint8)
TARGETS = DEVICES.map(lambda attributes: cpu_target(TargetDevice("CPU", "cpu", target=attributes)))


def drawn(seed: int, dtype: str, *shape: int) -> np.ndarray:
    """Numbers of the whole range; half of them are its ends, which add up to the largest sums."""
    rng, limits = np.random.default_rng(seed), np.iinfo(dtype)
    numbers = rng.integers(limits.min, limits.max + 1, shape)
    ends = np.where(rng.integers(0, 2, shape), limits.max, limits.min)
    return np.where(rng.integers(0, 2, shape), numbers, ends).astype(dtype)


def trained(seed: int, *shape: int, deviation: float = 30.0) -> np.ndarray:
    """Weights as training leaves them, of which few are large: some sums of neighbours exceed 128, most do not."""
    return np.clip(np.random.default_rng(seed).normal(0, deviation, shape).round(), -128, 127).astype(np.int8)


def exact(x: np.ndarray, w: np.ndarray, x_zero: np.ndarray, w_zero: np.ndarray) -> np.ndarray:
    return (x.astype(np.int64) - x_zero.astype(np.int64)) @ (w.astype(np.int64) - w_zero.astype(np.int64))


@given(
    TARGETS,
    st.lists(st.integers(1, 3), max_size=1),
    st.one_of(st.integers(1, 20), st.sampled_from([33, 50])),
    SIZES,
    SIZES,
    st.integers(0, 255),
    st.integers(0, 99),
)
@few(12, deadline=None)
def test_a_product_of_integers_is_exact_at_the_ends_of_their_range(
    target: tvm.target.Target, batch: list[int], rows: int, terms: int, columns: int, zero: int, seed: int
) -> None:
    x, w = drawn(seed, "uint8", *batch, rows, terms), drawn(seed + 1, "int8", terms, columns)
    given = {"x": x, "z": np.array(zero, np.uint8)}
    kernel = Generated([node("MatMulInteger", ["x", "w", "z"], ["y"])], given, {"w": w}, target)
    np.testing.assert_array_equal(kernel.run("int32"), exact(x, w, given["z"], np.zeros((), np.int8)))


@pytest.mark.parametrize(
    ("deviation", "factor", "limited"), [(20.0, 1.0, True), (20.0, 1e9, False), (120.0, 1.0, False)]
)
def test_forms_of_products_of_bytes_are_chosen_by_their_time(deviation: float, factor: float, limited: bool) -> None:
    """Limited weights take fewer instructions unless much is left of them."""
    x, w = drawn(1, "uint8", 8, 64), trained(2, 64, 48, deviation=deviation)
    target = cpu_target(TargetDevice("CPU", "cpu", target=attributes(AVX2)))
    isa = with_core(target, corrections={"limited product": factor})
    made = Generated([node("MatMulInteger", ["x", "w"], ["y"])], {"x": x}, {"w": w}, target, isa)
    assert made.done is not None
    assert [type(p) for p in made.done[1]] == [LimitedPanels if limited else Panels]


PAIRS = DEVICES.filter(lambda attributes: attributes["mcpu"] in (AVX512, AVX2))


@given(
    PAIRS.map(lambda attributes: cpu_target(TargetDevice("CPU", "cpu", target=attributes))),
    st.integers(1, 20),
    st.one_of(st.integers(4, 40), st.sampled_from([64, 100, 256])),
    st.sampled_from([16, 17, 31, 33, 64, 100]),
    st.sampled_from([5.0, 20.0, 30.0, 45.0]),
    st.integers(0, 99),
)
@few(16, deadline=None)
def test_products_of_bytes_are_exact_where_pairs_of_weights_are_limited(
    target: tvm.target.Target, rows: int, terms: int, columns: int, deviation: float, seed: int
) -> None:
    x, w = drawn(seed, "uint8", rows, terms), trained(seed, terms, columns, deviation=deviation)
    given = {"x": x, "z": np.array(seed, np.uint8)}
    kernel = Generated([node("MatMulInteger", ["x", "w", "z"], ["y"])], given, {"w": w}, target)
    assert kernel.done is not None
    assert deviation > 5 or [type(p) for p in kernel.done[1]] == [LimitedPanels]
    np.testing.assert_array_equal(kernel.run("int32"), exact(x, w, given["z"], np.zeros((), np.int8)))


@given(
    PAIRS,
    st.tuples(st.integers(1, 9), st.sampled_from([16, 24, 40])),
    st.tuples(st.integers(1, 3), st.integers(1, 4)),
    st.integers(1, 2),
    st.integers(0, 99),
)
@few(10, deadline=None)
def test_convolutions_by_limited_weights_are_exact(
    target: dict[str, TargetAttr], channels: tuple[int, int], taps: tuple[int, int], stride: int, seed: int
) -> None:
    x, w = drawn(seed, "uint8", 1, channels[0], 9, 11), trained(seed, channels[1], channels[0], *taps)
    attributes = {"pads": [1, 0, 1, 1], "strides": [stride] * 2}
    made = model([node("ConvInteger", ["x", "w", "z"], ["y"], **attributes)], {"x": x}, ["y"], {"w": w, "z": ZERO})
    work = job(made, TargetDevice("CPU", "cpu", target=target))
    found = execute(work, CpuLowering().lower(work), {"x": x})["y"]
    wide = np.pad(x.astype(np.int64) - int(ZERO), ((0, 0), (0, 0), (1, 1), (0, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, taps, axis=(2, 3))[:, :, ::stride, ::stride]
    np.testing.assert_array_equal(found, np.einsum("nchwyx,ocyx->nohw", windows, w.astype(np.int64)))


def of_matrices(x: np.ndarray, w: np.ndarray) -> Generated:
    """A product for a CPU that multiplies matrices."""
    target = cpu_target(TargetDevice("CPU", "cpu", target=attributes(AMX)))
    nodes = [node("MatMulInteger", ["x", "w", "z"], ["y"])]
    return Generated(nodes, {"x": x, "z": np.array(7, np.uint8)}, {"w": w}, target)


@pytest.mark.parametrize(
    ("rows", "terms", "columns", "chunk"),
    [(64, 256, 512, 64), (5, 72, 40, 36), (33, 130, 17, 44), (3, 256, 64, 0), (64, 60, 64, 0), (64, 64, 15, 0)],
)
def test_a_large_product_is_one_of_matrices(rows: int, terms: int, columns: int, chunk: int) -> None:
    kernel = of_matrices(drawn(1, "uint8", rows, terms), drawn(2, "int8", terms, columns))
    assert kernel.done is not None
    (panels,) = kernel.done[1]
    assert isinstance(panels, Panels) and panels.chunk == chunk
    assert ("llvm.x86.tdpbusd" in kernel.done[0].script()) == bool(chunk)
    kernel.code()


@pytest.mark.skipif("amx-int8" not in host_cpu().features, reason="this machine does not multiply matrices (AMX)")
@given(
    st.sampled_from([4, 7, 15, 16, 17, 32, 33, 47, 100]),
    st.one_of(st.integers(64, 200), st.sampled_from([256, 1000])),
    st.integers(16, 100),
    st.integers(0, 99),
)
@few(25, deadline=None)
def test_products_of_matrices_are_exact(rows: int, terms: int, columns: int, seed: int) -> None:
    x, w = drawn(seed, "uint8", rows, terms), drawn(seed + 1, "int8", terms, columns)
    found = of_matrices(x, w).run("int32")
    np.testing.assert_array_equal(found, exact(x, w, np.array(7), np.array(0)))


@pytest.mark.skipif("amx-int8" not in host_cpu().features, reason="this machine does not multiply matrices (AMX)")
@given(
    st.tuples(st.integers(16, 70), st.integers(16, 40)),
    st.tuples(st.integers(5, 9), st.sampled_from([7, 16, 19, 36])),
    st.tuples(st.integers(1, 3), st.integers(2, 3)),
    st.integers(1, 2),
    st.integers(0, 99),
)
@few(12, deadline=None)
def test_convolutions_by_matrices_are_exact(
    channels: tuple[int, int], sizes: tuple[int, int], taps: tuple[int, int], stride: int, seed: int
) -> None:
    x, w = drawn(seed, "uint8", 2, channels[0], *sizes), drawn(seed + 1, "int8", channels[1], channels[0], *taps)
    given = node("ConvInteger", ["x", "w", "z"], ["y"], pads=[1, 0, 1, 1], strides=[stride] * 2)
    made = model([given], {"x": x}, ["y"], {"w": w, "z": ZERO})
    work = job(made, TargetDevice("CPU", "cpu", target=attributes(AMX)))
    lowered = CpuLowering().lower(work)
    assert "amx-int8" in lowered.cpu_features
    found = execute(work, lowered, {"x": x})["y"]
    wide = np.pad(x.astype(np.int64) - int(ZERO), ((0, 0), (0, 0), (1, 1), (0, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, taps, axis=(2, 3))[:, :, ::stride, ::stride]
    np.testing.assert_array_equal(found, np.einsum("nchwyx,ocyx->nohw", windows, w.astype(np.int64)))


def test_code_without_weights_of_bytes_does_not_need_matrices() -> None:
    x, w = np.ones((8, 64), np.float32), np.ones((64, 32), np.float32)
    made = model([node("MatMul", ["x", "w"], ["y"])], {"x": x}, ["y"], {"w": w})
    features = CpuLowering().lower(job(made, TargetDevice("CPU", "cpu", target=attributes(AMX)))).cpu_features
    assert "avx512vnni" in features and not any(f.startswith("amx") for f in features)


@given(st.integers(1, 3), st.integers(64, 200), st.integers(16, 70), st.integers(0, 99))
@few(20)
def test_chunks_of_terms_hold_each_weight_once(segments: int, terms: int, columns: int, seed: int) -> None:
    w, chunk = drawn(seed, "int8", segments, terms, columns), terms_of(terms)
    tiles = runs(-(-columns // 16), 2)
    panels = Panels(0, w.shape, (0, 1, 2), 1, terms, columns, 16, tiles, segments, group=4, chunk=chunk)
    assert chunk <= min(terms, 64) and chunk % 4 == 0
    assert len(panels.apply(w)) == panels.size
    spread = panels.spread(w).reshape(segments, -1, chunk, panels.vectors * 16)
    found = np.zeros((segments, terms, panels.vectors * 16), np.int64)
    for number in range(spread.shape[1]):
        start = min(number * chunk, terms - chunk)
        found[:, start : start + chunk] += spread[:, number]
    plain = replace(panels, chunk=0).spread(w).reshape(segments, -1, panels.vectors * 16)[:, :terms]
    np.testing.assert_array_equal(found, plain)


@given(
    st.tuples(st.integers(1, 3), st.integers(4, 21), st.integers(8, 40)),
    st.sampled_from([1, 2]),
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 99),
)
@few(30)
def test_limited_weights_never_exceed_16_bits_and_what_is_left_completes_them(
    sizes: tuple[int, int, int], depth: int, size: int, trains: bool, seed: int
) -> None:
    segments, terms, columns = sizes
    w = trained(seed, *sizes, deviation=60) if trains else drawn(seed, "int8", *sizes)
    tiles = runs(-(-columns // 8), size)
    panels = Panels(0, sizes, (0, 1, 2), 1, terms, columns, 8, tiles, segments, group=4)
    capacity = 2 * segments * panels.groups * panels.vectors
    limited = LimitedPanels(panels, depth, capacity, ((segments, 100),))
    packed = limited.apply(w)
    assert len(packed) == limited.size
    found = np.zeros((segments * 100 + terms, sum(r.count * r.size for r in tiles) * 8), np.int64)
    main = packed[: panels.size]
    for run in tiles:
        width = run.size * 8
        for tile in range(run.count):
            first = run.start * panels.pitch + tile * run.size * panels.pitch
            values = main[first : first + run.size * panels.pitch].astype(np.int64)
            values = values.reshape(segments, panels.groups, run.size, 8, 4).transpose(0, 1, 4, 2, 3)
            values = values.reshape(segments, panels.groups, 4, width)
            whole = terms // 4 // depth * depth
            deep = values[:, :whole].reshape(segments, -1, depth, 2, 2, width)
            alone = values[:, whole:].reshape(segments, -1, 1, 2, 2, width)
            column = slice((run.start + tile * run.size) * 8, (run.start + (tile + 1) * run.size) * 8)
            for part in (deep, alone):
                for sign in (1, -1):
                    assert np.maximum(sign * part, 0).sum(axis=(2, 4)).max(initial=0) * 255 <= 32767 + (sign < 0)
            for segment in range(segments):
                rows = values[segment].reshape(-1, width)
                assert not rows[terms:].any()
                found[segment * 100 : segment * 100 + terms, column] += rows[:terms]
    left = packed[panels.size :].tobytes()
    numbers = np.frombuffer(left, "<i4", panels.vectors + 1)
    offsets = np.frombuffer(left, "<i4", limited.capacity, 4 * len(numbers))
    entries = np.frombuffer(left, np.int8, offset=4 * (len(numbers) + limited.capacity)).reshape(-1, 8, 4)
    for vector in range(panels.vectors):
        for entry in range(numbers[vector], numbers[vector + 1]):
            pairs = entries[entry].astype(np.int64).reshape(-1, 2, 2)
            assert np.maximum(pairs, 0).sum(axis=2).max() <= 128 and np.minimum(pairs, 0).sum(axis=2).min() >= -128
            assert 0 <= offsets[entry] % 100 <= terms - 4
            found[offsets[entry] : offsets[entry] + 4, vector * 8 : (vector + 1) * 8] += entries[entry].T
    for segment in range(segments):
        wanted = panels.spread(w)[0, segment].reshape(-1, found.shape[1])[:terms]
        np.testing.assert_array_equal(found[segment * 100 : segment * 100 + terms], wanted)


@given(TARGETS, SIZES, SIZES, st.integers(0, 99))
@few(6, deadline=None)
def test_unsigned_weights_with_a_zero_point_per_column_that_makes_them_fit_are_exact(
    target: tvm.target.Target, terms: int, columns: int, seed: int
) -> None:
    x, zero = drawn(seed, "uint8", 5, terms), np.full(columns, 128, np.uint8)
    w = drawn(seed + 1, "uint8", terms, columns)
    nodes = [node("MatMulInteger", ["x", "w", "z", "v"], ["y"])]
    kernel = Generated(nodes, {"x": x, "z": np.array(3, np.uint8)}, {"w": w, "v": zero}, target)
    np.testing.assert_array_equal(kernel.run("int32"), exact(x, w, np.array(3), zero))


@given(TARGETS, SIZES, SIZES, SIZES, st.integers(0, 99))
@few(6, deadline=None)
def test_a_requantised_product_is_the_rounded_and_saturated_sum(
    target: tvm.target.Target, rows: int, terms: int, columns: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x, w = drawn(seed, "uint8", rows, terms), drawn(seed + 1, "int8", terms, columns)
    scales = {
        "xs": np.array(0.02, np.float32),
        "ws": rng.uniform(0.01, 0.1, columns).astype(np.float32),
        "ys": np.array(1.7, np.float32),
    }
    zeros = {"xz": np.array(117, np.uint8), "wz": np.zeros(columns, np.int8), "yz": np.array(11, np.uint8)}
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
    kernel = Generated([node("QLinearMatMul", names, ["y"])], {"x": x}, {"w": w, **scales, **zeros}, target)
    factor = scales["xs"] * scales["ws"] / scales["ys"]
    sums = exact(x, w, zeros["xz"], zeros["wz"]).astype(np.float32)
    right = np.clip(np.round(sums * factor) + 11, 0, 255)
    np.testing.assert_array_equal(kernel.run("uint8"), right.astype(np.uint8))


@given(
    DEVICES,
    st.tuples(st.integers(1, 7), st.integers(1, 20)),
    st.tuples(st.integers(3, 9), st.integers(3, 19)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.lists(st.integers(0, 2), min_size=4, max_size=4),
    st.integers(0, 99),
)
@few(12, deadline=None)
def test_a_convolution_of_integers_is_exact_with_padding_at_the_zero_point(
    target: dict[str, TargetAttr],
    channels: tuple[int, int],
    sizes: tuple[int, int],
    taps: tuple[int, int],
    strides: tuple[int, int],
    pads: list[int],
    seed: int,
) -> None:
    x, w = drawn(seed, "uint8", 2, channels[0], *sizes), drawn(seed + 1, "int8", channels[1], channels[0], *taps)
    zero = np.array(seed, np.uint8)
    given = node("ConvInteger", ["x", "w", "z"], ["y"], pads=pads, strides=list(strides))
    made = model([given], {"x": x}, ["y"], {"w": w, "z": zero})
    work = job(made, TargetDevice("CPU", "cpu", target=target))
    found = execute(work, CpuLowering().lower(work), {"x": x})["y"]
    wide = np.pad(x.astype(np.int64) - seed, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    windows = np.lib.stride_tricks.sliding_window_view(wide, taps, axis=(2, 3))[:, :, :: strides[0], :: strides[1]]
    np.testing.assert_array_equal(found, np.einsum("nchwyx,ocyx->nohw", windows, w.astype(np.int64)))


@given(DEVICES, st.integers(1, 40), st.integers(1, 5), st.integers(1, 2), st.integers(0, 2), st.integers(0, 99))
@example(devices()[0], 37, 5, 2, 1, 3)  # groups of four and of one row, vectors that overlap
@few(8, deadline=None)
def test_a_depthwise_convolution_of_integers_is_exact(
    target: dict[str, TargetAttr], channels: int, taps: int, stride: int, pad: int, seed: int
) -> None:
    x, w = drawn(seed, "uint8", 1, channels, 7, 19), drawn(seed + 1, "int8", channels, 1, taps, taps)
    attributes = {"pads": [pad] * 4, "strides": [stride] * 2, "group": channels}
    made = model([node("ConvInteger", ["x", "w", "z"], ["y"], **attributes)], {"x": x}, ["y"], {"w": w, "z": ZERO})
    work = job(made, TargetDevice("CPU", "cpu", target=target))
    found = execute(work, CpuLowering().lower(work), {"x": x})["y"]
    wide = np.pad(x.astype(np.int64) - int(ZERO), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, (taps, taps), axis=(2, 3))[:, :, ::stride, ::stride]
    np.testing.assert_array_equal(found, np.einsum("nchwyx,cyx->nchw", windows, w[:, 0].astype(np.int64)))
