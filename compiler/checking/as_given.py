"""The import under test: the imported model and the model as it was given, both in ONNX Runtime on the same inputs.

All other checks compare with the imported model, so they cannot see what the import itself has changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from heterocc.artifacts.errors import Hint, InputError, InvalidGraphError, MeaningError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.artifacts.packed import contiguous
from heterocc.compiler.checking.compare import Difference, compare
from heterocc.compiler.checking.judge import Judge, largest_error
from heterocc.compiler.checking.reference import Reference, Stop, run_session, session_of
from heterocc.compiler.checking.run_memory import bounded_bytes, known_bytes
from heterocc.compiler.importer.given import GivenModel
from heterocc.compiler.importer.inputs.texts import longest_text, with_texts
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.onnx_tools.complaint import complaint
from heterocc.compiler.importer.onnx_tools.exact_products import has_products
from heterocc.compiler.importer.onnx_tools.infer import infer_onnx
from heterocc.compiler.importer.onnx_tools.propagation import MAX_LISTED, listed
from heterocc.compiler.importer.random_nodes import random_values
from heterocc.runtime.execute.narrow import ort_value

_FACTOR = 4.0
"""The factor by which two ways to compute a value may differ more than the effect of rounding that was measured."""


def require_same_meaning(
    model: ImportedModel, feed: Mapping[str, Any], outputs: Mapping[str, Any], stop: Stop | None = None
) -> str | None:
    """Compare the outputs of the imported model with those of the model as it was given, on the same inputs.

    `feed` and `outputs` are by names of the imported graph. Returns None, or the reason why they are not compared:
    ONNX Runtime cannot run the model as it was given. `stop` ends the run early.

    Raises MeaningError if they differ; it names the first output, and the node from which on values differ.
    """
    given = model.given
    if given is None:
        return None
    random = random_values(model)
    names = [o for o in model.graph.outputs if o not in random]
    try:
        found = _run(model, given, names, feed, stop)
    except CannotRunError as error:
        return str(error)
    differences = _differences(model, names, found, outputs, feed)
    wrong = next((d for d in differences if not d.ok), None)
    if wrong is None:
        return None
    first = _first(model, given, wrong.name, feed)
    raise MeaningError(
        f"the import changes what the model computes: output '{model.sources[wrong.name]}' {wrong.reason}"
        + (f"; values differ from {first} on" if first else ""),
        hint="a heterocc bug: please report it; export the model at another operator set"
        + Hint(", or compile with check=False", ", or compile with --no-check"),
    )


class CannotRunError(Exception):
    """ONNX Runtime cannot run the model as it was given."""


def _run(
    model: ImportedModel, given: GivenModel, names: Sequence[str], feed: Mapping[str, Any], stop: Stop | None = None
) -> dict[str, Any]:
    """Values of the given model, by their names in the imported graph."""
    if not names:
        return {}
    wanted = [given.names[name] for name in names]
    inputs = {given.names[name]: value for name, value in feed.items()}
    longest = longest_text(given.proto.graph, {**given.weights, **inputs}, given.proto.functions)
    try:
        most = with_texts(bounded_bytes(known_bytes(model, feed)), longest)
    except InputError as error:
        raise CannotRunError(error.message) from error
    by_name = run_given(given, wanted, inputs, stop, most)
    return {name: by_name[given.names[name]] for name in names}


def run_given(
    given: GivenModel,
    wanted: Sequence[str],
    inputs: Mapping[str, Any],
    stop: Stop | None = None,
    most: int | None = None,
) -> dict[str, Any]:
    """Values of the given model, by the model's own names, as are `inputs`.

    Raises CannotRunError if ONNX Runtime cannot run it, or only with more than `most` bytes of values at a time.
    """
    proto, large = given.with_constants()
    if listed(proto.graph) > MAX_LISTED:
        raise CannotRunError(f"its integer vectors have more than {MAX_LISTED} elements, which ONNX Runtime lists")
    known = {o.name: o for o in proto.graph.output}
    del proto.graph.output[:]
    proto.graph.output.extend(known.get(name) or onnx.ValueInfoProto(name=name) for name in dict.fromkeys(wanted))
    # ONNX Runtime keeps no reference to these arrays: they must outlive the session.
    weights = {name: ort_value(contiguous(array)) for name, array in large.items()}
    try:
        proto = _typed(proto)
        session = session_of(proto, weights, most)
        asked = {i.name for i in session.get_inputs()}
        arrays = {
            name: contiguous(value) if isinstance(value, np.ndarray) else value
            for name, value in inputs.items()
            if name in asked
        }
        values = run_session(session, list(dict.fromkeys(wanted)), arrays, stop)
    except InputError as error:
        raise CannotRunError(error.message) from error
    except Exception as error:  # the classes of ONNX Runtime's errors have no common base
        pass_foreign(error)
        raise CannotRunError(f"ONNX Runtime does not run it: {complaint(error).sentence()}") from error
    return dict(zip(dict.fromkeys(wanted), values, strict=True))


def _typed(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the types of its values, which exact products of integers need."""
    if not has_products(proto):
        return proto
    try:
        return infer_onnx(proto, "")
    except (InvalidGraphError, onnx.shape_inference.InferenceError):
        return proto


