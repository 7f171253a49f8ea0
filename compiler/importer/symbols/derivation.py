"""Shapes and integers of a model with named dimensions, derived node by node."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx

from heterocc.artifacts.errors import HeteroccError, InternalError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.importer.symbols.branches import SIDES, Branches
from heterocc.compiler.importer.symbols.containers import container_results, inputs_of, note_results
from heterocc.compiler.importer.symbols.control import Arrays, Inside
from heterocc.compiler.importer.symbols.kinds import kind_of
from heterocc.compiler.importer.symbols.one_node import dtype_of, infer_node
from heterocc.compiler.importer.symbols.symbols import DEEPEST, Dims, Symbols
from heterocc.compiler.operators.applied import contents_of, fractions_of, shapes_of
from heterocc.compiler.operators.table import of_node
from heterocc.compiler.symbolic.contents import as_contents
from heterocc.compiler.symbolic.fractions import are_whole
from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.sizes import Size, number
from heterocc.passes.graph import Value

_T = TypeVar("_T")


def derive(
    nodes: Sequence[onnx.NodeProto],
    table: Mapping[str, Value],
    weights: Mapping[str, np.ndarray],
    opset: int,
    symbols: Symbols,
) -> dict[str, Value]:
    """The values with the shapes that follow from the named dimensions; fills the sizes and contents of `symbols`.

    `table` is what ONNX's tools infer. Where they know a dimension as a number, it is kept. A dimension that is known
    only at run time gets a name.
    """
    symbols.branches = Branches()
    found = _derived(nodes, table, weights, opset, symbols)
    while needed := {**_agreeing_branches(nodes, table, weights, opset, symbols), **symbols.branches.without_failing()}:
        symbols.branches = Branches(needed={**symbols.branches.needed, **needed})
        found = _derived(nodes, table, weights, opset, symbols)
    return {name: found[name] for name in found if name in table}


def values_of_all_levels(
    nodes: Sequence[onnx.NodeProto],
    table: Mapping[str, Value],
    weights: Mapping[str, np.ndarray],
    opset: int,
    symbols: Symbols,
) -> dict[str, Value]:
    """As `derive`, with the values in branches and bodies; of branches it chooses only what inputs decide."""
    symbols.branches = Branches()
    return _derived(nodes, table, weights, opset, symbols)


def _agreeing_branches(
    nodes: Sequence[onnx.NodeProto],
    table: Mapping[str, Value],
    weights: Mapping[str, np.ndarray],
    opset: int,
    symbols: Symbols,
) -> dict[str, str]:
    """The If nodes with results of two ranks of which the nodes behind can take only one, with its branch."""
    found: dict[str, str] = {}
    for name, place in symbols.branches.open.items():
        tried = [symbols.copy() for _ in SIDES]
        for side, trial in zip(SIDES, tried, strict=True):
            trial.branches = symbols.branches.supposing(name, side)
            _derived(nodes, table, weights, opset, trial)
        first, second = (trial.branches for trial in tried)
        fails = first.fails_after(place, second), second.fails_after(place, first)
        if fails[0] != fails[1]:
            found[name] = SIDES[fails.index(False)]
    return found


def _derived(
    nodes: Iterable[onnx.NodeProto],
    table: Mapping[str, Value],
    weights: Mapping[str, np.ndarray],
    opset: int,
    symbols: Symbols,
) -> dict[str, Value]:
    """The values that follow from one choice of branches; fills `symbols`."""
    found = dict(table)
    symbols.contents = {n: c for n, a in weights.items() if (c := as_contents(a)) is not None}
    symbols.fractions = {}
    symbols.fresh = {}
    symbols.failed = []
    symbols.equal = []
    symbols.elements = dict(symbols.given)
    _derive(nodes, found, weights, opset, symbols)
    return found


def values_inside(
    node: onnx.NodeProto,
    table: Mapping[str, Value],
    weights: Mapping[str, np.ndarray],
    opset: int,
    symbols: Symbols,
) -> dict[str, Value]:
    """The values in the branches or the body of a node, at all levels; fills `symbols`.

    Raises InternalError (HC902) if a rule fails: the import has refused models with nodes that are not valid.
    """
    found = dict(table)
    # The contents of constants, which a model without named dimensions has not collected before.
    symbols.contents = {**{n: c for n, a in weights.items() if (c := as_contents(a)) is not None}, **symbols.contents}
    symbols.failed = []
    _inside(opset, symbols).results(node, found, weights)
    for inner, error in symbols.failed:
        raise rule_failure(inner, error)
    return {name: value for name, value in found.items() if name not in table}


def _inside(opset: int, symbols: Symbols) -> Inside:
    def body_values(body: onnx.GraphProto, table: MutableMapping[str, Value], weights: Arrays) -> None:
        for info in (*body.value_info, *body.output):
            dtype = dtype_of(info.type.tensor_type.elem_type) if info.type.HasField("tensor_type") else None
            if dtype is not None and info.name not in table:
                table[info.name] = Value(info.name, dtype, None)
        written = {o for n in body.node for o in n.output}
        for name in written & table.keys():
            table[name] = Value(name, table[name].dtype, None)
        _derive(body.node, table, weights, opset, symbols)

    tables = symbols.contents, symbols.fresh, symbols.sizes, symbols.equal, symbols.branches, symbols.elements
    return Inside(body_values, symbols.shape_of, symbols.dims, *tables)


def _derive(
    nodes: Iterable[onnx.NodeProto],
    found: MutableMapping[str, Value],
    weights: Mapping[str, np.ndarray],
    opset: int,
    symbols: Symbols,
) -> None:
    """Add the values that the nodes write to `found`."""
    alike: dict[Hashable, tuple[list[Any], ...]] = {}
    elements = symbols.contents, symbols.fractions
    state = symbols.state
    for node in nodes:
        operator, outputs = of_node(node), node.output[:]
        for name in outputs:
            symbols.contents.pop(name, None)
            symbols.fractions.pop(name, None)
            symbols.elements.pop(name, None)
        alone = operator.control or operator.holds is not None or symbols.filled
        kind = None if alone else kind_of(node, found, elements, weights)
        first = None if kind is None else alike.get((kind, state))
        if first is not None:
            for name, shape, *parts in zip(outputs, *first[:3], strict=True):
                if name:
                    found[name] = Value(name, found[name].dtype, shape)
                    for known, part in zip(elements, parts, strict=True):
                        if part is not None:
                            known[name] = part
            continue
        typed = all(name in found and not found[name].is_opaque for name in outputs if name)
        _derive_one(node, found, weights, opset, symbols)
        before, state = state, symbols.state
        if kind is not None and typed and state == before and not symbols.is_noted(node, found):
            shapes = [found[name].shape if name else None for name in outputs]
            contents, fractions = ([known.get(name) for name in outputs] for known in elements)
            kept = [known.get(name) for name in node.input for known in elements]  # so that their ids stay theirs
            alike[kind, state] = shapes, contents, fractions, kept


def _derive_one(
    node: onnx.NodeProto,
    found: MutableMapping[str, Value],
    weights: Mapping[str, np.ndarray],
    opset: int,
    symbols: Symbols,
) -> None:
    """Add the values that a node writes to `found`."""
    operator = of_node(node)
    shapes = [symbols.shape_of(found.get(name)) for name in node.input]
    contents = [symbols.contents.get(name) if name else None for name in node.input]
    limits = dict(symbols.limits)
    constants = [weights.get(name) for name in node.input]
    floors = symbols.floors if symbols.filled else None
    given = Given(node, opset, shapes, contents, limits, constants, symbols.sizes.keys(), floors)
    kinds: list[str | None] = []
    held = inputs_of(node, found, symbols.elements, symbols.shape_of) if operator.holds is not None else None
    if held is not None:
        typed = _applied(symbols, node, container_results, node, held) or []
        kinds, results = note_results(node, typed, found, symbols.elements)
    elif operator.control:
        results = _applied(symbols, node, _inside(opset, symbols).results, node, found, weights) or []
    else:
        results = _applied(symbols, node, shapes_of, given) or []
        if any(not symbols.fresh.keys().isdisjoint(limit.size.names) for limit in limits.values()):
            results = []  # nobody checks a limit of a size that is known only at run time
        else:
            symbols.limits = limits
        if not results or any(name and name not in found for name in node.output):
            kinds, inferred = inferred_by_onnx(given, found, weights, symbols)
            results = results or inferred
    for index, name in enumerate(node.output):
        if name and name not in found and index < len(kinds):
            dtype = kinds[index]
            if dtype is not None:
                found[name] = Value(name, dtype, None)
        known = found.get(name)
        if not name or known is None or known.is_opaque:
            continue
        shape = results[index] if index < len(results) else None
        symbols.equal += _contradictions(known.shape, shape, node)
        dims = symbols.name_unknown(name, _merged(known.shape, symbols.dims(shape)), node.name)
        found[name] = Value(name, known.dtype, dims)
    if (operator.contents or operator.fractions) and node.output and node.output[0]:
        value = found.get(node.output[0])
        dtype = "int64" if value is None else value.dtype
        result = symbols.shape_of(value)
        elements = _applied(symbols, node, contents_of, given, result, dtype)
        if elements is None:
            parts = [symbols.fractions.get(name) for name in node.input]
            elements = _applied(symbols, node, fractions_of, given, parts, result, dtype)
        if elements is not None and all(size is None or size.depth <= DEEPEST for size in elements.flat):
            (symbols.contents if are_whole(elements) else symbols.fractions)[node.output[0]] = elements


def _applied(symbols: Symbols, node: onnx.NodeProto, rule: Callable[..., _T | None], *given: Any) -> _T | None:
    """The result of a rule; None if it fails, which is recorded in `symbols.failed`.

    Rules assume valid nodes, and fail for others, such as a Concat of tensors of two ranks. The dimensions stay
    unknown, and ONNX Runtime says what is wrong with the node. A rule that fails in a model which ONNX Runtime accepts
    has a bug.
    """
    try:
        return rule(*given)
    except (HeteroccError, MemoryError):
        raise
    except Exception as error:
        pass_foreign(error)
        symbols.failed.append((node, error))
        return None


def rule_failure(node: onnx.NodeProto, error: Exception, label: str | None = None) -> InternalError:
    """The error for a rule that fails for a valid node, whose name in the model is `label`."""
    failure = InternalError(
        f"the shapes of a valid node could not be determined: {type(error).__name__}: {error}",
        where=f"node '{label or node.name}' ({node.op_type})",
        hint="a heterocc bug; please report it with the model",
    )
    failure.__cause__ = error
    return failure


def _merged(
    known: tuple[int | str | None, ...] | None, derived: tuple[int | str | None, ...] | None
) -> tuple[int | str | None, ...] | None:
    if known is None or derived is None or len(known) != len(derived):
        return derived if known is None else known
    return tuple(a if isinstance(a, int) else b if b is not None else a for a, b in zip(known, derived, strict=True))


def _contradictions(known: Dims, derived: Shape, node: onnx.NodeProto) -> list[tuple[Size, Size, str]]:
    """Dimensions that ONNX's tools infer as numbers, and the rules as sizes that are these numbers for some names."""
    if known is None or derived is None or len(known) != len(derived):
        return []
    pairs = [(a, b) for a, b in zip(known, derived, strict=True) if isinstance(a, int) and b is not None]
    return [(number(a), b, f"{node.op_type} '{node.name}'") for a, b in pairs if b.number is None]


def inferred_by_onnx(
    given: Given, found: Mapping[str, Value], weights: Mapping[str, np.ndarray], symbols: Symbols
) -> tuple[list[str | None], list[Shape]]:
    """Dtypes and shapes that ONNX infers for one node, to which the texts of dimensions are names like any others."""
    inferred = infer_node(given.node, given.opset, found, weights)
    if inferred is None:
        symbols.branches.broken[given.node.name] = symbols.branches.place
        return [], []

    def sizes(dims: tuple[int | str, ...]) -> Shape:
        return tuple(number(d) if isinstance(d, int) else symbols.sizes.get(d) for d in dims)

    return [dtype for dtype, _ in inferred], [None if dims is None else sizes(dims) for _, dims in inferred]
