"""The imported model: the normalised ONNX model, and the graph that passes work on."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import numpy as np
import onnx
from onnx import helper

from heterocc.artifacts.manifest import ANY_SIZE, MAX_DIM, MAX_TOKENS, Range
from heterocc.compiler.importer.digests import Digests
from heterocc.compiler.importer.draft.draft import np_type, reads
from heterocc.compiler.importer.given import GivenModel
from heterocc.compiler.importer.symbols.requirements import requirements_at
from heterocc.compiler.importer.symbols.symbols import Symbols
from heterocc.compiler.importer.weight_form import WeightForm
from heterocc.compiler.operators.table import of_node, of_type
from heterocc.compiler.symbolic.comparisons import least_sizes
from heterocc.compiler.symbolic.given import Contents, Limit
from heterocc.compiler.symbolic.postfix import postfix
from heterocc.compiler.symbolic.sizes import number
from heterocc.passes.graph import DTYPE_BYTES, Graph, Value
from heterocc.passes.show.printer import count, human_bytes


@dataclass(frozen=True)
class ImportedModel:
    """The result of import.

    `proto` is the normalised model, without the data of initializers in `weights`: node names equal
    `graph.nodes[i].name`, value names equal `graph.values` keys, both C identifiers. `weights` holds every constant by
    name (read-only arrays, external data mapped). `sources` are the original input and output names in model order,
    by internal name. `source_digest` gives `sha256`. `notes` are sentences for the user about unexpected steps of the
    import. `loose` are nodes whose bodies contradict the fixed input shapes: a `subgraph` with one of them has
    inputs of unknown dimensions. `dimensions` are the names of dimensions in the file, None for those without one,
    by the model's own names of inputs and outputs. `samples` are shapes for inputs with dynamic dimensions, by the
    model's own names, with which ONNX Runtime runs the model. `symbols` are the named dimensions of the inputs, and
    what follows from them; None if all sizes are fixed. `planned` are the least and largest sizes of these for
    which memory of GPUs is planned; without them GPUs run no node with a dynamic dimension. `contents` are the
    integers that nodes compute from shapes, if `at` fixed all sizes. `classes` are the names of classes that
    outputs have numbers of, or columns for, by the model's own names.
    `defaults` are the values of inputs that a run may leave out, `held` the model's own names of initializers that are
    constants here, though it lists them as inputs, too. `apart` are named dimensions whose size 1 needs code
    of its own, because a result has another rank. `assumes` says that sizes were excluded with which ONNX Runtime might
    run the model; `ones` are dimensions whose size 1, which a node would broadcast, is one of these.
    `modules` are the paths of the modules that nodes are from, by their original names, if the exporter says so.
    `digests` has the digests of `weights` that were computed. `given` is the model before the import. `steps` are the
    names of the import's steps that changed it, in order. `compressed` is the form that its weights were compressed to,
    `caches` the type of 16 bits of keys and values that the model given has in float32.
    """

    name: str
    source_digest: Callable[[], str] = field(compare=False)
    graph: Graph
    proto: onnx.ModelProto
    weights: Mapping[str, np.ndarray]
    sources: Mapping[str, str]
    opsets: Mapping[str, int]
    notes: tuple[str, ...] = ()
    loose: frozenset[str] = frozenset()
    dimensions: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    samples: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    symbols: Symbols | None = None
    planned: Mapping[str, Range] = field(default_factory=dict)
    classes: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)
    contents: Mapping[str, Contents] = field(default_factory=dict)
    defaults: Mapping[str, np.ndarray] = field(default_factory=dict)
    held: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    assumes: bool = False
    ones: tuple[str, ...] = ()
    digests: Digests = field(default_factory=Digests, compare=False)
    modules: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    given: GivenModel | None = field(default=None, compare=False, repr=False)
    steps: tuple[str, ...] = field(default=(), compare=False, repr=False)
    compressed: WeightForm | None = None
    caches: str | None = None

    def __repr__(self) -> str:
        """One short line; the fields hold all weights."""
        size = human_bytes(sum(array.nbytes for array in self.weights.values()))
        nodes = count(len(self.graph.nodes), "node")
        return f"<ImportedModel {self.name}: {nodes}; {count(len(self.weights), 'constant')}, {size}>"

    @property
    def sha256(self) -> str:
        """The SHA-256 of the source file and of its external data, if any; waits for the thread that computes it."""
        return self.source_digest()

    @cached_property
    def protos(self) -> Mapping[str, onnx.NodeProto]:
        """The ONNX nodes by name."""
        return MappingProxyType({n.name: n for n in self.proto.graph.node})

    @cached_property
    def _infos(self) -> Mapping[str, onnx.ValueInfoProto]:
        graph = self.proto.graph
        return MappingProxyType({i.name: i for i in (*graph.value_info, *graph.output, *graph.input)})

    @cached_property
    def _places(self) -> Mapping[str, int]:
        """The places of the nodes in the graph, by name."""
        return MappingProxyType({node.name: place for place, node in enumerate(self.proto.graph.node)})

    @cached_property
    def _value_places(self) -> Mapping[str, int]:
        return MappingProxyType({name: place for place, name in enumerate(self.graph.values)})

    @cached_property
    def scales(self) -> frozenset[str]:
        """The float32 numbers among the weights by which nodes multiply a computed number, as in quantised products."""
        return frozenset(name for node in self.proto.graph.node for name in self._scales_of(node))

    def _scales_of(self, node: onnx.NodeProto) -> Iterator[str]:
        if len(node.input) == 2 and of_node(node).symbol == "*":
            values = self.graph.values
            for name, other in (node.input, reversed(node.input)):
                weight = self.weights.get(name)
                is_number = weight is not None and weight.dtype == np.float32 and weight.shape == ()
                if is_number and other in values and other not in self.weights and values[other].shape == ():
                    yield name

    @cached_property
    def dtypes(self) -> frozenset[str | None]:
        """The types of all values."""
        return frozenset(value.dtype for value in self.graph.values.values())

    @cached_property
    def _initializers(self) -> Mapping[str, onnx.TensorProto]:
        return MappingProxyType({t.name: t for t in self.proto.graph.initializer})

    def subgraph(self, nodes: Sequence[str], inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
        """A valid ONNX model of `nodes` alone, reading `inputs`, writing `outputs`.

        Constants that the nodes use are initializers of the result, by name. Those of at most 1 KiB have their data in
        `raw_data`; larger ones are marked as external (location `heterocc`), and the caller feeds them from `weights`.
        The nodes of the result are in graph order.

        Raises KeyError for an unknown node or value.
        """
        chosen = {name: self.protos[name] for name in nodes}
        members = sorted(chosen.values(), key=lambda n: self._places[n.name])
        given = set(inputs)
        wanted = dict.fromkeys(name for n in members for name in reads(n))
        wanted.update(dict.fromkeys(outputs))
        empty = onnx.GraphProto(name=self.name)
        model: onnx.ModelProto = helper.make_model(
            empty, opset_imports=self.proto.opset_import, ir_version=self.proto.ir_version
        )
        graph = model.graph
        for node in members:
            graph.node.add().CopyFrom(node)  # extend() takes three times the memory for attributes of many numbers
        graph.input.extend(self._info(name) for name in inputs)
        graph.output.extend(self._info(name) for name in outputs)
        kept = (self._initializers[name] for name in wanted if name in self._initializers and name not in given)
        graph.initializer.extend(kept)
        written = {o for n in members for o in n.output} - set(outputs)
        known = sorted(written & self._value_places.keys(), key=self._value_places.__getitem__)
        graph.value_info.extend(self._info(name) for name in known)
        if not self.loose.isdisjoint(chosen):
            open_shapes(model)
        return model

    @cached_property
    def without_symbols(self) -> ImportedModel:
        """The model as if it had no named dimensions, for parts whose sizes all are numbers."""
        return dataclasses.replace(self, symbols=None)

    @property
    def bounds_are_known(self) -> bool:
        """Whether each limit of the sizes is one of a named dimension, which can be checked before a run."""
        return self.unchecked_limit is None

    @property
    def unchecked_limit(self) -> tuple[str, int] | None:
        """A size that the nodes limit and no run checks, as text, and the largest value; None if there is none."""
        if self.symbols is None:
            return None
        limits = (limit for limit in self.symbols.limits.values() if limit.size.name is None)
        checked = self.joint_limits
        return next(((limit.size.text, limit.most) for limit in limits if limit not in checked), None)

    @cached_property
    def joint_limits(self) -> tuple[Limit, ...]:
        """The sizes of several dimensions that the nodes limit, such as that of past and new keys. Runs check them."""
        if self.symbols is None:
            return ()
        known = frozenset(self.symbols.names)
        joint = (limit for limit in self.symbols.limits.values() if limit.size.name is None)
        return tuple(x for x in joint if x.size.names <= known and len(tuple(postfix(x.size))) <= MAX_TOKENS)

    def known_dims(self, value: Value) -> tuple[int | str | None, ...] | None:
        """The shape of a value, None for a dimension that does not follow from those of the inputs."""
        if self.symbols is None or value.shape is None:
            return value.shape
        return tuple(None if self.symbols.is_fresh(d) else d for d in value.shape)

    @cached_property
    def bounds(self) -> Mapping[str, Range]:
        """The sizes that the nodes allow for each named dimension; the least is 0 for one that may be empty."""
        if self.symbols is None:
            return {}
        most = {limit.size.name or "": limit.most for limit in self.symbols.limits.values() if limit.most <= MAX_DIM}
        shapes = [v.shape for v in self.graph.values.values() if v.shape is not None]
        sizes = {d: self.symbols.sizes[d] for shape in shapes for d in shape if isinstance(d, str)}
        empty, caches, needed = self.may_be_empty, self._least_caches(), least_sizes(sizes.values())
        found: dict[str, Range] = {}
        for name in self.symbols.names:
            least = 0 if name in empty else needed.get(name, 1)
            step = self.symbols.steps.get(name, 1)
            least = max(least, self.symbols.floors.get(name, 0), caches.get(name, 0))
            allowed = Range(min=least, max=most.get(name)) & self.symbols.ranges.get(name, ANY_SIZE)
            found[name] = Range(min=-(-allowed.min // step) * step, max=allowed.max, step=step)
        return found

    def _least_caches(self) -> dict[str, int]:
        """The least sizes of caches that attention needs, by the names of dimensions: the room of a window's keys."""
        assert self.symbols is not None
        found: dict[str, int] = {}
        for node in (node for node in self.proto.graph.node if of_node(node).caches):
            pasts = {node.input[place] for place in of_node(node).caches.values() if place < len(node.input)} - {""}
            dims = {dim for name in pasts for dim in self.graph.values[name].shape or ()}
            for needed in requirements_at(node, self.graph.values, self.symbols, self.opsets.get("", 1)):
                if needed.relation == "at_least" and (name := needed.left.name) in dims and name:
                    found[name] = max(found.get(name, 0), needed.right.number or 0)
        return found

    def allowed(self, samples: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Shapes of the model's inputs, by their names in the model, with the nearest sizes that nodes allow."""
        if self.symbols is None:
            return dict(samples)
        found = {}
        common: dict[str, int] = {}
        given = {self.sources.get(name, name): self.graph.values[name].shape or () for name in self.graph.inputs}
        given = {
            source: dims for source, dims in given.items() if source in samples and len(dims) == len(samples[source])
        }
        for source, dims in given.items():
            for dim, size in zip(dims, samples[source], strict=True):
                if isinstance(dim, str):  # dimensions that were called otherwise may have had other sizes
                    common[dim] = max(size, common.get(dim, size))
        for source, dims in given.items():
            sizes = (common[d] if isinstance(d, str) else n for d, n in zip(dims, samples[source], strict=True))
            found[source] = tuple(self._nearest(d, n) for d, n in zip(dims, sizes, strict=True))
        return {**samples, **found}

    def _nearest(self, dim: int | str | None, size: int) -> int:
        if not isinstance(dim, str) or self.symbols is None:
            return size if dim is None or isinstance(dim, str) else dim
        return self.bounds.get(dim, ANY_SIZE).nearest(size)

    @cached_property
    def may_be_empty(self) -> frozenset[str]:
        """The named dimensions of which a size of 0 leaves no result empty: the length of past keys, say.

        An input whose type is changed first counts as that input.
        """
        if self.symbols is None:
            return frozenset()
        values = self.graph.values
        inputs = frozenset(self.graph.inputs)
        nodes = [n for n in self.graph.nodes if not (of_type(n.op_type).casts and n.inputs[0] in inputs)]
        found = self.symbols.may_be_empty(d for n in nodes for o in n.outputs for d in values[o].shape or ())
        readers = self.proto.graph.node if found else ()
        return self.symbols.empty | found - {n for node in readers for n in (*self._picked(node), *self._needed(node))}

    def _needed(self, node: onnx.NodeProto) -> Iterator[str]:
        """The names of dimensions that a node needs to be at least 1, such as the number of all keys."""
        assert self.symbols is not None
        for needed in requirements_at(node, self.graph.values, self.symbols, self.opsets.get("", 1)):
            if needed.relation == "at_least" and needed.left.name is not None and (needed.right.number or 0) >= 1:
                yield needed.left.name

    def _picked(self, node: onnx.NodeProto) -> frozenset[str]:
        """The names on which the size of an axis depends of which a Gather reads elements, so that it has some."""
        if node.op_type != "Gather" or node.domain or self.symbols is None:
            return frozenset()
        shape = self.symbols.shape_of(self.graph.values[node.input[0]]) or ()
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        size = shape[axis] if -len(shape) <= axis < len(shape) else None
        return frozenset() if size is None else size.names

    def most_bytes(self, name: str) -> int | None:
        """The most bytes of a value at the planned sizes; None if they are not known."""
        value = self.graph.values[name]
        if value.is_static or self.symbols is None:
            return value.nbytes if value.is_static else None
        shape = self.symbols.shape_of(value)
        if shape is None or value.is_opaque or any(d is None or not d.names <= self.planned.keys() for d in shape):
            return None
        return math.prod((d.ends(self.planned)[1] for d in shape if d is not None), start=DTYPE_BYTES[value.dtype])

    @property
    def typical(self) -> ImportedModel:
        """The model for the sizes of seeded inputs, by which costs are estimated; itself if they are not known."""
        # Sizes that are not known yet are searched before, because the search asks for the same of other models, and
        # all models share the lock of a cached property: two threads would wait for each other.
        if self.symbols is not None:
            len(self.samples)
        return self._typical

    @cached_property
    def _typical(self) -> ImportedModel:
        if self.symbols is None:
            return self
        sizes: dict[str, int] = {}
        for name in self.graph.inputs:
            shape, sample = self.graph.values[name].shape or (), self.sample(name).shape or ()
            sizes.update(
                (d, n) for d, n in zip(shape, sample, strict=False) if isinstance(d, str) and isinstance(n, int)
            )
        return self.at(sizes) if sizes.keys() >= set(self.symbols.names) else self

    def at(self, sizes: Mapping[str, int]) -> ImportedModel:
        """The model for these sizes of all named dimensions, with the same nodes."""
        if self.symbols is None:
            return self
        known = self.symbols.sizes

        def fixed(value: Value) -> Value:
            if value.shape is None:
                return value
            return dataclasses.replace(
                value,
                shape=tuple(
                    d if not isinstance(d, str) else known[d].at(sizes) if known[d].names <= sizes.keys() else None
                    for d in value.shape
                ),
            )

        values = {name: fixed(value) for name, value in self.graph.values.items()}
        contents = {
            name: np.array([None if e is None else number(e.at(sizes)) for e in found.flat], object).reshape(
                found.shape
            )
            for name, found in self.symbols.contents.items()
            if all(e is None or e.names <= sizes.keys() for e in found.flat)
        }
        graph = dataclasses.replace(self.graph, values=values)
        return dataclasses.replace(self, graph=graph, symbols=None, contents=contents)

    def shape_texts(self) -> list[str]:
        """The inputs' shapes by the model's own names, in the form of `--shape`: `image=1,3,224,224`."""
        values = [(self.sources.get(name, name), self.graph.values[name]) for name in self.graph.inputs]
        dims = [(source, value.shape) for source, value in values if value.shape is not None]
        return [f"{source}={','.join('?' if d is None else str(d) for d in shape)}" for source, shape in dims]

    def elements(self, name: str) -> tuple[int | None, ...] | None:
        """The shape of the tensors of a sequence or an optional value; None if their ranks differ or are not known."""
        held = None if self.symbols is None else self.symbols.elements.get(name)
        if held is None or held.shape is None:
            return None
        return tuple(None if size is None else size.number for size in held.shape)

    def names_of(self, name: str) -> tuple[str | None, ...]:
        """The names that the model gives to the dimensions of a graph input."""
        return self.dimensions.get(self.sources.get(name, name), ())

    def input_shape(self, name: str) -> tuple[int | str | None, ...] | None:
        """The shape of a graph input, with names of dynamic dimensions."""
        shape, names = self.graph.values[name].shape, self.names_of(name)
        if shape is None or len(names) != len(shape):
            return shape
        return tuple(known if dim is None else dim for dim, known in zip(shape, names, strict=True))

    @property
    def dynamic_inputs(self) -> tuple[str, ...]:
        """The tensors among the graph's inputs that have dynamic dimensions."""
        values = [self.graph.values[name] for name in self.graph.inputs]
        return tuple(v.name for v in values if not v.is_static and (v.shape is not None or not v.is_opaque))

    def sample(self, name: str) -> Value:
        """A graph input with the shape that seeded inputs have."""
        value = self.graph.values[name]
        shape = self.samples.get(self.sources.get(name, name))
        return value if value.is_static or shape is None else Value(value.name, value.dtype, shape)

    def _info(self, name: str) -> onnx.ValueInfoProto:
        value = self.graph.values[name]
        if value.is_opaque and name in self._infos:
            return self._infos[name]  # only the proto has the full type of a sequence or map
        if value.dtype == "undefined":
            return onnx.ValueInfoProto(name=name)
        elem_type = onnx.TensorProto.STRING if value.dtype == "string" else np_type(value.dtype)
        return helper.make_tensor_value_info(name, elem_type, value.shape)


def open_shapes(model: onnx.ModelProto) -> None:
    """Make every dimension of the model's inputs and outputs unknown, and remove inferred shapes."""
    constants = {t.name for t in model.graph.initializer}
    for info in (*model.graph.input, *model.graph.output):
        if info.type.HasField("tensor_type") and info.name not in constants:
            for dim in info.type.tensor_type.shape.dim:
                dim.Clear()
    del model.graph.value_info[:]
