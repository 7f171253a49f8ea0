"""Operators whose inputs name sizes apart that belong together, with the CPU alone, compared with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import heterocc.runtime
from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler.driver import compile_model
from tests.compiler.onnx_build import assert_close, model, node, noise, value
from tests.ml_models import random_trees
from tests.reference import reference_session

U8 = onnx.TensorProto.UINT8
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
    ends = [value("x", ["n", "s", 6]), value("m", ["rows", "keys"], onnx.TensorProto.INT32)]
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
