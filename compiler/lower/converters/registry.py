"""The registry of converters, and the context that a converter is called with.

A converter takes a Context and the node's inputs (None if absent) and returns one Relax expression, or a list with
one per output. It raises NotImplementedError with the reason to refuse a node. A dimension may be an expression of
variables; `values.shape_of` refuses a node that has one, for converters that need numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from heterocc.compiler.lower.converters.attributes import Attributes, Inputs
from heterocc.compiler.lower.straight import array_of
from heterocc.compiler.lower.variables import Extent, Variables
from heterocc.compiler.operators.record import Operator
from heterocc.compiler.operators.table import named
from heterocc.passes.graph import Value

STANDARD_DOMAINS = frozenset({"", "ai.onnx"})
MICROSOFT = "com.microsoft"
ML = "ai.onnx.ml"

SIZES = "heterocc.sizes"
"""The domain of converters that compute the sizes of an operator's results that depend on data: a vector of int64."""

PREPARED = "heterocc.prepared"
"""The domain of converters that compute what such an operator's sizes and results have in common: int64."""

RESULTS = "heterocc.results"
"""The domain of converters of such operators that are called when these sizes are known."""

REQUIRED = "heterocc.required"
"""The domain of converters whose code ends a run that the operator makes impossible, and else computes an int64."""

_PARTS = (SIZES, PREPARED, RESULTS, REQUIRED)


def part_domain(part: str, domain: str) -> str:
    """The domain of a node that computes a part of an operator of this domain, or of a part of one."""
    own = divided(domain)[1]
    return f"{part}:{own}" if own else part


def divided(domain: str) -> tuple[str, str]:
    """The part that a node of a domain computes, empty for a whole operator, and the operator's own domain."""
    part, _, own = domain.partition(":")
    part, own = (part, own) if part in _PARTS else ("", domain)
    return part, "" if own in STANDARD_DOMAINS else own


