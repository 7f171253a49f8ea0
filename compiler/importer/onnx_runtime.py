"""ONNX Runtime as import uses it: to compute constants, to infer types, and to say whether a model is valid."""

from __future__ import annotations

from typing import Any

import onnx

from heterocc.compiler.importer.propagation import MAX_LISTED, listed
from heterocc.runtime.execute import ort_session

_MAX_FOLDED = 1 << 24
"""Bytes of a constant that ONNX Runtime may compute while it only looks at a model; import computes the larger ones."""


def open_session(proto: onnx.ModelProto, *, optimise: bool = False, compute: bool = True) -> Any:
    """A single-threaded CPU session that runs the model, as it is unless it is to be optimised.

    `compute` lets the optimiser compute constants. Constants are not compared for equality: that takes time quadratic
    in their number.
    """
    options = ort_session.session_options(threads=1, optimise="basic" if optimise else "none")
    options.enable_cpu_mem_arena = False  # it takes twice as much as tensors that double need
    options.add_session_config_entry("optimization.constant_folding_max_output_size_in_bytes", str(_MAX_FOLDED))
    without = ("ConstantSharing",) if compute else ("ConstantSharing", "ConstantFolding")
    return ort_session.open_session(proto.SerializeToString(), options, without=without)


def output_types(proto: onnx.ModelProto) -> list[Any]:
    """Name, type and shape of each graph output as ONNX Runtime infers them; raises what it raises.

    None of a model for which it would list too much. Names are unique over the graph and its bodies.

    It infers them when it loads a model. The rest of making a session, which plans kernels and memory, is left out: it
    takes time quadratic in the number of outputs.
    """
    if listed(proto.graph) > MAX_LISTED:
        return []
    options = ort_session.session_options(threads=1, optimise="none")
    found: list[Any] = ort_session.load_only(proto.SerializeToString(), options).outputs_meta
    return found


_TYPE_ERRORS = ("InferenceError]", "Type Error:")


def objection(proto: onnx.ModelProto, *, compute: bool = True) -> str | None:
    """Why ONNX Runtime finds the model invalid; None when it does not, or merely cannot run it.

    It may find out only when it optimises, which is how the model will be run. An operator set or a variant of an
    operator that this version of it does not have yet is no fault of the model. `compute` lets it compute constants.
    It is not asked where it would list too much.
    """
    state = ort_session.onnxruntime_package().capi.onnxruntime_pybind11_state

    if listed(proto.graph) > MAX_LISTED:
        return f"its integer vectors have more than {MAX_LISTED} elements"
    try:
        open_session(proto, optimise=True, compute=compute)
    except state.InvalidGraph as error:
        return str(error)
    except Exception as error:  # its classes have no common base but Exception
        text = str(error)
        if any(t in text for t in _TYPE_ERRORS) or (
            "is not a registered function/op" in text and _has_unknown_operator(proto)
        ):
            return text
    return None


def _has_unknown_operator(proto: onnx.ModelProto) -> bool:
    return any(not onnx.defs.has(n.op_type, n.domain) for n in proto.graph.node)
