"""Small random networks with symbolic dimensions for hypothesis, and sizes for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper

from tests.fuzz.random_network import numbers
from tests.symbolic_models import dynamic_model

Dim = int | str
Shape = tuple[Dim, ...]

NAMES = ("n", "m", "k")
MOST = 40
"""The largest size of a symbolic dimension."""


@dataclass
class SymbolicNetwork:
    """Nodes in order over inputs with symbolic dimensions; equal texts of derived dimensions mean equal sizes."""

    inputs: dict[str, Shape] = field(default_factory=dict)
    constants: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)

    def __repr__(self) -> str:
        arrays = [
            f"{n}: {a.dtype}{list(a.shape)} {a.tolist() if a.size < 8 else ''}" for n, a in self.constants.items()
        ]
        given = [f"{n}: {list(s)}" for n, s in self.inputs.items()]
        return "\n".join(["", *given, *arrays, *(helper.printable_node(n) for n in self.nodes)])

    def constant(self, array: np.ndarray[Any, Any]) -> str:
        """Add a constant; returns its name."""
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def weight(self, *shape: int) -> str:
        """Add a constant of seeded numbers."""
        return self.constant(numbers(shape, 100 + len(self.constants)))

    def add(self, op_type: str, shape: Shape | None, *inputs: str, **attributes: Any) -> str:
        """Add a node; without a shape its output is not read by drawn nodes. Returns the name of the output."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], **attributes))
        if shape is not None:
            self.shapes[name] = shape
        return name

    @property
    def dims(self) -> list[str]:
        """The symbolic dimensions of the inputs."""
        return sorted({d for shape in self.inputs.values() for d in shape if isinstance(d, str)})

    def model(self) -> onnx.ModelProto:
        """The model; each value that no node reads is an output."""
        read = {name for node in self.nodes for name in node.input}
        ends = [name for name in self.shapes if name not in read and name not in self.inputs]
        given = {name: ("float32", shape) for name, shape in self.inputs.items()}
        return dynamic_model(self.nodes, given, ends, self.constants)


Step = Callable[[st.DrawFn, SymbolicNetwork, str, Shape], None]


def _unary(pick: st.DrawFn, net: SymbolicNetwork, x: str, shape: Shape) -> None:
    net.add(pick(st.sampled_from("Relu Sigmoid Tanh Neg Abs HardSwish Erf Exp".split())), shape, x)


def _clip(_pick: st.DrawFn, net: SymbolicNetwork, x: str, shape: Shape) -> None:
    low, high = (net.constant(np.array(v, np.float32)) for v in (-0.5, 0.75))
    net.add("Clip", shape, x, low, high)


def _binary(pick: st.DrawFn, net: SymbolicNetwork, x: str, shape: Shape) -> None:
    other = pick(st.sampled_from([n for n, s in net.shapes.items() if s == shape]))
    if pick(st.booleans()):
        other = net.weight(*(d if isinstance(d, int) else 1 for d in shape[pick(st.integers(0, len(shape) - 1)) :]))
    net.add(pick(st.sampled_from("Add Sub Mul Max Min".split())), shape, *pick(st.permutations([x, other])))


def _product(pick: st.DrawFn, net: SymbolicNetwork, x: str, shape: Shape) -> None:
    if isinstance(shape[-1], int) and len(shape) > 1:
        columns = pick(st.integers(1, 33))
        net.add("MatMul", (*shape[:-1], columns), x, net.weight(shape[-1], columns))


def _self_product(_pick: st.DrawFn, net: SymbolicNetwork, x: str, shape: Shape) -> None:
    if len(shape) > 1:
        order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        turned = net.add("Transpose", (*shape[:-2], shape[-1], shape[-2]), x, perm=order)
        net.add("MatMul", (*shape[:-1], shape[-2]), x, turned)


def _window(dim: Dim, kernel: int, stride: int, pads: int) -> Dim:
    if isinstance(dim, int):
        return (dim + pads - kernel) // stride + 1
    return dim if pads == kernel - 1 and stride == 1 else f"({dim}+{pads}-{kernel})//{stride}+1"


