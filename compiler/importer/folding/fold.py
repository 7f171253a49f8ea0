"""Constant folding: values that can be computed before a run, and values without elements, become constants.

ONNX Runtime computes the values, but does not rewrite the model: its own offline optimiser loses the names and
affinities of nodes, orders its result by hash tables, and requires the weights inside the proto.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper

from heterocc.artifacts.errors import HeteroccError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.importer.draft.constants import constant_of
from heterocc.compiler.importer.draft.draft import (
    INLINE_BYTES,
    Draft,
    bodies,
    describable,
    keep,
    np_type,
    opsets,
    reads,
    tensor_type,
    to_tensor,
)
from heterocc.compiler.importer.estimates.work import Cost, Size, node_cost, output_sizes, size_of_array
from heterocc.compiler.importer.folding.loops import loop_cost
from heterocc.compiler.importer.folding.settle import settled_constant
from heterocc.compiler.importer.onnx_tools.onnx_runtime import open_session
from heterocc.compiler.importer.onnx_tools.quotients import with_safe_quotients
from heterocc.compiler.importer.random_nodes import random_operator
from heterocc.compiler.importer.symbols.requirements import open_requirements
from heterocc.compiler.operators.table import of_node
from heterocc.compiler.symbolic.given import Given
from heterocc.compiler.symbolic.sizes import number
from heterocc.passes.graph import Value


def fold(draft: Draft, values: Mapping[str, Value], refused: set[str]) -> bool:
    """Turn constant nodes, and Shape and Size of static values, into constants; return whether any was folded.

    `refused` collects the names of nodes that ONNX Runtime could not evaluate; they are not tried again.
    """
    folded: set[str] = set()
    ready: list[onnx.NodeProto] = []
    sizes = _Sizes(draft.weights)
    readers, freed = Counter[str](), 0
    for node in draft.graph.node:
        shortcut, empty = _shortcut(node, values), _empty(draft, node, values)
        if shortcut is None:
            shortcut = settled_constant(draft, node, values)
        if shortcut is not None or empty:
            draft.weights.update({node.output[0]: shortcut} if shortcut is not None else empty)
            folded.add(node.name)
        elif node.name not in refused and all(name in sizes for name in reads(node)):
            outputs = _afford(draft, node, values, sizes)
            if outputs is not None:
                readers = readers if ready else _readers(draft)
                ready.append(node)
                sizes.update(outputs)
                done = sum(sizes[name].nbytes for name in _last_read(draft, node, readers))
                draft.budget.free(done)
                freed += done
    if _run(draft, ready, _read_by_others(draft, ready), values):
        folded.update(n.name for n in ready)
    else:  # one by one, to leave only those that cannot be computed
        draft.budget.free(-freed)
        readers = _readers(draft)
        for node in ready:
            if all(name in draft.weights for name in reads(node)) and _run(draft, [node], set(node.output), values):
                folded.add(node.name)
                for name in _last_read(draft, node, readers):
                    del draft.weights[name]
            else:
                refused.add(node.name)
    if folded:
        keep(draft.graph.node, lambda n: n.name not in folded)
    return bool(folded)


def _read_by_others(draft: Draft, ready: list[onnx.NodeProto]) -> set[str]:
    """The values that the caller or nodes other than these read."""
    if not ready:
        return set()
    names = {node.name for node in ready}
    wanted = {o.name for o in draft.graph.output}
    return wanted.union(*(reads(node) for node in draft.graph.node if node.name not in names))


def _readers(draft: Draft) -> Counter[str]:
    """The number of readers of each value; an output of the graph has one more, the caller."""
    found = Counter(o.name for o in draft.graph.output)
    for node in draft.graph.node:
        found.update(set(reads(node)))
    return found


def _last_read(draft: Draft, node: onnx.NodeProto, readers: Counter[str]) -> list[str]:
    """The constants that are not needed after the node is computed; subtracts its reads from `readers`."""
    names = list(dict.fromkeys(reads(node)))
    readers.subtract(names)
    return [name for name in names if not readers[name] and name not in draft.lent]


def _shortcut(node: onnx.NodeProto, values: Mapping[str, Value]) -> np.ndarray | None:
    """The result of a constant, or of a node that reads the shape of a value, if it is known; None for other nodes."""
    array = constant_of(node)
    operator = of_node(node)
    if array is not None or operator.length not in ("rank", "one"):
        return array
    value = values.get(node.input[0])
    if value is None or value.shape is None or not value.is_static:
        return None
    rule, sizes = operator.contents, tuple(number(d) for d in value.numbers or ())
    found = rule(Given(node, 0, [sizes], [])) if rule is not None else None
    return None if found is None else np.array([size.number for size in found.flat], np.int64).reshape(found.shape)


def _empty(draft: Draft, node: onnx.NodeProto, values: Mapping[str, Value]) -> dict[str, np.ndarray]:
    """The outputs of a node if all of them are tensors without elements, else an empty mapping.

    A node that runs only with some sizes of its inputs stays, so that a run with others is an error.
    """
    found: dict[str, np.ndarray] = {}
    for name in node.output[:]:
        value = values.get(name)
        if not name:
            continue
        if value is None or value.shape is None or 0 not in value.shape:  # as most nodes
            return {}
        shape = None if value.is_opaque else value.numbers
        if shape is None or not describable(shape):
            return {}
        found[name] = np.zeros(shape, helper.tensor_dtype_to_np_dtype(np_type(value.dtype)))
    return {} if found and _needs_sizes(draft, node, values) else found


def _needs_sizes(draft: Draft, node: onnx.NodeProto, values: Mapping[str, Value]) -> bool:
    """Whether a node runs only with some sizes of its inputs, of those of 1 or more."""
    if draft.symbols is None:
        return False
    try:
        return any(True for _ in open_requirements(node, values, draft.symbols, draft.opset, ()))
    except (HeteroccError, MemoryError):
        raise
    except Exception as error:  # rules assume valid nodes; devices refuse a node whose rule fails
        pass_foreign(error)
        return False


class _Sizes(dict[str, Size]):
    """The sizes of constants; those of the model's constants are computed on first use."""

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        self._weights = weights

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._weights

    def __missing__(self, name: str) -> Size:
        self[name] = size_of_array(self._weights[name])
        return self[name]


