"""A case of the kernel suite: a few ONNX nodes on seeded inputs, and many of them as one model."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.pipeline import import_model

Array = np.ndarray[Any, Any]

OPSET = 17

FLOATS = ("float32", "float16", "float64")
WIDE_INTEGERS = ("int32", "int64", "uint32", "uint64")
INTEGERS = ("int8", "int16", "uint8", "uint16", *WIDE_INTEGERS)


@dataclass(frozen=True, slots=True, repr=False)
class Case:
    """Nodes over inputs and constants; the values that no node reads are its outputs. `name` is a C identifier.

    `ulps` is what the functions in it may be off, in units of the last place of the result. `exact` is whether ONNX's
    own evaluator is a reference for it in float64: not if values are rounded to integers or compared.
    """

    name: str
    nodes: Sequence[onnx.NodeProto]
    inputs: Mapping[str, Array]
    constants: Mapping[str, Array] = field(default_factory=dict)
    ulps: float = 2
    exact: bool = True
    refused: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        nodes = "; ".join(helper.printable_node(n) for n in self.nodes)
        arrays = ", ".join(f"{n} {a.dtype}{list(a.shape)}" for n, a in (*self.inputs.items(), *self.constants.items()))
        return f"<{self.name}: {nodes}; {arrays}>"

    @property
    def dtypes(self) -> frozenset[str]:
        """The dtypes of its inputs, outputs and intermediate values; not of constants, which may be folded."""
        graph = self.model().graph
        kinds = [v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)]
        return frozenset(helper.tensor_dtype_to_np_dtype(kind).name for kind in kinds)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The values that no node reads."""
        read = {name for n in self.nodes for name in n.input}
        return tuple(o for n in self.nodes for o in n.output if o and o not in read)

    def model(self, opset: int = OPSET) -> onnx.ModelProto:
        """The case alone."""
        return _model([self], opset, prefixed=False)

    def exactly(self) -> list[Array] | None:
        """The outputs in float64 as ONNX's evaluator computes them, or None if it cannot or would not be exact."""
        if not self.exact or not any(a.dtype.kind == "f" for a in self.inputs.values()):
            return None
        wide = Case(self.name, self.nodes, _widened(self.inputs), _widened(self.constants))
        evaluator = ReferenceEvaluator(wide.model())
        with np.errstate(all="ignore"):
            return [np.asarray(a) for a in evaluator.run(list(self.outputs), dict(wide.inputs))]


@dataclass(frozen=True, slots=True)
class Constant:
    """An operand that is known when compiling."""

    array: Array


def case(
    name: str,
    op_type: str,
    *operands: Array | Constant | None,
    then: Sequence[onnx.NodeProto] = (),
    extra: Mapping[str, Array] | None = None,
    outputs: int = 1,
    ulps: float = 2,
    exact: bool = True,
    refused: Mapping[str, str] | None = None,
    **attributes: Any,
) -> Case:
    """One node of operands `a`, `b`, …, that writes `y` (or `y0`, `y1`, …); `then` others, which may read `extra`."""
    names = ["" if o is None else chr(ord("a") + i) for i, o in enumerate(operands)]
    given = dict(zip(names, operands, strict=True))
    written = ["y"] if outputs == 1 else [f"y{i}" for i in range(outputs)]
    return Case(
        name,
        [helper.make_node(op_type, names, written, **attributes), *then],
        {n: o for n, o in given.items() if isinstance(o, np.ndarray)} | dict(extra or {}),
        {n: o.array for n, o in given.items() if isinstance(o, Constant)},
        ulps,
        exact,
        dict(refused or {}),
    )


def constant(value: Any, dtype: Any = None) -> Constant:
    """An operand that is known when compiling."""
    return Constant(np.array(value, dtype))


def no_doubles(dtype: str) -> Mapping[str, str]:
    """The back ends that refuse a function of numbers of the dtype, with the reasons."""
    return {"vulkan": "Vulkan code cannot express [a-z]+ of float64"} if dtype == "float64" else {}


def draw(shape: Sequence[int], dtype: str = "float32", low: float = -2, high: float = 2) -> Array:
    """Seeded numbers of any dtype: uniform reals, integers over the range, coins. The same shape gives the same."""
    rng = np.random.default_rng([len(shape), *shape])
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.random(shape) < 0.5
    if kind in "iu":
        return rng.integers(max(int(low), 0) if kind == "u" else int(low), int(high), shape, endpoint=True).astype(
            dtype
        )
    return rng.uniform(low, high, shape).astype(dtype)


def _widened(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: a.astype(np.float64) if a.dtype.kind == "f" else a for name, a in arrays.items()}


@dataclass(frozen=True, slots=True)
class Batch:
    """Cases as one imported model; `outputs` are its output values in order, each with its case."""

    cases: Sequence[Case]
    model: ImportedModel
    feeds: Mapping[str, Array]
    outputs: Sequence[tuple[Case, str]]

    def case_of(self, node: str) -> str:
        """The name of the case that a node of the imported model comes from."""
        return next(n.original[0] for n in self.model.graph.nodes if n.name == node).split("/")[0]


def batch(cases: Iterable[Case], opset: int = OPSET) -> Batch:
    """The cases side by side in one model: imported once, compiled once."""
    cases = tuple(cases)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.onnx"
        onnx.save(_model(cases, opset, prefixed=True), path)
        imported = import_model(path)
    feeds = {f"{c.name}/{n}": a for c in cases for n, a in c.inputs.items()}
    by_name = {f"{c.name}/{o}": c for c in cases for o in c.outputs}
    names = [imported.sources[o] for o in imported.graph.outputs]
    return Batch(
        cases,
        imported,
        {v: feeds[imported.sources[v]] for v in imported.graph.inputs},
        [(by_name[n], n.split("/")[1]) for n in names],
    )


def _model(cases: Sequence[Case], opset: int, prefixed: bool) -> onnx.ModelProto:
    nodes, inputs, outputs, constants = [], [], [], []
    for case in cases:
        name = _prefixer(case.name if prefixed else "")
        for index, node in enumerate(case.nodes):
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.name = name(f"{index}_{node.op_type}")
            copy.input[:] = [name(i) for i in node.input]
            copy.output[:] = [name(o) for o in node.output]
            nodes.append(copy)
        inputs += [
            helper.make_tensor_value_info(name(n), helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in case.inputs.items()
        ]
        outputs += [onnx.ValueInfoProto(name=name(o)) for o in case.outputs]
        constants += [numpy_helper.from_array(np.asarray(a), name(n)) for n, a in case.constants.items()]
    graph = helper.make_graph(nodes, "cases", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


def _prefixer(prefix: str) -> Callable[[str], str]:
    return lambda name: f"{prefix}/{name}" if prefix and name else name
