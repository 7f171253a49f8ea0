"""The models of the search: a few small ones for each operator, every size of every input a name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from scripts.conformance.cases import node_cases

from heterocc.compiler.importer.draft.draft import Draft
from heterocc.compiler.importer.operators.opset import lower_opset
from heterocc.runtime.execute import ort_session
from tests.differential.operator_cases import CASES
from tests.differential.operator_cases.quantized import MICROSOFT
from tests.differential.operators import _ELEM_TYPES, Case, Constant
from tests.hostile.own_cases import OWN, SEQUENCES
from tests.hostile.requests import Valid

Array = np.ndarray[Any, Any]
Naming = Literal["apart", "constants", "weights", "first", "shared"]

NAMINGS: tuple[Naming, ...] = ("apart", "constants", "weights", "first", "shared")
"""`apart`: each size of each input has its own name. `constants`: as `apart`, with the small inputs after the first,
such as axes and shapes, constant; `weights`: with all inputs after the first constant. `first`: only
the first size of each input has a name. `shared`: equal sizes have one name, and all inputs are given."""

IR_VERSION = 10
MOST_ELEMENTS = 1 << 16
"""Of the inputs of a model: larger ones show nothing that small ones do not."""


@dataclass(frozen=True, slots=True)
class HostileModel:
    """A model with symbolic sizes, and a valid request. `operator` has its domain, unless that is ONNX's."""

    operator: str
    model: bytes
    valid: Valid

    @property
    def name(self) -> str:
        """The model's name, with that of its naming."""
        return self.valid.model


@dataclass(frozen=True, slots=True)
class Base:
    """A model of fixed sizes with values of all its inputs, from which hostile models are made."""

    name: str
    operator: str
    model: onnx.ModelProto
    feed: Mapping[str, Array]


@cache
def bases() -> Mapping[str, tuple[Base, ...]]:
    """By operator: models that differ in more than their values."""
    found: dict[str, dict[str, Base]] = {}
    for base in (*_of_node_tests(), *map(_of_case, _operator_cases()), *map(_of_case, OWN), *_of_sequences()):
        size = sum(array.size for array in base.feed.values())
        if base.feed and size <= MOST_ELEMENTS:
            found.setdefault(base.operator, {}).setdefault(_signature(base), base)
    return {operator: tuple(of_it.values()) for operator, of_it in sorted(found.items())}


def _operator_cases() -> Iterable[Case]:
    return (case for cases in CASES.values() for case in cases)


def _signature(base: Base) -> str:
    """What makes two models of an operator the same for the search."""
    nodes = [(n.op_type, sorted(map(str, n.attribute)), list(map(bool, n.input))) for n in base.model.graph.node]
    values = [(array.dtype.name, array.ndim) for array in base.feed.values()]
    return repr((nodes, values, [str(o) for o in base.model.opset_import]))


def _of_node_tests() -> Iterable[Base]:
    for name, case in node_cases().items():
        if not case.of_tensors or "_expanded" in name:
            continue
        older = Draft(onnx.ModelProto(), {})
        older.model.CopyFrom(case.model)
        older.model.ir_version = min(case.model.ir_version, IR_VERSION)
        lower_opset(older)
        for end, array in zip(older.model.graph.output, case.expected, strict=True):
            end.CopyFrom(_untyped(end.name, array.dtype))
        yield Base(name, case.operator, older.model, dict(case.feed))


def _of_case(case: Case) -> Base:
    """A model of one node, whose constants are inputs, too."""
    names = [f"i{index}" if value is not None else "" for index, value in enumerate(case.inputs)]
    arrays = [value.array if isinstance(value, Constant) else value for value in case.inputs]
    feed = {name: array for name, array in zip(names, arrays, strict=True) if array is not None}
    written = [f"o{index}" for index in range(case.outputs)]
    node = helper.make_node(case.op, names, written, domain=case.domain, **case.attrs)
    ends = [helper.make_tensor_value_info(n, _elem_type(a.dtype), a.shape) for n, a in feed.items()]
    graph = helper.make_graph([node], "g", ends, [onnx.ValueInfoProto(name=name) for name in written])
    imports = [helper.make_opsetid("", case.opset)]
    if case.domain:
        version = 3 if case.domain == "ai.onnx.ml" else 1
        imports.append(helper.make_opsetid(case.domain, version))
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    operator = f"{case.domain}::{case.op}" if case.domain else case.op
    return Base(case.text, operator, model, feed)


_IMPORTS = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT["domain"], 1)]