def _conv(pick: st.DrawFn, net: SymbolicNetwork, x: str, shape: Shape) -> None:
    if len(shape) != 4 or not isinstance(shape[1], int):
        return
    group = pick(st.sampled_from([1, shape[1]]))
    out = group * pick(st.integers(1, 8 if group == 1 else 2))
    size, stride = pick(st.integers(1, 3)), pick(st.integers(1, 2))
    before, after = pick(st.integers(0, size - 1)), pick(st.integers(0, size - 1))
    image = [_window(d, size, stride, before + after) for d in shape[2:]]
    if any(isinstance(d, int) and d < 1 for d in image):
        return
    pads = [before, before, after, after]
    weight = net.weight(out, shape[1] // group, size, size)
    net.add("Conv", (shape[0], out, *image), x, weight, group=group, pads=pads, strides=[stride, stride])


def _pool(pick: st.DrawFn, net: SymbolicNetwork, x: str, shape: Shape) -> None:
    if len(shape) != 4:
        return
    size, stride = pick(st.integers(2, 3)), pick(st.integers(1, 2))
    image = [_window(d, size, stride, 0) for d in shape[2:]]
    if any(isinstance(d, int) and d < 1 for d in image):
        return
    op = pick(st.sampled_from(["MaxPool", "AveragePool"]))
    net.add(op, (*shape[:2], *image), x, kernel_shape=[size, size], strides=[stride, stride])


def _transpose(pick: st.DrawFn, net: SymbolicNetwork, x: str, shape: Shape) -> None:
    order = pick(st.permutations(range(len(shape))))
    net.add("Transpose", tuple(shape[i] for i in order), x, perm=list(order))


def _along(pick: st.DrawFn, net: SymbolicNetwork, x: str, shape: Shape) -> None:
    axis = pick(st.integers(0, len(shape) - 1))
    net.add(pick(st.sampled_from(["Softmax", "LogSoftmax"])), shape, x, axis=axis)


def _layer_norm(_pick: st.DrawFn, net: SymbolicNetwork, x: str, shape: Shape) -> None:
    if isinstance(shape[-1], int) and shape[-1] >= 4:
        net.add("LayerNormalization", shape, x, net.weight(shape[-1]), net.weight(shape[-1]), epsilon=1e-2)


def _reduce(pick: st.DrawFn, net: SymbolicNetwork, x: str, shape: Shape) -> None:
    axes = sorted(pick(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    op = pick(st.sampled_from("ReduceMean ReduceMax ReduceMin ReduceL2".split()))
    net.add(op, tuple(1 if i in axes else d for i, d in enumerate(shape)), x, axes=axes, keepdims=1)


def _concat(pick: st.DrawFn, net: SymbolicNetwork, x: str, shape: Shape) -> None:
    axis = pick(st.integers(0, len(shape) - 1))
    rest = (*shape[:axis], *shape[axis + 1 :])
    others = [n for n, s in net.shapes.items() if len(s) == len(shape) and (*s[:axis], *s[axis + 1 :]) == rest]
    other = pick(st.sampled_from(others))
    a, b = shape[axis], net.shapes[other][axis]
    both: Dim = a + b if isinstance(a, int) and isinstance(b, int) else f"({a}+{b})"
    net.add("Concat", (*shape[:axis], both, *shape[axis + 1 :]), x, other, axis=axis)


def _slice(pick: st.DrawFn, net: SymbolicNetwork, x: str, shape: Shape) -> None:
    axis = pick(st.integers(0, len(shape) - 1))
    dim, start, step = shape[axis], pick(st.integers(0, 1)), pick(st.integers(1, 2))
    if isinstance(dim, int) and dim <= start:
        return
    new: Dim = -(-(dim - start) // step) if isinstance(dim, int) else f"({dim}-{start})/{step}"
    bounds = [net.constant(np.array([v])) for v in (start, 2**62, axis, step)]
    net.add("Slice", (*shape[:axis], dim if (start, step) == (0, 1) else new, *shape[axis + 1 :]), x, *bounds)


def _pad(pick: st.DrawFn, net: SymbolicNetwork, x: str, shape: Shape) -> None:
    pads = [pick(st.integers(0, 2)) for _ in (*shape, *shape)]
    total = [a + b for a, b in zip(pads[: len(shape)], pads[len(shape) :], strict=True)]
    new = [d + t if isinstance(d, int) else f"{d}+{t}" if t else d for d, t in zip(shape, total, strict=True)]
    net.add("Pad", tuple(new), x, net.constant(np.array(pads)))


def _gather(pick: st.DrawFn, net: SymbolicNetwork, x: str, shape: Shape) -> None:
    fixed = [i for i, d in enumerate(shape) if isinstance(d, int)]
    if fixed:
        axis = pick(st.sampled_from(fixed))
        size = shape[axis]
        assert isinstance(size, int)
        index = pick(st.lists(st.integers(-size, size - 1), min_size=1, max_size=5))
        new = (*shape[:axis], len(index), *shape[axis + 1 :])
        net.add("Gather", new, x, net.constant(np.array(index)), axis=axis)


def _reshape(pick: st.DrawFn, net: SymbolicNetwork, x: str, shape: Shape) -> None:
    """A Reshape to [first, rest] or [first · second, …] computed from the shape, as exporters write it."""
    if len(shape) < 3:
        return
    place = pick(st.integers(1, len(shape) - 1))
    whole = net.add("Shape", None, x)
    kept = net.add("Slice", None, whole, net.constant(np.array([0])), net.constant(np.array([place])))
    wanted = net.add("Concat", None, kept, net.constant(np.array([-1])), axis=0)
    rest = shape[place:]
    last: Dim = int(np.prod(rest)) if all(isinstance(d, int) for d in rest) else "*".join(f"[{d}]" for d in rest)
    net.add("Reshape", (*shape[:place], last if len(rest) > 1 else rest[0]), x, wanted)


def _expand(_pick: st.DrawFn, net: SymbolicNetwork, x: str, shape: Shape) -> None:
    """A token for each item of the first dimension, joined to the others along the second one."""
    if len(shape) == 3 and isinstance(shape[1], int) and isinstance(shape[2], int):
        count = net.add("Shape", None, x, start=0, end=1)
        rest = net.constant(np.array([1, shape[2]]))
        token = net.add("Expand", None, net.weight(1, 1, shape[2]), net.add("Concat", None, count, rest, axis=0))
        net.add("Concat", (shape[0], shape[1] + 1, shape[2]), token, x, axis=1)


def _where(pick: st.DrawFn, net: SymbolicNetwork, x: str, shape: Shape) -> None:
    other = pick(st.sampled_from([n for n, s in net.shapes.items() if s == shape]))
    net.add("Where", shape, net.add("Greater", None, x, net.constant(np.array(0.1, np.float32))), x, other)


def _resize(_pick: st.DrawFn, net: SymbolicNetwork, x: str, shape: Shape) -> None:
    if len(shape) == 4:
        scales = net.constant(np.array([1, 1, 2, 2], np.float32))
        new = [2 * d if isinstance(d, int) else f"2*[{d}]" for d in shape[2:]]
        how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        net.add("Resize", (*shape[:2], *new), x, "", scales, mode="nearest", **how)


STEPS: tuple[Step, ...] = (
    *(_unary, _clip, _binary, _binary, _product, _product, _self_product, _conv, _conv, _pool, _transpose),
    *(_along, _layer_norm, _reduce, _concat, _slice, _pad, _gather, _reshape, _expand, _where, _resize),
)


@st.composite
def symbolic_networks(pick: st.DrawFn, least: int = 2, most: int = 6) -> SymbolicNetwork:
    """A network of a few nodes over one or two inputs of the same shape."""
    net = SymbolicNetwork()
    rank = pick(st.sampled_from([2, 3, 4, 4]))
    shape = tuple(pick(st.sampled_from([*NAMES, pick(st.integers(1, 13))])) for _ in range(rank))
    if not any(isinstance(d, str) for d in shape):
        shape = ("n", *shape[1:])
    for index in range(pick(st.integers(1, 2))):
        net.inputs[f"x{index}"] = net.shapes[f"x{index}"] = shape
    for _ in range(pick(st.integers(least, most))):
        names = list(net.shapes)
        x = names[-1] if pick(st.integers(0, 3)) else pick(st.sampled_from(names))
        pick(st.sampled_from(STEPS))(pick, net, x, net.shapes[x])
    used = {name for node in net.nodes for name in node.input}
    if not net.nodes or not used & net.inputs.keys():
        net.add("Relu", shape, "x0")
    used = {name for node in net.nodes for name in node.input}
    for name in [name for name in net.inputs if name not in used]:
        del net.inputs[name], net.shapes[name]
    net.constants = {name: array for name, array in net.constants.items() if name in used}
    return net


def sizes_of(names: list[str]) -> st.SearchStrategy[dict[str, int]]:
    """A size for each dimension: often one of 0, 1 and 2."""
    return st.fixed_dictionaries({name: st.one_of(st.integers(0, 2), st.integers(1, MOST)) for name in names})
