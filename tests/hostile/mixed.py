"""Models of several nodes for the search: an operator's model with drawn nodes before, behind and beside it.

python -m tests.hostile --mixtures 300 --requests 3000 --devices CPU --seed 1
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from heterocc.runtime.execute.narrow import from_ort, ort_value
from heterocc.runtime.execute.ort_session import open_session, session_options
from tests.hostile.cases import IR_VERSION, NAMINGS, Array, Base, HostileModel, _elem_type, bases, hostile
from tests.hostile.mixture import Mixture, draw, run_nodes
from tests.hostile.mixture_steps import SIZES, STEPS
from tests.hostile.search import RANDOM

DTYPES = (
    *("float32", "float32", "float32", "float16", "float64", "bfloat16"),
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "int64", "uint64", "bool", "str"),
)
OPSETS = (7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25)
TRIES = 72
"""Of steps, of which ONNX Runtime refuses many."""

_SAME: tuple[tuple[str, int], ...] = (
    *(
        ("Neg", 0),
        ("Transpose", 0),
        ("Add", 0),
        ("Mul", 0),
        ("Slice", 10),
        ("Reshape", 7),
        ("Expand", 8),
        ("Unsqueeze", 7),
    ),
    *(("Max", 12), ("Cast", 9), ("Where", 9), ("Concat", 7), ("Identity", 7), ("Pad", 11)),
)


def _same(net: Mixture, x: str, array: Array, result: str) -> None:
    """Write nodes that compute `result`, an equal value, from `x`, if any of those tried does."""
    kind = array.dtype.kind
    op = net.pick([name for name, since in _SAME if net.opset >= since])
    nodes: list[tuple[str, list[str], dict[str, Any]]]
    middle = net.name("p")
    constant = lambda a: net.constant(np.asarray(a))  # noqa: E731
    match op:
        case "Neg" | "Transpose":
            order = {"perm": list(range(array.ndim))[::-1]} if op == "Transpose" and array.ndim else {}
            nodes = [(op, [x], order), (op, [middle], order)]
        case "Add" | "Mul":
            if kind in "bOUS":
                return _same_identity(net, x, result)
            nodes = [(op, [x, constant(np.array(int(op == "Mul")).astype(array.dtype))], {})]
        case "Slice":
            nodes = [(op, [x, *(net.integers(v) for v in (0, 1 << 62, 0, 1))], {})]
        case "Reshape" | "Expand":
            nodes = [("Shape", [x], {}), (op, [x, middle], {})]
        case "Unsqueeze":
            more = [net.integers(0)] if net.opset >= 13 else []
            axes = {} if net.opset >= 13 else {"axes": [0]}
            nodes = [("Unsqueeze", [x, *more], axes), ("Squeeze", [middle, *more], axes)]
        case "Max":
            nodes = [(op, [x, x], {})]
        case "Cast":
            nodes = [(op, [x], {"to": TensorProto.DOUBLE}), (op, [middle], {"to": _elem_type(array.dtype)})]
        case "Where":
            nodes = [(op, [constant(np.array(True)), x, x], {})]
        case "Concat":
            nodes = [(op, [x], {"axis": 0})]
        case "Pad":
            nodes = [(op, [x, net.integers(*([0] * 2 * array.ndim))], {})]
        case _:
            return _same_identity(net, x, result)
    made = [
        helper.make_node(o, i, [result if place == len(nodes) - 1 else middle], **a)
        for place, (o, i, a) in enumerate(nodes)
    ]
    given = {n: net.constants.get(n, array) for node in made for n in node.input if n != middle}
    found = run_nodes(made, given, net.opset)
    with np.errstate(all="ignore"):
        if (
            found is None
            or found[-1].dtype != array.dtype
            or not np.array_equal(found[-1], array, equal_nan=kind == "f")
        ):
            return _same_identity(net, x, result)
    net.nodes.extend(made)
    net.operators.extend(o for o, _, _ in nodes)
    return None


def _same_identity(net: Mixture, x: str, result: str) -> None:
    net.nodes.append(helper.make_node("Identity", [x], [result]))


@cache
def _whole() -> tuple[Base, ...]:
    """The models of one operator that can be part of others: all but those of random numbers."""
    return tuple(
        base for operator, of_it in bases().items() if operator.rpartition("::")[2] not in RANDOM for base in of_it
    )


def mixture(number: int, seed: int = 0) -> HostileModel | None:
    """The model of a number; None if ONNX Runtime runs too little of what is drawn."""
    rng = np.random.default_rng([seed, number])
    version = IR_VERSION
    if rng.random() < 0.6:
        base = _whole()[int(rng.integers(len(_whole())))]
        opset = next((o.version for o in base.model.opset_import if not o.domain), 17)
        net = Mixture(rng, opset, domains={o.domain: o.version for o in base.model.opset_import if o.domain})
        version = base.model.ir_version
        if not _with_base(net, base):
            return None
    else:
        net = Mixture(rng, OPSETS[int(rng.integers(len(OPSETS)))])
        first = str(net.pick(DTYPES))
        shape = tuple(net.pick(SIZES) for _ in range(int(rng.integers(1, 5))))
        net.input(draw(rng, first, shape))
        if rng.random() < 0.5:
            net.input(draw(rng, first if rng.random() < 0.7 else str(net.pick(DTYPES)), shape))
    wanted = len(net.nodes) + int(rng.integers(2, 7))
    for _ in range(TRIES):
        if len(net.nodes) >= wanted or not net.values:
            break
        names = list(net.values)
        x = names[-1] if rng.random() < 0.6 else net.pick(names)
        net.pick(STEPS)(net, x)
    if len(net.nodes) < 2 or not net.inputs:
        return None
    naming = NAMINGS[int(rng.integers(len(NAMINGS)))]
    base = net.base(f"mixture {seed}.{number} of {'+'.join(dict.fromkeys(net.operators))}", version)
    try:
        return hostile(base, naming) or hostile(base, "apart")
    except Exception:
        return None


def _with_base(net: Mixture, base: Base) -> bool:
    """Put a model of one operator into the mixture, some of its inputs behind other nodes; whether that went well."""
    graph = base.model.graph
    net.operators.append(base.operator)
    for tensor in graph.initializer:
        net.constants[tensor.name] = numpy_helper.to_array(tensor)
    for name, array in base.feed.items():
        if array.dtype.kind not in "OUS" and net.rng.random() < 0.6 and array.size:
            given = net.input(array)
            _same(net, given, array, name)
        else:
            net.inputs[name] = array
            net.values[name] = array
            net.exact.add(name)
    net.nodes.extend(graph.node)
    session = None
    try:
        session = open_session(base.model.SerializeToString(), session_options(threads=1, optimise="none"))
        found = session.run_with_ort_values(None, {n: ort_value(a) for n, a in base.feed.items()})
        results = [from_ort(v) for v in found]
    except Exception:
        return False
    for end, result in zip(session.get_outputs(), results, strict=True):
        if not isinstance(result, np.ndarray):
            return False
        net.values[end.name] = result
        if result.dtype.kind in "iubOUS" and "Q" not in base.operator and "Quant" not in base.operator:
            net.exact.add(end.name)
    return True


def mixtures(count: int, seed: int) -> Iterator[HostileModel]:
    """So many models, but for those of which ONNX Runtime runs too little."""
    yield from (model for model in (mixture(number, seed) for number in range(count)) if model is not None)


def named_mixture(name: str) -> HostileModel | None:
    """The model with this name; None if it is of another kind."""
    found = re.match(r"mixture (\d+)\.(\d+) of ", name)
    return None if found is None else mixture(int(found[2]), int(found[1]))
