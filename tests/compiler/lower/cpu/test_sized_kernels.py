"""Kernels of dynamic sizes against ONNX Runtime, on arrays that end at pages without access."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from unittest.mock import Mock, patch

import numpy as np
import onnxruntime
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower import variables
from heterocc.compiler.lower.backend import PartitionJob
from heterocc.compiler.lower.cpu import assumptions
from heterocc.compiler.lower.cpu.alignment import at_any_address
from heterocc.compiler.lower.cpu.generate.attention.attention import WRITTEN
from heterocc.compiler.lower.cpu.generate.isa import isa_of
from heterocc.compiler.lower.cpu.generate.rows import rows as few_rows
from heterocc.compiler.lower.cpu.generate.rows.joins import joined_rows
from heterocc.compiler.lower.cpu.loops import in_loops
from heterocc.compiler.lower.cpu.maths.pipeline import PIPELINE
from heterocc.compiler.lower.cpu.rewrites.attention import fuse_attention
from heterocc.compiler.lower.cpu.schedule import kernel_code
from heterocc.compiler.lower.cpu.target import cpu_target
from heterocc.compiler.lower.pipeline import kernel_module
from heterocc.compiler.lower.straight import arguments_of, bindings_of, is_kernel_call
from heterocc.runtime.execute.memory import host_tensor
from tests.compiler.lower.cpu.generate.generated import AVX2, runnable, target_of
from tests.compiler.lower.lowered import CPU
from tests.few_examples import few
from tests.guard_pages import guarded
from tests.symbolic_models import dynamic_model

_N = helper.make_node
Shapes = Mapping[str, Sequence[int | str]]

_RNG = np.random.default_rng(0)


def _weight(*shape: int) -> np.ndarray:
    return _RNG.normal(0, 0.3, shape).astype(np.float32)


PADS = np.array([0, 2, 3, 0, 1, 2])

CASES: dict[str, tuple[list[object], Shapes, dict[str, np.ndarray]]] = {
    "product": (
        [_N("MatMul", ["x", "w"], ["p"]), _N("Add", ["p", "b"], ["s"]), _N("Relu", ["s"], ["y"])],
        {"x": ("n", "m", 24)},
        {"w": _weight(24, 40), "b": _weight(40)},
    ),
    "product of a weight and few columns": (
        [_N("MatMul", ["w", "x"], ["p"]), _N("Add", ["p", "b"], ["s"]), _N("Sigmoid", ["s"], ["y"])],
        {"x": ("n", 24, "m")},
        {"w": _weight(31, 24), "b": _weight(31, 1)},
    ),
    "batched product": ([_N("MatMul", ["x", "z"], ["y"])], {"x": ("n", "m", "k"), "z": ("n", "k", "m")}, {}),
    "softmax": ([_N("Softmax", ["x"], ["y"], axis=-1)], {"x": ("n", "m")}, {}),
    "normalisation": (
        [_N("LayerNormalization", ["x", "g", "h"], ["y"])],
        {"x": ("n", "m", 40)},
        {"g": _weight(40), "h": _weight(40)},
    ),
    "softmax of a masked map": (
        [_N("Add", ["x", "z"], ["s"]), _N("Softmax", ["s"], ["p"], axis=-1), _N("Mul", ["p", "x"], ["y"])],
        {"x": ("n", "m", "k"), "z": (1, 1, "k")},
        {},
    ),
    "differences of neighbours": (
        [
            _N("Slice", ["x", "one", "end", "one"], ["f"]),
            _N("Slice", ["x", "none", "last", "one"], ["b"]),
            _N("Sub", ["f", "b"], ["y"]),
        ],
        {"x": ("n", "m", 24)},
        {name: np.array([at]) for name, at in (("one", 1), ("end", 1 << 40), ("none", 0), ("last", -1))},
    ),
    "flipped rows": (
        [_N("Slice", ["x", "last", "front", "axis", "last"], ["y"])],
        {"x": ("n", "m", "k")},
        {"last": np.array([-1]), "front": np.array([-(1 << 40)]), "axis": np.array([2])},
    ),
    "softmax of three rows beside each other": ([_N("Softmax", ["x"], ["y"], axis=1)], {"x": ("n", "m", 3)}, {}),
    "logarithm of softmax": ([_N("LogSoftmax", ["x"], ["y"], axis=-1)], {"x": ("n", "m")}, {}),
    "normalisation of any length": (
        [_N("InstanceNormalization", ["x", "g", "h"], ["y"])],
        {"x": ("n", 3, "m")},
        {"g": _weight(3), "h": _weight(3)},
    ),
    "norm of a difference": (
        [_N("Sub", ["x", "z"], ["d"]), _N("ReduceL2", ["d"], ["y"], axes=[2], keepdims=0)],
        {"x": ("n", "m", "k"), "z": (1, "m", 1)},
        {},
    ),
    "least number": ([_N("ReduceMin", ["x"], ["y"], axes=[1, 2])], {"x": ("n", "m", "k")}, {}),
    "reduction": ([_N("ReduceMean", ["x"], ["y"], axes=[1], keepdims=0)], {"x": ("n", "m")}, {}),
    "map": ([_N("Erf", ["x"], ["e"]), _N("Mul", ["e", "z"], ["y"])], {"x": ("n", "m"), "z": ("n", "m")}, {}),
    "extremes of a map and a row": (
        [_N("Max", ["x", "z"], ["m"]), _N("Min", ["m", "x"], ["y"])],
        {"x": ("n", "m", 24), "z": ("n", 1, 24)},
        {},
    ),
    "transposition": ([_N("Transpose", ["x"], ["y"], perm=[0, 2, 1])], {"x": ("n", "m", "k")}, {}),
    "attention": (
        [
            _N("MatMul", ["x", "z"], ["s"]),
            _N("Softmax", ["s"], ["p"], axis=-1),
            _N("MatMul", ["p", "v"], ["y"]),
        ],
        {"x": ("n", "m", 8), "z": ("n", 8, "k"), "v": ("n", "k", 24)},
        {},
    ),
    "attention with a mask": (
        [
            _N("MatMul", ["x", "z"], ["s"]),
            _N("Add", ["s", "u"], ["t"]),
            _N("Softmax", ["t"], ["p"], axis=-1),
            _N("MatMul", ["p", "v"], ["y"]),
        ],
        {"x": ("n", "m", 8), "z": ("n", 8, "k"), "u": ("m", "k"), "v": ("n", "k", 24)},
        {},
    ),
    "convolution": (
        [_N("Conv", ["x", "w"], ["c"], pads=[1] * 4, strides=[2, 2]), _N("Relu", ["c"], ["y"])],
        {"x": ("n", 3, "m", "k")},
        {"w": _weight(8, 3, 3, 3)},
    ),
    "convolution with strides of 3": (
        [_N("Conv", ["x", "w"], ["c"], pads=[1, 2, 3, 2], strides=[3, 3]), _N("Add", ["c", "b"], ["y"])],
        {"x": ("n", 3, "m", "k")},
        {"w": _weight(8, 3, 4, 5), "b": _weight(8, 1, 1)},
    ),
    "convolution of small maps": (
        [_N("Conv", ["x", "w", "b"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]), _N("Relu", ["c"], ["y"])],
        {"x": ("n", 6, "m", "k")},
        {"w": _weight(40, 6, 3, 3), "b": _weight(40)},
    ),
    "filtered convolution": (
        [_N("Conv", ["x", "w"], ["y"], pads=[2, 1, 1, 1])],
        {"x": ("n", 16, "m", "k")},
        {"w": _weight(24, 16, 3, 3)},
    ),
    "filtered convolution of one row": (
        [_N("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
        {"x": ("n", 8, "m", "k")},
        {"w": _weight(16, 8, 3, 3)},
    ),
    "filtered convolution of a fixed height": (
        [_N("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
        {"x": ("n", 16, 16, "m")},
        {"w": _weight(16, 16, 3, 3)},
    ),
    "filtered convolution padded before": (
        [_N("Conv", ["x", "w"], ["y"], pads=[1, 1, 0, 0])],
        {"x": ("n", 8, "m", "k")},
        {"w": _weight(16, 8, 3, 3)},
    ),
    "convolution of one dimension": (
        [_N("Conv", ["x", "w"], ["y"], strides=[3], dilations=[2], pads=[4, 4])],
        {"x": ("n", 8, "m")},
        {"w": _weight(72, 8, 5)},
    ),
    "frames of a signal": (
        [_N("Conv", ["x", "w", "b"], ["c"], strides=[32]), _N("Relu", ["c"], ["y"])],
        {"x": ("n", 1, "m")},
        {"w": _weight(33, 1, 64), "b": _weight(33)},
    ),
    "convolution of a long row": (
        [_N("Conv", ["x", "w", "b"], ["c"], strides=[4], pads=[2, 3], group=2), _N("Sigmoid", ["c"], ["y"])],
        {"x": ("n", 256, "m")},
        {"w": _weight(16, 128, 5) / 5, "b": _weight(16)},
    ),
    "convolution of maps of a fixed size": (
        [_N("Conv", ["x", "w", "b"], ["c"], pads=[0, 1, 0, 1]), _N("Relu", ["c"], ["y"])],
        {"x": ("n", 32, 1, 21)},
        {"w": _weight(40, 32, 1, 5), "b": _weight(40)},
    ),
    "pointwise convolution": ([_N("Conv", ["x", "w"], ["y"])], {"x": ("n", 5, "m", "k")}, {"w": _weight(7, 5, 1, 1)}),
    "pointwise convolution plus a number for each row": (
        [_N("Conv", ["x", "w"], ["c"]), _N("Add", ["c", "b"], ["y"])],
        {"x": ("n", 16, 24, "m")},
        {"w": _weight(4, 16, 1, 1), "b": _weight(1, 4, 24, 1)},
    ),
    "depthwise convolution": (
        [_N("Conv", ["x", "w"], ["y"], pads=[1] * 4, group=4)],
        {"x": ("n", 4, "m", "k")},
        {"w": _weight(4, 1, 3, 3)},
    ),
    "depthwise convolution with strides": (
        [
            _N("Conv", ["x", "w", "b"], ["c"], pads=[2] * 4, strides=[2] * 2, group=3),
            _N("Sigmoid", ["c"], ["s"]),
            _N("Mul", ["c", "s"], ["y"]),
        ],
        {"x": ("n", 3, "m", "k")},
        {"w": _weight(6, 1, 5, 5), "b": _weight(6)},
    ),
    "depthwise convolution with strides of three": (
        [_N("Conv", ["x", "w"], ["y"], pads=[2] * 4, strides=[3] * 2, group=4)],
        {"x": ("n", 4, "m", "k")},
        {"w": _weight(4, 1, 5, 4)},
    ),
    "depthwise convolution of many taps": (
        [_N("Conv", ["x", "w"], ["y"], pads=[5] * 4, group=4)],
        {"x": ("n", 4, "m", "k")},
        {"w": _weight(4, 1, 11, 11)},
    ),
    "depthwise convolution plus another map": (
        [_N("Conv", ["x", "w"], ["c"], pads=[2] * 4, dilations=[2] * 2, group=4), _N("Add", ["c", "x"], ["y"])],
        {"x": ("n", 4, "m", "k")},
        {"w": _weight(4, 1, 3, 3)},
    ),
    "depthwise convolution of one dimension": (
        [_N("Conv", ["x", "w"], ["y"], pads=[4, 4], group=4)],
        {"x": ("n", 4, "m")},
        {"w": _weight(4, 1, 9)},
    ),
    "depthwise convolution of a signal with strides": (
        [_N("Conv", ["x", "w"], ["c"], pads=[6, 16], strides=[2], dilations=[2], group=4), _N("Relu", ["c"], ["y"])],
        {"x": ("n", 4, "m")},
        {"w": _weight(8, 1, 12)},
    ),
    "padding with zeros": ([_N("Pad", ["x", "p"], ["y"])], {"x": ("n", "m", "k")}, {"p": PADS}),
    "padding by edges": ([_N("Pad", ["x", "p"], ["y"], mode="edge")], {"x": ("n", "m", "k")}, {"p": PADS}),
    "padding by reflection": ([_N("Pad", ["x", "p"], ["y"], mode="reflect")], {"x": ("n", "m", "k")}, {"p": PADS}),
    "padding that wraps": ([_N("Pad", ["x", "p"], ["y"], mode="wrap")], {"x": ("n", "m", "k")}, {"p": PADS}),
    "concatenation": (
        [_N("Concat", ["x", "z"], ["y"], axis=1)],
        {"x": ("n", 3, "m", "k"), "z": ("n", 5, "m", "k")},
        {},
    ),
    "gates": ([_N("Mul", ["x", "z"], ["y"])], {"x": ("n", 20, "m", "k"), "z": ("n", 20, 1, 1)}, {}),
    "mean of each map": ([_N("ReduceMean", ["x"], ["y"], axes=[2, 3])], {"x": ("n", 5, "m", "k")}, {}),
    "transposition to three channels": (
        [_N("Transpose", ["x"], ["t"], perm=[0, 2, 3, 1]), _N("Relu", ["t"], ["y"])],
        {"x": ("n", 3, "m", "k")},
        {},
    ),
    "joined heads": (
        [_N("Transpose", ["x"], ["t"], perm=[0, 2, 1, 3]), _N("Reshape", ["t", "s"], ["y"])],
        {"x": ("n", 4, "m", 32)},
        {"s": np.array([0, 0, 128])},
    ),
    "transposition of pixels": (
        [_N("Transpose", ["x"], ["y"], perm=[0, 2, 3, 1])],
        {"x": ("n", 24, "m", "k")},
        {},
    ),
    "pooling": (
        [_N("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)],
        {"x": ("n", 2, "m", "k")},
        {},
    ),
    "pooling of small windows": (
        [
            _N("AveragePool", ["x"], ["p"], kernel_shape=[2, 2], strides=[2, 2], pads=[0, 1, 1, 1]),
            _N("Neg", ["p"], ["y"]),
        ],
        {"x": ("n", 2, "m", "k")},
        {},
    ),
    "pooling of overlapping windows": (
        [_N("AveragePool", ["x"], ["p"], kernel_shape=[3, 5], pads=[1, 2, 1, 2]), _N("Add", ["p", "x"], ["y"])],
        {"x": ("n", 2, "m", "k")},
        {},
    ),
    "pooling of one dimension": (
        [_N("MaxPool", ["x"], ["y"], kernel_shape=[4], strides=[3], pads=[2, 2], dilations=[2])],
        {"x": ("n", 2, "m")},
        {},
    ),
}


@cache
def kernel(name: str, *, masks: bool = True, mcpu: str = "") -> Callable[[Mapping[str, int]], None]:
    """A function that compares the kernel of a case with ONNX Runtime at some sizes.

    It is for a CPU by its name, else for this one, or this one without `masks`.
    """
    nodes, shapes, weights = CASES[name]
    inputs = {n: ("float32", dims) for n, dims in shapes.items()}
    proto = dynamic_model(nodes, inputs, ["y"], weights, OPSETS.get(name, 17))  # type: ignore[arg-type]
    reference = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    model = import_model(proto, keep_dims=True)
    graph = model.graph
    job = PartitionJob("p0", model, CPU, tuple(n.name for n in graph.nodes), graph.inputs, graph.outputs)
    target = target_of(mcpu) if mcpu else cpu_target(CPU)
    isa = isa_of(target)
    isa = isa if masks else replace(isa, masks=False)
    module = joined_rows(kernel_module(job, target, rewrite=lambda f: fuse_attention(f, isa)))
    (call,) = [b.value for b in bindings_of(module.mod["main"]) if is_kernel_call(b.value)]
    given = [a.name for a in arguments_of(call)]
    function = module.mod[call.args[0]]
    code, packings = kernel_code(function, {n for n, a in enumerate(given) if a in module.arrays}, isa)
    assert WRITTEN in function.attrs or code.script() != in_loops(function).script(), "no generator takes the kernel"
    with target:
        built = tvm.tirx.build(
            tvm.IRModule({"f": at_any_address(code).with_attr("global_symbol", "f")}), target, pipeline=PIPELINE
        )["f"]
    fixed = {n: np.asarray(module.arrays[a]) for n, a in enumerate(given) if a in module.arrays}
    for packing in packings:
        fixed[packing.argument] = packing.apply(fixed[packing.argument])

    def compare(sizes: Mapping[str, int]) -> None:
        sizes = {size: number + LEAST.get(name, 0) for size, number in sizes.items()}
        rng = np.random.default_rng(1)
        feeds = {
            n: rng.standard_normal([sizes[d] if isinstance(d, str) else d for d in dims]).astype(np.float32)
            for n, dims in shapes.items()
        }
        (expected,) = reference.run(None, feeds)
        names = {name: model.sources.get(name, name) for name in graph.inputs}
        lent = [guarded(fixed[n] if n in fixed else feeds[names[a]]) for n, a in enumerate(given)]
        result = guarded(np.full(expected.shape, np.nan, np.float32))
        built(*map(host_tensor, [*lent, result]))
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)

    return compare


LEAST = {
    "differences of neighbours": 1,
    "filtered convolution padded before": 1,
    "frames of a signal": 64,
    "padding by reflection": 3,
    "padding that wraps": 3,
    "pooling of one dimension": 3,
}
"""What a case needs more of each size than other cases."""

OPSETS = {"padding that wraps": 19}
"""The operator sets of cases that need a newer one."""

SIZES = st.one_of(st.integers(1, 5), st.integers(6, 70))


LONG_COMPILES = (
    "attention",
    "batched product",
    "convolution with strides of 3",
    "depthwise convolution of many taps",
    "filtered convolution padded before",
)


@pytest.mark.parametrize("name", [name for name in CASES if name not in LONG_COMPILES])
@few(12)
@given(n=st.integers(1, 3), m=SIZES, k=SIZES)
def test_a_kernel_of_any_size_is_right_and_stays_in_its_arguments(name: str, n: int, m: int, k: int) -> None:
    kernel(name)({"n": n, "m": m, "k": k})


@pytest.mark.parametrize(
    "name", ["product of a weight and few columns", "convolution of one dimension", "filtered convolution"]
)
def test_every_number_of_few_columns_is_right(name: str) -> None:
    """Their vectors lie along the rows of a weight's tiles, several at once; taps that are all padding are left out."""
    for columns in (*range(1, 10), 13, 20, 25):
        kernel(name)({"n": 2, "m": columns, "k": min(columns, 3)})


