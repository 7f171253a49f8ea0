"""Fixing of the shapes of graph inputs, and inference of all others."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache

import onnx
from onnx import shape_inference

from heterocc.artifacts.errors import DynamicShapeError, Hint, InvalidGraphError, ShapeOptionError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.importer.draft.draft import (
    Draft,
    Inferred,
    bodies,
    describable,
    dtype_name,
    keep,
    large_lists,
    nodes_of,
    value_of,
    value_table,
    without_lists,
)
from heterocc.compiler.importer.draft.names import unused
from heterocc.compiler.importer.onnx_tools.checker import condense
from heterocc.compiler.importer.onnx_tools.infer import infer_onnx
from heterocc.compiler.importer.onnx_tools.onnx_runtime import output_types
from heterocc.compiler.importer.onnx_tools.representatives import representatives
from heterocc.compiler.importer.shapes.expressions import size_of, word_for
from heterocc.compiler.importer.shapes.misjudged import misjudged
from heterocc.compiler.importer.shapes.named import (
    dims_of,
    is_symbol,
    quoted,
    require_names,
    sizes_of,
    split_by_names,
)
from heterocc.compiler.importer.symbols.derivation import derive
from heterocc.compiler.importer.symbols.repeats import first_state
from heterocc.compiler.importer.symbols.symbols import Dims, Symbols
from heterocc.compiler.operators.record import ML
from heterocc.compiler.operators.table import of_node
from heterocc.compiler.symbolic.containers import elements_of
from heterocc.passes.graph import Value
from heterocc.runtime.feeds import dimensions
from heterocc.runtime.files.shape_options import check_dims

_SHOWN = 8
"""The inputs that an error names, at most."""

_MOST_KEPT = 1 << 26
"""The most bytes of a graph of which it is remembered what was inferred."""


def still_dynamic(
    left: Sequence[onnx.ValueInfoProto], proposed: Mapping[str, Sequence[int]], where: str
) -> DynamicShapeError:
    """The error for inputs that no option fixes; `proposed` are shapes with which the model runs, if any are known."""
    named = "; ".join(f"'{i.name}' [{dims_text(i)}]" for i in left[:_SHOWN]) + ("; …" if len(left) > _SHOWN else "")
    plural = "inputs have" if len(left) > 1 else "input has"
    return DynamicShapeError(
        f"{len(left)} {plural} dynamic dimensions: {named}",
        where=where,
        hint=_proposal(left, proposed) + Hint("; or add ORT to `devices`", "; or add ORT to --devices"),
    )


def dynamic_inputs(draft: Draft) -> list[onnx.ValueInfoProto]:
    """The tensors among the inputs that have a dynamic dimension."""
    return [i for i in draft.graph.input if i.type.HasField("tensor_type") and not _is_static(i)]


def name_dimensions(draft: Draft) -> None:
    """Name all dynamic dimensions of the graph's inputs; equal names mean equal sizes.

    A dimension without a name is called by its input and axis, `image_2`, one whose name is an expression of others by
    a word, as expressions are the texts of sizes that follow from names. An input of unknown rank stays so.
    """
    found = [(i, axis, dim) for i in draft.graph.input for axis, dim in enumerate(dims_of(i))]
    taken = {dim.dim_param for _, _, dim in found if is_symbol(dim)}
    words = {name: word for name in taken if (word := word_for(name, taken - {name})) is not None and word not in taken}
    for info, axis, dim in found:
        if is_symbol(dim) and dim.dim_param in words:
            dim.dim_param = words[dim.dim_param]
        if is_symbol(dim) or (dim.HasField("dim_value") and dim.dim_value >= 0):
            continue
        dim.dim_param = unused(f"{info.name}_{axis}", taken)
    names = dict.fromkeys(dim.dim_param for _, _, dim in found if is_symbol(dim))
    draft.symbols = Symbols(tuple(names)) if names else None


def set_input_shapes(
    draft: Draft, shapes: Mapping[str, Sequence[int]], where: str, dims: Mapping[str, int] | None = None
) -> None:
    """Set the requested shapes of graph inputs, and dimensions by name; a name fixed in one input is fixed in all.

    Raises ShapeOptionError for an unknown input or name, a different rank, or a conflict with a fixed one.
    """
    require_names(draft, dims or {}, where)
    inputs = {i.name: i for i in draft.graph.input}
    for name in shapes:
        if name not in inputs:
            raise ShapeOptionError(
                f"a shape is given for '{name}', which is not an input of the model", where=where, hint=_listing(draft)
            )
    symbols = {name: (size, f"dim {name}={size}") for name, size in (dims or {}).items()}
    for name, wanted in shapes.items():
        _fix_one(draft, inputs[name], tuple(wanted), symbols, where)
    sizes = {name: size for name, (size, _) in symbols.items()}
    for info in draft.graph.input:
        for dim in dims_of(info):
            if is_symbol(dim):
                size = sizes.get(dim.dim_param, size_of(dim.dim_param, sizes))
                if size is not None and size >= 0:
                    dim.dim_value = size
        shape = value_of(info).shape
        if dims and shape is not None:
            check_dims(info.name, [d if isinstance(d, int) else 1 for d in shape], where)


def _proposal(left: Sequence[onnx.ValueInfoProto], found: Mapping[str, Sequence[int]]) -> str:
    """The hint for dynamic inputs: shapes with which ONNX Runtime runs the model, or a template without them."""
    names, unnamed = split_by_names(left)
    if not found:
        sample = [*(f"--dim {quoted(n)}=SIZE" for n in names)]
        sample += [f"--shape {quoted(i.name)}={dims_text(i)}" for i in unnamed]
        python = [f"dims={dict.fromkeys(names, 'SIZE')}"] if names else []
        python += [f"shapes={ {i.name: dims_text(i) for i in unnamed} }"] if unnamed else []
        kind = "SIZE" if names and not unnamed else "names"
        return f"fix them, with numbers in place of {kind}: " + Hint(", ".join(python), " ".join(sample))
    sizes = sizes_of(names, left, found)
    fixed = {i.name: tuple(found[i.name]) for i in unnamed}
    options = [f"--dim {quoted(name)}={size}" for name, size in sizes.items()]
    options += [f"--shape {quoted(name)}={','.join(map(str, shape))}" for name, shape in fixed.items()]
    python = [*([f"dims={sizes}"] if sizes else []), *([f"shapes={fixed}"] if fixed else [])]
    return "fix them, for example " + Hint(", ".join(python), " ".join(options))


def _fix_one(
    draft: Draft, info: onnx.ValueInfoProto, wanted: tuple[int, ...], symbols: dict[str, tuple[int, str]], where: str
) -> None:
    asked = f"shape {info.name}={','.join(map(str, wanted))}"
    if not info.type.HasField("tensor_type"):
        raise ShapeOptionError(f"{asked}: the input is not a tensor", where=where, hint=_listing(draft))
    check_dims(info.name, wanted, where, _listing(draft))
    tensor = info.type.tensor_type
    if tensor.HasField("shape"):
        dims = tensor.shape.dim
        if len(dims) != len(wanted):
            raise ShapeOptionError(
                f"{asked} has {dimensions(len(wanted))}, the input has {len(dims)}", where=where, hint=_listing(draft)
            )
        for index, (dim, value) in enumerate(zip(dims, wanted, strict=True)):
            if dim.HasField("dim_value") and dim.dim_value >= 0 and dim.dim_value != value:
                raise ShapeOptionError(
                    f"{asked}: dimension {index} is fixed to {dim.dim_value} in the model",
                    where=where,
                    hint=_listing(draft),
                )
            if is_symbol(dim):
                known, owner = symbols.setdefault(dim.dim_param, (value, asked))
                if known != value:
                    raise ShapeOptionError(
                        f"{asked}: dimension {index} is '{dim.dim_param}', which {owner} makes {known}",
                        where=where,
                        hint=_listing(draft),
                    )
    tensor.shape.ClearField("dim")
    for value in wanted:
        tensor.shape.dim.add().dim_value = value
    tensor.shape.SetInParent()


def _is_static(info: onnx.ValueInfoProto) -> bool:
    shaped = info.type.tensor_type.HasField("shape")
    return shaped and all(d.HasField("dim_value") and d.dim_value >= 0 for d in dims_of(info))


def dims_text(info: onnx.ValueInfoProto) -> str:
    """An input's dimensions in the form of `--shape`, with names or question marks for dynamic ones."""
    if not info.type.HasField("tensor_type"):
        return "no tensor"
    if not info.type.tensor_type.HasField("shape"):
        return "unknown rank"
    return ",".join(
        str(d.dim_value) if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or "?" for d in dims_of(info)
    )


