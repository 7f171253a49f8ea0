"""Shapes that a model states, or that ONNX infers, and that no run has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import heterocc.runtime
from heterocc.compiler import compile_model
from heterocc.compiler.checking.reference import Reference
from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.onnx_build import imported_like, model, node, noise, run_imported, run_original, save, value

MICROSOFT = {"domain": "com.microsoft"}
DOMAINS = [("com.microsoft", 1)]
WIDE = {"w": noise(6, 3)}
IN, OUT = [value("x", [4, 6])], [value("y", [4, 6])]


def _stating(proto: onnx.ModelProto, **shapes: list[int]) -> onnx.ModelProto:
    proto.graph.value_info.extend(value(name, dims) for name, dims in shapes.items())
    return proto


def _pair(**shapes: list[int]) -> onnx.ModelProto:
    return _stating(model([node("Relu", "x", "a"), node("Softmax", "a", "y")], IN, OUT), **shapes)


def _contrib(**shapes: list[int]) -> onnx.ModelProto:
    nodes = [node("Gelu", "x", "a", **MICROSOFT), node("Relu", "a", "y")]
    return _stating(model(nodes, IN, OUT, domains=DOMAINS), **shapes)


def _contrib_output() -> onnx.ModelProto:
    nodes = [node("FusedMatMul", "x w", "y", alpha=2.0, **MICROSOFT)]
    return model(nodes, IN, [value("y", [4, 7])], WIDE, domains=DOMAINS)


def _contrib_without_rules() -> onnx.ModelProto:
    """Neither ONNX nor ONNX Runtime infers the shape of this operator's result."""
    nodes = [
        node("Reshape", "x map", "image"),
        node("CropAndResize", "image boxes of size", "a", **MICROSOFT),
        node("Relu", "a", "y"),
    ]
    weights = {
        "map": np.array([1, 1, 4, 6]),
        "boxes": np.array([[0, 0, 1, 1], [0.2, 0, 0.9, 0.5]], np.float32),
        "of": np.zeros(2, np.int32),
        "size": np.array([2, 3], np.int32),
    }
    return _stating(model(nodes, IN, [value("y", [2, 1, 2, 3])], weights, domains=DOMAINS), a=[2, 6, 1, 1])


def _loop(given: list[int], returned: list[int], *, grows: bool = False) -> onnx.ModelProto:
    step = node("Concat", "v v", "next", axis=0) if grows else node("Add", "v v", "next")
    body = helper.make_graph(
        [node("Identity", "go", "going"), step, node("ReduceSum", "v", "row", keepdims=0)],
        "body",
        [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("v", given)],
        [value("going", [], TensorProto.BOOL), value("next", returned), value("row", [])],
    )
    ends = [value("y", returned), value("rows", [3])]
    return model([node("Loop", "trips - x", "y rows", body=body)], IN, ends, {"trips": np.array(3)})


def _branches() -> onnx.ModelProto:
    sides = {
        f"{name}_branch": helper.make_graph([node(kind, "x", name)], name, [], [value(name, [4, wide])])
        for name, kind, wide in (("then", "Relu", 7), ("else", "Neg", 6))
    }
    chosen = [
        node("ReduceSum", "x", "sum", keepdims=0),
        node("Greater", "sum zero", "c"),
        node("If", "c", "y", **sides),
    ]
    return model(chosen, IN, OUT, {"zero": np.float32(0)})


