"""The program under construction: nodes and values of all its straight code, and the code that is being collected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import helper

from heterocc.artifacts.dtypes import container
from heterocc.artifacts.errors import LoweringError
from heterocc.compiler.importer.symbols.repeats import constants_of
from heterocc.compiler.importer.symbols.symbols import Symbols
from heterocc.compiler.lower.backend import PartitionJob
from heterocc.compiler.lower.converters import REQUIRED
from heterocc.compiler.lower.cpu.programs.functions import CHECK
from heterocc.compiler.lower.cpu.programs.steps import Code, Invoke, Measure, Require, Step, Text
from heterocc.compiler.symbolic.contents import as_contents
from heterocc.compiler.symbolic.requirement import Relation
from heterocc.compiler.symbolic.sizes import Size
from heterocc.passes.graph import Value

Dims = tuple[int | str | None, ...]
Shaped = tuple[str, Dims]
"""An element type and a shape."""

Attributes = Mapping[str, Any]

_NONE: Attributes = MappingProxyType({})
_CHECK: Shaped = ("int64", (1,))
"""The type of a value whose computation ends runs that cannot go on."""


class Builder:
    """The growing program, for those who add steps to it; `split.py` adds those of any node."""

    def __init__(self, job: PartitionJob) -> None:
        self.job = job
        self.model = job.model
        self.opset = self.model.opsets.get("", 1)
        self.symbols = Symbols(()) if self.model.symbols is None else self.model.symbols.copy()
        self.symbols.empty = self.model.may_be_empty
        self.values: dict[str, Value] = dict(self.model.graph.values)
        self.arrays: dict[str, np.ndarray[Any, Any]] = dict(self.model.weights)
        self.protos: list[onnx.NodeProto] = []
        self.written: set[str] = set()
        self.owners: dict[str, str] = {}
        self.owner = ""
        self.code = Code()
        self.required: frozenset[tuple[Size, Relation, Size]] = frozenset()
        """The relations of sizes that all runs have which come to the next step, because a step before requires it."""
        self.measures = {
            name: Measure(f"sizes_{index}", names) for index, names in enumerate(job.sizes) for name in names
        }

    def sequence(self, nodes: Iterable[onnx.NodeProto], steps: list[Step]) -> None:
        """Add the steps of nodes, and leave the straight code at their end open."""
        raise NotImplementedError

    def add(
        self,
        op_type: str,
        inputs: Sequence[str],
        output: str,
        like: str | None = None,
        value: Shaped | None = None,
        domain: str = "",
        attributes: Sequence[onnx.AttributeProto] = (),
        chosen: Attributes = _NONE,
    ) -> str:
        """Add a node with one output, typed as `value` or like another value; returns the output.

        Its attributes are those of `attributes`, and those that are `chosen`.
        """
        if output in self.values and output in self.written:
            return output
        dtype, shape = (self.values[like].dtype, self.values[like].shape) if like is not None else value or ("", ())
        self.values[output] = Value(output, dtype, shape)
        proto = helper.make_node(op_type, inputs, [output], name=f"{output}.node", domain=domain)
        proto.attribute.extend([*attributes, *(helper.make_attribute(key, given) for key, given in chosen.items())])
        self.append(proto)
        return output

    def append(self, node: onnx.NodeProto) -> None:
        """Add a node whose outputs have types."""
        self.protos.append(node)
        self.written.update(node.output)
        self.owners[node.name] = self.owner
        self.code.nodes.append(node.name)

    def constant(self, name: str, array: np.ndarray[Any, Any]) -> str:
        """Add a constant; returns its name."""
        self.arrays[name] = array
        self.values[name] = Value(name, array.dtype.name, tuple(array.shape))
        known = as_contents(array)
        if known is not None:
            self.symbols.contents[name] = known
        return name

    def held(self, name: str) -> str:
        """The value that a step reads: a copy of a constant, which no register holds."""
        return (
            self.add("Identity", [name], f"{name}.copy{len(self.protos)}", like=name) if name in self.arrays else name
        )

    def close(self, steps: list[Step]) -> None:
        """End the straight code that is being collected."""
        if self.code.nodes:
            steps.append(self.code)
            self.code = Code()

    def measure(self, sizes: str, names: tuple[str, ...], steps: list[Step]) -> None:
        """End the straight code, and let the elements of a tensor be the sizes of these names."""
        self.close(steps)
        measure = Measure(sizes, names)
        self.measures.update(dict.fromkeys(names, measure))
        self.required = frozenset(r for r in self.required if (r[0].names | r[2].names).isdisjoint(names))
        steps.append(measure)

    def require(
        self,
        op_type: str,
        inputs: Sequence[str],
        name: str,
        steps: list[Step],
        chosen: Attributes = _NONE,
        domain: str = REQUIRED,
    ) -> None:
        """Add a check, whose computation ends runs that cannot go on, and end the straight code with it."""
        checked = self.add(op_type, inputs, f"{name}.checked", value=_CHECK, domain=domain, chosen=chosen)
        self.close(steps)
        steps.append(Require(checked))

    def require_known(self, node: onnx.NodeProto, names: Iterable[str], *, containers: bool = False) -> None:
        """Refuse a node unless values are tensors that the device computes, or with `containers` hold such tensors."""
        for name in names:
            value = self.values.get(name)
            kind = container(value.dtype) if containers and value is not None else None
            if value is None or (kind is None and value.is_opaque):
                is_ = "unknown" if value is None else f"{value.dtype}, not a numeric tensor"
                raise self.refuse(node, f"the type of '{name}' is {is_}")
            if (value.dtype if kind is None else kind.dtype) not in self.job.device.dtypes:
                raise self.refuse(node, f"'{name}' is {value.dtype}, which {self.job.device.name} does not compute")
            if kind is not None and name not in self.symbols.elements:
                raise self.refuse(node, f"what '{name}' holds is not known")
            if kind is None and (value.shape is None or None in value.shape):
                raise self.refuse(node, f"the rank or a size of '{name}' is not known")

    def check(self, name: str, text: str, steps: list[Step]) -> None:
        """Check a tensor that the program did not compute: code relies on its rank and its fixed sizes."""
        sizes = tuple(d if isinstance(d, int) else -1 for d in self.values[name].shape or ())  # -1: any size
        steps.append(Invoke(CHECK, (name, sizes, Text(text)), None))

    def enter(self, body: onnx.GraphProto) -> None:
        """Add the constants of a branch or body."""
        for name, array in constants_of(body).items():
            array.flags.writeable = False
            self.constant(name, array)

    def refuse(self, node: onnx.NodeProto, reason: str) -> LoweringError:
        """The error for a node that has no program."""
        label = self.model.graph.node_by_name[self.owner].label
        inside = "" if self.owner == node.name else f" in node '{label}'"
        name = label if self.owner == node.name else node.name
        return LoweringError(f"{node.op_type}{inside}: {reason}", where=f"node '{name}' ({node.op_type})")


def copy_of(node: onnx.NodeProto, domain: str | None = None) -> onnx.NodeProto:
    """A copy of a node, maybe of another domain, whose inputs may be changed."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.domain = node.domain if domain is None else domain
    return copy
