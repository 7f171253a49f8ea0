"""Small models with dynamic dimensions, as exporters write them: shapes computed by Shape, Gather and Concat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_N = helper.make_node


def dynamic_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[str, Sequence[int | str | None]]],
    outputs: Sequence[str],
    constants: Mapping[str, np.ndarray],
    opset: int = 17,
) -> onnx.ModelProto:
    """A model; inputs by name → dtype and dimensions, outputs of any shape."""
    ends = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(dims))
        for name, (dtype, dims) in inputs.items()
    ]
    graph = helper.make_graph(
        list(nodes),
        "g",
        ends,
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    others = {n.domain for n in nodes if n.domain}
    domains = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in others)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=domains, ir_version=8)
    inferred = onnx.shape_inference.infer_shapes(model)
    for output, known in zip(model.graph.output, inferred.graph.output, strict=True):
        output.type.tensor_type.elem_type = known.type.tensor_type.elem_type
    return model


def _weights(**shapes: Sequence[int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}


def _ints(**values: object) -> dict[str, np.ndarray]:
    return {name: np.array(value, np.int64) for name, value in values.items()}


def perceptron() -> onnx.ModelProto:
    """Gemm, LayerNormalization, MatMul and Softmax over a dynamic batch."""
    nodes = [
        _N("Gemm", ["x", "w1", "b1"], ["a"]),
        _N("Relu", ["a"], ["r"]),
        _N("LayerNormalization", ["r", "s", "b"], ["l"]),
        _N("MatMul", ["l", "w2"], ["m"]),
        _N("Softmax", ["m"], ["y"], axis=-1),
    ]
    weights = _weights(w1=(24, 32), b1=(32,), s=(32,), b=(32,), w2=(32, 10))
    return dynamic_model(nodes, {"x": ("float32", ("batch", 24))}, ["y"], weights)


def convolutions(side: int | str = 16) -> onnx.ModelProto:
    """Convolutions, normalisation, pools, and a Reshape to [batch, -1] that is computed from a shape."""
    nodes = [
        _N("Conv", ["x", "w1", "b1"], ["c1"], pads=[1] * 4, strides=[2, 2]),
        _N("BatchNormalization", ["c1", "s", "t", "mean", "var"], ["bn"]),
        _N("Relu", ["bn"], ["r"]),
        _N("MaxPool", ["r"], ["mp"], kernel_shape=[2, 2], strides=[2, 2]),
        _N("Conv", ["mp", "w2", "b2"], ["c2"], pads=[1] * 4),
        _N("Add", ["c2", "mp"], ["sum"]),
        _N("Conv", ["sum", "wd"], ["dw"], pads=[1] * 4, group=16),
        _N("GlobalAveragePool", ["dw"], ["gap"]),
        _N("Shape", ["gap"], ["shape"]),
        _N("Gather", ["shape", "first"], ["b0"]),
        _N("Unsqueeze", ["b0", "axis"], ["batch"]),
        _N("Concat", ["batch", "rest"], ["wanted"], axis=0),
        _N("Reshape", ["gap", "wanted"], ["f"]),
        _N("Gemm", ["f", "wf", "bf"], ["y"], transB=1),
    ]
    weights = _weights(w1=(16, 3, 3, 3), b1=(16,), s=(16,), t=(16,), mean=(16,), w2=(16, 16, 3, 3), b2=(16,))
    weights |= _weights(wd=(16, 1, 3, 3), wf=(10, 16), bf=(10,)) | {"var": np.ones(16, np.float32)}
    inputs = {"x": ("float32", ("batch", 3, side, side))}
    return dynamic_model(nodes, inputs, ["y"], weights | _ints(first=0, axis=[0], rest=[-1]))


def filtered() -> onnx.ModelProto:
    """3×3 convolutions with as many channels as suit minimal filtering, and a product, over a dynamic batch."""
    nodes = [
        _N("Conv", ["x", "w0"], ["c0"], pads=[1] * 4),
        _N("Relu", ["c0"], ["r0"]),
        _N("Conv", ["r0", "w1"], ["c1"], pads=[1] * 4),
        _N("Conv", ["c1", "p"], ["c2"]),
        _N("GlobalAveragePool", ["c2"], ["g"]),
        _N("Flatten", ["g"], ["f"]),
        _N("Gemm", ["f", "wf"], ["y"], transB=1),
    ]
    weights = _weights(w0=(32, 3, 3, 3), w1=(32, 32, 3, 3), p=(64, 32, 1, 1), wf=(10, 64))
    return dynamic_model(nodes, {"x": ("float32", ("batch", 3, 28, 28))}, ["y"], weights)


def transformer(size: int = 16, heads: int = 2, longest: int = 40) -> onnx.ModelProto:
    """One layer of an encoder with a table of positions and a mask; batch and sequence are dynamic."""
    per_head = size // heads
    nodes = [
        _N("Gather", ["words", "ids"], ["e"]),
        _N("Shape", ["ids"], ["shape"]),
        _N("Gather", ["shape", "zero"], ["b"]),
        _N("Gather", ["shape", "one"], ["s"]),
        _N("Unsqueeze", ["b", "zeros"], ["batch"]),
        _N("Unsqueeze", ["s", "zeros"], ["steps"]),
        _N("Slice", ["places", "zeros", "steps", "ones"], ["p"]),
        _N("Add", ["e", "p"], ["x0"]),
        _N("Unsqueeze", ["mask", "inner"], ["m4"]),
        _N("Concat", ["batch", "ones", "steps", "steps"], ["wide"], axis=0),
        _N("Expand", ["m4", "wide"], ["m"]),
        _N("Cast", ["m"], ["kept"], to=TensorProto.BOOL),
        _N("Where", ["kept", "nothing", "far"], ["bias"]),
        _N("Concat", ["batch", "steps", "heads", "per_head"], ["apart"], axis=0),
        _N("Concat", ["batch", "steps", "size"], ["joined"], axis=0),
    ]
    for kind in "qkv":
        order = [0, 2, 3, 1] if kind == "k" else [0, 2, 1, 3]
        nodes += [
            _N("MatMul", ["x0", f"w{kind}"], [f"{kind}0"]),
            _N("Reshape", [f"{kind}0", "apart"], [f"{kind}1"]),
            _N("Transpose", [f"{kind}1"], [kind], perm=order),
        ]
    nodes += [
        _N("MatMul", ["q", "k"], ["scores"]),
        _N("Mul", ["scores", "scale"], ["scaled"]),
        _N("Add", ["scaled", "bias"], ["masked"]),
        _N("Softmax", ["masked"], ["shares"], axis=-1),
        _N("MatMul", ["shares", "v"], ["context"]),
        _N("Transpose", ["context"], ["together"], perm=[0, 2, 1, 3]),
        _N("Reshape", ["together", "joined"], ["c"]),
        _N("MatMul", ["c", "wo"], ["o"]),
        _N("Add", ["o", "x0"], ["x1"]),
        _N("LayerNormalization", ["x1", "g", "h"], ["y"]),
        _N("Gather", ["y", "zero"], ["first"], axis=1),
    ]
    shapes = {"words": (50, size), "places": (1, longest, size), "g": (size,), "h": (size,), "wo": (size, size)}
    constants = _weights(**shapes, **{f"w{kind}": (size, size) for kind in "qkv"})
    constants |= _ints(zero=0, one=1, zeros=[0], ones=[1], inner=[1, 2], heads=[heads], per_head=[per_head])
    constants |= _ints(size=[size])
    numbers = {"scale": per_head**-0.5, "nothing": 0.0, "far": -1e4}
    constants |= {name: np.array(value, np.float32) for name, value in numbers.items()}
    dims = ("int64", ("batch", "seq"))
    return dynamic_model(nodes, {"ids": dims, "mask": dims}, ["y", "first"], constants)