WRONG: dict[str, Callable[[], onnx.ModelProto]] = {
    "sizes of a value": lambda: _pair(a=[2, 12]),
    "the rank of a value": lambda: _pair(a=[24]),
    "sizes of an output": lambda: model([node("Relu", "x", "y")], IN, [value("y", [4, 7])]),
    "the rank of an output": lambda: model([node("Relu", "x", "y")], IN, [value("y", [24])]),
    "sizes of a value of ONNX Runtime's own operator": lambda: _contrib(a=[4, 9]),
    "the rank of a value of ONNX Runtime's own operator": lambda: _contrib(a=[24]),
    "sizes of an output of ONNX Runtime's own operator": _contrib_output,
    "a state that a Loop is given": lambda: _loop([4, 8], [4, 6]),
    "a state that a Loop returns": lambda: _loop([4, 6], [4, 8]),
    "a state that grows": lambda: _loop([4, 6], [4, 6], grows=True),
    "an end of a branch": _branches,
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_statement_is_not_believed(tmp_path: Path, what: str) -> None:
    path, feed = save(tmp_path, WRONG[what]()), {"x": noise(4, 6)}
    imported = import_model(path)
    for ours, theirs in zip(run_imported(imported, feed), run_original(path, feed), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    values = {n: v for n, v in imported.graph.values.items() if n in imported.graph.producer}
    assert values
    for name, array in Reference(imported, list(values)).run({imported.graph.inputs[0]: feed["x"]}).items():
        shape = values[name].shape
        assert shape is not None and len(shape) == array.ndim
        known = [(size, real) for size, real in zip(shape, array.shape, strict=True) if isinstance(size, int)]
        assert all(size == real for size, real in known), (name, shape, array.shape)
        assert len(known) == array.ndim or "grows" in what


@pytest.mark.parametrize("where", ["a value", "an output"])
def test_a_stated_number_does_not_fix_a_dynamic_dimension(where: str) -> None:
    nodes = [node("Gelu", "x", "a", **MICROSOFT), node("Relu", "a", "b"), node("Gelu", "b", "y", **MICROSOFT)]
    proto = model(
        nodes, [value("x", ["n", 6])], [value("y", [1, 6] if where == "an output" else None)], domains=DOMAINS
    )
    if where == "a value":
        _stating(proto, a=[1, 6])
    values = import_model(proto, keep_dims=True).graph.values
    assert {values[name].shape for name in ("a", "b", "y")} == {("n", 6)}


def test_a_stated_shape_that_nobody_can_infer_is_not_believed(tmp_path: Path) -> None:
    bundle, feed = tmp_path / "m.hcb", noise(4, 6)
    path = save(tmp_path, _contrib_without_rules())
    compile_model(path, bundle)
    with heterocc.runtime.load(bundle) as session:
        found = session.run({"x": feed})
    np.testing.assert_allclose(found["y"], run_original(path, {"x": feed})[0], rtol=1e-5)


def test_sizes_of_attention_that_are_not_fixed_are_not_taken_for_0() -> None:
    names = {"q": ["b", "s", "w"], "k": ["b", "t", "u"], "v": ["b", "t", "z"]}
    attention = node("Attention", "q k v", "y", q_num_heads=4, kv_num_heads=2)
    proto = model([attention], [value(n, d) for n, d in names.items()], [value("y", None)], opset=23)
    imported = import_model(proto, keep_dims=True)
    result = imported.graph.values["y"].shape
    assert result is not None and result[:2] == ("b", "s")
    assert imported.symbols is not None and isinstance(result[2], str)
    assert imported.symbols.sizes[result[2]].at({"z": 6}) == 12


def test_sizes_of_packed_attention_that_are_not_fixed_are_not_taken_for_0() -> None:
    attention = node("Attention", "x w b", "y", num_heads=2, **MICROSOFT)
    names = {"x": ["n", "s", "h"], "w": ["h", "q"], "b": ["q"]}
    ends = [value(n, d) for n, d in names.items()]
    imported = import_model(model([attention], ends, [value("y", None)], domains=DOMAINS), keep_dims=True)
    result = imported.graph.values["y"].shape
    assert result is not None and result[:2] == ("n", "s") and isinstance(result[2], str)
    assert imported.symbols is not None and imported.symbols.sizes[result[2]].at({"q": 24}) == 8


@pytest.mark.parametrize("op_type", ["Relu", "NonZero", "SequenceConstruct"])
def test_an_output_without_a_type_is_taken_as_in_onnx_runtime(tmp_path: Path, op_type: str) -> None:
    path = save(tmp_path, model([node(op_type, "x", "y")], IN, [onnx.ValueInfoProto(name="y")]))
    imported_like(path, {"x": noise(4, 6)})


def test_types_that_onnx_runtime_infers_are_known_where_it_has_no_kernel() -> None:
    """onnxruntime-genai writes decoders in bfloat16 like this; ONNX Runtime has no Where of that type."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.BFLOAT16, ["n", 8]) for name in "xy")
    nodes = [node("SimplifiedLayerNormalization", "x scale", "a", axis=-1), node("LessOrEqual", "u u", "c")]
    u = helper.make_tensor_value_info("u", TensorProto.FLOAT, ["n", 8])
    proto = model([*nodes, node("Where", "c a x", "y")], [x, u], [y])
    proto.graph.initializer.append(helper.make_tensor("scale", TensorProto.BFLOAT16, [8], [1.0] * 8))
    values = import_model(proto, keep_dims=True).graph.values
    assert (values["a"].dtype, values["a"].shape) == ("bfloat16", ("n", 8))
