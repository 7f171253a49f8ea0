"""Small random networks for hypothesis: a few nodes, each of a random operator on a value that is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

MOST_ELEMENTS = 4000
"""Elements of a value, at most."""


@dataclass
class Network:
    """Nodes in order over seeded inputs; values by name have a shape, all are float32."""

    inputs: dict[str, Array] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)

    def __repr__(self) -> str:
        given = ", ".join(f"{n}{list(a.shape)}" for n, a in (*self.inputs.items(), *self.constants.items()))
        return "\n".join(["", given, *(helper.printable_node(n) for n in self.nodes)])

    def input(self, shape: Shape) -> None:
        """One more input."""
        name = f"x{len(self.inputs)}"
        self.inputs[name] = _numbers(shape, len(self.inputs))
        self.shapes[name] = shape

    def constant(self, array: Array) -> str:
        """One more constant; gives its name."""
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        """A constant of seeded numbers."""
        return self.constant(_numbers(shape, 100 + len(self.constants)) * np.float32(scale))

    def add(self, op_type: str, shape: Shape, *inputs: str, **attributes: Any) -> None:
        """One more node."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], **attributes))
        self.shapes[name] = shape


def _numbers(shape: Shape, seed: int) -> Array:
    return np.random.default_rng([seed, *shape]).uniform(-1, 1, shape).astype(np.float32)


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
    net.add("Div", shape, x, net.constant(np.abs(_numbers(shape[-1:], 7)) + np.float32(0.5)))


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
    variance = net.constant(np.abs(_numbers(shape[1:2], 3)) + np.float32(0.5))
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


STEPS: tuple[Step, ...] = (
    *(_unary, _unary, _binary, _binary, _binary, _clip, _divide),
    *(_conv, _conv, _conv, _pool, _batch_norm, _product, _product, _self_product),
    *(_transpose, _reshape, _split_axis, _reduce, _along, _layer_norm),
    *(_concat, _slice, _pad, _gather, _resize),
)


@st.composite
def networks(pick: st.DrawFn, least: int = 5, most: int = 10) -> Network:
    """A network of five to ten nodes, as far as its values stay small."""
    net = Network()
    rank = pick(st.sampled_from([2, 3, 4, 4, 4]))
    shape = tuple(pick(st.integers(1, 4 if i == 0 else 13)) for i in range(rank))
    for _ in range(pick(st.integers(1, 2))):
        net.input(shape)
    for _ in range(pick(st.integers(least, most))):
        names = list(net.shapes)
        # Mostly the latest value, so that there is something to fuse.
        x = names[-1] if pick(st.integers(0, 3)) else pick(st.sampled_from(names))
        if not net.shapes[x]:
            continue
        before = dict(net.shapes)
        pick(st.sampled_from(STEPS))(pick, net, x, net.shapes[x])
        if any(np.prod(s) > MOST_ELEMENTS for s in net.shapes.values()):
            del net.nodes[len(net.nodes) - (len(net.shapes) - len(before)) :]
            net.shapes = before
    if not net.nodes:
        net.add("Relu", shape, "x0")
    return net