def _listing(draft: Draft) -> str:
    return "the model's inputs are " + "; ".join(f"'{i.name}' [{dims_text(i)}]" for i in draft.graph.input)


def infer(draft: Draft, where: str) -> dict[str, Value]:
    """Infer types and shapes of all possible values, store them in the draft's `value_info` and return them.

    ONNX's inference is used first, then that of ONNX Runtime, which also knows its own operators. If they differ, ONNX
    Runtime's result is used, because results are later compared with its. What the model states is not used: a shape
    that nobody can infer is known only at run time.

    What is as the last inference left it is not inferred again.

    Raises InvalidGraphError if two types contradict each other.
    """
    values = known_values(draft)
    if values is None:
        values = _infer(draft, where)
        graph = _as_bytes(draft)
        draft.inferred = None if graph is None else Inferred(graph, dict(draft.weights), draft.symbols, values)
    return values


def known_values(draft: Draft) -> dict[str, Value] | None:
    """The values that the last inference found, if the draft is as it left it."""
    last = draft.inferred
    if (
        last is not None
        and last.symbols is draft.symbols
        and all(last.weights.get(name) is array for name, array in draft.weights.items())
        and last.graph == _as_bytes(draft)
    ):
        return last.values
    return None


def _as_bytes(draft: Draft) -> bytes | None:
    """The graph, unless attributes make it large; those of trees are left out."""
    graph = without_lists(draft.model).graph if any(map(large_lists, draft.graph.node)) else draft.graph
    found: bytes | None = graph.SerializeToString(deterministic=True) if graph.ByteSize() <= _MOST_KEPT else None
    return found