@pytest.mark.parametrize("name", ["depthwise convolution", "depthwise convolution of many taps"])
def test_maps_of_fewer_rows_than_a_tile_are_right(name: str) -> None:
    """Tiles have four rows of outputs, and those that do not exist are not stored."""
    for rows in range(1, 6):
        kernel(name)({"n": 1, "m": rows, "k": 5})
        kernel(name)({"n": 2, "m": rows, "k": 40})


def test_three_rows_of_any_length_are_right_along_the_line_that_they_form() -> None:
    """Vectors of their line have numbers of all rows; rows that are short have narrow vectors across them."""
    with patch.object(few_rows, "Folded", Mock(wraps=few_rows.Folded)) as written:
        compare = kernel.__wrapped__("softmax of three rows beside each other")
    written.assert_called_once()
    for elements in (1, 2, 31, 32, 33, 63, 64, 65, 80, 127):  # of AVX2's vectors 32 are enough for a line
        compare({"n": 2, "m": elements, "k": 1})


def test_every_number_of_few_frames_is_right() -> None:
    for frames in (*range(1, 10), 16, 17, 33):
        kernel("frames of a signal")({"n": 2, "m": 32 * (frames - 1) + 1, "k": 1})


def test_every_number_of_few_pixels_is_right() -> None:
    """Lines of up to four places, with what lies between rows, have vectors along channels."""
    for pixels in (1, 2, 3, 4, 5, 17):
        kernel("convolution of small maps")({"n": 1, "m": 2 * pixels - 1, "k": 1})
        kernel("convolution of small maps")({"n": 2, "m": 2, "k": 2 * pixels})
    for side in (1, 2, 3, 4, 16):
        kernel("convolution of small maps")({"n": 1, "m": side, "k": side})


