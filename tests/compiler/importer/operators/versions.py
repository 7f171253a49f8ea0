"""Small models of old versions of ONNX's operators, wherever their semantics, defaults or attributes changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.compiler.onnx_build import F32, node, noise

ODD = np.array([[-np.inf, -2.5, -0.0, 0.0], [0.5, 1.5, np.inf, np.nan], [-1.5, 2.5, 3.4e38, -3.4e38]], np.float32)
MAP, CUBE = noise(2, 3, 5, 6), noise(2, 3, 4)
TIES = np.array([[1, 2, 2, 1], [3, 3, 0, 3], [0, 0, 0, 0]], np.float32)
WHOLE = np.array([[-7, 7, 0], [5, -5, 3]], np.int64)


@dataclass(frozen=True)
class Case:
    """A model of operator set `opset`; `feeds` are its inputs, `outputs` the names and element types of its outputs."""

    opset: int
    nodes: list[onnx.NodeProto]
    feeds: Mapping[str, np.ndarray]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    outputs: tuple[tuple[str, int], ...] = (("y", F32),)

    @property
    def name(self) -> str:
        """The operator, its version and a number of the attributes."""
        attributes = (
            (a.name, helper.get_attribute_value(a)) for n in self.nodes if n.op_type != "Cast" for a in n.attribute
        )
        shown = ",".join(f"{k}={v.decode() if isinstance(v, bytes) else v}" for k, v in attributes if k != "value")
        constants = ",".join(str(np.ravel(c)[:4].tolist()) for c in self.constants.values() if c.size <= 4)
        return f"{self.nodes[0].op_type}-{self.opset}({shown};{constants})"


def case(opset: int, nodes: Any, feeds: Any, constants: Any = None, **types: int) -> Case:
    feeds = feeds if isinstance(feeds, dict) else {"x": feeds}
    outputs = tuple(types.items()) or (("y", F32),)
    return Case(opset, nodes if isinstance(nodes, list) else [nodes], feeds, constants or {}, outputs)


def floats(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def integers(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


I64, BOOL, F16 = TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT16


def elementwise() -> Iterator[Case]:
    for v in (6, 7, 9, 10):
        for bounds in ({}, {"min": -1.0}, {"max": 1.0}, {"min": -1.0, "max": 1.0}):
            yield case(v, node("Clip", "x", "y", **bounds), ODD)
    with np.errstate(over="ignore"):
        yield case(9, node("Clip", "x", "y"), ODD.astype(np.float16), y=F16)
        yield case(9, node("Clip", "x", "y", max=2.0), ODD.astype(np.float16), y=F16)
        yield case(13, node("Clip", "x - m", "y"), ODD.astype(np.float16), {"m": np.array(1, np.float16)}, y=F16)
    yield case(11, node("Clip", "x", "y"), ODD)
    yield case(12, node("Clip", "x - m", "y"), ODD, {"m": np.array(1, np.float32)})
    for v in (7, 8):
        for op in ("Max", "Min", "Mean", "Sum"):
            yield case(v, node(op, "x x z", "y"), {"x": ODD, "z": ODD[::-1].copy()})
    for op, attributes in (
        ("Elu", {}),
        ("Selu", {}),
        ("HardSigmoid", {}),
        ("HardSigmoid", {"alpha": 0.5, "beta": 0.2}),
        ("Relu", {}),
        ("LeakyRelu", {"alpha": 0.3}),
        ("Softplus", {}),
        ("Softsign", {}),
    ):
        yield case(7, node(op, "x", "y", **attributes), ODD)
    for v in (7, 10, 12, 13):
        yield case(v, node("Dropout", "x", "y"), MAP)
        yield case(v, node("Dropout", "x", "y m"), MAP, y=F32, m=F32 if v < 10 else BOOL)
    for v in (7, 9, 11, 13):
        yield case(
            v, [node("Equal", "x z", "e"), node("Cast", "e", "y", to=F32)], {"x": WHOLE, "z": WHOLE[::-1].copy()}
        )
    for v in (7, 12, 13):
        yield case(v, node("Pow", "x z", "y"), {"x": np.abs(ODD), "z": np.full((4,), 2.5, np.float32)})
    yield case(12, node("Pow", "x z", "y"), {"x": noise(2, 3), "z": integers(2, 3, 0)})
    for v in (10, 13):
        for fmod in ({}, {"fmod": 1}):
            yield case(v, node("Mod", "x z", "y", **fmod), {"x": WHOLE, "z": integers(3, -3, 2)}, y=I64)
        yield case(v, node("Mod", "x z", "y", fmod=1), {"x": noise(2, 3) * 5, "z": floats(3, -3, 2)})
    for v in (7, 9, 13):
        for to in (I64, BOOL, F16, TensorProto.INT32, TensorProto.DOUBLE):
            yield case(v, node("Cast", "x", "y", to=to), floats(0, 1.5, -1.5, 2.7, 100.2), y=to)
    for v in (9, 16):
        nodes = [node("Greater", "x z", "c"), node("Where", "c x z", "y")]
        yield case(v, nodes, {"x": noise(2, 3), "z": noise(2, 3, seed=4)})
    for detect in ("detect_negative", "detect_positive"):
        yield case(10, [node("IsInf", "x", "i", **{detect: 0}), node("Cast", "i", "y", to=F32)], ODD)
    yield case(11, node("Round", "x", "y"), ODD)
    yield case(9, node("Sign", "x", "y"), ODD)


def over_axes() -> Iterator[Case]:
    for v in (7, 9, 11, 12, 13):
        for axis in ({}, {"axis": 0}, {"axis": 1}, {"axis": 2}, *([{"axis": -1}] if v >= 11 else [])):
            for op in ("Softmax", "LogSoftmax", "Hardmax"):
                yield case(v, node(op, "x", "y", **axis), CUBE)
            yield case(v, node("Flatten", "x", "y", **axis), CUBE)
    reductions = "Sum Mean Max Min Prod L1 L2 LogSum LogSumExp SumSquare"
    for v in (7, 11, 12, 13):
        for kind in reductions.split():
            if kind != "Sum" or v < 13:
                yield case(v, node(f"Reduce{kind}", "x", "y"), np.abs(MAP))
                yield case(v, node(f"Reduce{kind}", "x", "y", axes=[1, 3], keepdims=0), np.abs(MAP))
        for op in ("ArgMax", "ArgMin"):
            for more in ({}, {"keepdims": 0}, *([{"select_last_index": 1}] if v >= 12 else [])):
                yield case(v, node(op, "x", "y", axis=1, **more), TIES, y=I64)
    yield case(9, node("TopK", "x", "y i", k=2, axis=1), TIES, y=F32, i=I64)
    yield case(10, node("TopK", "x k", "y i", axis=0), TIES, {"k": integers(2)}, y=F32, i=I64)
    yield case(11, node("TopK", "x k", "y i", largest=0), TIES, {"k": integers(2)}, y=F32, i=I64)
    for v in (11, 14):
        for more in ({}, {"exclusive": 1}, {"reverse": 1}):
            yield case(v, node("CumSum", "x a", "y", **more), MAP, {"a": np.array(-1, np.int64)})
    yield case(11, node("Unsqueeze", "x", "y", axes=[-1, 0]), TIES)
    yield case(7, [node("Unsqueeze", "x", "u", axes=[0, 2]), node("Squeeze", "u", "y")], TIES)
    yield case(11, [node("Unsqueeze", "x", "u", axes=[0, 2]), node("Squeeze", "u", "y", axes=[-2])], TIES)
    yield case(9, node("Slice", "x", "y", starts=[1, -3], ends=[9, -1]), MAP)
    yield case(7, node("Slice", "x", "y", axes=[3], starts=[-100], ends=[100]), MAP)
    slices = {"s": integers(-1, 0), "e": integers(-100, 9), "a": integers(2, 3), "t": integers(-2, 2)}
    yield case(10, node("Slice", "x s e a t", "y"), MAP, slices)
    for v in (7, 11, 12):
        yield case(v, node("Split", "x", "y z", axis=3), MAP, y=F32, z=F32)
        yield case(v, node("Split", "x", "y z", axis=1, split=[1, 2]), MAP, y=F32, z=F32)
    yield case(13, node("Split", "x s", "y z", axis=1), MAP, {"s": integers(2, 1)}, y=F32, z=F32)
    yield case(18, node("Split", "x", "y z", axis=2, num_outputs=2), MAP, y=F32, z=F32)
    values = {"v": floats(2, 5)}
    yield case(9, node("OneHot", "x d v", "y", axis=-1), integers(0, 2, 5, -1), {"d": integers(3), **values})
    yield case(11, node("OneHot", "x d v", "y", axis=0), integers(0, 2, 5, -1), {"d": np.array(3), **values})
    for v in (7, 13, 14):
        yield case(v, node("Reshape", "x s", "y"), MAP, {"s": integers(0, -1, 6)})
        yield case(v, node("Shape", "x", "y"), MAP, y=I64)
    yield case(15, node("Shape", "x", "y", start=1, end=-1), MAP, y=I64)
    moved = {"i": np.array([[1, 3], [0, 2]]), "u": noise(2, 2)}
    yield case(9, node("Scatter", "x i u", "y", axis=1), noise(2, 4), moved)
    yield case(11, node("ScatterElements", "x i u", "y", axis=1), noise(2, 4), moved)
    yield case(11, node("GatherND", "x i", "y"), MAP, {"i": np.array([[0, 1], [1, -1]])})
    yield case(12, node("GatherND", "x i", "y", batch_dims=1), MAP, {"i": np.array([[1], [2]])})
    yield case(
        16, node("ScatterND", "x i u", "y", reduction="add"), TIES, {"i": np.array([[0], [0]]), "u": noise(2, 4)}
    )


def maps() -> Iterator[Case]:
    for mode in ("nearest", "linear"):
        for scales in ([1, 1, 2, 3], [1, 1, 1.5, 1.7], [1, 1, 2.3, 1.2]):
            for v in (7, 8):
                yield case(v, node("Upsample", "x", "y", mode=mode, scales=[float(s) for s in scales]), MAP)
            yield case(9, node("Upsample", "x s", "y", mode=mode), MAP, {"s": floats(*scales)})
        for scales in ([1, 1, 2, 3], [1, 1, 0.6, 0.6], [1, 1, 0.5, 0.75], [1, 1, 0.4, 1.3], [1, 1, 1 / 3, 0.8]):
            yield case(10, node("Resize", "x s", "y", mode=mode), MAP, {"s": floats(*scales)})
    yield case(10, node("Resize", "x s", "y"), MAP, {"s": floats(2, 0.67, 0.5, 1)})
    yield case(10, node("Resize", "x s", "y"), {"x": MAP, "s": floats(1, 1, 0.4, 1.7)})
    for v in (11, 13, 18, 19):
        constants = {"s": floats(1, 1, 0.6, 1.7), "r": floats()}
        yield case(v, node("Resize", "x r s", "y"), MAP, constants)
        for mode in ("linear", "cubic"):
            yield case(v, node("Resize", "x r s", "y", mode=mode), MAP, constants)
        for rounding in ("round_prefer_floor", "floor", "ceil", "round_prefer_ceil"):
            more = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": rounding}
            yield case(v, node("Resize", "x r s", "y", **more), MAP, constants)
        yield case(v, node("Resize", "x r r z", "y"), MAP, {"z": integers(2, 3, 7, 4), "r": floats()})
    for v in (7, 10):
        for mode in ("constant", "reflect", "edge"):
            yield case(v, node("Pad", "x", "y", mode=mode, pads=[0, 0, 1, 2, 0, 0, 2, 1]), MAP)
        yield case(v, node("Pad", "x", "y", pads=[0, 0, -1, 2, 0, 0, -2, 1], value=1.5), MAP)
    windows = ({"pads": [1, 1, 1, 1]}, {"auto_pad": "SAME_LOWER"}, {"auto_pad": "SAME_UPPER"})
    for window in windows:
        for v in (7, 10, 11, 19, 22):
            for more in ({}, {"count_include_pad": 1}, *([{"ceil_mode": 1}] if v >= 10 else [])):
                yield case(v, node("AveragePool", "x", "y", kernel_shape=[3, 3], strides=[2, 2], **window, **more), MAP)
        for v in (8, 10, 12, 22):
            for more in ({}, {"storage_order": 1}, *([{"ceil_mode": 1}, {"dilations": [1, 2]}] if v >= 10 else [])):
                made = node("MaxPool", "x", "y i", kernel_shape=[3, 2], strides=[2, 2], **window, **more)
                yield case(v, made, MAP, y=F32, i=I64)
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, 0.9], [0.5, 0.5, 1.4, 1.4], [2, 2, 3, 3]]], np.float32)
    scores = {"x": boxes, "s": np.array([[[0.9, 0.8, 0.7, 0.1]]], np.float32)}
    limits = {"m": integers(3), "i": floats(0.5), "c": floats(0.05)}
    for v in (10, 11):
        yield case(v, node("NonMaxSuppression", "x s m i c", "y"), scores, limits, y=I64)
        yield case(v, node("NonMaxSuppression", "x s m", "y", center_point_box=1), scores, {"m": integers(3)}, y=I64)
    regions = {"r": np.array([[0, 0, 4, 4], [1, 1, 5, 3]], np.float32), "b": integers(0, 1)}
    for v in (10, 16):
        for more in ({}, {"mode": "max"}, {"sampling_ratio": 2, "spatial_scale": 0.5}, {"output_height": 2}):
            yield case(v, node("RoiAlign", "x r b", "y", **more), MAP, regions)
    grid = {"x": MAP, "g": noise(2, 4, 3, 2) * np.float32(0.7)}
    for v, modes in ((16, ("bilinear", "nearest", "bicubic")), (20, ("linear", "nearest", "cubic"))):
        for mode in modes:
            for padding in ("zeros", "border", "reflection"):
                yield case(v, node("GridSample", "x g", "y", mode=mode, padding_mode=padding), grid)
    for v in (7, 11):
        shape = {"auto_pad": "SAME_LOWER", "strides": [2, 2]}
        yield case(v, node("Conv", "x w", "y", **shape), MAP, {"w": noise(4, 3, 3, 2)})
        for more in (
            shape,
            {"output_shape": [11, 13], "strides": [2, 2]},
            {"output_padding": [1, 0], "strides": [2, 2]},
        ):
            yield case(v, node("ConvTranspose", "x w", "y", **more), MAP, {"w": noise(3, 2, 3, 3)})
    yield case(7, node("DepthToSpace", "x", "y", blocksize=2), noise(1, 8, 2, 3))
    yield case(11, node("DepthToSpace", "x", "y", blocksize=2, mode="CRD"), noise(1, 8, 2, 3))


def layers() -> Iterator[Case]:
    for v in (7, 9, 11):
        weights = {"w": noise(3, 4), "b": noise(2, 1)}
        yield case(v, node("Gemm", "x w b", "y", alpha=0.5, beta=2.0, transA=1), noise(3, 2), weights)
    statistics = {"s": noise(3), "b": noise(3, seed=1), "m": noise(3, seed=2), "v": np.abs(noise(3)) + np.float32(0.1)}
    for v in (7, 8, 9, 14, 15):
        yield case(v, node("BatchNormalization", "x s b m v", "y", epsilon=0.1, momentum=0.3), MAP, statistics)
    for v in (7, 14):
        for op, gates in (("GRU", 3), ("LSTM", 4), ("RNN", 1)):
            weights = {"w": noise(2, 4 * gates, 3), "r": noise(2, 4 * gates, 4, seed=2), "b": noise(2, 8 * gates)}
            made = node(op, "x w r b", "y h", hidden_size=4, direction="bidirectional")
            yield case(v, made, noise(5, 2, 3), weights, y=F32, h=F32)
        weights = {"w": noise(1, 12, 3), "r": noise(1, 12, 4, seed=2), "b": noise(1, 24, seed=3)}
        yield case(v, node("GRU", "x w r b", "y", hidden_size=4, linear_before_reset=1), noise(5, 2, 3), weights)
    groups = {"s": noise(4), "b": noise(4, seed=4)}
    yield case(21, node("GroupNormalization", "x s b", "y", num_groups=2, epsilon=0.1), noise(2, 4, 3, 3), groups)
    groups = {"s": noise(2), "b": noise(2, seed=4)}  # before operator set 21 each group has one, and ONNX withdrew that
    for v in (18, 20):
        yield case(v, node("GroupNormalization", "x s b", "y", num_groups=2, epsilon=0.1), noise(2, 4, 3, 3), groups)
    for v in (10, 13, 19, 21, 23):
        scale = {"s": np.array(0.5, np.float32), "z": np.array(7, np.uint8)}
        yield case(v, node("QuantizeLinear", "x s z", "y"), noise(5) * 40, scale, y=TensorProto.UINT8)
        yield case(v, node("DequantizeLinear", "x s z", "y"), np.array([0, 3, 200], np.uint8), scale)
    rows = {"s": floats(0.5, 1, 2), "z": np.array([7, 1, 3], np.uint8)}
    yield case(13, node("DequantizeLinear", "x s z", "y", axis=1), np.arange(12, dtype=np.uint8).reshape(2, 3, 2), rows)


def experimental() -> Iterator[Case]:
    """Operators of ONNX's first releases that it left out, or whose names later ones have, and of ONNX Runtime's."""
    for v in (7, 9):
        yield case(v, node("Affine", "x", "y", alpha=2.0, beta=0.5), ODD)
        yield case(v, node("ScaledTanh", "x", "y", alpha=2.0, beta=0.5), ODD)
        yield case(v, node("ParametricSoftplus", "x", "y", alpha=2.0, beta=0.5), noise(2, 3))
        yield case(v, node("ThresholdedRelu", "x", "y", alpha=0.4), ODD)
        yield case(v, node("ImageScaler", "x", "y", scale=0.5, bias=[1.0, 2.0, 3.0]), MAP)
        yield case(v, node("Scale", "x", "y", scale=3.0), ODD)
        yield case(v, node("Crop", "x", "y", border=[1, 0, 2, 1]), MAP)
        yield case(v, node("Crop", "x", "y", border=[1, 2, 0, 0], scale=[2, 3]), MAP)
        places = {"s": integers(1, 0), "e": integers(3, -1), "a": integers(2, 3)}
        yield case(v, node("DynamicSlice", "x s e a", "y"), MAP, places)
        yield case(v, node("DynamicSlice", "x s e", "y"), {"x": MAP, "s": integers(1, 0), "e": integers(3, -1)})
    for v in (9, 14):  # as ONNX Runtime's tools write it
        yield case(v, node("LayerNormalization", "x s", "y", axis=-1), noise(2, 3), {"s": floats(0.5, 1, 2)})
    for more in ({}, {"across_channels": 1}, {"normalize_variance": 0}):
        yield case(8, node("MeanVarianceNormalization", "x", "y", **more), MAP)
    body = helper.make_graph(
        [node("Affine", "x", "r", alpha=3.0)], "body", [], [helper.make_empty_tensor_value_info("r")]
    )
    yield case(9, node("If", "c", "y", then_branch=body, else_branch=body), {"x": MAP, "c": np.array(True)})


CASES = [*elementwise(), *over_axes(), *maps(), *layers(), *experimental()]