def _infer(draft: Draft, where: str) -> dict[str, Value]:
    _forget(draft)
    try:
        draft.adopt(infer_onnx(draft.to_proto(with_trees=False), where))
    except (shape_inference.InferenceError, ValueError) as error:
        pass_foreign(error)
        raise InvalidGraphError(f"types or shapes do not fit: {condense(str(error))}", where=where) from error
    table = value_table(draft.graph, draft.weights)
    types = _runtime_types(draft, table)
    if types:
        table = dict(table)  # `representatives` knows the other one
        known = {i.name: i for i in (*draft.graph.value_info, *draft.graph.output)}
        for name, (kind, dims) in types.items():
            if name in table and _is_same(table[name], kind, dims):
                continue  # as for most values
            if name not in known:
                known[name] = draft.graph.value_info.add(name=name)
            _merge_type(known[name], kind, dims)
            table[name] = value_of(known[name])
    symbols = draft.symbols or Symbols(())
    wrong = misjudged(draft.graph.node, lambda name: symbols.shape_of(table.get(name)), draft.opset)
    if draft.symbols is None and not wrong and not any(node.domain == ML for node in draft.graph.node):
        return table
    forgotten = {name: replace(table[name], shape=None) for name in wrong if name in table}
    return _symbolic(draft, symbols, {**table, **forgotten}, where)


def _symbolic(draft: Draft, symbols: Symbols, table: Mapping[str, Value], where: str) -> dict[str, Value]:
    """The values with dimensions as expressions of the named ones, which are also stored in the draft's types."""
    graph = draft.graph
    table = dict(table)
    for info in graph.input:
        dims = tuple(d.dim_param or d.dim_value for d in dims_of(info))
        if dims:
            table[info.name] = Value(info.name, table[info.name].dtype, dims)
    held = ((info.name, elements_of(info.type)) for info in graph.input)
    symbols.given = {name: elements for name, elements in held if elements is not None}
    found = derive(graph.node, table, draft.weights, draft.opset, symbols)
    fitting: set[Dims] = set()
    for info in (*graph.value_info, *graph.output):
        value = found.get(info.name)
        if value is None or value.shape is None or not info.type.HasField("tensor_type"):
            continue
        if value.shape not in fitting and not describable([size for size in value.shape if isinstance(size, int)]):
            raise InvalidGraphError(f"the dimensions of '{info.name}' are too large", where=where)
        fitting.add(value.shape)
        info.type.tensor_type.shape.CopyFrom(_written(value.shape))
    return found