def _differences(
    model: ImportedModel,
    names: Sequence[str],
    found: Mapping[str, Any],
    expected: Mapping[str, Any],
    feed: Mapping[str, Any],
) -> list[Difference]:
    judge = Judge(model, feed, names)
    return [_difference(judge, name, found[name], expected[name]) for name in names]


def _difference(judge: Judge, name: str, given: Any, imported: Any) -> Difference:
    """The difference of the imported model's value from the given one's."""
    classes = judge.model.classes.get(judge.model.sources.get(name, name))
    if classes is not None:
        given, imported = _without_classes(given, imported, classes)
    if _are_empty(given, imported):  # the sizes of what no iteration writes depend on declarations alone
        return Difference(name, 0.0, 0.0, math.inf, None)
    found = judge.compare(name, imported, given)
    if found.ok or not isinstance(given, np.ndarray) or given.dtype.kind != "f":
        return found
    # Networks may amplify the rounding that another order of operations changes.
    again = Reference(judge.model, [name], shaken=True).run(judge.feed)[name]
    if again.shape != given.shape or imported.shape != given.shape:
        return found
    tolerance = judge.tolerance(name)
    atol = tolerance.absolute(given) + _FACTOR * largest_error(again, imported)
    return compare(name, imported, given, replace(tolerance, scale=0.0, atol=atol))


def _are_empty(one: Any, other: Any) -> bool:
    arrays = isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
    return arrays and one.size == other.size == 0 and (one.dtype, one.ndim) == (other.dtype, other.ndim)


def _without_classes(given: Any, imported: Any, classes: Sequence[str | int]) -> tuple[Any, Any]:
    """Both values in one form, where the import replaced names of classes: names for numbers, columns for maps."""
    if isinstance(given, list):
        return np.array([[row[name] for name in classes] for row in given], imported.dtype), imported
    if given.dtype != object:
        return given, imported
    return given, np.array(classes, object)[imported]


def _first(model: ImportedModel, given: GivenModel, wrong: str, feed: Mapping[str, Any]) -> str | None:
    """The node of the given model that writes the first value that differs; None if that is not found."""
    before = _needed_for(model, wrong)
    imported = {given.names[name]: name for name in before if name in given.names}
    writers = {o: node for node in given.proto.graph.node for o in node.output if o in imported}
    names = [imported[value] for value in writers]
    try:
        found = _run(model, given, names, feed)
        expected = Reference(model, names).run(feed)
    except (CannotRunError, InputError):
        return None
    random = random_values(model)
    for value, node in writers.items():
        name = imported[value]
        if name not in random and not _differences(model, [name], found, expected, feed)[0].ok:
            return f"{node.op_type} '{node.name}'"
    return None


def _needed_for(model: ImportedModel, output: str) -> set[str]:
    """The value and all values that it depends on."""
    found, graph = {output}, model.graph
    for node in reversed(graph.nodes):
        if not found.isdisjoint(node.outputs):
            found.update(node.inputs)
    return found
