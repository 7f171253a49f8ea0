"""The outcome of a node test on a list of devices, and in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import onnx
from scripts.conformance.cases import Case

from heterocc.artifacts.errors import HeteroccError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.checking.compare import FLOAT16, Tolerance, compare
from heterocc.compiler.conformance.onnx_backend import HeteroccBackend
from heterocc.compiler.importer.draft.draft import Draft
from heterocc.compiler.importer.operators.opset import lower_opset
from heterocc.compiler.importer.random_nodes import random_operator
from heterocc.runtime.execute.narrow import dtype_of, from_ort, ort_value
from heterocc.runtime.execute.ort_session import open_session, session_options

IR_VERSION = 10
"""A version of ONNX's file format that every supported ONNX Runtime loads."""

BFLOAT16_RTOL = 2**-6
"""The tolerance of ONNX's own test runner: two units in the last place."""

Kind = Literal["passed", "wrong", "refused", "failed"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`passed`, `wrong` (other values), `refused` (an error of the compile) or `failed` (any other exception).

    `code` is the error's code, `reason` the error or the difference in one line.
    """

    kind: Kind
    code: str = ""
    reason: str = ""


def outcome(case: Case, devices: str) -> Outcome:
    """Compile a case for a list of devices, run it, and compare the results with those that ONNX expects.

    Results that differ from these also pass if ONNX Runtime computes the same.
    """
    try:
        # Without the check of the compile, which would make a refusal of a wrong result.
        with HeteroccBackend.prepare(case.model, devices, check=False, cpu_variant=False) as prepared:
            got = prepared.run(case.feed)
    except HeteroccError as error:
        return Outcome("refused", error.code, error.message.splitlines()[0])
    except Exception as error:
        pass_foreign(error)
        # Whatever a run may raise: the report shows it as a fault of heterocc.
        text = str(error).strip().splitlines() or [""]
        return Outcome("failed", type(error).__name__, text[-1][:300])
    reason = difference(case, got)
    if reason is None:
        return Outcome("passed")
    try:
        reference = onnx_runtime(case)
    except Exception as error:
        pass_foreign(error)
        # ONNX Runtime cannot run it, so it does not confirm the result.
        return Outcome("wrong", "", reason)
    same = len(reference) == len(got) and all(compare("", a, b).ok for a, b in zip(got, reference, strict=True))
    return Outcome("passed") if same else Outcome("wrong", "", reason)


def reference_outcome(case: Case) -> Outcome:
    """The outcome of a case in ONNX Runtime on its CPU provider."""
    try:
        got = onnx_runtime(case)
    except Exception as error:
        pass_foreign(error)
        # ONNX Runtime raises classes of its own for operators, types and versions that it lacks.
        text = str(error).strip().splitlines() or [""]
        return Outcome("refused", type(error).__name__, text[0][:300])
    reason = difference(case, got)
    return Outcome("passed") if reason is None else Outcome("wrong", "", reason)


def onnx_runtime(case: Case) -> Sequence[Any]:
    """ONNX Runtime's outputs, of a model at versions that it knows if the operators are the same. Raises its errors."""
    older = Draft(onnx.ModelProto(), {})
    older.model.CopyFrom(case.model)
    older.model.ir_version = min(case.model.ir_version, IR_VERSION)
    lower_opset(older)
    session = open_session(older.model.SerializeToString(), session_options())
    narrow = any(dtype_of(end.type) for end in (*session.get_inputs(), *session.get_outputs()))
    if not narrow or not case.of_tensors:
        outputs: Sequence[Any] = session.run(None, dict(case.feed))
        return outputs
    # numpy has no such dtypes, so ONNX Runtime cannot return arrays.
    values = {name: ort_value(array) for name, array in case.feed.items()}
    return [from_ort(value) for value in session.run_with_ort_values(None, values)]


def difference(case: Case, got: Sequence[Any]) -> str | None:
    """The difference of outputs from those that ONNX expects, in words; None if they are equal within tolerance."""
    tolerance = Tolerance(rtol=max(case.rtol, 1e-3), atol=max(case.atol, 1e-5))
    dtypes = {v.dtype.name for v in (*case.feed.values(), *case.expected) if isinstance(v, np.ndarray)}
    if "bfloat16" in dtypes:
        tolerance = replace(FLOAT16, rtol=BFLOAT16_RTOL)
    elif "float16" in dtypes:
        tolerance = FLOAT16
    if len(got) != len(case.expected):
        return f"{len(got)} outputs, not {len(case.expected)}"
    if _is_random(case):
        kinds = [[(np.asarray(v).dtype, np.shape(v)) for v in values] for values in (got, case.expected)]
        return None if kinds[0] == kinds[1] else f"types and shapes {kinds[0]} instead of {kinds[1]}"
    for index, (actual, expected) in enumerate(zip(got, case.expected, strict=True)):
        found = compare(f"output {index}", actual, expected, tolerance)
        if not found.ok:
            return f"output {index}: {found.reason}"
    return None


def _is_random(case: Case) -> bool:
    """Whether results are random numbers, of which only types and shapes can be compared."""
    graph = case.model.graph
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    return any(random_operator(node, constants) is not None for node in graph.node)