@lru_cache(1024)
def _written(shape: tuple[int | str | None, ...]) -> onnx.TensorShapeProto:
    """A shape to be copied."""
    found = onnx.TensorShapeProto()
    for size in shape:
        dim = found.dim.add()
        if isinstance(size, int):
            dim.dim_value = size
        elif size is not None:
            dim.dim_param = size
    return found


def _forget(draft: Draft) -> None:
    """Remove the declared shapes of all values but the inputs.

    They were computed for other input shapes, or by another tool, and inference would prefer them to its own results;
    those of a Loop's states need not hold for the first trip, or for later ones. Types of values written by operators
    that ONNX does not know are kept, because they may not be inferred. skl2onnx declares one column for regressors of
    several targets, too.
    """
    foreign = {
        o for n in draft.graph.node if n.domain and (n.domain != ML or of_node(n).shapes is None) for o in n.output
    }
    keep(draft.graph.value_info, lambda v: v.name in foreign)
    for info in (*draft.graph.value_info, *draft.graph.output):
        _forget_shape(info)
    for node in nodes_of(draft.graph.node):
        for body in bodies(node):
            for state in body.input[first_state(node) :]:
                _forget_shape(state)


def _forget_shape(info: onnx.ValueInfoProto) -> None:
    if info.type.HasField("tensor_type"):
        info.type.tensor_type.ClearField("shape")


def forget_inferred(body: onnx.GraphProto) -> None:
    """Remove the shapes of values computed in a branch or body; `infer` on the surrounding graph restores them."""
    del body.value_info[:]
    for output in body.output:
        _forget_shape(output)


_RuntimeTypes = dict[str, tuple[str, list[int | None] | None]]


def _runtime_types(draft: Draft, table: Mapping[str, Value]) -> _RuntimeTypes:
    """Types of node outputs as ONNX Runtime infers them, where they may differ from those in the table.

    If all shapes are known and one node of each kind has the types in the table, all nodes have.
    """
    if all(value.is_static for value in table.values()):
        few = representatives(draft, table)
        found = {} if few is None else _inferred_by_runtime(copy.deepcopy(few))
        if found and all(_is_same(table[name], *kind) for name, kind in found.items()):
            return {}
    return _inferred_by_runtime(draft.to_proto(with_trees=False))


def values_of_runtime(draft: Draft) -> list[Value]:
    """The tensors that nodes write or the graph returns, as ONNX Runtime infers them; none if it refuses the model."""
    found = _inferred_by_runtime(draft.to_proto()).items()
    return [Value(n, dtype_name(_element_type(kind)), None if d is None else tuple(d)) for n, (kind, d) in found]


def _is_same(value: Value, kind: str, dims: list[int | None] | None) -> bool:
    return value.dtype == dtype_name(_element_type(kind)) and list(value.shape or ()) == (dims or [])


@cache
def _element_type(kind: str) -> int:
    return int(onnx.TensorProto.DataType.Value(kind.removeprefix("tensor(").removesuffix(")").upper()))


def _inferred_by_runtime(proto: onnx.ModelProto) -> _RuntimeTypes:
    """Tensor types and shapes of what nodes write or the graph returns, as ONNX Runtime infers them.

    Empty if it refuses the model. The shape is None if it lists no dimensions, which means a scalar or an unknown rank.
    """
    # An output of the graph may be an input, which no node writes.
    names = [*(o.name for o in proto.graph.output), *(o for n in proto.graph.node for o in n.output[:] if o)]
    del proto.graph.value_info[:]
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names))
    try:
        found = output_types(proto)
    except Exception as error:  # it also refuses operators that it does not know, and branches that are never taken
        pass_foreign(error)
        return {}
    return {
        o.name: (o.type, [d if isinstance(d, int) and d >= 0 else None for d in o.shape] or None)
        for o in found
        if o.type.startswith("tensor(")
    }


def _merge_type(info: onnx.ValueInfoProto, kind: str, dims: list[int | None] | None) -> None:
    """Merge ONNX Runtime's type and dimensions into ONNX's; known dimensions of ONNX Runtime have precedence."""
    tensor = info.type.tensor_type
    if not tensor.elem_type:
        tensor.elem_type = _element_type(kind)
    if dims is None:
        return
    shape = value_of(info).shape
    old = shape if shape is not None and len(shape) == len(dims) else [None] * len(dims)
    merged = (ours if theirs is None else theirs for theirs, ours in zip(dims, old, strict=True))
    tensor.shape.CopyFrom(_written(tuple(merged)))
