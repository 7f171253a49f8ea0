"""Operator cases: many small nodes in one model, compiled for the CPU alone, run, and compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

import heterocc.runtime
from heterocc.compiler import compile_model
from heterocc.compiler.checking.compare import FLOAT16, FLOAT32, Tolerance, compare
from heterocc.compiler.support.query import query_model
from tests.reference import reference_session

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Constant:
    """An input that is an initializer, as attributes that became inputs and weights are in real models."""

    array: Array


@dataclass(frozen=True)
class Case:
    """One node: its inputs (fed, constant or absent), attributes, number of outputs, and the operator set it is of."""

    op: str
    inputs: tuple[Array | Constant | None, ...]
    attrs: Mapping[str, Any]
    outputs: int
    opset: int
    domain: str = ""

    @property
    def text(self) -> str:
        """The case in one line, for messages."""
        shown = []
        for value in self.inputs:
            array = value.array if isinstance(value, Constant) else value
            kind = "constant " if isinstance(value, Constant) else ""
            shown.append("-" if array is None else f"{kind}{array.dtype.name}{list(array.shape)}")
        return f"{self.op}-{self.opset}({', '.join(shown)}) {dict(self.attrs)}"


def case(
    op: str, *inputs: Array | Constant | None, outputs: int = 1, opset: int = 17, domain: str = "", **attrs: Any
) -> Case:
    """A case; plain arrays are fed at run time."""
    return Case(op, inputs, attrs, outputs, opset, domain)


def constant(value: Any, dtype: Any = None) -> Constant:
    """An initializer."""
    return Constant(np.array(value, dtype))


def draw(*shape: int, dtype: Any = np.float32, seed: int = 0, low: float = -3, high: float = 3) -> Array:
    """Seeded values: uniform between `low` and `high`, integers in that range, fair coins for bool."""
    rng = np.random.default_rng([seed, *shape])
    if np.dtype(dtype) == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if np.issubdtype(dtype, np.integer):
        return rng.integers(int(low), int(high) + 1, shape).astype(dtype)
    return rng.uniform(low, high, shape).astype(dtype)


def failures(cases: Sequence[Case], folder: Path) -> list[str]:
    """Compile `cases`, all of one operator set, into one bundle for the CPU; a text for each refused or wrong case."""
    path, feed = save_model(cases, folder)
    bundle = folder / "operators.hcb"
    expected = reference_session(path).run(None, feed)
    query = query_model(path, "CPU")
    nodes = [query.graph.node_by_name[n] for n in query.nowhere]
    found = [f"refused: {_of(n.label, n.original, cases)}: CPU: {query.reason(n.name, 'CPU')}" for n in nodes]
    # The check would hide a wrong kernel by moving it.
    compile_model(path, bundle, devices="CPU,ORT" if nodes else "CPU", cpu_variant=False, check=False)
    got = heterocc.runtime.load(bundle).run(feed)
    for (name, value), wanted in zip(got.items(), expected, strict=True):
        half = wanted.dtype == np.float16
        # Real numbers in the middle of a step are rounded to either side.
        step = 1 if cases[int(name.split("_")[0][1:])].op.startswith(("QLinear", "QGemm")) else 0
        difference = compare(name, value, wanted, FLOAT16 if half else _tolerance(wanted, step))
        if not difference.ok:
            found.append(f"wrong: {_of(name, (name,), cases)}: {difference.reason}")
    return found


def save_model(cases: Sequence[Case], folder: Path) -> tuple[Path, dict[str, Array]]:
    """One model of all cases, and its feed: input `j` of case `i` is `ci_ij`."""
    (opset,) = {c.opset for c in cases}
    path = folder / f"operators-{opset}.onnx"
    model, feed = _model(cases, opset)
    path.write_bytes(model.SerializeToString())
    return path, feed


def _tolerance(wanted: Array, step: int) -> Tolerance:
    return FLOAT32 if wanted.dtype.kind == "f" else Tolerance(rtol=0, atol=0, scale=0, steps=step)


def _of(label: str, names: Sequence[str], cases: Sequence[Case]) -> str:
    for name in (label, *names):
        number = name.split("_")[0].removeprefix("c")
        if number.isdigit():
            return cases[int(number)].text
    return label


def _model(cases: Sequence[Case], opset: int) -> tuple[onnx.ModelProto, dict[str, Array]]:
    nodes, inputs, tensors = [], [], []
    outputs: list[str] = []
    feed: dict[str, Array] = {}
    for number, item in enumerate(cases):
        names = []
        for index, value in enumerate(item.inputs):
            name = f"c{number}_i{index}" if value is not None else ""
            names.append(name)
            if isinstance(value, Constant):
                tensors.append(numpy_helper.from_array(value.array, name))
            elif value is not None:
                feed[name] = value
                elem_type = helper.np_dtype_to_tensor_dtype(value.dtype)
                inputs.append(helper.make_tensor_value_info(name, elem_type, value.shape))
        written = [f"c{number}_o{i}" for i in range(item.outputs)]
        outputs.extend(written)
        nodes.append(
            helper.make_node(item.op, names, written, name=f"c{number}_{item.op}", domain=item.domain, **item.attrs)
        )
    untyped = [onnx.ValueInfoProto(name=o) for o in outputs]
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "operators", inputs, untyped, tensors)
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), _quiet(), providers=["CPUExecutionProvider"])
    for known, output in zip(session.get_outputs(), graph.output, strict=True):
        output.CopyFrom(helper.make_tensor_value_info(known.name, _ELEM_TYPES[known.type], known.shape))
    model.graph.CopyFrom(graph)
    return model, feed


def _quiet() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return options


_ELEM_TYPES = {
    f"tensor({name})": getattr(onnx.TensorProto, elem_type)
    for name, elem_type in {
        "float": "FLOAT",
        "double": "DOUBLE",
        "float16": "FLOAT16",
        "int64": "INT64",
        "int32": "INT32",
        "int16": "INT16",
        "int8": "INT8",
        "uint64": "UINT64",
        "uint32": "UINT32",
        "uint16": "UINT16",
        "uint8": "UINT8",
        "bool": "BOOL",
    }.items()
}