@pytest.mark.parametrize("places", [96, 127, 128, 129, 144, 145, 256, 257, 400])
def test_a_long_row_is_computed_in_pieces(places: int) -> None:
    """Of 128 channels in four phases, 128 places are as much as stays in a second-level cache."""
    kernel("convolution of a long row")({"n": 2, "m": 4 * places, "k": 1})


def test_filtering_of_one_row_or_column_is_right() -> None:
    for name in ("filtered convolution of one row", "filtered convolution padded before"):
        for rows, columns in itertools.product((1, 2, 9), repeat=2):  # one more if padded before: see LEAST
            kernel(name)({"n": 1, "m": rows, "k": columns})


@pytest.mark.skipif(AVX2 not in runnable(), reason="the code is for x86 with AVX2")
@pytest.mark.parametrize(
    "name",
    [
        "depthwise convolution",
        *(pytest.param(n, marks=pytest.mark.slow) for n in CASES if "depthwise" in n and n != "depthwise convolution"),
    ],
)
def test_depthwise_convolutions_of_any_size_are_right_and_stay_in_their_arguments_with_avx2(name: str) -> None:
    for side in (1, 2, 7, 8, 9, 33):
        kernel(name, mcpu=AVX2)({"n": 2, "m": side, "k": side})
        kernel(name, mcpu=AVX2)({"n": 1, "m": 40 - side, "k": side})


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if "convolution" in name or "pooling" in name])
@settings(max_examples=100)
@given(n=st.integers(1, 3), m=SIZES, k=SIZES)
def test_windows_of_many_sizes_are_right_without_masks(name: str, n: int, m: int, k: int) -> None:
    kernel(name, masks=False)({"n": n, "m": m, "k": k})


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=300)
@given(n=st.integers(1, 20), m=SIZES, k=SIZES)
def test_a_kernel_of_many_sizes_is_right_and_stays_in_its_arguments(name: str, n: int, m: int, k: int) -> None:
    kernel(name)({"n": n, "m": m, "k": k})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["product", "batched product", "pointwise convolution", "map", "softmax"])
def test_a_kernel_of_no_items_divides_by_no_size_that_is_0(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (assumptions, variables):
        monkeypatch.setattr(module, "may_be_empty", lambda var: var.name.endswith("_n"))
    compare = kernel.__wrapped__(name)
    for n in (0, 3):
        compare({"n": n, "m": 40, "k": 40})
