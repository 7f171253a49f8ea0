"""The nodes that a model of several nodes is drawn from: each step proposes one or a few that read a value.

What a small rounding error changes by more, such as a comparison, reads only values that are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto

from tests.hostile.cases import _elem_type
from tests.hostile.mixture import Mixture, draw

SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17)

Step = Callable[[Mixture, str], str | None]
"""Adds nodes that read the value; the name of a result, or None if ONNX Runtime does not run them."""


def _elementwise(net: Mixture, x: str) -> str | None:
    kind = net.values[x].dtype.kind
    if kind == "b":
        return net.add("Not", [x], exact=True)
    if kind in "iu":
        return net.add(net.pick(("Abs", "Neg", "Sign", "BitwiseNot", "Relu")), [x], exact=True)
    if x in net.exact and net.rng.random() < 0.4:
        steps = (
            "Floor",
            "Ceil",
            "Round",
            "Sign",
            "Neg",
            "Abs",
            "Relu",
            "HardSigmoid",
            "ThresholdedRelu",
            "IsNaN",
            "IsInf",
        )
        return net.add(net.pick(steps), [x], exact=True)
    smooth = ("Sigmoid", "Tanh", "Erf", "Softplus", "Elu", "Selu", "Celu", "LeakyRelu", "HardSwish", "Mish", "Gelu")
    smooth += ("Softsign", "Sin", "Cos", "Atan", "Neg", "Abs", "Relu", "Exp", "Shrink", "Asinh", "Reciprocal", "Sqrt")
    return net.add(net.pick((*smooth, "Log", "HardSigmoid", "Swish", "Sinh", "Acos", "Atanh")), [x], exact=False)


def _binary(net: Mixture, x: str) -> str | None:
    array = net.values[x]
    others = [n for n, a in net.values.items() if a.dtype == array.dtype]
    other = net.pick(others) if net.rng.random() < 0.5 else None
    if other is None:
        dims = [int(d) if net.rng.random() < 0.5 else 1 for d in array.shape[int(net.rng.integers(array.ndim + 1)) :]]
        drawn = draw(net.rng, array.dtype.name, tuple(dims))
        other = net.constant(drawn) if net.rng.random() < 0.6 else net.input(drawn)
    pair = [x, other] if net.rng.random() < 0.5 else [other, x]
    kind = array.dtype.kind
    if kind in "OUS":
        return net.add(net.pick(("Equal", "StringConcat")), pair, exact=True)
    if kind == "b":
        return net.add(net.pick(("And", "Or", "Xor", "Equal")), pair, exact=True)
    if kind in "iu":
        names = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Mod", "Pow", "Equal", "Less", "Greater", "GreaterOrEqual")
        names += ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "LessOrEqual", "PRelu", "Sum", "Mean")
        return net.add(net.pick(names), pair, exact=True)
    if set(pair) <= net.exact | net.constants.keys() and net.rng.random() < 0.3:
        op = net.pick("Less Greater Equal LessOrEqual GreaterOrEqual Max Min".split())
        return net.add(op, pair, exact=True)
    if net.rng.random() < 0.1:
        return net.add("Mod", pair, exact=False, fmod=1) if set(pair) <= net.exact | net.constants.keys() else None
    return net.add(net.pick("Add Sub Mul Div Max Min PRelu Sum Mean Pow".split()), pair, exact=False)


def _cast(net: Mixture, x: str) -> str | None:
    to = net.pick("float32 int64 int32 uint8 bool int8 float64 str".split())
    from_floats = net.values[x].dtype.kind not in "iub"
    if from_floats and (to != "float32" and to != "float64") and x not in net.exact:
        return None
    if net.values[x].dtype.kind in "OUS" or (to == "str" and from_floats):
        return None
    if from_floats and to not in ("float32", "float64", "bool", "int64", "int32"):
        return None  # what is out of the range of narrow integers is not defined
    if from_floats and to in ("int32", "int64") and not np.all(np.abs(net.values[x].astype(np.float64)) < 1e6):
        return None
    return net.add("Cast", [x], exact=True, to=TensorProto.STRING if to == "str" else _elem_type(np.dtype(to)))


def _transpose(net: Mixture, x: str) -> str | None:
    rank = net.values[x].ndim
    return net.add("Transpose", [x], exact=True, perm=[int(i) for i in net.rng.permutation(rank)]) if rank else None


def _reshape(net: Mixture, x: str) -> str | None:
    array = net.values[x]
    way = int(net.rng.integers(5))
    if way == 0:
        return net.add("Flatten", [x], exact=True, axis=int(net.rng.integers(array.ndim + 1)))
    if way == 1:
        return net.add("Reshape", [x, net.integers(-1)], exact=True)
    if way == 2 and array.ndim:
        keep = int(net.rng.integers(array.ndim))
        return net.add("Reshape", [x, net.integers(*([0] * keep), -1)], exact=True)
    if way == 3:
        whole = net.add("Shape", [x], exact=True)
        if whole is None:
            return None
        order = [int(i) for i in net.rng.permutation(array.ndim)]
        wanted = net.add("Gather", [whole, net.integers(*order)], exact=True, axis=0)
        return None if wanted is None else net.add("Reshape", [x, wanted], exact=True)
    shape = [int(d) for d in array.shape]
    for axis, size in enumerate(shape):
        if size % 2 == 0 and size:
            return net.add("Reshape", [x, net.integers(*shape[:axis], 2, -1, *shape[axis + 1 :])], exact=True)
    return None


def _units(net: Mixture, x: str) -> str | None:
    array = net.values[x]
    ones = [i for i, d in enumerate(array.shape) if d == 1]
    op, axis = ("Squeeze", net.pick(ones)) if ones and net.rng.random() < 0.5 else ("Unsqueeze", 0)
    if op == "Unsqueeze":
        axis = int(net.rng.integers(array.ndim + 1))
    return _with_axes(net, op, x, [axis], 13, exact=True)


def _with_axes(net: Mixture, op: str, x: str, axes: list[int], since: int, *, exact: bool, **more: Any) -> str | None:
    if net.opset >= since:
        return net.add(op, [x, net.integers(*axes)], exact=exact, **more)
    return net.add(op, [x], exact=exact, axes=axes, **more)


def _reduce(net: Mixture, x: str) -> str | None:
    array = net.values[x]
    if not array.ndim:
        return None
    axes = [i for i in range(array.ndim) if net.rng.random() < 0.5] or [int(net.rng.integers(array.ndim))]
    keep = int(net.rng.integers(2))
    if net.rng.random() < 0.25:
        if x not in net.exact:
            return None
        op = net.pick(("ArgMax", "ArgMin"))
        more = {"select_last_index": 1} if net.opset >= 12 and net.rng.random() < 0.5 else {}
        return net.add(op, [x], exact=True, axis=axes[0], keepdims=keep, **more)
    whole = array.dtype.kind in "iub"
    op = net.pick("Sum Mean Max Min Prod L1 L2 SumSquare LogSumExp LogSum".split())
    return _with_axes(
        net, f"Reduce{op}", x, axes, 13 if op == "Sum" else 18, exact=whole or op in ("Max", "Min"), keepdims=keep
    )


def _cut(net: Mixture, x: str) -> str | None:
    array = net.values[x]
    if not array.ndim:
        return None
    axis = int(net.rng.integers(array.ndim))
    size = int(array.shape[axis])
    way = int(net.rng.integers(5))
    if way == 0 and net.opset >= 10:
        start, stop = (int(net.rng.integers(-size - 1, size + 2)) for _ in range(2))
        step = net.pick((1, 1, 2, 3, -1, -2))
        stop = net.pick((stop, 1 << 62, -(1 << 62)))
        return net.add("Slice", [x, *(net.integers(v) for v in (start, stop, axis, step))], exact=True)
    if way == 1:
        index = net.rng.integers(-size, size, int(net.rng.integers(0, 4))) if size else np.zeros(0, np.int64)
        return net.add("Gather", [x, net.constant(np.asarray(index, np.int64))], exact=True, axis=axis)
    if way == 2 and size > 1:
        first = int(net.rng.integers(1, size))
        if net.opset >= 13:
            return net.add("Split", [x, net.integers(first, size - first)], exact=True, axis=axis)
        return net.add("Split", [x], exact=True, axis=axis, split=[first, size - first])
    if way == 3 and array.dtype.kind != "b" and net.opset >= 11:
        return net.add(
            "CumSum",
            [x, net.constant(np.array(axis))],
            exact=array.dtype.kind in "iu",
            reverse=int(net.rng.integers(2)),
            exclusive=int(net.rng.integers(2)),
        )
    if way == 4 and x in net.exact and net.opset >= 11 and size:
        return net.add(
            "TopK",
            [x, net.integers(int(net.rng.integers(1, size + 1)))],
            exact=True,
            axis=axis,
            largest=int(net.rng.integers(2)),
        )
    return None


def _join(net: Mixture, x: str) -> str | None:
    array = net.values[x]
    if not array.ndim:
        return None
    axis = int(net.rng.integers(array.ndim))
    alike = [n for n, a in net.values.items() if a.dtype == array.dtype and a.ndim == array.ndim]
    return net.add("Concat", [x, *(net.pick(alike) for _ in range(int(net.rng.integers(1, 3))))], exact=True, axis=axis)


def _stretch(net: Mixture, x: str) -> str | None:
    array = net.values[x]
    way = int(net.rng.integers(3))
    if way == 0:
        return net.add("Tile", [x, net.integers(*(int(n) for n in net.rng.integers(0, 3, array.ndim) | 1))], exact=True)
    if way == 1:
        wanted = [int(d) if d != 1 else net.pick(SIZES) for d in array.shape]
        return net.add("Expand", [x, net.integers(*([2] if net.rng.random() < 0.3 else []), *wanted)], exact=True)
    if net.opset < 11:
        return None
    pads = [int(n) for n in net.rng.integers(-1, 3, 2 * array.ndim)]
    mode = net.pick(("constant", "edge", "reflect", "wrap"))
    return net.add("Pad", [x, net.integers(*pads)], exact=True, mode=mode)


def _choose(net: Mixture, x: str) -> str | None:
    array = net.values[x]
    masks = [n for n, a in net.values.items() if a.dtype.kind == "b"]
    mask = net.pick(masks) if masks and net.rng.random() < 0.6 else net.input(draw(net.rng, "bool", array.shape))
    alike = [n for n, a in net.values.items() if a.dtype == array.dtype]
    return net.add("Where", [mask, x, net.pick(alike)], exact=True)


def _normalise(net: Mixture, x: str) -> str | None:
    array = net.values[x]
    if (array.dtype.kind != "f" and array.dtype.name != "bfloat16") or not array.ndim:
        return None
    axis = int(net.rng.integers(-array.ndim, array.ndim))
    op = net.pick("Softmax LogSoftmax Softmax LpNormalization LayerNormalization Hardmax".split())
    if op == "LayerNormalization":
        scale = draw(net.rng, array.dtype.name, tuple(int(d) for d in array.shape[axis:]))
        return net.add(op, [x, net.constant(scale)], exact=False, axis=axis, epsilon=1e-2)
    if op == "Hardmax" and x not in net.exact:
        return None
    return net.add(op, [x], exact=op == "Hardmax", axis=axis)


def _product(net: Mixture, x: str) -> str | None:
    array = net.values[x]
    if array.ndim < 1:
        return None
    if net.rng.random() < 0.5:
        weight = draw(net.rng, array.dtype.name, (int(array.shape[-1]), net.pick(SIZES)))
        return net.add("MatMul", [x, net.constant(weight)], exact=array.dtype.kind in "iu")
    others = [n for n, a in net.values.items() if a.dtype == array.dtype and a.ndim]
    other = net.pick(others)
    if array.ndim == 2 and net.values[other].ndim == 2 and net.rng.random() < 0.5:
        return net.add(
            "Gemm", [x, other], exact=False, transA=int(net.rng.integers(2)), transB=int(net.rng.integers(2)), alpha=0.5
        )
    return net.add("MatMul", [x, other], exact=array.dtype.kind in "iu")


def _window(net: Mixture, x: str) -> str | None:
    array = net.values[x]
    if array.ndim not in (3, 4, 5) or array.dtype.kind not in "f":
        return None
    rank = array.ndim - 2
    kernel = [net.pick((1, 2, 3)) for _ in range(rank)]
    how = {"kernel_shape": kernel, "strides": [net.pick((1, 1, 2)) for _ in range(rank)]}
    how["pads"] = [int(net.rng.integers(k)) for k in (*kernel, *kernel)]
    if net.rng.random() < 0.4:
        how["dilations"] = [net.pick((1, 2)) for _ in range(rank)]
    channels = int(array.shape[1])
    windows = "Conv Conv ConvTranspose MaxPool AveragePool LpPool".split()
    others = "GlobalAveragePool GlobalMaxPool InstanceNormalization BatchNormalization Resize LRN".split()
    op = net.pick([*windows, *others])
    if op == "Conv":
        group = net.pick([g for g in (1, 2, channels) if g and channels % g == 0] or [1])
        out = group * net.pick((1, 2, 3, 8))
        weight = draw(net.rng, array.dtype.name, (out, channels // group, *kernel))
        return net.add(op, [x, net.constant(weight)], exact=False, group=group, **how)
    if op == "ConvTranspose":
        weight = draw(net.rng, array.dtype.name, (channels, net.pick((1, 2, 3)), *kernel))
        return net.add(op, [x, net.constant(weight)], exact=False, **how)
    if op in ("InstanceNormalization", "BatchNormalization"):
        more = [
            net.constant(np.abs(draw(net.rng, array.dtype.name, (channels,))) + array.dtype.type(0.5)) for _ in range(4)
        ]
        return net.add(op, [x, *more[: 2 if op[0] == "I" else 4]], exact=False, epsilon=1e-2)
    if op.startswith("Global"):
        return net.add(op, [x], exact=op == "GlobalMaxPool")
    if op == "LRN":
        return net.add(op, [x], exact=False, size=net.pick((1, 3, 5)))
    if op == "Resize":
        if net.opset < 11:
            return None
        scales = net.constant(np.array([1, 1, *(net.pick((0.5, 1, 2, 1.5)) for _ in range(rank))], np.float32))
        mode = net.pick(("nearest", "linear", "cubic"))
        way = net.pick(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"))
        return net.add(
            op,
            [x, net.constant(np.zeros(0, np.float32)), scales],
            exact=mode == "nearest",
            mode=mode,
            coordinate_transformation_mode=way,
        )
    if op == "AveragePool":
        how["count_include_pad"] = int(net.rng.integers(2))
        if net.opset < 19:
            how.pop("dilations", None)
    if net.opset >= 10 and op != "LpPool":
        how["ceil_mode"] = int(net.rng.integers(2))
    if net.opset < 10 or (op == "LpPool" and net.opset < 18):
        how.pop("dilations", None)
    return net.add(op, [x], exact=op == "MaxPool", **how)


def _index(net: Mixture, x: str) -> str | None:
    array = net.values[x]
    if not array.ndim:
        return None
    axis = int(net.rng.integers(array.ndim))
    size = int(array.shape[axis])
    way = net.pick(
        "OneHot GatherElements NonZero Compress Trilu EyeLike ScatterElements ReverseSequence Einsum".split()
    )
    if way == "OneHot" and array.dtype.kind in "iu":
        pair = net.constant(np.array([0, 1], np.float32))
        return net.add(way, [x, net.integers(net.pick((1, 3, 5))), pair], exact=True, axis=net.pick((-1, 0)))
    if way in ("GatherElements", "ScatterElements") and size and net.opset >= 11:
        shape = tuple(int(d) for d in array.shape)
        index = net.constant(
            net.rng.permutation(np.indices(shape)[axis]).astype(np.int64)
            if way[0] == "G"
            else np.indices(shape)[axis].astype(np.int64)
        )
        more = [net.constant(draw(net.rng, array.dtype.name, shape))] if way[0] == "S" else []
        return net.add(way, [x, index, *more], exact=True, axis=axis)
    if way == "NonZero" and x in net.exact:
        return net.add(way, [x], exact=True)
    if way == "Compress" and size:
        return net.add(way, [x, net.constant(draw(net.rng, "bool", (size,)))], exact=True, axis=axis)
    if way == "Trilu" and net.opset >= 14:
        return net.add(
            way, [x, net.constant(np.array(int(net.rng.integers(-2, 3))))], exact=True, upper=int(net.rng.integers(2))
        )
    if way == "EyeLike":
        return net.add(way, [x], exact=True, k=int(net.rng.integers(-1, 2)))
    if way == "ReverseSequence" and array.ndim >= 2:
        lengths = net.constant(net.rng.integers(0, int(array.shape[0]) + 1, int(array.shape[1])))
        return net.add(way, [x, lengths], exact=True)
    if way == "Einsum" and array.ndim == 2 and net.opset >= 12:
        return net.add(
            way,
            [x, x],
            exact=array.dtype.kind in "iu",
            equation=net.pick(("ij,ij->i", "ij,kj->ik", "ij,ij->", "ij,ik->jk", "ij,ij->ji")),
        )
    return None


def _clip(net: Mixture, x: str) -> str | None:
    dtype = net.values[x].dtype
    if dtype.kind in "OUSb":
        return None
    low, high = (np.array(v).astype(dtype) for v in (0 if dtype.kind == "u" else -1, 1))
    if net.opset < 11:
        return net.add("Clip", [x], exact=True, min=-1.0, max=1.0)
    bounds = [net.constant(low), net.constant(high)]
    bounds[int(net.rng.integers(2))] = net.pick(("", *bounds))
    return net.add("Clip", [x, *bounds], exact=True)


def _quantise(net: Mixture, x: str) -> str | None:
    array = net.values[x]
    if array.dtype.name in ("uint8", "int8"):
        return (
            net.add(
                "DequantizeLinear",
                [x, net.constant(np.array(0.25, np.float32)), net.constant(np.array(3, array.dtype))],
                exact=True,
            )
            if net.opset >= 10
            else None
        )
    if array.dtype == np.float32 and x in net.exact and net.opset >= 10:
        return net.add(
            "QuantizeLinear",
            [x, net.constant(np.array(0.25, np.float32)), net.constant(np.array(3, net.pick((np.uint8, np.int8))))],
            exact=True,
        )
    return None


STEPS: tuple[Step, ...] = (
    *(_elementwise, _elementwise, _elementwise, _binary, _binary, _binary, _cast, _cast, _transpose, _reshape, _units),
    *(_reduce, _reduce, _cut, _cut, _join, _stretch, _choose, _normalise, _product, _window, _window, _index, _index),
    *(_clip, _quantise),
)
