"""Loops without trips, and estimates of others: import computes affordable ones over constants, and refuses endless."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from heterocc.artifacts.errors import InvalidGraphError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.importer.draft.draft import (
    INLINE_BYTES,
    Draft,
    bodies,
    captured_by,
    describable,
    dtype_name,
    np_type,
    set_nodes,
    tensor_type,
    to_tensor,
    value_table,
)
from heterocc.compiler.importer.draft.names import derived
from heterocc.compiler.importer.draft.written import copy_of
from heterocc.compiler.importer.estimates.work import FLOPS_PER_BYTE, Cost, flops
from heterocc.compiler.importer.onnx_tools.infer import infer_onnx
from heterocc.compiler.importer.symbols.repeats import body_of, constants_of, first_state, repeat_of
from heterocc.compiler.operators.table import of_node
from heterocc.passes.graph import Value

_MAX_STEPS = 1 << 18
"""The limit on node executions of a loop; loops with more are computed at run time, however small the nodes."""

_WORK_PER_STEP = 2048
"""Bytes that a core copies in the time that ONNX Runtime needs to start a node."""

MOST_TRIPS = 10**9
"""The limit on trips that nothing can end early. They take longer than the reference may run, which is 600 s."""


def require_few_trips(
    graph: onnx.GraphProto,
    weights: Mapping[str, np.ndarray],
    values: Mapping[str, Value],
    origins: Mapping[str, Sequence[str]],
    where: str,
    outer: float = 1,
) -> None:
    """Raise InvalidGraphError for a Loop or Scan whose body runs more than MOST_TRIPS times in each run of the model.

    `outer` is how often the graph itself runs. Branches are not followed, as it may be that none is taken, nor are
    loops that a computed condition may end: exporters write 2**63 - 1 trips for `while`.
    """
    for node in graph.node:
        if of_node(node).control not in ("loop", "scan"):
            continue
        trips = outer * _certain_trips(node, weights, values)
        if trips > MOST_TRIPS:
            label = next(iter(origins.get(node.name, ())), node.name)
            count = "for ever" if trips == math.inf else f"{trips} times"
            raise InvalidGraphError(
                f"the body of {node.op_type} '{label}' runs {count}, as no condition ends it before",
                where=f"{where}: node '{label}'",
                hint=f"give it at most {MOST_TRIPS} trips, or a condition that its body computes",
            )
        if trips:
            body = body_of(node)
            require_few_trips(body, {**weights, **constants_of(body)}, values, origins, where, trips)


def _certain_trips(node: onnx.NodeProto, weights: Mapping[str, np.ndarray], values: Mapping[str, Value]) -> float:
    """The number of trips if it is the same in every run; 0 if it is not, or is unknown."""
    repeat = repeat_of(node, weights)
    if repeat is None or repeat.condition:
        return 0
    if repeat.read:
        rows = repeat.read[0]
        shape = values[rows.outer].shape if rows.outer in values else None
        size = shape[rows.axis] if shape and -len(shape) <= rows.axis < len(shape) else None
        return size if isinstance(size, int) else 0
    first, limit = weights.get(repeat.first), weights.get(repeat.limit)
    if repeat.first and (first is None or not first.any()):
        return 0
    if not repeat.limit:
        return math.inf
    return max(0, int(limit.reshape(-1)[0])) if limit is not None and limit.size == 1 else 0


def drop_idle_loops(draft: Draft, values: Mapping[str, Value]) -> bool:
    """Replace loops whose trips never begin by copies of their states, and rows that none has; return whether any was.

    ONNX Runtime gives such rows the shape that it knows of the body's result, which the import may have forgotten.
    """
    loops = (node for node in draft.graph.node if of_node(node).control == "loop")
    found = {node.name: copies for node in loops if (copies := _without_trips(node, draft, values)) is not None}
    if found:
        set_nodes(draft.graph, [new for node in draft.graph.node for new in found.get(node.name, [node])])
    return bool(found)


def _without_trips(node: onnx.NodeProto, draft: Draft, values: Mapping[str, Value]) -> list[onnx.NodeProto] | None:
    """Copies of the states of a loop without trips, whose rows become constants; None for another loop."""
    repeat = repeat_of(node, draft.weights)
    if repeat is None:
        return None
    first, limit = draft.weights.get(repeat.first), draft.weights.get(repeat.limit)
    if not ((first is not None and not first.any()) or (limit is not None and (limit < 1).all())):
        return None
    empty: dict[str, np.ndarray] = {}
    for rows in repeat.collected:
        value = values.get(rows.outer)
        shape = None if value is None or value.is_opaque or value.shape is None else value.shape[1:]
        row = tuple(dim for dim in shape or () if isinstance(dim, int))
        if not rows.outer:
            continue
        if value is None or shape is None or len(row) != len(shape) or not describable((0, *row)):
            return None
        empty[rows.outer] = np.zeros((0, *row), helper.tensor_dtype_to_np_dtype(np_type(value.dtype)))
    draft.weights.update(empty)
    copies = []
    for state in repeat.states:
        if state.result:
            name = derived(node.name, f"to_{state.result}")
            copies.append(copy_of(state.initial, state.result, name))
            draft.origins[name] = draft.origins.get(node.name, ())
            if node.name in draft.affinity:
                draft.affinity[name] = draft.affinity[node.name]
    return copies


def loop_cost(node: onnx.NodeProto, weights: Mapping[str, np.ndarray], opsets: Mapping[str, int]) -> Cost | None:
    """The cost of a Loop or Scan whose inputs are all constants.

    None if it is unknown: the number of trips is unknown or large, or a shape in the body is not the same in
    every trip.
    """
    body = bodies(node)[0]
    arrays = {name: weights[name] for name in (*node.input, *captured_by(body)) if name in weights}
    if any(True for n in body.node for _ in bodies(n)) or any(a.dtype == object for a in arrays.values()):
        return None
    plan = _loop(node, arrays) if of_node(node).control == "loop" else _scan(node, arrays)
    if plan is None or len(plan[1]) != len(body.input):
        return None
    trips, shapes = plan
    steps = trips * (len(body.node) + 1)
    if steps > _MAX_STEPS:
        return None
    table = _inferred(body, shapes, arrays, opsets)
    if table is None:
        return None
    first = first_state(node)
    states = _states(node, body)
    for given, returned in zip(body.input[first : first + states], body.output[first // 2 :], strict=False):
        before, after = table[given.name], table.get(returned.name)
        if after is None or (before.shape, before.dtype) != (after.shape, after.dtype):
            return None
    inner = {o for n in body.node for o in n.output if o}
    if any(v is None or not v.is_static or v.is_opaque for v in map(table.get, inner)):
        return None
    trip = sum(table[name].nbytes for n in body.node for name in (*n.input, *n.output) if name in table)
    trip += sum(flops(n, table) for n in body.node) // FLOPS_PER_BYTE
    kept = sum(table[o.name].nbytes for o in body.output if o.name in table)
    largest = sum(table[name].nbytes for name in inner)
    return Cost(largest + trips * kept, trips * trip + steps * _WORK_PER_STEP)


def _states(node: onnx.NodeProto, body: onnx.GraphProto) -> int:
    return len(body.input) - first_state(node) - _scanned(node)


def _scanned(node: onnx.NodeProto) -> int:
    return next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)


_Plan = tuple[int, list[tuple[int, tuple[int, ...]]]]


def _loop(node: onnx.NodeProto, arrays: Mapping[str, np.ndarray]) -> _Plan | None:
    """The number of trips, and the element type and shape of each input of the body; None if unknown."""
    limit = arrays.get(node.input[0])
    if limit is None or limit.size != 1:
        return None
    states = [arrays[name] for name in node.input[2:] if name in arrays]
    kinds = [(tensor_type(a), a.shape) for a in states]
    trips = max(0, int(limit.reshape(-1)[0]))
    return trips, [(onnx.TensorProto.INT64, ()), (onnx.TensorProto.BOOL, ()), *kinds]


def _scan(node: onnx.NodeProto, arrays: Mapping[str, np.ndarray]) -> _Plan | None:
    inputs = [arrays[name] for name in node.input if name in arrays]
    count = _scanned(node)
    axes = next((list(a.ints) for a in node.attribute if a.name == "scan_input_axes"), [0] * count)
    if not 0 < count <= len(inputs) or len(axes) != count:
        return None
    kinds = [(tensor_type(a), a.shape) for a in inputs[:-count]]
    trips = 0
    for array, axis in zip(inputs[-count:], axes, strict=True):
        if not -array.ndim <= axis < array.ndim:
            return None
        shape = list(array.shape)
        trips = max(trips, shape.pop(axis))
        kinds.append((tensor_type(array), tuple(shape)))
    return trips, kinds


def _inferred(
    body: onnx.GraphProto,
    kinds: list[tuple[int, tuple[int, ...]]],
    arrays: Mapping[str, np.ndarray],
    opsets: Mapping[str, int],
) -> dict[str, Value] | None:
    """Types of the body's values for given types of its inputs; None if ONNX finds a contradiction."""
    graph = onnx.GraphProto()
    graph.CopyFrom(body)
    del graph.value_info[:]
    for info, (kind, shape) in zip(graph.input, kinds, strict=True):
        info.CopyFrom(helper.make_tensor_value_info(info.name, kind, shape))
    for output in graph.output:
        output.ClearField("type")
    for name in captured_by(body):
        array = arrays.get(name)
        if array is None:
            return None
        if array.nbytes <= INLINE_BYTES:
            graph.initializer.append(to_tensor(name, array))
        else:
            graph.input.append(helper.make_tensor_value_info(name, tensor_type(array), array.shape))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(d, v) for d, v in opsets.items()])
    try:
        found = infer_onnx(model, "")
    except Exception as error:  # an invalid loop is reported when it is run
        pass_foreign(error)
        return None
    table = value_table(found.graph, {})
    table.update((t.name, Value(t.name, dtype_name(t.data_type), tuple(t.dims))) for t in found.graph.initializer)
    return table
