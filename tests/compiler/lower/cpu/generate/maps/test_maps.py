"""Generated kernels without sums against numpy in float64."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from tests.compiler.lower.cpu.generate.generated import ARM, Generated, runnable, target_of
from tests.few_examples import few

node = helper.make_node
RNG = np.random.default_rng(5)
SIZES = st.one_of(st.integers(1, 9), st.sampled_from([15, 16, 17, 31, 33, 49, 100]))
SHAPES = st.lists(SIZES, min_size=1, max_size=3)
CPUS = st.sampled_from(runnable())


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def check(kernel: Generated, right: np.ndarray) -> None:
    assert kernel.done is not None, "the kernel is not generated"
    np.testing.assert_allclose(kernel.run().reshape(right.shape), right, rtol=2e-5, atol=2e-6)


@given(CPUS, SHAPES, st.data())
@few(12, deadline=None)
def test_chains_with_operands_of_any_broadcast_shape_agree(cpu: str, shape: list[int], data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
    x, r = floats(*shape), floats(*(n if k else 1 for n, k in zip(shape, kept, strict=True)))
    nodes = [
        node("Mul", ["x", "r"], ["m"]),
        node("Sigmoid", ["m"], ["s"]),
        node("Mul", ["m", "s"], ["t"]),
        node("Sub", ["t", "x"], ["y"]),
    ]
    kernel = Generated(nodes, {"x": x, "r": r}, {}, target_of(cpu))
    m = x.astype(np.float64) * r
    check(kernel, m / (1 + np.exp(-m)) - x)


@pytest.mark.parametrize("cpu", runnable())
def test_a_scalar_that_is_computed_before_is_no_obstacle(cpu: str) -> None:
    x, scalar = floats(5, 37), np.array(7, np.uint8)
    nodes = [node("Cast", ["z"], ["f"], to=1), node("Add", ["x", "f"], ["y"])]
    check(Generated(nodes, {"x": x, "z": scalar}, {}, target_of(cpu)), x.astype(np.float64) + 7)


@given(CPUS, SHAPES, st.data())
@few(8, deadline=None)
def test_padding_any_sides_agrees(cpu: str, shape: list[int], data: st.DataObject) -> None:
    rank = len(shape)
    pads = data.draw(st.lists(st.integers(0, 3), min_size=2 * rank, max_size=2 * rank).filter(any))
    x = floats(*shape)
    nodes = [node("Pad", ["x", "p"], ["q"]), node("Relu", ["q"], ["y"])]
    kernel = Generated(nodes, {"x": x}, {"p": np.array(pads, np.int64)}, target_of(cpu))
    check(kernel, np.maximum(np.pad(x, list(zip(pads[:rank], pads[rank:], strict=True))), 0))


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize("mode", ["edge", "reflect"])
def test_padding_with_the_edge_or_the_mirrored_image_agrees(cpu: str, mode: Literal["edge", "reflect"]) -> None:
    for shape, pads in (((3, 5, 21), (1, 2, 3, 0, 4, 5)), ((2, 40), (0, 7, 1, 0)), ((4, 6), (3, 5, 1, 1))):
        x = floats(*shape)
        kernel = Generated(
            [node("Pad", ["x", "p"], ["y"], mode=mode)], {"x": x}, {"p": np.array(pads, np.int64)}, target_of(cpu)
        )
        widths = list(zip(pads[: len(shape)], pads[len(shape) :], strict=True))
        np.testing.assert_array_equal(kernel.run(), np.pad(x, widths, mode=mode))


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize("size", [8, 33, 100])
def test_padding_bytes_is_generated_and_agrees(cpu: str, size: int) -> None:
    x = RNG.integers(0, 256, (2, 5, size)).astype(np.uint8)
    constants = {"p": np.array([0, 1, 0, 0, 2, 3], np.int64), "v": np.array(7, np.uint8)}
    kernel = Generated([node("Pad", ["x", "p", "v"], ["y"])], {"x": x}, constants, target_of(cpu))
    right = np.pad(x, [(0, 0), (1, 2), (0, 3)], constant_values=7)
    np.testing.assert_array_equal(kernel.run("uint8"), right)


@given(CPUS, SHAPES, st.data())
@few(8, deadline=None)
def test_concatenation_along_any_axis_agrees(cpu: str, shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=2, max_size=4))
    parts = {
        f"x{i}": floats(*(n if d != axis else length for d, n in enumerate(shape))) for i, length in enumerate(lengths)
    }
    nodes = [node("Concat", list(parts), ["c"], axis=axis), node("Neg", ["c"], ["y"])]
    kernel = Generated(nodes, parts, {}, target_of(cpu))
    check(kernel, -np.concatenate(list(parts.values()), axis))


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(
    ("shape", "lengths"), [((2, 0, 3, 7), (4, 1, 9)), ((1, 0, 18), (14, 14)), ((3, 0, 2), (1, 2, 1))]
)
def test_short_rows_of_a_concatenation_agree(cpu: str, shape: tuple[int, ...], lengths: tuple[int, ...]) -> None:
    parts = {f"x{i}": floats(shape[0], length, *shape[2:]) for i, length in enumerate(lengths)}
    nodes = [node("Concat", list(parts), ["c"], axis=1), node("Mul", ["c", "c"], ["y"])]
    kernel = Generated(nodes, parts, {}, target_of(cpu))
    check(kernel, np.square(np.concatenate(list(parts.values()), 1).astype(np.float64)))


@given(CPUS, st.permutations(range(3)), SIZES, SIZES, SIZES)
@few(6, deadline=None)
def test_transposition_agrees(cpu: str, order: list[int], a: int, b: int, c: int) -> None:
    x = floats(a, b, c)
    nodes = [node("Transpose", ["x"], ["t"], perm=order), node("Abs", ["t"], ["y"])]
    kernel = Generated(nodes, {"x": x}, {}, target_of(cpu))
    check(kernel, np.abs(x.transpose(order)))


@given(CPUS, st.permutations(range(3)), SIZES, SIZES, SIZES, st.sampled_from(["split", "join"]))
@few(14, deadline=None)
def test_reshaping_between_transpositions_agrees(
    cpu: str, order: list[int], a: int, b: int, c: int, kind: Literal["split", "join"]
) -> None:
    x = floats(2, a * b, c)
    turned = x.transpose(order)
    shape = turned.shape
    split = tuple(m for n in shape for m in ((a, b) if n == a * b else (n,)))
    shape = split if kind == "split" else (shape[0] * shape[1], shape[2])
    nodes = [
        node("Transpose", ["x"], ["t"], perm=order),
        node("Reshape", ["t", "s"], ["r"]),
        node("Transpose", ["r"], ["u"]),
        node("Neg", ["u"], ["y"]),
    ]
    kernel = Generated(nodes, {"x": x}, {"s": np.array(shape, np.int64)}, target_of(cpu))
    check(kernel, -turned.reshape(shape).T)


@pytest.mark.parametrize("cpu", runnable())
def test_pixels_that_become_an_image_or_come_from_one_are_transposed_in_registers(cpu: str) -> None:
    rows, image = floats(1, 18 * 18, 32), (1, 32, 18, 18)
    nodes = [node("Transpose", ["x"], ["t"], perm=[0, 2, 1]), node("Reshape", ["t", "s"], ["y"])]
    to_image = Generated(nodes, {"x": rows}, {"s": np.array(image, np.int64)}, target_of(cpu))
    check(to_image, rows.transpose(0, 2, 1).reshape(image))
    nodes = [node("Reshape", ["x", "s"], ["t"]), node("Transpose", ["t"], ["y"], perm=[0, 2, 1])]
    shape = np.array((1, 32, 324), np.int64)
    to_rows = Generated(nodes, {"x": rows.reshape(image)}, {"s": shape}, target_of(cpu))
    check(to_rows, rows.reshape(shape).transpose(0, 2, 1))
    assert "Shuffle" in str(to_image.done) and "Shuffle" in str(to_rows.done)


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize("count", [3, 4])
def test_several_arrays_are_transposed_in_registers(cpu: str, count: int) -> None:
    """Read one by one, three transposed results of convolutions took a third of the time of a word segmenter."""
    given = {f"x{n}": floats(20, 33) for n in range(count)}
    nodes = [*(node("Transpose", [name], [f"t{name}"]) for name in given), node("Max", [f"t{n}" for n in given], ["y"])]
    kernel = Generated(nodes, given, {}, target_of(cpu))
    check(kernel, np.max([*given.values()], axis=0).T)
    assert "Shuffle" in str(kernel.done)


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("uint8", (21, 37)),
        ("int8", (64, 16)),
        ("int32", (9, 33)),
        ("int64", (5, 18)),
        ("uint8", (3, 137)),
        ("int8", (2, 70)),
        ("int32", (4, 33)),
        ("int64", (3, 18)),
    ],
)
def test_transposing_integers_is_generated_and_agrees(cpu: str, dtype: str, shape: tuple[int, int]) -> None:
    x = RNG.integers(-128 if dtype != "uint8" else 0, 128, shape).astype(dtype)
    kernel = Generated([node("Transpose", ["x"], ["y"])], {"x": x}, {}, target_of(cpu))
    np.testing.assert_array_equal(kernel.run(dtype), x.T)


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize("shape", [(3, 33), (2, 5, 16), (7,)])
def test_conditions_between_elements_are_generated_and_agree(cpu: str, shape: tuple[int, ...]) -> None:
    x, r = floats(*shape), floats(*shape)
    nodes = [
        node("Greater", ["x", "r"], ["g"]),
        node("Not", ["g"], ["n"]),
        node("Where", ["n", "x", "r"], ["w"]),
        node("ThresholdedRelu", ["w"], ["y"], alpha=0.25),
    ]
    least = np.minimum(x, r)
    check(Generated(nodes, {"x": x, "r": r}, {}, target_of(cpu)), np.where(least > 0.25, least, 0))


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(("times", "width"), [(2, 40), (2, 5), (3, 17), (5, 33), (8, 4), (2, 3), (9, 20)])
def test_nearest_pixels_of_a_map_enlarged_by_a_whole_factor_agree(cpu: str, times: int, width: int) -> None:
    x, r = floats(2, 3, 7, width), floats(2, 3, 7 * times, width * times)
    scales = np.array([1, 1, times, times], np.float32)
    nodes = [node("Resize", ["x", "", "s"], ["l"], mode="nearest"), node("Add", ["l", "r"], ["y"])]
    kernel = Generated(nodes, {"x": x, "r": r}, {"s": scales}, target_of(cpu))
    check(kernel, x.repeat(times, 2).repeat(times, 3).astype(np.float64) + r)


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(("width", "step"), [(8, 2), (131, 3), (70, 4)])
def test_numbers_a_step_apart_agree(cpu: str, width: int, step: int) -> None:
    x, y = floats(3, width), floats(3, -(-width // step))
    nodes = [node("Slice", ["x", "from", "to", "axes", "step"], ["s"]), node("Sub", ["s", "y"], ["z"])]
    weights = {"from": np.array([0]), "to": np.array([width]), "axes": np.array([1]), "step": np.array([step])}
    check(Generated(nodes, {"x": x, "y": y}, weights, target_of(cpu)), x[:, ::step] - y)


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_a_map_reduced_by_a_whole_factor_is_one_kernel_that_agrees(cpu: str, mode: str) -> None:
    x = floats(1, 3, 20, 50)
    nodes = [node("Resize", ["x", "", "f"], ["y"], mode=mode)]
    kernel = Generated(nodes, {"x": x}, {"f": np.array([1, 1, 0.5, 0.5], np.float32)}, target_of(cpu))
    means = x.astype(np.float64).reshape(1, 3, 10, 2, 25, 2).mean((3, 5))
    check(kernel, means if mode == "linear" else x[:, :, ::2, ::2])


@pytest.mark.parametrize(("channels", "shared"), [(12, False), (24, True)])
def test_threads_share_what_is_read_at_places_from_a_table_before_other_maps(channels: int, shared: bool) -> None:
    x = floats(1, channels, 20, 31)
    nodes = [node("Resize", ["x", "", "f"], ["y"], mode="linear")]
    kernel = Generated(nodes, {"x": x}, {"f": np.array([1, 1, 1, 2], np.float32)}, target_of(runnable()[0]))
    assert kernel.done is not None
    assert ("parallel" in kernel.done[0].script()) == shared


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize("length", [17, 20, 21, 24, 28, 31, 56])
def test_rows_of_numbers_from_a_table_end_in_any_part_of_a_vector(cpu: str, length: int) -> None:
    x = floats(1, 2, 3, 29)
    nodes = [node("Resize", ["x", "", "", "n"], ["y"], mode="linear")]
    kernel = Generated(nodes, {"x": x}, {"n": np.array([1, 2, 3, length])}, target_of(cpu))
    places = np.clip((np.arange(length) + 0.5) * 29 / length - 0.5, 0, 28)
    first = np.minimum(places.astype(int), 27)
    part = places - first
    assert kernel.done is not None
    right = x[..., first] * (1 - part) + x[..., first + 1] * part  # places have 24 bits in the kernel
    np.testing.assert_allclose(kernel.run(), right, rtol=0, atol=2e-5)


def test_rows_chosen_by_number_are_read_in_vectors() -> None:
    table, rows = floats(50, 37), RNG.integers(0, 50, (3, 5))
    kernel = Generated([node("Gather", ["x", "i"], ["y"])], {"x": table}, {"i": rows}, target_of(runnable()[0]))
    check(kernel, table[rows])


@pytest.mark.parametrize("cpu", runnable())
def test_a_large_map_is_cut_for_threads_and_every_element_is_written(cpu: str) -> None:
    for size in (70_001, 65_536, 100_003):
        x = floats(size)
        check(Generated([node("Relu", ["x"], ["y"])], {"x": x}, {}, target_of(cpu)), np.maximum(x, 0))


def test_code_for_arm_is_built() -> None:
    assert Generated([node("Relu", ["x"], ["y"])], {"x": floats(3, 33)}, {}, ARM).code() is not None


@given(CPUS, st.integers(2, 5), st.integers(1, 3), st.sampled_from([1, 4, 5, 8, 11, 16, 17, 31, 40]), st.data())
@few(10, deadline=None)
def test_rows_that_are_put_together_element_by_element_agree(
    cpu: str, block: int, channels: int, width: int, data: st.DataObject
) -> None:
    height = data.draw(st.integers(1, 4))
    x, b = floats(2, channels * block * block, height, width), floats(channels, 1, 1)
    mode = data.draw(st.sampled_from(["DCR", "CRD"]))
    nodes = [node("DepthToSpace", ["x"], ["d"], blocksize=block, mode=mode), node("Add", ["d", "b"], ["y"])]
    kernel = Generated(nodes, {"x": x, "b": b}, {}, target_of(cpu))
    if mode == "DCR":
        apart, order = x.reshape(2, block, block, channels, height, width), (0, 3, 4, 1, 5, 2)
    else:
        apart, order = x.reshape(2, channels, block, block, height, width), (0, 1, 4, 2, 5, 3)
    right = apart.transpose(order).reshape(2, channels, height * block, width * block)
    check(kernel, right + b.astype(np.float64))


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize("width", [33, 47])
def test_a_part_of_rows_that_are_put_together_agrees(cpu: str, width: int) -> None:
    # The first element that is kept is one of the second row, and the length is odd.
    x = floats(2, 3, 40)
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        node("Reshape", ["t", "s"], ["r"]),
        node("Slice", ["r", "b", "e", "a"], ["y"]),
    ]
    numbers = {"s": [2, 120], "b": [1], "e": [1 + width], "a": [1]}
    weights = {name: np.array(values, np.int64) for name, values in numbers.items()}
    kernel = Generated(nodes, {"x": x}, weights, target_of(cpu))
    check(kernel, x.transpose(0, 2, 1).reshape(2, 120)[:, 1 : 1 + width].astype(np.float64))


def test_classes_as_one_and_zeros_are_written_in_vectors() -> None:
    """A condition for each number took 10 times as long for 20x30 indices in 100 classes."""
    weights = {"d": np.array(100), "v": np.array([0, 1], np.float32)}
    nodes = [helper.make_node("OneHot", ["x", "d", "v"], ["y"], axis=1)]
    kernel = Generated(nodes, {"x": np.zeros((20, 30), np.int64)}, weights, target_of("x86-64-v3"))
    assert kernel.done is not None
    assert "vectorized" in kernel.done[0].script()
