"""A model during normalisation: an ONNX graph without constants, and the constants in a separate mapping."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from heterocc.compiler.importer.estimates.work import Budget
from heterocc.compiler.importer.symbols.agree import Asked
from heterocc.compiler.importer.symbols.symbols import Symbols
from heterocc.compiler.operators.record import ML
from heterocc.compiler.operators.table import of_node
from heterocc.passes.graph import Value

INLINE_BYTES = 1024
"""The largest size in bytes of a constant inside a proto, where shape inference can read it."""

STUB_LOCATION = "heterocc"
"""`location` of an external initializer whose data is in `ImportedModel.weights`."""


MAX_RANK = 64
"""The largest number of dimensions of a numpy array."""

_MAX_BYTES = 2**63 - 1
_LARGEST_ELEMENT = 16


def describable(dims: Sequence[int]) -> bool:
    """Return whether numpy allows an array of this shape; it counts dimensions of 0 as 1."""
    return len(dims) <= MAX_RANK and math.prod(d or 1 for d in dims) * _LARGEST_ELEMENT <= _MAX_BYTES


@dataclass(frozen=True, slots=True)
class Inferred:
    """What inference found last, and for what: the graph as bytes that it has left behind, constants and symbols."""

    graph: bytes
    weights: Mapping[str, np.ndarray]
    symbols: Symbols | None
    values: dict[str, Value]


@dataclass
class Draft:
    """The state that import's steps share; each step takes a draft and changes it in place.

    `model.graph` has no initializers: `weights` holds every constant by name. Every node has a unique name, which
    keys `origins` (names in the user's model; empty for a node that had none) and `affinity` (from metadata).
    `notes` are sentences for the user about unexpected steps of the import. `settled` are fingerprints of
    bodies that need no further simplification, `visited` the names of nodes whose bodies were simplified before.
    `budget` limits the computation of constants. `lent` are the constants of a body that belong to an outer graph.
    `symbols` are the model's named dimensions; None if all sizes are fixed. `held` are the model's names of
    initializers that are constants here, though it lists them as inputs, too. `defaults` are the values of inputs that
    a run may leave out. `apart` are named dimensions that have code of its own for the size 1. `assumes` says that
    sizes were excluded with which ONNX Runtime might run the model, `ones` are named dimensions whose size 1 is one of
    these. `modules` are the paths of the modules of nodes, by the names in the user's model, if its exporter says so.
    `inferred` is what inference found last, `asked` what the nodes need with these values and symbols, `few` a model of
    one node of each kind with these values.
    """

    model: onnx.ModelProto
    weights: dict[str, np.ndarray]
    origins: dict[str, tuple[str, ...]] = field(default_factory=dict)
    affinity: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    settled: set[bytes] = field(default_factory=set)
    visited: set[str] = field(default_factory=set)
    budget: Budget = field(default_factory=Budget)
    lent: frozenset[str] = frozenset()
    symbols: Symbols | None = None
    defaults: dict[str, np.ndarray] = field(default_factory=dict)
    held: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    assumes: bool = False
    ones: tuple[str, ...] = ()
    modules: dict[str, str] = field(default_factory=dict)
    inferred: Inferred | None = None
    asked: tuple[Mapping[str, Value], Symbols, Sequence[Asked]] | None = None
    few: tuple[Mapping[str, Value], onnx.ModelProto | None] | None = None

    def exclude_one(self, *names: str | None) -> None:
        """Note that dimensions are assumed to have other sizes than 1, with which they would be broadcast."""
        self.ones = tuple(dict.fromkeys((*self.ones, *(name for name in names if name is not None))))

    @property
    def graph(self) -> onnx.GraphProto:
        """The graph itself."""
        return self.model.graph

    @property
    def opset(self) -> int:
        """Version of ONNX's own operators, 1 if the model imports none."""
        return opsets(self.model).get("", 1)

    def drop_unread(self) -> None:
        """Remove the nodes on which no output depends, and the constants that none of the others reads."""
        needed = {o.name for o in self.graph.output}
        unread = False
        for node in reversed(self.graph.node):
            if needed.isdisjoint(node.output[:]):
                unread = True
            else:
                needed.update(reads(node))
        if unread:
            keep(self.graph.node, lambda n: not needed.isdisjoint(n.output[:]))
        self.weights = {name: array for name, array in self.weights.items() if name in needed}

    def to_proto(self, *, with_trees: bool = True) -> onnx.ModelProto:
        """The model for tools of ONNX: small constants inline, large ones as additional graph inputs.

        Thus no tool reads or copies the data of a large constant, and the proto is far smaller than 2 GB.
        `with_trees` says whether the tool reads the lists of large ensembles of trees, which say nothing of types.
        """
        proto = onnx.ModelProto()
        if with_trees or not any(map(large_lists, self.graph.node)):
            proto.CopyFrom(self.model)
        else:
            proto = without_lists(self.model)
        for name, array in self.weights.items():
            if array.nbytes <= INLINE_BYTES or array.dtype == object:
                proto.graph.initializer.append(to_tensor(name, array))
            else:
                proto.graph.input.append(helper.make_tensor_value_info(name, tensor_type(array), array.shape))
        return proto

    def adopt(self, proto: onnx.ModelProto) -> None:
        """Replace the model by a tool's result for `to_proto()`, to which lists of trees that it lacks are given."""
        left_out = {node.name: lists for node in self.graph.node if (lists := large_lists(node))}
        for node in proto.graph.node if left_out else ():
            for attribute in () if large_lists(node) else left_out.get(node.name, ()):
                node.attribute.add().CopyFrom(attribute)  # extend() takes three times the memory
        for tensor in proto.graph.initializer:
            self.weights[tensor.name] = to_array(tensor)
        del proto.graph.initializer[:]
        keep(proto.graph.input, lambda i: i.name not in self.weights)
        self.model = proto


_MANY = 4096


def large_lists(node: onnx.NodeProto) -> list[onnx.AttributeProto]:
    """The attributes of an ensemble of trees with an element for each of many nodes."""
    if node.domain != ML or not (names := of_node(node).trees.split()):
        return []
    return [a for a in node.attribute if a.name in names and max(map(len, (a.ints, a.floats, a.strings))) > _MANY]


def without_lists(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model without the large lists of its nodes, which are not copied at first."""
    proto, graph = onnx.ModelProto(), model.graph
    for message, made in (model, proto), (graph, proto.graph):
        for kind, value in message.ListFields():
            if kind.name in ("graph", "node"):
                continue
            if isinstance(value, str | int):
                setattr(made, kind.name, value)
            else:
                getattr(made, kind.name).MergeFrom(value)
    for node in graph.node:
        if not (large := {a.name for a in large_lists(node)}):
            proto.graph.node.append(node)
            continue
        made = proto.graph.node.add(name=node.name, op_type=node.op_type, domain=node.domain)
        made.input.extend(node.input)
        made.output.extend(node.output)
        made.attribute.extend(a for a in node.attribute if a.name not in large)
    return proto


def opsets(model: onnx.ModelProto) -> dict[str, int]:
    """Operator set versions by domain; ONNX's own domain is the empty string."""
    return {("" if o.domain == "ai.onnx" else o.domain): o.version for o in model.opset_import}


def tensor_type(array: np.ndarray) -> int:
    """ONNX element type of an array."""
    if array.dtype == object:
        return int(onnx.TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


_TYPES = {
    str(helper.tensor_dtype_to_np_dtype(t).name): int(t)
    for name, t in onnx.TensorProto.DataType.items()
    if name not in ("UNDEFINED", "STRING")
}


@cache
def dtype_name(elem_type: int) -> str:
    """The name of an ONNX element type in `Value.dtype`."""
    if elem_type == onnx.TensorProto.STRING:
        return "string"
    if elem_type == onnx.TensorProto.UNDEFINED:
        return "undefined"
    return str(helper.tensor_dtype_to_np_dtype(elem_type).name)


def np_type(dtype: str) -> int:
    """ONNX element type of a dtype by its name in numpy or ml_dtypes."""
    return _TYPES[dtype]


def to_array(tensor: onnx.TensorProto) -> np.ndarray:
    """The tensor's data, read-only; its data must be inside the proto."""
    array: np.ndarray
    if tensor.data_type == onnx.TensorProto.STRING:
        array = np.empty(len(tensor.string_data), object)  # onnx's own function pads all strings to the longest one
        array[:] = [text.decode() for text in tensor.string_data]
        array = array.reshape(tuple(tensor.dims))
    else:
        array = numpy_helper.to_array(tensor)
        if array.dtype.name == "int4":  # with zeros in the upper bits, of which code would need a copy with the sign
            array = array.astype(np.int8).view(array.dtype)
    if array.flags.writeable:
        array.flags.writeable = False
    return array


def to_tensor(name: str, array: np.ndarray) -> onnx.TensorProto:
    """An initializer with its data inside."""
    tensor: onnx.TensorProto = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
    return tensor


def to_stub(name: str, array: np.ndarray) -> onnx.TensorProto:
    """An initializer whose data stays in `ImportedModel.weights`."""
    tensor = onnx.TensorProto(
        name=name, data_type=tensor_type(array), dims=array.shape, data_location=onnx.TensorProto.EXTERNAL
    )
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", STUB_LOCATION
    return tensor


def keep(field: Any, wanted: Callable[[Any], bool]) -> None:
    """Delete the messages of a repeated field that are not wanted."""
    unwanted = [not wanted(message) for message in field]
    if any(unwanted):
        flags = iter(unwanted)
        field.sort(key=lambda _: next(flags))  # behind the others, from where all are deleted at once
        del field[len(unwanted) - sum(unwanted) :]


def set_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Make copies of `nodes`, which may be the graph's own, the nodes of the graph."""
    fresh = onnx.GraphProto(node=nodes)
    graph.ClearField("node")
    graph.node.extend(fresh.node)


_GRAPH, _GRAPHS = onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS


def bodies(node: onnx.NodeProto) -> Sequence[onnx.GraphProto]:
    """The graphs in a node's attributes (branches of If, bodies of Loop and Scan)."""
    attributes = node.attribute
    if not attributes or (not node.domain and node.op_type in without_bodies()):
        return ()  # as most nodes; this is asked for every node in every step of the import
    found: list[onnx.GraphProto] = []
    for attribute in attributes:
        kind = attribute.type
        if kind == _GRAPH:
            found.append(attribute.g)
        elif kind == _GRAPHS:
            found.extend(attribute.graphs)
    return found


@cache
def without_bodies() -> frozenset[str]:
    """ONNX's operators that have no graph among their attributes in any version."""
    kinds = onnx.defs.OpSchema.AttrType
    every = [schema for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain]
    graphs = {s.name for s in every for a in s.attributes.values() if a.type in (kinds.GRAPH, kinds.GRAPHS)}
    return frozenset(schema.name for schema in every) - graphs


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and all bodies inside it, outermost first."""
    yield graph
    for node in graph.node:
        if node.attribute:  # as few nodes have; this goes over all nodes in many steps of the import
            for body in bodies(node):
                yield from graphs_of(body)


def nodes_of(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes and all nodes in their bodies, each before those in its own."""
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from nodes_of(body.node)


def captured_by(body: onnx.GraphProto) -> tuple[str, ...]:
    """Values of the surrounding graphs that a body reads, without duplicates, in order of first use."""
    found: dict[str, None] = {}
    own = {i.name for i in body.input} | {t.name for t in body.initializer}
    own |= {t.values.name for t in body.sparse_initializer}
    for node in body.node:
        for name in reads(node):
            if name not in own:
                found[name] = None
        own |= set(node.output)
    found |= {o.name: None for o in body.output if o.name not in own}
    return tuple(found)


def reads(node: onnx.NodeProto) -> tuple[str, ...]:
    """All values that a node needs: its inputs that are present, then the values that its bodies capture."""
    direct = tuple(node.input[:])  # a slice of protobuf's lists takes half of the time of an iteration
    if "" in direct:
        direct = tuple(filter(None, direct))
    within = bodies(node)
    if not within:
        return direct
    seen = frozenset(direct)
    return (*direct, *dict.fromkeys(name for body in within for name in captured_by(body) if name not in seen))


_SHORT = 256
"""The bytes of the longest types that are remembered."""


def value_of(info: onnx.ValueInfoProto) -> Value:
    """An ONNX value as a Value of the graph; symbolic and negative dimensions are unknown."""
    return Value(info.name, *type_of(info))


def type_of(info: onnx.ValueInfoProto) -> tuple[str, tuple[int | None, ...] | None]:
    """The dtype and the shape of an ONNX value."""
    type_ = info.type.SerializeToString()
    return _known_type(type_) if len(type_) <= _SHORT else _read_type(type_)


def _read_type(data: bytes) -> tuple[str, tuple[int | None, ...] | None]:
    """The dtype and the shape of a type as bytes."""
    type_ = onnx.TypeProto.FromString(data)
    kind = type_.WhichOneof("value")
    if kind != "tensor_type":
        return "undefined" if kind is None else _type_text(type_), None
    tensor = type_.tensor_type
    dtype = dtype_name(tensor.elem_type)
    if not tensor.HasField("shape"):
        return dtype, None
    dims = (d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None for d in tensor.shape.dim)
    return dtype, tuple(dims)


_known_type = lru_cache(1024)(_read_type)
"""The same, once for the many values of one type."""


def _type_text(type_: onnx.TypeProto) -> str:
    kind = type_.WhichOneof("value")
    if kind == "tensor_type":
        return f"tensor({_onnx_name(type_.tensor_type.elem_type)})"
    if kind == "sequence_type":
        return f"seq({_type_text(type_.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({_type_text(type_.optional_type.elem_type)})"
    if kind == "map_type":
        return f"map({_onnx_name(type_.map_type.key_type)},{_type_text(type_.map_type.value_type)})"
    if kind == "sparse_tensor_type":
        return f"sparse({_onnx_name(type_.sparse_tensor_type.elem_type)})"
    return "undefined"


def _onnx_name(elem_type: int) -> str:
    return str(onnx.TensorProto.DataType.Name(elem_type)).lower()


def constant_value(name: str, array: np.ndarray) -> Value:
    """The value of a constant."""
    return Value(name, dtype_name(tensor_type(array)), tuple(array.shape))


def value_table(graph: onnx.GraphProto, weights: Mapping[str, np.ndarray]) -> dict[str, Value]:
    """The values of known type, by name: those with type information in the graph, and the constants."""
    table = {i.name: value_of(i) for i in (*graph.input, *graph.value_info, *graph.output)}
    table.update((name, constant_value(name, array)) for name, array in weights.items())
    return table
