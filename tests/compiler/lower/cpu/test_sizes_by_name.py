"""Operators whose inputs name sizes apart that belong together, with the CPU alone, compared with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import heterocc.runtime
from heterocc.artifacts.errors import HeteroccError, Hint, UnsupportedOpError
from heterocc.compiler import compile_model
from tests.compiler.onnx_build import assert_close, model, node, noise, value
from tests.ml_models import random_trees
from tests.reference import reference_session

U8, I32, I64 = onnx.TensorProto.UINT8, onnx.TensorProto.INT32, onnx.TensorProto.INT64
MICROSOFT, ML = {"domain": "com.microsoft"}, {"domain": "ai.onnx.ml"}
DOMAINS = [("com.microsoft", 1), ("ai.onnx.ml", 3)]
LEVELS = {
    **{name: np.float32(scale) for name, scale in (("as", 0.1), ("bs", 0.2), ("cs", 0.3))},
    **{name: np.uint8(zero) for name, zero in (("az", 3), ("bz", 5), ("cz", 7))},
}

Feed = dict[str, np.ndarray]


def _agrees(proto: onnx.ModelProto, tmp_path: Path, feeds: list[Feed], *, refused: Feed | None = None) -> None:
    """Compile for the CPU alone and compare the results of each request; `refused` ends with an error."""
    compile_model(proto, tmp_path / "m.hcb", devices="CPU")
    reference = reference_session(proto)
    names = [o.name for o in proto.graph.output]
    with heterocc.runtime.load(tmp_path / "m.hcb") as session:
        for feed in feeds:
            found = session.run(feed)
            assert_close([found[name] for name in names], reference.run(None, feed))
        if refused is not None:
            with pytest.raises(HeteroccError):
                session.run(refused)


def _levels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def test_quantised_tensors_are_broadcast_at_the_run(tmp_path: Path) -> None:
    nodes = [
        node("QLinearAdd", "a as az b bs bz cs cz", "sum", **MICROSOFT),
        node("QLinearMul", "a as az b bs bz cs cz", "product", **MICROSOFT),
        node("QLinearWhere", "c a as az b bs bz cs cz", "choice", **MICROSOFT),
    ]
    ends = [value("a", ["n", "m"], U8), value("b", ["p", "q"], U8), value("c", ["r", "s"], onnx.TensorProto.BOOL)]
    outputs = [value(name, None, U8) for name in ("sum", "product", "choice")]
    proto = model(nodes, ends, outputs, LEVELS, domains=DOMAINS)
    shapes = [((3, 4), (3, 4), (3, 4)), ((3, 1), (1, 4), (3, 4)), ((1, 4), (3, 4), (1, 1))]
    feeds = [{"a": _levels(*a), "b": _levels(*b), "c": _levels(*c) > 99} for a, b, c in shapes]
    wrong = {"a": _levels(2, 4), "b": _levels(3, 4), "c": _levels(3, 4) > 99}
    _agrees(proto, tmp_path, feeds, refused=wrong)


@pytest.mark.parametrize("turned", ["", *(pytest.param(name, marks=pytest.mark.slow) for name in ("transA", "transB"))])
def test_stacks_of_fused_products_are_broadcast_at_the_run(tmp_path: Path, turned: str) -> None:
    product = node("FusedMatMul", "a b", "y", alpha=0.5, **MICROSOFT, **({turned: 1} if turned else {}))
    ends = [value("a", ["s", "n", "m"]), value("b", ["t", "p", "q"])]
    proto = model([product], ends, [value("y", None)], domains=DOMAINS)
    one, other = (4, 3) if turned == "transA" else (3, 4), (5, 4) if turned == "transB" else (4, 5)
    feeds = [{"a": noise(s, *one), "b": noise(t, *other)} for s, t in ((2, 2), (1, 2), (3, 1))]
    _agrees(proto, tmp_path, feeds, refused={"a": noise(2, *one), "b": noise(3, *other)})


@pytest.mark.slow
def test_attention_of_heads_and_masks_of_any_size_agrees_with_onnx_runtime(tmp_path: Path) -> None:
    dims = {"q": ["b", "h", "s", "e"], "k": ["b2", "h2", "t", "e2"], "v": ["b3", "h3", "t3", "e3"], "m": ["r", "c"]}
    ends = [value(name, shape) for name, shape in dims.items()]
    proto = model([node("Attention", "q k v m", "y")], ends, [value("y", None)], opset=23)

    def feed(batch: int, heads: int, size: int) -> Feed:
        shapes = {"q": (batch, heads, 4, size), "k": (batch, heads, 6, size), "v": (batch, heads, 6, 3)}
        return {**{name: noise(*shape) for name, shape in shapes.items()}, "m": noise(4, 6)}

    _agrees(proto, tmp_path, [feed(2, 3, 8), feed(1, 2, 5), feed(2, 1, 4)])


def test_the_mask_of_packed_attention_has_the_sizes_of_the_data_whatever_its_names(tmp_path: Path) -> None:
    attention = node("Attention", "x w b m", "y", num_heads=2, **MICROSOFT)
    ends = [value("x", ["n", "s", 6]), value("m", ["rows", "keys"], I32)]
    proto = model([attention], ends, [value("y", None)], {"w": noise(6, 24), "b": noise(24)}, domains=DOMAINS)
    masks = np.array([[1, 1, 1], [1, 1, 0]], np.int32)
    _agrees(proto, tmp_path, [{"x": noise(2, 3, 6), "m": masks}, {"x": noise(1, 3, 6), "m": masks[1:]}])


def test_the_number_of_features_follows_from_the_coefficients(tmp_path: Path) -> None:
    vectors = {
        "support_vectors": [1.0, 0.0, -1.0, 0.5, 2.0, 1.0],
        "coefficients": [1.0, -1.0],
        "n_supports": 2,
        "rho": [0.3],
    }
    nodes = [
        node("LinearRegressor", "x", "linear", coefficients=[0.5, 1.0, 2.0], intercepts=[0.1], **ML),
        node("SVMRegressor", "z", "vectors", kernel_type="RBF", kernel_params=[0.5, 0.0, 3.0], **vectors, **ML),
        node("FeatureVectorizer", "x z", "both", inputdimensions=[3, 3], **ML),
    ]
    outputs = [value(name, None) for name in ("linear", "vectors", "both")]
    proto = model(nodes, [value("x", ["n", "c"]), value("z", ["n", "d"])], outputs, domains=DOMAINS)
    wrong = {"x": noise(4, 2), "z": noise(4, 3)}
    _agrees(proto, tmp_path, [{"x": noise(n, 3), "z": noise(n, 3, seed=1)} for n in (1, 4)], refused=wrong)


def test_trees_take_any_number_of_features_that_has_those_that_they_ask_for(tmp_path: Path) -> None:
    trees = random_trees(np.random.default_rng(0), trees=3, depth=3)
    forest = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], n_targets=1, **trees, **ML)
    proto = model([forest], [value("x", ["n", "c"])], [value("y", None)], domains=DOMAINS)
    most = max(trees["nodes_featureids"]) + 1
    feeds = [{"x": noise(n, width)} for n, width in ((1, most), (5, most + 3))]
    _agrees(proto, tmp_path, feeds, refused={"x": noise(2, most - 1)})


@pytest.mark.slow
def test_widths_of_heads_are_those_of_the_run(tmp_path: Path) -> None:
    ends = [
        value("q", ["b", "s", "e"]),
        value("k", ["b", "t", "e2"]),
        value("v", ["b", "t", "e3"]),
        value("m", ["s", "n"]),
    ]
    past = [value("pk", ["b", 2, "p", "h"]), value("pv", ["b", 2, "p", "w"])]
    attention = node("Attention", "q k v m pk pv", "y keys values", q_num_heads=4, kv_num_heads=2, is_causal=1)
    outputs = [value(name, None) for name in ("y", "keys", "values")]
    proto = model([attention], [*ends, *past], outputs, opset=23)

    def feed(batch: int, steps: int, old: int, size: int, width: int) -> Feed:
        shapes = {
            "q": (batch, steps, 4 * size),
            "k": (batch, steps, 2 * size),
            "v": (batch, steps, 2 * width),
            "m": (steps, old + steps),
            "pk": (batch, 2, old, size),
            "pv": (batch, 2, old, width),
        }
        return {name: noise(*shape) for name, shape in shapes.items()}

    wrong = {**feed(2, 3, 2, 4, 6), "k": noise(2, 3, 12)}
    _agrees(proto, tmp_path, [feed(2, 3, 2, 4, 6), feed(1, 1, 5, 3, 2), feed(1, 1, 0, 3, 2)], refused=wrong)


@pytest.mark.slow
def test_widths_and_masks_of_multi_head_attention_are_those_of_the_run(tmp_path: Path) -> None:
    attention = node("MultiHeadAttention", "q k v bias pad - pk pv", "y keys values", num_heads=2, **MICROSOFT)
    ends = [value("q", ["b", "s", "e"]), value("k", ["b", "s", "e"]), value("v", ["b", "s", "w"]), value("bias", ["z"])]
    past = [value("pad", ["b", "total"], I32), value("pk", ["b", 2, "p", "h"]), value("pv", ["b", 2, "p", "hv"])]
    outputs = [value(name, None) for name in ("y", "keys", "values")]
    proto = model([attention], [*ends, *past], outputs, domains=DOMAINS)

    def feed(batch: int, steps: int, old: int, size: int) -> Feed:
        new = {name: noise(batch, steps, 2 * size, seed=n) for n, name in enumerate("qkv")}
        cache = {name: noise(batch, 2, old, size, seed=n) for n, name in enumerate(("pk", "pv"))}
        padding = np.arange(old + steps) % 5 != 1
        return {**new, **cache, "bias": noise(6 * size), "pad": np.tile(padding.astype(np.int32), (batch, 1))}

    wrong = {**feed(2, 3, 2, 4), "pad": np.ones((2, 6), np.int32)}
    _agrees(proto, tmp_path, [feed(2, 3, 2, 4), feed(1, 1, 5, 3)], refused=wrong)


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_widths_of_group_query_attention_are_those_of_the_run(tmp_path: Path, packed: bool) -> None:
    inputs = "q - - pk pv last total cos sin" if packed else "q k v pk pv last total"
    attention = node(
        "GroupQueryAttention", inputs, "y keys values", num_heads=4, kv_num_heads=2, do_rotary=int(packed), **MICROSOFT
    )
    dims = {
        "q": ["b", "s", "e"],
        "k": ["b2", "s2", "e2"],
        "v": ["b3", "s3", "e3"],
        "cos": ["m", "a"],
        "sin": ["m", "a"],
    }
    dims |= {name: ["b", 2, "p", "h"] for name in ("pk", "pv")}
    ends = [value(name, shape) for name, shape in dims.items() if name in inputs.split()]
    ends += [value("last", ["b"], I32), value("total", [], I32)]
    outputs = [value(name, None) for name in ("y", "keys", "values")]
    proto = model([attention], ends, outputs, domains=DOMAINS)

    def feed(batch: int, steps: int, old: int, size: int) -> Feed:
        whole = old + steps
        counts = {"last": np.full([batch], whole - 1, np.int32), "total": np.array(whole, np.int32)}
        past = {name: noise(batch, 2, old, size, seed=n) for n, name in enumerate(("pk", "pv"))}
        if packed:
            return {
                **counts,
                **past,
                "q": noise(batch, steps, 8 * size),
                "cos": noise(40, size // 2),
                "sin": noise(40, size // 2),
            }
        return {**counts, **past, **{n: noise(batch, steps, w * size) for n, w in (("q", 4), ("k", 2), ("v", 2))}}

    _agrees(proto, tmp_path, [feed(2, 1, 3, 16), feed(1, 1, 5, 32), feed(1, 4, 0, 16)])


@pytest.mark.parametrize("heads", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_rotations_of_heads_of_any_width_agree_with_onnx_runtime(tmp_path: Path, heads: int) -> None:
    rotation = node("RotaryEmbedding", "x p cos sin", "y", num_heads=heads, interleaved=1, **MICROSOFT)
    shape = ["b", "s", "e"] if heads else ["b", "n", "s", "e"]
    ends = [value("x", shape), value("p", ["b", "s"], I64), value("cos", ["m", "a"]), value("sin", ["m", "a"])]
    proto = model([rotation], ends, [value("y", None)], domains=DOMAINS)

    def feed(batch: int, steps: int, size: int) -> Feed:
        data = noise(batch, steps, heads * size) if heads else noise(batch, 3, steps, size)
        places = np.tile(np.arange(steps), (batch, 1))
        return {"x": data, "p": places, "cos": noise(20, size // 2), "sin": noise(20, size // 2, seed=1)}

    _agrees(proto, tmp_path, [feed(2, 4, 8), feed(1, 5, 16)], refused={**feed(2, 4, 8), "cos": noise(20, 3)})


def test_transposed_convolutions_of_a_given_shape_take_maps_of_any_size_that_reaches_it(tmp_path: Path) -> None:
    turned = node("ConvTranspose", "x w b", "y", output_shape=[10, 9], strides=[2, 2], output_padding=[1, 0])
    parameters = {"w": noise(3, 4, 3, 3), "b": noise(4)}
    proto = model([turned], [value("x", ["n", 3, "h", "w_"])], [value("y", None)], parameters)
    feeds = [{"x": noise(n, 3, h, w)} for n, h, w in ((1, 4, 4), (2, 5, 5), (1, 8, 6))]
    _agrees(proto, tmp_path, feeds, refused={"x": noise(2, 3, 8, 2)})


@pytest.mark.slow
def test_vectors_of_any_length_say_what_is_cut_and_reduced(tmp_path: Path) -> None:
    nodes = [
        node("Slice", "x starts ends axes", "part"),
        node("ReduceSum", "x axes", "sum"),
        node("Pad", "x pads", "wide"),
        node("Split", "x parts", "first rest"),
    ]
    lengths = {"starts": "r", "ends": "r2", "axes": "r3", "pads": "r4", "parts": "r5"}
    ends = [value("x", ["n", "m"]), *(value(name, [length], I64) for name, length in lengths.items())]
    proto = model(nodes, ends, [value(name, None) for name in ("part", "sum", "wide", "first", "rest")])
    one = {"starts": [1], "ends": [3], "axes": [1]}
    two = {"starts": [1, -2], "ends": [3, 9], "axes": [-1, 0]}
    rest = {"pads": [1, 0, 2, 1], "parts": [1, 3]}
    feeds = [{"x": noise(4, 5), **{n: np.array(v) for n, v in {**cut, **rest}.items()}} for cut in (one, two)]
    wrong = {**feeds[1], "axes": np.array([1, 1])}
    _agrees(proto, tmp_path, feeds, refused=wrong)


def test_the_hint_names_the_length_on_which_the_rank_of_a_result_depends(tmp_path: Path) -> None:
    ends = [value("x", ["n", "m"]), value("shape", ["r"], I64)]
    proto = model([node("Reshape", "x shape", "y")], ends, [value("y", None)])
    with pytest.raises(UnsupportedOpError) as refused:
        compile_model(proto, tmp_path / "m.hcb", devices="CPU")
    assert isinstance(refused.value.hint, Hint) and refused.value.hint.command.endswith(
        "; or fix a length, --dim r=2 say"
    )
    compile_model(proto, tmp_path / "m.hcb", devices="CPU", dims={"r": 3})
    with heterocc.runtime.load(tmp_path / "m.hcb") as session:
        found = session.run({"x": np.arange(12, dtype=np.float32).reshape(2, 6), "shape": np.array([3, 2, 2])})
    assert found["y"].shape == (3, 2, 2)


@pytest.mark.parametrize("counted", [1, 0])
def test_means_over_windows_rounded_up_take_maps_of_any_size(tmp_path: Path, counted: int) -> None:
    windows = {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 1, 1], "count_include_pad": counted}
    pool = node("AveragePool", "x", "y", ceil_mode=1, **windows)
    proto = model([pool], [value("x", ["n", 2, "h", "w"])], [value("y", None)], opset=11)
    feeds = [{"x": noise(1, 2, h, w)} for h, w in ((4, 6), (5, 7), (8, 9), (7, 4), (3, 3))]
    _agrees(proto, tmp_path, feeds)


def test_grids_are_of_the_size_of_images_that_the_run_gets(tmp_path: Path) -> None:
    nodes = [node("Shape", "x", "size"), node("AffineGrid", "t size", "y", align_corners=1)]
    ends = [value("x", ["n", 2, "h", "w"]), value("t", ["n", 2, 3])]
    proto = model(nodes, ends, [value("y", None)], opset=20)
    feeds = [{"x": noise(n, 2, h, w), "t": noise(n, 2, 3)} for n, h, w in ((1, 4, 5), (2, 3, 1))]
    _agrees(proto, tmp_path, feeds, refused={"x": noise(2, 2, 4, 5), "t": noise(1, 2, 3)})


def test_rows_of_several_times_a_size_are_written_for_each_of_its_values(tmp_path: Path) -> None:
    nodes = [node("Transpose", "x", "turned", perm=[0, 3, 1, 2, 4]), node("Reshape", "turned shape", "y")]
    proto = model(nodes, [value("x", ["n", 2, 2, "s", "e"])], [value("y", None)], {"shape": np.array([0, 0, -1])})
    _agrees(proto, tmp_path, [{"x": noise(n, 2, 2, s, e)} for n, s, e in ((1, 3, 1), (2, 1, 3), (1, 2, 9))])


@pytest.mark.slow
def test_widths_of_linear_attention_are_those_of_the_run(tmp_path: Path) -> None:
    attention = node("LinearAttention", "q k v", "y state", q_num_heads=2, kv_num_heads=2, update_rule="linear")
    ends = [value(name, ["b", "t", "e"]) for name in "qkv"]
    proto = model([attention], ends, [value("y", None), value("state", None)], opset=27, ir_version=11)
    feeds = [{name: noise(*shape, seed=n) for n, name in enumerate("qkv")} for shape in ((2, 3, 8), (1, 1, 4))]
    _agrees(proto, tmp_path, feeds)
