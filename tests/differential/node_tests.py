"""ONNX's own node tests: import, query, lowering, and comparison with ONNX's expectations."""

from __future__ import annotations

import importlib
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm_ffi
from onnx import numpy_helper
from scripts.conformance.outcome import difference

from heterocc.artifacts.dtypes import NARROW, is_narrow
from heterocc.artifacts.errors import HeteroccError, LoweringError
from heterocc.compiler.checking.compare import compare
from heterocc.compiler.checking.reference import Reference
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower import lowering_for
from heterocc.compiler.lower.backend import LoweredPartition, PartitionJob
from heterocc.compiler.support.cache import Answers
from heterocc.compiler.support.query import query_model
from heterocc.runtime.execute.executable import Executable, load_library
from heterocc.runtime.execute.narrow import carried, from_carried
from heterocc.runtime.execute.tvm_api import tvm_api
from heterocc.runtime.plan.schedule import Space


@dataclass(frozen=True, slots=True)
class Case:
    """One node test: a model, feeds by input name, and the expected outputs in order."""

    name: str
    model: onnx.ModelProto
    feed: Mapping[str, np.ndarray[Any, Any]]
    expected: tuple[np.ndarray[Any, Any], ...]
    rtol: float
    atol: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a case: `kind` is `right`, `wrong`, `unsupported`, `import` (refused), `folded` or `lowering`."""

    kind: str
    detail: str = ""


@cache
def cases(package: str = "") -> Mapping[str, Case]:
    """All node tests whose inputs and outputs are plain tensors, by name; with a package, at least those of it.

    To collect all of ONNX's cases takes seconds.
    """
    from onnx.backend.test.case import node
    from onnx.backend.test.case.utils import import_recursive

    found: dict[str, Case] = {}
    with warnings.catch_warnings():
        # Some cases compute their own expectation with overflows.
        warnings.simplefilter("ignore")
        import_recursive(importlib.import_module(f"{node.__name__}.{package}".rstrip(".")))
    for test in node._NodeTestCases:
        inputs, outputs = test.data_sets[0]
        if not all(isinstance(v, np.ndarray | np.generic | int | float) for v in [*inputs, *outputs]):
            continue
        names = [i.name for i in test.model.graph.input]
        if len(names) != len(inputs):
            continue
        feed = {n: np.asarray(v) for n, v in zip(names, inputs, strict=True)}
        expected = tuple(np.asarray(v) for v in outputs)
        found[test.name] = Case(test.name, _older(test.model), feed, expected, test.rtol or 1e-3, test.atol or 1e-7)
    return found


def _older(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model at an opset and IR version that ONNX Runtime knows, if its operators exist there."""
    version = {o.domain: o.version for o in model.opset_import}.get("", 0)
    exist = all(n.domain in _SCHEMAS and n.op_type in _SCHEMAS[n.domain] for n in model.graph.node)
    older = onnx.ModelProto()
    older.CopyFrom(model)
    older.ir_version = min(model.ir_version, 10)
    if version > NEWEST and exist:
        for opset in older.opset_import:
            opset.version = OLDER if opset.domain == "" else opset.version
    return older


NEWEST = 26
"""Newest opset of the default domain that every supported ONNX Runtime loads."""
OLDER = 21
_SCHEMAS: Mapping[str, frozenset[str]] = {
    "": frozenset(s.name for s in onnx.defs.get_all_schemas_with_history() if not s.domain and s.since_version <= OLDER)
}


def frozen(case: Case) -> Case | None:
    """The case with all inputs but the first made constants, as real models have them; None if there is but one."""
    names = [i.name for i in case.model.graph.input]
    if len(names) < 2:
        return None
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    del model.graph.input[1:]
    model.graph.initializer.extend(numpy_helper.from_array(case.feed[n], n) for n in names[1:])
    feed = {names[0]: case.feed[names[0]]}
    return Case(case.name + " frozen", model, feed, case.expected, case.rtol, case.atol)


