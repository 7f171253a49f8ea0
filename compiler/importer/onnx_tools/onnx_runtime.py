"""ONNX Runtime for import: computing constants, inferring types, and checking models."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import onnx

from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.importer.onnx_tools.exact_products import with_exact_products
from heterocc.compiler.importer.onnx_tools.propagation import MAX_LISTED, listed
from heterocc.compiler.importer.onnx_tools.safe import safe_model
from heterocc.runtime.execute import ort_session

_MAX_FOLDED = 1 << 24
"""The limit in bytes on constants that ONNX Runtime computes while it checks a model; import computes larger ones."""


_COMPARING = ("ConstantSharing", "CommonSubexpressionElimination")
"""The optimisers that only compare constants or nodes with each other."""


def open_session(proto: onnx.ModelProto, *, optimise: bool = False, compute: bool = True) -> Any:
    """A single-threaded CPU session that runs the model, with exact products of integers, and as it is otherwise.

    A session with `optimise` is for checks of the model: its integer products may saturate.
    `compute` lets the optimiser compute constants. Constants are not compared for equality, which takes time quadratic
    in their number, nor are nodes, which takes a tenth of the time and finds no error.
    """
    options = ort_session.session_options(threads=1, optimise="basic" if optimise else "none")
    options.enable_cpu_mem_arena = False  # it takes twice the memory for tensors that double in size
    options.add_session_config_entry("optimization.constant_folding_max_output_size_in_bytes", str(_MAX_FOLDED))
    without = _COMPARING if compute else (*_COMPARING, "ConstantFolding")
    proto = safe_model(proto)
    proto = proto if optimise else with_exact_products(proto)
    return ort_session.open_session(proto.SerializeToString(), options, without=without)


def output_types(proto: onnx.ModelProto) -> list[Any]:
    """Name, type and shape of each graph output as ONNX Runtime infers them. Raises its errors.

    Empty for a model for which it would list too many elements. Names must be unique over the graph and its bodies.

    It infers them when it loads a model. The rest of creating a session, which plans kernels and memory, is omitted,
    because it takes time quadratic in the number of outputs.
    """
    if listed(proto.graph) > MAX_LISTED:
        return []
    options = ort_session.session_options(threads=1, optimise="none")
    found: list[Any] = ort_session.load_only(proto.SerializeToString(), options).outputs_meta
    unknown = any(not isinstance(d, int) for output in found for d in output.shape or (None,))
    if unknown and len(found) <= _MOST_PLANNED and any(_is_function(node) for node in proto.graph.node):
        with suppress(ort_session.onnxruntime_package().capi.onnxruntime_pybind11_state.NotImplemented):
            found = open_session(proto).get_outputs()  # it has no Where of bfloat16
    return found


_MOST_PLANNED = 256
"""The limit on outputs for which a complete session is created to infer their types."""


def _is_function(node: onnx.NodeProto) -> bool:
    """Whether ONNX defines the operator as a function, whose types ONNX Runtime infers only after inlining."""
    try:
        schema = onnx.defs.get_schema(node.op_type, domain=node.domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


_TYPE_ERRORS = ("InferenceError]", "Type Error:")


def objection(proto: onnx.ModelProto, *, compute: bool = True) -> str | None:
    """The reason why ONNX Runtime considers the model invalid; None if it is valid, or only cannot be run.

    It may find errors only during optimisation, which the final run uses. An operator set or a variant of an operator
    that this version does not support is not an error of the model. `compute` lets it compute constants. A
    model with too many elements in integer vectors is refused without a check.
    """
    state = ort_session.onnxruntime_package().capi.onnxruntime_pybind11_state

    if listed(proto.graph) > MAX_LISTED:
        return f"its integer vectors have more than {MAX_LISTED} elements"
    try:
        open_session(proto, optimise=True, compute=compute)
    except state.InvalidGraph as error:
        return str(error)
    except Exception as error:  # its classes have no common base but Exception
        pass_foreign(error)
        text = str(error)
        if any(t in text for t in _TYPE_ERRORS) or (
            "is not a registered function/op" in text and _has_unknown_operator(proto)
        ):
            return text
    return None


def is_accepted(proto: onnx.ModelProto, *, compute: bool = True) -> bool:
    """Whether ONNX Runtime creates a session for the model, without an error of any kind."""
    try:
        open_session(proto, optimise=True, compute=compute)
    except Exception as error:  # its classes have no common base but Exception
        pass_foreign(error)
        return False
    return True


def _has_unknown_operator(proto: onnx.ModelProto) -> bool:
    return any(not onnx.defs.has(n.op_type, n.domain) for n in proto.graph.node)
