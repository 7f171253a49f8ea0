"""The graph that passes work with: nodes, values and their sizes, without ONNX and TVM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, compress
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

DTYPE_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "float64": 8,
        "float32": 4,
        "float16": 2,
        "bfloat16": 2,
        "int64": 8,
        "int32": 4,
        "int16": 2,
        "int8": 1,
        "uint64": 8,
        "uint32": 4,
        "uint16": 2,
        "uint8": 1,
        "bool": 1,
        "float8_e4m3fn": 1,
        "float8_e4m3fnuz": 1,
        "float8_e5m2": 1,
        "float8_e5m2fnuz": 1,
        "int4": 1,
        "uint4": 1,
    }
)
"""Bytes per element of the dtypes that devices can store; any other dtype is opaque (string, sequence, map …)."""

Numbers = npt.NDArray[np.int64]

Dim = int | str | None
_INT = frozenset((int,))


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the graph.

    `shape` has a text for a dimension that follows from sizes of the inputs: the name of one of theirs, or an
    expression of names. Equal texts mean equal sizes. It has `None` for a dimension that is known only at run time, and
    is `None` if even the rank is unknown.
    `dtype` is numpy's name (`float32`), or any other text for a value that is not a numeric tensor (`string`,
    `seq(map(int64,tensor(float)))`), which is opaque and stays in ONNX Runtime.
    """

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None

    @property
    def is_static(self) -> bool:
        """Return whether every dimension is a number."""
        return self.shape is not None and _INT.issuperset(map(type, self.shape))

    @property
    def numbers(self) -> tuple[int, ...] | None:
        """The shape if every dimension is a number, else None."""
        dims = tuple(d for d in self.shape or () if isinstance(d, int))
        return dims if self.shape is not None and len(dims) == len(self.shape) else None

    @property
    def is_opaque(self) -> bool:
        """Return whether the value is not a numeric tensor."""
        return self.dtype not in DTYPE_BYTES

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor; 0 if they are known only at run time."""
        size = DTYPE_BYTES.get(self.dtype)
        if size is None or self.shape is None:
            return 0
        for dim in self.shape:  # in the inner loops of passes: no call for each value
            if not isinstance(dim, int):
                return 0
            size *= dim
        return size


@dataclass(frozen=True, slots=True)
class Node:
    """An operation of the graph.

    `name` is unique in the graph and a valid C identifier; `original` lists the names of the model's nodes from which
    it was made, for reports. `op_type` includes the domain unless it is ONNX's (`com.microsoft::FusedMatMul`).
    `inputs` omits absent optional inputs. `affinity` is the device in the model's metadata, if any.
    """

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    original: tuple[str, ...] = ()
    affinity: str | None = None

    @property
    def label(self) -> str:
        """The name for messages."""
        return self.original[0] if self.original and self.original[0] else self.name


@dataclass(frozen=True, slots=True)
class Reads:
    """The values that nodes write and nodes read, in the order in which they are first read.

    `nbytes[i]` is the size of value i and `producers[i]` the position of the node that writes it. For each reading
    node, `readers` has its position and `values` the number of the value, sorted by value, then by reader.
    """

    nbytes: npt.NDArray[np.float64]
    producers: Numbers
    readers: Numbers
    values: Numbers


@dataclass(frozen=True)
class Graph:
    """A directed acyclic graph of operations over named values.

    Invariants, checked on construction:
      * node names are unique, and every value is written at most once;
      * nodes are in topological order: each reads only graph inputs, constants and outputs of earlier nodes;
      * every value that is used has an entry in `values`.

    `constants` are initializers, which have no device and are copied to each device that uses them.
    `position` has the place of each node in graph order, by its name, and `sources` for each node the positions of the
    nodes whose results it reads, without repetition. `writers` has the position of the node that writes each value, -1
    for graph inputs and constants. The checks compute these.
    """

    name: str
    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: frozenset[str] = field(default_factory=frozenset)
    position: Mapping[str, int] = field(init=False, repr=False, compare=False)
    sources: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    writers: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        """One short line; the fields hold the nodes and values."""
        ends = f"{', '.join(self.inputs)} -> {', '.join(self.outputs)}"
        return f"<Graph {self.name}: {len(self.nodes)} nodes; {ends if len(ends) <= 200 else ends[:199] + '…'}>"

    def __post_init__(self) -> None:
        values = dict(self.values)
        object.__setattr__(self, "values", MappingProxyType(values))
        position: dict[str, int] = {}
        written = dict.fromkeys([*self.inputs, *self.constants], -1)
        for name in written:
            self._known(name)
        found: list[tuple[int, ...]] = []
        for index, node in enumerate(self.nodes):
            if node.name in position:
                raise ValueError(f"two nodes are named '{node.name}'")
            position[node.name] = index
            sources = []
            for value in node.inputs:
                source = written.get(value)
                if source is None:
                    self._known(value)
                    raise ValueError(f"node '{node.name}' reads '{value}' before it is written")
                if source >= 0:
                    sources.append(source)
            found.append(tuple(sources) if len(sources) < 2 else tuple(dict.fromkeys(sources)))
            for value in node.outputs:
                if value not in values:
                    self._known(value)
                if value in written:
                    raise ValueError(f"'{value}' is written twice (again by node '{node.name}')")
                written[value] = index
        for value in self.outputs:
            if value not in written:
                raise ValueError(f"graph output '{value}' is never written")
        object.__setattr__(self, "position", MappingProxyType(position))
        object.__setattr__(self, "sources", tuple(found))
        object.__setattr__(self, "writers", MappingProxyType(written))

    def _known(self, value: str) -> None:
        if value not in self.values:
            raise ValueError(f"value '{value}' has no entry in the value table")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the nodes in graph order."""
        return tuple([n.name for n in self.nodes])

    @cached_property
    def node_by_name(self) -> Mapping[str, Node]:
        """Nodes by their unique name."""
        return MappingProxyType({n.name: n for n in self.nodes})

    @cached_property
    def producer(self) -> Mapping[str, str]:
        """The name of the node that writes each value; graph inputs and constants have no entry."""
        return MappingProxyType({v: n.name for n in self.nodes for v in n.outputs})

    @cached_property
    def consumers(self) -> Mapping[str, tuple[str, ...]]:
        """The names of the nodes that read each value, in graph order without repetition."""
        found: dict[str, list[str]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.inputs):
                found.setdefault(value, []).append(node.name)
        return MappingProxyType({k: tuple(v) for k, v in found.items()})

    @cached_property
    def edges(self) -> tuple[Numbers, Numbers]:
        """The entries of `sources` as arrays: positions of nodes whose results are read, and of the nodes that read."""
        counts = np.fromiter(map(len, self.sources), np.int64, len(self.sources))
        flat = np.fromiter(chain.from_iterable(self.sources), np.int64, int(counts.sum()))
        return flat, np.repeat(np.arange(len(counts)), counts)

    @cached_property
    def reads(self) -> Reads:
        """The values that nodes write and nodes read."""
        counts = np.fromiter([len(node.inputs) for node in self.nodes], np.int64, len(self.nodes))
        flat = list(chain.from_iterable([node.inputs for node in self.nodes]))
        number = dict.fromkeys(flat, 0)
        number = dict(zip(number, range(len(number)), strict=True))
        writers = np.fromiter(map(self.writers.__getitem__, number), np.int64, len(number))
        values = np.fromiter(map(number.__getitem__, flat), np.int64, len(flat))
        readers = np.repeat(np.arange(len(counts)), counts)
        written = writers >= 0
        if not written.all():
            values, readers = values[written[values]], readers[written[values]]
            values = (np.cumsum(written) - 1)[values]
        order = np.argsort(values, kind="stable")
        values, readers = values[order], readers[order]
        if len(values):
            first = np.append(True, (values[1:] != values[:-1]) | (readers[1:] != readers[:-1]))
            values, readers = values[first], readers[first]  # a node may read a value several times
        sizes: dict[tuple[str, object], int] = {}  # many values have one shape
        nbytes = []
        for tensor in map(self.values.__getitem__, compress(number, written.tolist())):
            key = tensor.dtype, tensor.shape
            size = sizes.get(key)
            if size is None:
                size = sizes[key] = tensor.nbytes
            nbytes.append(size)
        return Reads(np.array(nbytes, float), writers[written], readers, values)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each node the positions of the nodes that read its results, without repetition."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for index, sources in enumerate(self.sources):
            for source in sources:
                found[source].append(index)
        return tuple(map(tuple, found))