@dataclass(frozen=True, slots=True)
class Context:
    """The arguments of a converter: builder, node, attributes, opset, number of outputs, TVM's tables, back end.

    `opset` is that of ONNX's own operators, for nodes of `ai.onnx.ml` that of their domain.

    `notes` are facts that converters remember about values of the model, by name. `variables` are those of named
    dimensions, `values` the graph's values as they are computed, `stored` as the model has them. `partition` are all
    nodes that are converted.
    """

    bb: relax.BlockBuilder
    node: onnx.NodeProto
    attrs: Attributes
    opset: int
    outputs: int
    tables: tuple[dict[str, relax.Expr], dict[str, tuple[relax.Expr, np.ndarray]]]
    backend: str = "cpu"
    notes: dict[str, object] = field(default_factory=dict)
    variables: Variables | None = None
    values: Mapping[str, Value] = field(default_factory=dict)
    stored: Mapping[str, Value] = field(default_factory=dict)
    partition: Sequence[onnx.NodeProto] = ()

    @property
    def part(self) -> str:
        """The part of its operator that the node computes: SIZES, for example; empty for all."""
        return divided(self.node.domain)[0]

    @property
    def record(self) -> Operator:
        """The record of the node's operator."""
        return named(self.node.op_type, divided(self.node.domain)[1])

    @property
    def integers(self) -> bool:
        """Return whether the device computes products of 8-bit integers in integers."""
        return self.backend == "cpu"

    def result(self, index: int = 0) -> tuple[Extent, ...]:
        """The shape of an output. Raises NotImplementedError if it is known only at run time."""
        value = self.values.get(self.node.output[index])
        found = None if value is None or self.variables is None else self.variables.shape(value)
        if found is None:
            raise NotImplementedError("the shape of the result depends on data")
        return found

    def stored_dtype(self, index: int) -> str:
        """The dtype that an output has in the model, which may be computed in a wider one."""
        return self.stored[self.node.output[index]].dtype

    def is_symbolic(self, index: int) -> bool:
        """Return whether the shape of an output is not static."""
        value = self.values.get(self.node.output[index])
        return value is not None and not value.is_static and bool(self.variables)

    def is_assumed(self) -> bool:
        """Return whether the output has the input's shape, because of assumptions about sizes."""
        one, other = self.values.get(self.node.input[0]), self.values.get(self.node.output[0])
        if one is None or other is None or self.variables is None or one.shape == other.shape:
            return False
        return self.variables.agree(one, other)

    def is_symbolic_data(self, value: relax.Expr) -> bool:
        """Return whether a dimension of a tensor is not a number."""
        return not all(isinstance(d, tvm.tirx.IntImm) for d in value.ty.shape.values)

    def sizes(self, index: int) -> tuple[Extent, ...] | None:
        """The elements of an input that are constant or follow from sizes; None for an absent or computed one."""
        name = self.node.input[index] if index < len(self.node.input) else ""
        found = self.variables.contents(name) if name and self.variables is not None else None
        return None if found is None else found[0]

    def changed(self, changes: Mapping[str, Any], without: Collection[str] = ()) -> Context:
        """The context with other attributes, and without some."""
        return replace(self, attrs=self.attrs.changed(changes, without))

    def text(self, name: str, default: str) -> str:
        """The value of a string attribute."""
        value = self.attrs.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def known(self, value: relax.Expr) -> np.ndarray:
        """The value of an input that must be constant."""
        found = onnx_frontend.get_constant(value, list(self.tables))
        if not isinstance(found, tvm.ir.GenericConst):
            raise NotImplementedError("an input that must be constant is computed")
        return np.asarray(found.value.numpy())

    def is_known(self, value: relax.Expr) -> bool:
        """Return whether an input is constant."""
        return isinstance(onnx_frontend.get_constant(value, list(self.tables)), tvm.ir.GenericConst)

    def array(self, value: relax.Expr) -> np.ndarray | None:
        """The array of a constant or a parameter of the partition; None for a computed value."""
        if isinstance(value, relax.Var) and value.name in self.tables[1]:
            return self.tables[1][value.name][1]
        return array_of(value) if isinstance(value, tvm.ir.GenericConst) else None

    def original(self, *inputs: relax.Expr | None) -> relax.Expr:
        """The result of TVM's converter for the node with these inputs."""
        attrs = self.attrs.changed({"tvm_custom": {"name": self.node.name, "num_outputs": self.outputs}})
        convert = onnx_frontend._get_convert_map()[self.node.op_type].get_converter(self.opset)
        given = Inputs(inputs)
        result = convert(self.bb, given, attrs, list(self.tables))
        require_inputs(given)
        return result


def require_inputs(given: Inputs) -> None:
    """Raise NotImplementedError for an input that a converter did not read."""
    if given.unread:
        raise NotImplementedError(f"its input {given.unread[0]} is not supported")


Converter = Callable[..., Any]
Applies = Callable[[Operator], object]
"""Whether a converter is that of an operator, by its record."""

_CONVERTERS: dict[tuple[str, str], Converter] = {}
_RULES: dict[str, list[tuple[Applies, Converter]]] = {}


def converter(*which: str | Applies, domain: str = "") -> Callable[[Converter], Converter]:
    """Register a function as the converter of operators: by name in a domain, or of all whose records say so.

    For the latter `domain` is the part that is computed. Raises ValueError if a name already has a converter.
    """

    def register(function: Converter) -> Converter:
        for one in which:
            if not isinstance(one, str):
                _RULES.setdefault(domain, []).append((one, function))
                continue
            if (domain, one) in _CONVERTERS:
                raise ValueError(f"operator '{one}' of domain '{domain}' already has a converter")
            _CONVERTERS[domain, one] = function
        return function

    return register


def own_converter(domain: str, op_type: str) -> Converter | None:
    """heterocc's converter of an operator, or None if TVM's own is used.

    That of the results of an operator from outside is the conversion in its record.
    """
    part, own = divided(domain)
    found = _CONVERTERS.get((part_domain(part, own) if part else own, op_type))
    if found is None:
        record = named(op_type, own)
        found = next((convert for applies, convert in _RULES.get(part, ()) if applies(record)), None)
        if found is None and part in ("", RESULTS):
            found = record.convert
    return found
