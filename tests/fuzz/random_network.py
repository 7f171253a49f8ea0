"""A network under construction: nodes over seeded inputs and constants."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


@dataclass
class Network:
    """Nodes in order over seeded inputs. Values by name have a shape and are all of one `dtype`.

    Masks and indices are inputs that have no entry in `shapes`: few operators read them.
    """

    inputs: dict[str, Array] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)
    dtype: str = "float32"

    def __repr__(self) -> str:
        named = (*self.inputs.items(), *self.constants.items())
        given = ", ".join(f"{n}: {a.dtype}{list(a.shape)}" for n, a in named)
        return "\n".join(["", given, *(helper.printable_node(n) for n in self.nodes)])

    def input(self, shape: Shape) -> None:
        """One more input."""
        name = f"x{len(self.inputs)}"
        self.inputs[name] = numbers(shape, len(self.inputs)).astype(self.dtype)
        self.shapes[name] = shape

    def mask(self, shape: Shape) -> str:
        """An input of booleans; gives its name."""
        name = f"m{len(self.inputs)}"
        self.inputs[name] = numbers(shape, len(self.inputs)) > 0
        return name

    def index(self, count: int, size: int) -> str:
        """An input of `count` int64 numbers, each other than the rest and under `size`; gives its name."""
        name = f"i{len(self.inputs)}"
        self.inputs[name] = np.random.default_rng(len(self.inputs)).permutation(size)[:count]
        return name

    def constant(self, array: Array) -> str:
        """One more constant, floats of them in the network's dtype; gives its name."""
        name = f"c{len(self.constants)}"
        self.constants[name] = array.astype(self.dtype) if array.dtype.kind == "f" else array
        return name

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        """A constant of seeded numbers."""
        return self.constant(numbers(shape, 100 + len(self.constants)) * np.float32(scale))

    def add(self, op_type: str, shape: Shape, *inputs: str, **attributes: Any) -> str:
        """Add a node; returns the name of its output."""
        name = self.hidden(op_type, *inputs, **attributes)
        self.shapes[name] = shape
        return name

    def hidden(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """One more node, whose output is of another dtype: only who adds it knows to read it."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], **attributes))
        return name


def numbers(shape: Shape, seed: int) -> Array:
    """float32 numbers from -1 to 1."""
    return np.random.default_rng([seed, *shape]).uniform(-1, 1, shape).astype(np.float32)
