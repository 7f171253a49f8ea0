"""ONNX Runtime as import uses it: to compute constants, to infer types, and to say whether a model is valid."""

from __future__ import annotations

from typing import Any

import onnx


def open_session(proto: onnx.ModelProto, *, optimise: bool = False) -> Any:
    """A single-threaded CPU session that runs the model, as it is unless it is to be optimised."""
    import onnxruntime

    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = levels.ORT_ENABLE_BASIC if optimise else levels.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def objection(proto: onnx.ModelProto) -> str | None:
    """Why ONNX Runtime finds the model invalid; None when it does not, or merely lacks a kernel.

    It may find out only when it optimises, which is how the model will be run.
    """
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    try:
        open_session(proto, optimise=True)
    except state.NotImplemented:
        return None
    except Exception as error:  # its classes have no common base but Exception
        return str(error)
    return None
