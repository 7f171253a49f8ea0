"""The operators that random networks are made of: each adds a node or two that read a value."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

from tests.fuzz.random_network import Network, Shape, numbers

Step = Callable[[st.DrawFn, Network, str, Shape], None]
"""Adds a node that reads the value; may add nothing."""


def _unary(pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    op = pick(st.sampled_from("Relu Sigmoid Tanh Neg Abs HardSwish Softplus Erf Floor Elu LeakyRelu Sin".split()))
    net.add(op, shape, x)


def _clip(_pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    net.add("Clip", shape, x, net.constant(np.array(-0.5, np.float32)), net.constant(np.array(0.75, np.float32)))


def _binary(pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    op = pick(st.sampled_from("Add Sub Mul Max Min".split()))
    other = pick(st.sampled_from([n for n, s in net.shapes.items() if s == shape]))
    if pick(st.booleans()):
        stretched = tuple(n if pick(st.booleans()) else 1 for n in shape)
        other = net.weight(*stretched[pick(st.integers(0, len(shape))) :])
    net.add(op, shape, *([x, other] if pick(st.booleans()) else [other, x]))


def _divide(_pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    net.add("Div", shape, x, net.constant(np.abs(numbers(shape[-1:], 7)) + np.float32(0.5)))


def _conv(pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    if len(shape) < 3:
        return
    channels, image = shape[1], shape[2:]
    group = pick(st.sampled_from([1, 1, *(n for n in range(1, channels + 1) if channels % n == 0)]))
    out = group * pick(st.integers(1, 8))
    kernel = [pick(st.integers(1, min(3, n))) for n in image]
    pads = [pick(st.integers(0, k - 1)) for k in (*kernel, *kernel)]
    strides = [pick(st.integers(1, 2)) for _ in image]
    rank = len(image)
    result = [(n + pads[i] + pads[i + rank] - kernel[i]) // strides[i] + 1 for i, n in enumerate(image)]
    inner = channels // group
    weight = net.weight(out, inner, *kernel, scale=1 / (inner * np.prod(kernel)) ** 0.5)
    bias = [net.weight(out)] if pick(st.booleans()) else []
    net.add("Conv", (shape[0], out, *result), x, weight, *bias, group=group, pads=pads, strides=strides)


def _pool(pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    if len(shape) != 4:
        return
    kernel = [pick(st.integers(1, min(3, n))) for n in shape[2:]]
    strides = [pick(st.integers(1, 2)) for _ in kernel]
    result = [(n - k) // s + 1 for n, k, s in zip(shape[2:], kernel, strides, strict=True)]
    op = pick(st.sampled_from(["MaxPool", "AveragePool"]))
    net.add(op, (*shape[:2], *result), x, kernel_shape=kernel, strides=strides)


def _batch_norm(_pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    if len(shape) < 3:
        return
    variance = net.constant(np.abs(numbers(shape[1:2], 3)) + np.float32(0.5))
    net.add("BatchNormalization", shape, x, *(net.weight(shape[1]) for _ in range(3)), variance)


def _product(pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    columns = pick(st.integers(1, 33))
    net.add("MatMul", (*shape[:-1], columns), x, net.weight(shape[-1], columns, scale=shape[-1] ** -0.5))


def _self_product(_pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    turned = (*shape[:-2], shape[-1], shape[-2])
    if len(shape) < 2:
        return
    net.add("Transpose", turned, x, perm=[*range(len(shape) - 2), len(shape) - 1, len(shape) - 2])
    net.add("MatMul", (*shape[:-1], shape[-2]), x, net.nodes[-1].output[0])


def _transpose(pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    order = pick(st.permutations(range(len(shape))))
    net.add("Transpose", tuple(shape[i] for i in order), x, perm=list(order))


def _reshape(pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    place = pick(st.integers(0, len(shape)))
    new = (int(np.prod(shape[:place])), int(np.prod(shape[place:])))
    net.add("Reshape", new, x, net.constant(np.array(new)))


def _split_axis(pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    axis = pick(st.integers(0, len(shape) - 1))
    for part in range(2, shape[axis] + 1):
        if shape[axis] % part == 0:
            new = (*shape[:axis], part, shape[axis] // part, *shape[axis + 1 :])
            if len(new) < 5:
                net.add("Reshape", new, x, net.constant(np.array(new)))
            return


def _reduce(pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    axes = sorted(pick(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    op = pick(st.sampled_from("ReduceMean ReduceMax ReduceMin ReduceL2 ReduceLogSumExp".split()))
    net.add(op, tuple(1 if i in axes else n for i, n in enumerate(shape)), x, axes=axes, keepdims=1)


def _along(pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    net.add(pick(st.sampled_from(["Softmax", "LogSoftmax"])), shape, x, axis=pick(st.integers(0, len(shape) - 1)))


def _layer_norm(_pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    # A row of few elements that are alike is divided by next to nothing.
    if shape[-1] >= 4:
        net.add("LayerNormalization", shape, x, net.weight(shape[-1]), net.weight(shape[-1]), epsilon=1e-2)


def _concat(pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    axis = pick(st.integers(0, len(shape) - 1))
    others = [n for n, s in net.shapes.items() if len(s) == len(shape) and s[:axis] == shape[:axis]]
    other = pick(st.sampled_from([n for n in others if net.shapes[n][axis + 1 :] == shape[axis + 1 :]]))
    joined = (*shape[:axis], shape[axis] + net.shapes[other][axis], *shape[axis + 1 :])
    net.add("Concat", joined, x, other, axis=axis)


def _slice(pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    axis = pick(st.integers(0, len(shape) - 1))
    start = pick(st.integers(0, shape[axis] - 1))
    step = pick(st.integers(1, 3))
    size = -(-(shape[axis] - start) // step)
    bounds = [net.constant(np.array([n])) for n in (start, shape[axis], axis, step)]
    net.add("Slice", (*shape[:axis], size, *shape[axis + 1 :]), x, *bounds)


def _pad(pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    before = [pick(st.integers(0, 2)) for _ in shape]
    after = [pick(st.integers(0, 2)) for _ in shape]
    size = tuple(n + a + b for n, a, b in zip(shape, before, after, strict=True))
    net.add("Pad", size, x, net.constant(np.array([*before, *after])))


def _gather(pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    axis = pick(st.integers(0, len(shape) - 1))
    index = pick(st.lists(st.integers(-shape[axis], shape[axis] - 1), min_size=1, max_size=5))
    net.add("Gather", (*shape[:axis], len(index), *shape[axis + 1 :]), x, net.constant(np.array(index)), axis=axis)


def _resize(_pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    if len(shape) == 4:
        size = (*shape[:2], 2 * shape[2], 2 * shape[3])
        how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        net.add("Resize", size, x, "", "", net.constant(np.array(size)), mode="nearest", **how)


def _choose(pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    mask = net.mask(tuple(n if pick(st.booleans()) else 1 for n in shape))
    if pick(st.booleans()):
        logic = pick(st.sampled_from(["And", "Or", "Xor"]))
        mask = net.hidden(logic, net.hidden("Not", mask), net.mask(shape[-1:]))
    other = pick(st.sampled_from([n for n, s in net.shapes.items() if s == shape]))
    net.add("Where", shape, mask, *([x, other] if pick(st.booleans()) else [other, x]))


def _look_up(pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    axis = pick(st.integers(0, len(shape) - 1))
    count = pick(st.integers(1, shape[axis]))
    index = net.index(count, shape[axis])
    if pick(st.booleans()):
        far = net.hidden("Mul", index, net.constant(np.array([-3])))
        index = net.hidden("Mod", far, net.constant(np.array(shape[axis])))
    net.add("Gather", (*shape[:axis], count, *shape[axis + 1 :]), x, index, axis=axis)


def _scatter(pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    count = pick(st.integers(1, shape[0]))
    rows = net.hidden("Unsqueeze", net.index(count, shape[0]), net.constant(np.array([1])))
    net.add("ScatterND", shape, x, rows, net.weight(count, *shape[1:]))


def _stretch(pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    if pick(st.booleans()):
        repeats = [pick(st.integers(1, 2)) for _ in shape]
        net.add("Tile", tuple(n * r for n, r in zip(shape, repeats, strict=True)), x, net.constant(np.array(repeats)))
        return
    whole = tuple(pick(st.integers(1, 4)) if n == 1 else n for n in shape)
    net.add("Expand", whole, x, net.constant(np.array(whole)))


def _several(pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    same = [n for n, s in net.shapes.items() if s == shape]
    others = [pick(st.sampled_from(same)) for _ in range(pick(st.integers(1, 3)))]
    net.add(pick(st.sampled_from(["Sum", "Mean", "Max", "Min"])), shape, x, *others, net.weight(shape[-1]))


def _square(pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    # What reads a value more than once, as hand-written activations do.
    small = net.add("Tanh", shape, x)
    if pick(st.booleans()):
        net.add("Mul", shape, small, small)
    else:
        net.add("Mul", shape, x, net.add("Sigmoid", shape, x))


def _conv_transpose(pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    if len(shape) < 3:
        return
    image, out = shape[2:], pick(st.integers(1, 5))
    kernel = [pick(st.integers(1, 3)) for _ in image]
    strides = [pick(st.integers(1, 3)) for _ in image]
    result = [(n - 1) * s + k for n, s, k in zip(image, strides, kernel, strict=True)]
    weight = net.weight(shape[1], out, *kernel, scale=(shape[1] * np.prod(kernel)) ** -0.5)
    net.add("ConvTranspose", (shape[0], out, *result), x, weight, strides=strides)


def _unit_axis(pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    ones = [i for i, n in enumerate(shape) if n == 1]
    if ones and len(shape) > 1:
        axis = pick(st.sampled_from(ones))
        net.add("Squeeze", (*shape[:axis], *shape[axis + 1 :]), x, net.constant(np.array([axis])))
    elif len(shape) < 4:
        axis = pick(st.integers(0, len(shape)))
        net.add("Unsqueeze", (*shape[:axis], 1, *shape[axis:]), x, net.constant(np.array([axis])))


def _blocks(pick: st.DrawFn, net: Network, x: str, shape: Shape) -> None:
    if len(shape) != 4:
        return
    n, channels, height, width = shape
    if channels % 4 == 0:
        mode = pick(st.sampled_from(["DCR", "CRD"]))
        net.add("DepthToSpace", (n, channels // 4, 2 * height, 2 * width), x, blocksize=2, mode=mode)
    elif height % 2 == 0 and width % 2 == 0:
        net.add("SpaceToDepth", (n, channels * 4, height // 2, width // 2), x, blocksize=2)


STEPS: tuple[Step, ...] = (
    *(_unary, _unary, _binary, _binary, _binary, _clip, _divide),
    *(_conv, _conv, _conv, _pool, _batch_norm, _product, _product, _self_product),
    *(_transpose, _reshape, _split_axis, _reduce, _along, _layer_norm),
    *(_concat, _slice, _pad, _gather, _resize),
    *(_choose, _look_up, _scatter, _stretch, _several, _square, _square, _conv_transpose),
    *(_unit_axis, _blocks),
)