def _of_sequences() -> Iterable[Base]:
    for operator, (nodes, feed, result) in SEQUENCES.items():
        ends = [helper.make_tensor_value_info(n, _elem_type(a.dtype), a.shape) for n, a in feed.items()]
        graph = helper.make_graph(nodes, "g", ends, [helper.make_tensor_value_info("y", result, None)])
        model = helper.make_model(graph, opset_imports=_IMPORTS, ir_version=8)
        yield Base(f"a sequence of {operator}", operator, model, feed)


def _elem_type(dtype: np.dtype[Any]) -> int:
    return TensorProto.STRING if dtype.kind in "OUS" else int(helper.np_dtype_to_tensor_dtype(dtype))


def _untyped(name: str, dtype: np.dtype[Any]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, _elem_type(dtype), None)


def hostile(base: Base, naming: Naming) -> HostileModel | None:
    """A base with names for sizes; None if this naming gives what another one gives."""
    model = _typed(base.model)
    graph = model.graph
    constant = _constant(base, naming)
    if naming in ("constants", "weights") and not constant:
        return None
    given = {name: array for name, array in base.feed.items() if name not in constant}
    sizes = [size for array in given.values() for size in array.shape]
    if naming == "shared" and len(set(sizes)) == len(sizes):
        return None
    if naming == "first" and all(array.ndim < 2 for array in given.values()):
        return None
    ends = {end.name: end for end in graph.input}
    del graph.input[:]
    free = {}
    for number, (name, array) in enumerate(base.feed.items()):
        if name in constant:
            graph.initializer.append(numpy_helper.from_array(array, name))
            continue
        dims = [f"d{size}" if naming == "shared" else f"d{number}_{axis}" for axis, size in enumerate(array.shape)]
        if naming == "first":
            dims[1:] = array.shape[1:]
        free[name] = tuple(isinstance(dim, str) for dim in dims)
        elem_type = ends[name].type.tensor_type.elem_type
        graph.input.append(helper.make_tensor_value_info(name, elem_type, dims))
    del graph.value_info[:]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                for value in (*attribute.g.input, *attribute.g.output, *attribute.g.value_info):
                    for dim in value.type.tensor_type.shape.dim:
                        dim.Clear()
    valid = Valid(f"{base.name} ({naming})", given, free, naming == "shared")
    return HostileModel(base.operator, model.SerializeToString(), valid)


def _typed(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with the outputs' dtypes, as ONNX or ONNX Runtime infers them, and without their shapes."""
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    known = {end.name: end.type.tensor_type.elem_type for end in onnx.shape_inference.infer_shapes(model).graph.output}
    if not all(known.values()):
        session = ort_session.open_session(model.SerializeToString(), ort_session.session_options())
        known = {end.name: _ELEM_TYPES[end.type] for end in session.get_outputs()}
    for end in typed.graph.output:
        end.CopyFrom(helper.make_tensor_value_info(end.name, known[end.name], None))
    return typed


def _constant(base: Base, naming: Naming) -> frozenset[str]:
    """The inputs that become constants: all after the first, or those that real models have so."""
    later = list(base.feed.items())[1:]
    small = frozenset(n for n, a in later if a.size <= 1 or (a.ndim == 1 and a.size <= 8 and a.dtype.kind in "iu"))
    every = frozenset(name for name, _ in later)
    if naming == "constants":
        return small if small != every else frozenset()
    return every if naming == "weights" else frozenset()


def namings(base: Base, wanted: Iterable[Naming] = NAMINGS) -> list[HostileModel]:
    """A base with all namings that differ."""
    return [model for model in (hostile(base, naming) for naming in wanted) if model is not None]


def hostile_models(most: int, operators: Iterable[str] = (), wanted: Iterable[Naming] = NAMINGS) -> list[HostileModel]:
    """At most so many bases of each of these operators (all by default): the first with all namings, others with two.

    The first of each operator come first, so that a search that is cut off has seen every operator.
    """
    named = set(operators)
    chosen = [of_it for name, of_it in bases().items() if not named or name in named]
    # Spread over all of an operator's bases, whose neighbours are alike.
    spread = [of_it[:: max(1, len(of_it) // most)] for of_it in chosen]
    return [
        model
        for place in range(most)
        for of_it in spread
        if place < len(of_it)
        for model in _some(namings(of_it[place], wanted), place)
    ]


def _some(models: list[HostileModel], place: int) -> list[HostileModel]:
    """All namings of an operator's first base; of others the first one and another one in turn."""
    return models if place == 0 else models[:1] + models[1:][(place - 1) % max(1, len(models) - 1) :][:1]
