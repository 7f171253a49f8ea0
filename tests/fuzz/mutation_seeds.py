"""Small ONNX models, of all forms that import has a way for, to be mutated."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from tests.compiler.onnx_build import F32, I64, model, node, noise, value

DATA_FILE = "data.bin"
"""The file of external data, 1024 bytes, beside each mutant."""

BOOL = TensorProto.BOOL
OPSET = helper.make_opsetid("", 17)


def outside(name: str, *dims: int) -> TensorProto:
    tensor = TensorProto(name=name, data_type=F32, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, text in (("location", DATA_FILE), ("offset", "16"), ("length", str(4 * int(np.prod(dims))))):
        tensor.external_data.add(key=key, value=text)
    return tensor


def sparse(name: str) -> onnx.SparseTensorProto:
    return onnx.SparseTensorProto(
        dims=[2, 4],
        values=numpy_helper.from_array(noise(3), name),
        indices=numpy_helper.from_array(np.array([0, 3, 6], np.int64), f"{name}_i"),
    )


def graph(nodes: list[onnx.NodeProto], result: str, *tensors: TensorProto) -> onnx.GraphProto:
    return helper.make_graph(nodes, "b", [], [onnx.ValueInfoProto(name=result)], list(tensors))


def network() -> onnx.ModelProto:
    constants = {"w": noise(4, 3, 3, 3), "b": noise(4), "s": np.array([1, 64], np.int64), "m": noise(64, 5)}
    nodes = [
        node("Conv", "x w b", "c", "conv", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", "c", "r"),
        node("Shape", "r", "unused"),
        node("Reshape", "r s", "f"),
        node("MatMul", "f m", "p"),
        node("Softmax", "p", "y", axis=-1),
    ]
    return model(nodes, [value("x", [1, 3, 8, 8])], [value("y", [1, 5])], constants)


def external() -> onnx.ModelProto:
    made = model([node("Add", "x w", "a"), node("Mul", "a v", "y")], [value("x", [2, 4])], [value("y")])
    made.graph.initializer.extend([outside("w", 2, 4), outside("v", 4)])
    return made


def functions() -> onnx.ModelProto:
    constant = node("Constant", "", "w")
    constant.attribute.add(name="value", type=AttributeProto.TENSOR, ref_attr_name="default")
    inner = helper.make_function("f", "G", ["a"], ["b"], [node("Relu", "a", "t"), node("Neg", "t", "b")], [OPSET])
    nodes = [constant, node("G", "a", "g", domain="f"), node("Add", "g w", "b")]
    outer = helper.make_function("f", "F", ["a"], ["b"], nodes, [OPSET, helper.make_opsetid("f", 1)])
    outer.attribute_proto.add(name="default", type=AttributeProto.TENSOR, t=outside("d", 4))
    call = [node("F", "x", "m", "call", domain="f"), node("F", "m", "y", domain="f")]
    return model(call, [value("x", [4])], [value("y", [4])], domains=[("f", 1)], functions=[outer, inner])


def branches() -> onnx.ModelProto:
    yes = graph([node("Relu", "x", "p"), node("Add", "p w", "r")], "r", numpy_helper.from_array(noise(4), "w"))
    made = node("If", "c", "y", "choose", then_branch=yes, else_branch=graph([node("Abs", "x", "s")], "s"))
    return model([made], [value("x", [4]), value("c", [], BOOL)], [value("y", [4])])


def nested() -> onnx.ModelProto:
    """Nested branches, four deep, each with a separate condition."""
    inner = graph([node("Abs", "x", "a")], "a")
    for depth in range(4):
        other = graph([node("Relu", "x", f"o{depth}")], f"o{depth}")
        made = node("If", f"c{depth}", f"r{depth}", f"choose{depth}", then_branch=inner, else_branch=other)
        inner = graph([made], f"r{depth}")
    conditions = [value(f"c{depth}", [], BOOL) for depth in range(4)]
    return model(list(inner.node), [value("x", [4]), *conditions], [value("r3", [4])])


def loop() -> onnx.ModelProto:
    body = helper.make_graph(
        [node("Identity", "go", "again"), node("Add", "held x", "next"), node("Identity", "next", "each")],
        "body",
        [value("i", [], I64), value("go", [], BOOL), value("held", [4])],
        [value("again", [], BOOL), value("next", [4]), value("each", [4])],
    )
    constants = {"trips": np.array(3, np.int64), "true": np.array(True), "start": noise(4)}
    nodes = [node("Loop", "trips true start", "last all", body=body), node("Mul", "last all", "y")]
    return model(nodes, [value("x", [4])], [value("y", None)], constants)


def scan() -> onnx.ModelProto:
    body = helper.make_graph(
        [node("Add", "state item", "sum"), node("Identity", "sum", "out")],
        "body",
        [value("state", [4]), value("item", [4])],
        [value("sum", [4]), value("out", [4])],
    )
    nodes = [node("Scan", "s x", "last y", body=body, num_scan_inputs=1)]
    return model(nodes, [value("s", [4]), value("x", [3, 4])], [value("last"), value("y")])


def sparse_tensors() -> onnx.ModelProto:
    constant = node("Constant", "", "k")
    constant.attribute.add(name="sparse_value", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=sparse("v"))
    made = model([constant, node("Add", "x k", "a"), node("Mul", "a s", "y")], [value("x", [2, 4])], [value("y")])
    made.graph.sparse_initializer.append(sparse("s"))
    return made


def quantised() -> onnx.ModelProto:
    constants = {
        "scale": np.array(0.05, np.float32),
        "zero": np.array(3, np.uint8),
        "w": np.arange(-16, 16, dtype=np.int8).reshape(4, 8),
        "ws": np.full(8, 0.1, np.float32),
        "wz": np.zeros(8, np.int8),
    }
    nodes = [
        node("QuantizeLinear", "x scale zero", "q"),
        node("DequantizeLinear", "q scale zero", "d"),
        node("DequantizeLinear", "w ws wz", "dw", axis=1),
        node("MatMul", "d dw", "y"),
    ]
    made = model(nodes, [value("x", [2, 4])], [value("y", [2, 8])], constants, opset=21)
    packed = TensorProto(name="four", data_type=TensorProto.INT4, dims=[3], raw_data=b"\x21\x03")
    made.graph.initializer.append(packed)
    made.graph.node.append(node("Cast", "four", "z", to=F32))
    made.graph.output.append(value("z", [3]))
    return made


def shapes() -> onnx.ModelProto:
    constants = {"axes": np.array([0], np.int64), "k": np.array([2, 3], np.int64), "pads": np.array([0, 1], np.int64)}
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s axes", "g"),
        node("ConstantOfShape", "k", "c", value=numpy_helper.from_array(np.array([2.0], np.float32))),
        node("Range", "zero n one", "r"),
        node("Expand", "x k", "e"),
        node("Tile", "e k", "t"),
        node("Unsqueeze", "x axes", "u"),
        node("Concat", "c e", "y", axis=0),
        node("Cast", "g", "h", to=F32),
    ]
    constants |= {"zero": np.array(0, np.int64), "n": np.array(5, np.int64), "one": np.array(1, np.int64)}
    outputs = [value("y"), value("h"), value("t"), value("u"), value("r", None, I64)]
    return model(nodes, [value("x", [1, 3])], outputs, constants)


def strings() -> onnx.ModelProto:
    text = helper.make_tensor("k", TensorProto.STRING, [2], [b"a", "é".encode()])
    nodes = [
        node("Equal", "x k", "same"),
        node("Cast", "same", "y", to=F32),
        node("SequenceConstruct", "y y", "q"),
        node("ConcatFromSequence", "q", "z", axis=0),
    ]
    made = model(nodes, [value("x", [2], TensorProto.STRING)], [value("y", [2]), value("z", [4])], opset=19)
    made.graph.initializer.append(text)
    return made


def old() -> onnx.ModelProto:
    nodes = [
        node("Pad", "x", "p", pads=[0, 0, 0, 1], mode="constant"),
        node("Upsample", "p s", "u", mode="nearest"),
        node("Dropout", "u", "d", ratio=0.5),
        node("Squeeze", "d", "y", axes=[0]),
    ]
    constants = {"s": np.array([1, 2], np.float32)}
    return model(nodes, [value("x", [1, 4])], [value("y", [10])], constants, opset=9, ir_version=3)


def decomposed() -> onnx.ModelProto:
    nodes = [
        node("Celu", "x", "c", alpha=2.0),
        node("LayerNormalization", "c g", "n mean", axis=-1),
        node("CenterCropPad", "n k", "y"),
    ]
    constants = {"g": noise(4), "k": np.array([2, 2], np.int64)}
    return model(nodes, [value("x", [2, 4])], [value("y", [2, 2]), value("mean")], constants, opset=18)


_MADE = (
    network,
    external,
    functions,
    branches,
    nested,
    loop,
    scan,
    sparse_tensors,
    quantised,
    shapes,
    strings,
    old,
    decomposed,
)
SEEDS = {make.__name__: make().SerializeToString() for make in _MADE}