def _afford(draft: Draft, node: onnx.NodeProto, values: Mapping[str, Value], sizes: _Sizes) -> dict[str, Size] | None:
    """The sizes of a constant node's outputs, deducted from the budget; None if it is not to be computed now."""
    if _is_kept(node) or random_operator(node, draft.weights) is not None:
        return None
    typed = (values[name] for name in node.output if name in values)
    if any(value.is_opaque and value.dtype != "string" for value in typed):
        return None
    written = [name for name in node.output if name]
    cost: Cost | None
    if any(True for _ in bodies(node)):
        if of_node(node).control not in ("loop", "scan"):
            return None  # a branch is taken as soon as its condition is known
        cost = loop_cost(node, draft.weights, opsets(draft.model))
        outputs = [] if cost is None else [Size(cost.growth)] * len(written)
    else:
        inputs = [sizes[name] for name in node.input if name]
        found = output_sizes(node, values, sizes)
        cost = None if found is None else node_cost(node, values, inputs, found)
        outputs = found or []
    if cost is None:
        draft.budget.spent = True
        return None
    if not draft.budget.take(cost):
        return None
    return dict(zip(written, outputs, strict=True))


def _is_kept(node: onnx.NodeProto) -> bool:
    """Whether the node, or one in its bodies, is to be computed at run time: quantised weights need a quarter of the
    space in the bundle.
    """
    return of_node(node).dequantises or any(_is_kept(inner) for body in bodies(node) for inner in body.node)


def _run(draft: Draft, nodes: list[onnx.NodeProto], wanted: set[str], values: Mapping[str, Value]) -> bool:
    """Compute constant nodes in ONNX Runtime and keep the wanted values; return whether that succeeded."""
    outputs = [o for n in nodes for o in n.output if o and o in wanted]
    if not outputs:
        return True
    used = dict.fromkeys(name for n in nodes for name in reads(n) if name in draft.weights)
    feeds = {name: draft.weights[name] for name in used if draft.weights[name].nbytes > INLINE_BYTES}
    graph = helper.make_graph(
        nodes,
        "constants",
        [helper.make_tensor_value_info(name, tensor_type(array), array.shape) for name, array in feeds.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [to_tensor(name, draft.weights[name]) for name in used if name not in feeds],
    )
    model = helper.make_model(graph, opset_imports=draft.model.opset_import, ir_version=draft.model.ir_version)
    try:
        with_safe_quotients(model, values, draft.weights)
        session = open_session(model)
        results = session.run(outputs, feeds)
    except Exception as error:
        # Nodes that ONNX Runtime cannot compute now are left in the model; the run reports the reason.
        pass_foreign(error)
        return False
    if not all(isinstance(r, np.ndarray) for r in results):
        return False
    for name, result in zip(outputs, results, strict=True):
        result.flags.writeable = False
        draft.weights[name] = result
    return True