def run_case(case: Case, device: TargetDevice, store: Answers | None = None) -> Outcome:
    """Import, ask, lower as one partition, run, compare."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(case.model.SerializeToString())
        shapes = {name: value.shape for name, value in case.feed.items()}
        try:
            model = import_model(path, shapes=shapes)
        except HeteroccError as error:
            return Outcome("import", str(error).splitlines()[0])
        if not model.graph.nodes:
            return Outcome("folded")
        result = query_model(model, [device], cache=store or Answers())
        if result.nowhere:
            node = model.graph.node_by_name[result.nowhere[0]]
            return Outcome("unsupported", f"{node.op_type}: {device.name}: {result.reason(node.name, device.name)}")
        try:
            got = run_partition(model, device, case.feed)
        except LoweringError as error:
            return Outcome("lowering", str(error))
    reason = difference(case, got)
    if reason is None:
        return Outcome("right")
    if agrees_with_onnx_runtime(model, case.feed, got):
        return Outcome("right", f"differs from the expectation as ONNX Runtime does: {reason}")
    return Outcome("wrong", reason)


def agrees_with_onnx_runtime(
    model: ImportedModel, feed: Mapping[str, np.ndarray[Any, Any]], got: Sequence[np.ndarray[Any, Any]]
) -> bool:
    """Whether ONNX Runtime computes the same, for cases in which it differs from the expectation."""
    try:
        reference = Reference(model, model.graph.outputs).run(_internal(model, feed))
    except Exception:
        # ONNX Runtime lacks the operator or the types, so the expectation cannot be confirmed.
        return False
    return all(compare(name, actual, reference[name]).ok for name, actual in zip(model.graph.outputs, got, strict=True))


def _internal(model: ImportedModel, feed: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    return {name: feed[model.sources.get(name, name)] for name in model.graph.inputs}


def run_partition(
    model: ImportedModel, device: TargetDevice, feed: Mapping[str, np.ndarray[Any, Any]]
) -> list[np.ndarray[Any, Any]]:
    """Lower the whole model as one partition for a device and run it there."""
    graph = model.graph
    written = tuple(v for v in graph.outputs if v in graph.producer)
    job = PartitionJob("p0", model, device, tuple(n.name for n in graph.nodes), graph.inputs, written)
    lowered = lowering_for(device).lower(job)
    inputs = _internal(model, feed)
    given = [inputs[v] for v in job.inputs]
    values = [graph.values[v] for v in (*job.inputs, *written)]
    if all(value.is_static and value.dtype not in NARROW for value in values):
        outputs = call(lowered, device, given, [_empty(model, v) for v in written])
    else:
        dtypes = [graph.values[v].dtype for v in written]
        found = zip(call_returning(lowered, given), dtypes, strict=True)
        outputs = [from_carried(array, dtype) if dtype in NARROW else array for array, dtype in found]
    by_name = {**inputs, **model.weights, **dict(zip(written, outputs, strict=True))}
    return [by_name[v] for v in graph.outputs]


def _empty(model: ImportedModel, name: str) -> np.ndarray[Any, Any]:
    value = model.graph.values[name]
    assert value.shape is not None
    return np.zeros([int(d or 0) for d in value.shape], dtype=value.dtype)


def call(
    lowered: LoweredPartition,
    device: TargetDevice,
    inputs: Sequence[np.ndarray[Any, Any]],
    outputs: Sequence[np.ndarray[Any, Any]],
) -> list[np.ndarray[Any, Any]]:
    """Load a partition's code and call its entry on its device; gives the outputs that it wrote."""
    space = Space(device.backend, device.index)
    # The loader caches by path: a separate file for every load.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "code.so"
        path.write_bytes(lowered.code)
        library = load_library(str(path), "p0", space).module
    params = [_given(a, space) for a in lowered.params]
    results = [_given(a, space) for a in outputs]
    Executable(library, "p0", "main", space, params).bind([*(_given(a, space) for a in inputs), *results])()
    return [_taken(result, empty) for result, empty in zip(results, outputs, strict=True)]


def call_returning(lowered: LoweredPartition, inputs: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Call the entry of a partition on the CPU that returns new tensors, because their sizes are known only then."""
    space = Space("cpu", 0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "code.so"
        path.write_bytes(lowered.code)
        library = load_library(str(path), "p0", space).module
    executable = Executable(library, "p0", "main", space, [_given(a, space) for a in lowered.params])
    results = executable.function()[0](*(_given(a, space) for a in inputs), executable.params)
    return [np.from_dlpack(result).copy() for result in results]


def _given(array: np.ndarray[Any, Any], space: Space) -> Any:
    """A tensor on a device that holds the array's values, as compiled code has them."""
    array = carried(array, array.dtype.name) if is_narrow(array) else array
    device = tvm_ffi.device(space.backend, space.index)
    tensor = tvm_api().allocate(tvm_ffi.Shape(array.shape), tvm_ffi.dtype(array.dtype.name), device, None)
    if array.size:
        tvm_api().copy(tvm_ffi.from_dlpack(np.array(array, order="C")), tensor)
    return tensor


def _taken(tensor: Any, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The values of a tensor on a device."""
    array = np.empty_like(like)
    if array.size:
        tvm_api().copy(tensor, tvm_ffi.from_dlpack(array))
    return array
