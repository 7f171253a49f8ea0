"""Operators with dynamic dimensions, several in one executable, compared with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.cpu.target import cpu_target
from heterocc.compiler.lower.pipeline import kernel_module
from tests.compiler.lower.cpu.test_symbolic import compare
from tests.compiler.lower.lowered import CPU, job, run_cpu
from tests.reference import reference_session
from tests.symbolic_models import dynamic_model

_N = helper.make_node


def test_operators_along_and_beside_dynamic_dimensions_agree_with_onnx_runtime(tmp_path: Path) -> None:
    nodes = [
        _N("Abs", ["x"], ["a"]),
        _N("Pow", ["a", "e"], ["power"]),
        _N("CumSum", ["x", "axis"], ["sums"]),
        _N("ArgMax", ["x"], ["best"], axis=1),
        _N("Hardmax", ["x"], ["hard"], axis=-1),
        _N("ReduceLogSumExp", ["x"], ["log"], axes=[2], keepdims=0),
        _N("ScatterElements", ["x", "i", "u"], ["scattered"], axis=1),
        _N("ScatterND", ["x", "places", "rows"], ["replaced"]),
    ]
    constants = {"e": np.float32(0.7), "axis": np.int64(1)}
    inputs = {
        "x": ("float32", ("n", "m", 8)),
        "i": ("int64", ("n", 2, 8)),
        "u": ("float32", ("n", 2, 8)),
        "places": ("int64", ("k", 2)),
        "rows": ("float32", ("k", 8)),
    }
    outputs = ["power", "sums", "best", "hard", "log", "scattered", "replaced"]
    rng = np.random.default_rng(0)
    feeds = []
    for n, m, k in ((1, 3, 1), (4, 7, 3)):
        feeds.append(
            {
                "x": rng.standard_normal((n, m, 8)).astype(np.float32),
                "i": np.stack([rng.permutation(m)[:2] for _ in range(n * 8)])
                .reshape(n, 8, 2)
                .transpose(0, 2, 1)
                .copy(),
                "u": rng.standard_normal((n, 2, 8)).astype(np.float32),
                "places": np.array([(p % n, p // n) for p in rng.permutation(n * m)[:k]]),
                "rows": rng.standard_normal((k, 8)).astype(np.float32),
            }
        )
    compare(dynamic_model(nodes, inputs, outputs, constants), tmp_path, feeds)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("channels", "taps", "attributes"),
    [
        (9, 3, {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}),
        (6, 4, {"strides": [2, 2], "pads": [1] * 4}),
        (9, 5, {"strides": [3, 2], "pads": [2, 0, 1, 1]}),
        (6, 3, {"pads": [1] * 4}),
    ],
)
def test_transposed_convolutions_of_any_size_agree_with_onnx_runtime(
    channels: int, taps: int, attributes: dict[str, list[int]], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((8, channels, taps, taps)).astype(np.float32),
        "b": rng.standard_normal(channels).astype(np.float32),
    }
    nodes = [_N("ConvTranspose", ["x", "w", "b"], ["y"], **attributes)]
    proto = dynamic_model(nodes, {"x": ("float32", ("n", 8, "h", "w"))}, ["y"], weights)
    sizes = ((1, 5, 7), (3, 8, 4))
    compare(proto, tmp_path, [{"x": rng.standard_normal((n, 8, h, w)).astype(np.float32)} for n, h, w in sizes])


@pytest.mark.parametrize("wide", ["m", 24])
def test_images_that_are_enlarged_twice_agree_with_onnx_runtime(wide: int | str, tmp_path: Path) -> None:
    how = {"coordinate_transformation_mode": "asymmetric", "mode": "nearest", "nearest_mode": "floor"}
    nodes = [_N("Resize", ["x", "", "s"], ["once"], **how), _N("Resize", ["once", "", "s"], ["y"], **how)]
    scales = {"s": np.array([1, 1, 2, 2], np.float32)}
    proto = dynamic_model(nodes, {"x": ("float32", ("n", 3, 5, wide))}, ["y"], scales)
    feeds = [{"x": np.random.default_rng(n).random((n, 3, 5, 24), np.float32)} for n in (1, 2)]
    compare(proto, tmp_path, feeds)


def test_running_sums_of_what_is_computed_before_agree_with_onnx_runtime(tmp_path: Path) -> None:
    nodes = [
        _N("Greater", ["x", "zero"], ["some"]),
        _N("Cast", ["some"], ["ones"], to=7),
        _N("CumSum", ["ones", "axis"], ["sums"]),
        _N("Mul", ["sums", "ones"], ["y"]),
    ]
    proto = dynamic_model(
        nodes, {"x": ("float32", ("n", "m"))}, ["y"], {"zero": np.float32(0), "axis": np.array(-1, np.int64)}
    )
    rng = np.random.default_rng(0)
    compare(proto, tmp_path, [{"x": rng.standard_normal(s).astype(np.float32)} for s in ((2, 5), (3, 17))])


def test_recurrent_layers_of_inputs_of_any_width_agree_with_onnx_runtime(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal(s).astype(np.float32) for name, s in (("w", (1, 9, 5)), ("r", (1, 9, 3)))}
    nodes = [_N("GRU", ["x", "v", "r"], ["y", ""], hidden_size=3)]
    inputs = {"x": ("float32", ("t", "n", "c")), "v": ("float32", (1, 9, "c"))}
    sizes = ((4, 2, 3), (1, 3, 5))
    feeds = [
        {"x": rng.standard_normal(s).astype(np.float32), "v": rng.standard_normal((1, 9, s[2])).astype(np.float32)}
        for s in sizes
    ]
    compare(dynamic_model(nodes, inputs, ["y"], weights), tmp_path, feeds)


def test_transposed_convolutions_of_any_batch_and_any_length_agree_with_onnx_runtime(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shapes = {"w": (4, 3, 2, 2), "taps": (4, 3, 8)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        _N("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2]),
        _N("ConvTranspose", ["s", "taps"], ["long"], strides=[4], pads=[2, 2]),
        _N("LeakyRelu", ["long"], ["z"]),
    ]
    inputs = {"x": ("float32", ("n", 4, 6, 5)), "s": ("float32", ("n", 4, "frames"))}
    feeds = [
        {name: rng.standard_normal(shape).astype(np.float32) for name, shape in (("x", (n, 4, 6, 5)), ("s", (n, 4, f)))}
        for n, f in ((1, 1), (3, 21))
    ]
    compare(dynamic_model(nodes, inputs, ["y", "z"], weights), tmp_path, feeds)


def test_a_slice_that_may_be_empty_beside_a_product_of_integers_agrees_with_onnx_runtime(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    nodes = [
        _N("Slice", ["x", "one", "end", "one"], ["inner"]),
        _N("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        _N("MatMulInteger", ["q", "w", "zero"], ["products"]),
    ]
    weights = {"one": np.array([1]), "end": np.array([-1]), "w": rng.integers(-100, 100, (8, 6)).astype(np.int8)}
    proto = dynamic_model(nodes, {"x": ("float32", ("n", "m", 8))}, ["inner", "products"], weights)
    sizes = ((1, 3), (6, 4), (3, 2))
    compare(proto, tmp_path, [{"x": rng.standard_normal((*size, 8)).astype(np.float32)} for size in sizes])


def test_ranges_of_any_number_of_elements_agree_with_onnx_runtime(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    nodes = [
        _N("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        _N("Reshape", ["x", "flat"], ["y"]),
        _N("Neg", ["y"], ["negative"]),
        _N("DynamicQuantizeLinear", ["negative"], ["q2", "scale2", "zero2"]),  # of a product of two sizes
    ]
    outputs = ["q", "scale", "zero", "q2", "scale2", "zero2"]
    proto = dynamic_model(nodes, {"x": ("float32", ("n", "m"))}, outputs, {"flat": np.array([-1])})
    sizes = ((1, 1), (1, 3), (1, 15), (4, 4), (1, 17), (3, 21), (8, 8), (5, 13), (70, 1999))
    shifts = (0, 4, -4)
    feeds = [{"x": (rng.standard_normal(s) + shifts[n % 3]).astype(np.float32)} for n, s in enumerate(sizes)]
    compare(proto, tmp_path, feeds)
    kernels = kernel_module(job(import_model(proto, keep_dims=True)), cpu_target(CPU)).kernels
    assert len(kernels) == 5  # the range and the bytes of each, and the negation


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("step", [1, 2])
def test_padding_that_depends_on_the_size_of_an_image_agrees_with_onnx_runtime(
    mode: str, step: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    nodes = [
        _N("Conv", ["x", "w"], ["c"], auto_pad=mode, strides=[step, step]),
        _N("MaxPool", ["c"], ["y"], auto_pad=mode, kernel_shape=[3, 2], strides=[2, step]),
    ]
    weights = {"w": rng.standard_normal((5, 4, 3, 2)).astype(np.float32)}
    proto = dynamic_model(nodes, {"x": ("float32", ("n", 4, "h", "w_"))}, ["y"], weights)
    sizes = ((1, 9, 8), (2, 6, 11), (1, 5, 5))
    compare(proto, tmp_path, [{"x": rng.standard_normal((n, 4, h, w)).astype(np.float32)} for n, h, w in sizes])


def test_padding_that_makes_the_sides_of_an_image_multiples_of_four_agrees_with_onnx_runtime(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    nodes = [
        _N("Shape", ["x"], ["sides"], start=2),
        _N("Mod", ["sides", "four"], ["rest"]),
        _N("Sub", ["four", "rest"], ["less"]),
        _N("Mod", ["less", "four"], ["after"]),
        _N("Concat", ["before", "after"], ["pads"], axis=0),
        _N("Pad", ["x", "pads", "fill"], ["p"]),
        _N("Pad", ["x", "pads"], ["q"], mode="reflect"),
        _N("Mul", ["p", "q"], ["y"]),
    ]
    weights = {"four": np.array([4]), "before": np.array([0, 0, 1, 0, 0, 0]), "fill": np.array(1.5, np.float32)}
    proto = dynamic_model(nodes, {"x": ("float32", ("n", 2, "h", "w"))}, ["y"], weights)
    sizes = ((1, 8, 8), (2, 5, 9), (1, 7, 6))
    compare(proto, tmp_path, [{"x": rng.standard_normal((n, 2, h, w)).astype(np.float32)} for n, h, w in sizes])


def test_powers_of_images_of_any_size_compile_and_agree_with_onnx_runtime(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    nodes = [_N("Pow", ["x", "e"], ["power"]), _N("LRN", ["x"], ["normal"], size=3)]
    inputs = {"x": ("float32", ("n", 6, "height", "width"))}
    proto = dynamic_model(nodes, inputs, ["power", "normal"], {"e": np.float32(0.75)})
    feeds = [{"x": rng.uniform(0.1, 2, (n, 6, h, w)).astype(np.float32)} for n, h, w in ((1, 1, 2), (2, 5, 9))]
    compare(proto, tmp_path, feeds)


def test_sums_of_sizes_in_another_order_are_equal_shapes(tmp_path: Path) -> None:
    """Tokens before and behind those of an image, to which a table of places in the same order is added."""
    nodes = [_N("Shape", ["x"], ["batch"], end=1)]
    for end in ("first", "last"):
        nodes += [
            _N("Concat", ["batch", f"{end}_shape"], [f"{end}_wanted"], axis=0),
            _N("Expand", [end, f"{end}_wanted"], [f"{end}_x"]),
        ]
    for name, first, last in (("x", "first_x", "last_x"), ("places", "first", "last")):
        nodes += [
            _N("Reshape", [name, "flat"], [f"{name}_row"]),
            _N("Transpose", [f"{name}_row"], [f"{name}_rows"], perm=[0, 2, 1]),
            _N("Concat", [first, f"{name}_rows", last], [f"{name}_all"], axis=1),
        ]
    nodes += [
        _N("MatMul", ["x_all", "weight"], ["product"]),
        _N("Unsqueeze", ["places_all", "outer"], ["tables"]),
        _N("Gather", ["tables", "zero"], ["table"], axis=0),
        _N("Add", ["product", "table"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    constants = {"first": rng.standard_normal((1, 1, 8)), "last": rng.standard_normal((1, 10, 8))}
    constants = {name: value.astype(np.float32) for name, value in constants.items()}
    constants |= {"weight": rng.standard_normal((8, 8)).astype(np.float32), "outer": np.array([0]), "zero": np.array(0)}
    constants |= {"flat": np.array([0, 0, -1]), "first_shape": np.array([1, 8]), "last_shape": np.array([10, 8])}
    given = {name: ("float32", (n, 8, "height", "width")) for name, n in (("x", "batch"), ("places", 1))}
    feeds = [
        {name: rng.standard_normal((n, 8, *sides)).astype(np.float32) for name, n in (("x", batch), ("places", 1))}
        for batch, sides in ((1, (1, 1)), (2, (3, 5)))
    ]
    compare(dynamic_model(nodes, given, ["y"], constants), tmp_path, feeds)


def test_pooling_that_rounds_sizes_up_agrees_with_onnx_runtime(tmp_path: Path) -> None:
    """Also behind each other, and with windows that begin in the padding behind the image, which are left out."""
    halves = {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}
    thirds = {"kernel_shape": [3, 2], "strides": [3, 3], "pads": [1, 0, 1, 1], "ceil_mode": 1}
    nodes = [
        _N("MaxPool", ["x"], ["a"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
        _N("MaxPool", ["a"], ["b"], **halves),
        _N("MaxPool", ["x"], ["c"], **thirds),
        _N("MaxPool", ["x"], ["d", "e"], **thirds),
        _N("AveragePool", ["x"], ["f"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    ]
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.standard_normal((1, 9, *s)).astype(np.float32)} for s in ((9, 8), (16, 23), (11, 34))]
    given = {"x": ("float32", (1, 9, "height", "width"))}
    compare(dynamic_model(nodes, given, list("bcdef"), {}), tmp_path, feeds)


@pytest.mark.parametrize("given", ["", "computed"])
def test_maxima_are_put_back_in_tensors_of_any_batch(given: str, tmp_path: Path) -> None:
    windows = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        _N("Shape", ["x"], ["computed"]),
        _N("MaxPool", ["x"], ["best", "places"], **windows),
        _N("MaxUnpool", ["best", "places", given][: 3 if given else 2], ["y"], **windows),
    ]
    height = 5 if given else 4
    proto = dynamic_model(nodes, {"x": ("float32", ("n", 2, height, 6))}, ["y"], {})
    rng = np.random.default_rng(0)
    compare(proto, tmp_path, [{"x": rng.standard_normal((n, 2, height, 6)).astype(np.float32)} for n in (1, 3)])


def test_maxima_are_put_back_in_tensors_of_a_constant_shape() -> None:
    windows = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        _N("MaxPool", ["x"], ["best", "places"], **windows),
        _N("MaxUnpool", ["best", "places", "shape"], ["y"], **windows),
    ]
    proto = dynamic_model(nodes, {"x": ("float32", (2, 2, 4, 6))}, ["y"], {"shape": np.array([2, 2, 5, 6])})
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 2, 4, 6)).astype(np.float32)}
    made = import_model(proto)
    assert made.graph.values[made.graph.outputs[0]].shape == (2, 2, 5, 6)
    wanted = reference_session(proto).run(None, feeds)
    np.testing.assert_array_equal([*run_cpu(made, feeds).values()], wanted)


def test_the_largest_elements_along_an_axis_of_any_size_are_marked(tmp_path: Path) -> None:
    nodes = [_N("Hardmax", ["x"], [f"y{axis}"], axis=axis) for axis in range(3)]
    proto = dynamic_model(nodes, {"x": ("float32", ("n", 4, "m"))}, ["y0", "y1", "y2"], {})
    rng = np.random.default_rng(0)
    compare(proto, tmp_path, [{"x": rng.integers(0, 3, (n, 4, m)).astype(np.float32)} for n, m in ((1, 5), (6, 1))])


def test_groups_of_channels_are_normalised_for_any_batch(tmp_path: Path) -> None:
    constants = {"scale": np.arange(1, 5, dtype=np.float32), "bias": np.arange(4, dtype=np.float32)}
    nodes = [_N("GroupNormalization", ["x", "scale", "bias"], ["y"], num_groups=2)]
    proto = dynamic_model(nodes, {"x": ("float32", ("n", 4, 3, 5))}, ["y"], constants)
    proto.opset_import[0].version = 21  # with a scale for each channel
    proto.graph.output[0].type.tensor_type.elem_type = 1  # not inferred for operator set 17, which has no such operator
    rng = np.random.default_rng(0)
    compare(proto, tmp_path, [{"x": rng.standard_normal((n, 4, 3, 5)).astype(np.float32)} for n in (1, 3)])


@pytest.mark.parametrize("axis", [1, 2])
def test_places_of_extremes_along_and_beside_axes_of_any_size_agree_with_onnx_runtime(
    axis: int, tmp_path: Path
) -> None:
    nodes = [
        _N("ArgMax", ["x"], ["y"], axis=axis, keepdims=0),
        _N("ArgMin", ["x"], ["z"], axis=axis, select_last_index=1),
    ]
    inner = "n" if axis == 2 else 20
    proto = dynamic_model(nodes, {"x": ("float32", ("b", "m", inner))}, ["y", "z"], {})
    rng = np.random.default_rng(0)
    # Few different values: many are equal, of which the first wins, or the last.
    feeds = [
        {"x": rng.integers(0, 9, (2, m, n if axis == 2 else 20)).astype(np.float32)}
        for m, n in ((1, 1), (3, 5), (2, 15), (4, 16), (1, 17), (2, 63), (3, 64), (1, 200))
    ]
    for feed in feeds[::2]:
        feed["x"][:, -1, -1] = np.nan
        feed["x"][0, 0, 0] = np.inf
    compare(proto, tmp_path, feeds)


@pytest.mark.parametrize("coordinates", ["half_pixel", "pytorch_half_pixel", "asymmetric"])
@pytest.mark.parametrize("mode", ["linear", "floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
def test_images_of_any_size_that_become_smaller_agree_with_onnx_runtime(
    coordinates: str, mode: str, tmp_path: Path
) -> None:
    kind = {"mode": "linear"} if mode == "linear" else {"mode": "nearest", "nearest_mode": mode}
    node = _N("Resize", ["x", "", "s"], ["y"], coordinate_transformation_mode=coordinates, **kind)
    scales = {"s": np.array([1, 1, 0.5, 0.25], np.float32)}
    proto = dynamic_model([node], {"x": ("float32", (1, 2, "h", "w"))}, ["y"], scales)
    sizes = ((2, 4), (3, 7), (5, 8), (16, 33), (33, 64), (35, 130), (2, 143))
    compare(proto, tmp_path, [{"x": np.random.rand(1, 2, h, w).astype(np.float32)} for h, w in sizes])


def test_one_hot_rows_as_wide_as_another_input_agree_with_onnx_runtime(tmp_path: Path) -> None:
    nodes = [
        _N("Shape", ["x"], ["width"], start=1),
        _N("OneHot", ["places", "width", "values"], ["rows"]),
        _N("Add", ["x", "rows"], ["y"]),
    ]
    inputs = {"x": ("float32", ("n", "m")), "places": ("int64", ("n",))}
    proto = dynamic_model(nodes, inputs, ["y"], {"values": np.array([0, 1], np.float32)})
    feeds = [{"x": np.ones((n, m), np.float32), "places": np.arange(n) - 1} for n, m in ((3, 4), (2, 2))]
    compare(proto, tmp_path, feeds)
