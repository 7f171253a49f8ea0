"""Trials of proposed shapes: runs in ONNX Runtime on seeded inputs, with a limit of time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx

from heterocc.artifacts.dtypes import is_narrow
from heterocc.artifacts.errors import HeteroccError, InputError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.artifacts.packed import contiguous
from heterocc.compiler.importer.draft.draft import nodes_of, value_of
from heterocc.compiler.importer.inputs.seeded import draw_inputs
from heterocc.compiler.importer.inputs.texts import longest_text, with_texts
from heterocc.compiler.importer.onnx_tools.propagation import MAX_LISTED, listed
from heterocc.compiler.importer.onnx_tools.safe import safe_model
from heterocc.compiler.operators.table import rounds_if_packed
from heterocc.passes.graph import Value
from heterocc.runtime.execute.narrow import dtype_of, ort_value
from heterocc.runtime.execute.ort_session import onnxruntime_package, open_session, session_options

MAX_INPUTS = 1 << 28
"""Bytes of inputs; larger ones are not tried."""

MAX_PACKED = 1 << 31
"""Bytes of weights of models for whose check ONNX Runtime has to pack them; larger ones are not tried, as it makes a
second copy of all of them."""

MOST_BYTES = 1 << 30
"""The most bytes of values of a trial at a time, whatever its sizes are estimated to be."""


Shapes = dict[str, list[int]]


def runner(
    proto: onnx.ModelProto, arrays: Mapping[str, np.ndarray[Any, Any]]
) -> Callable[[Shapes, float], bool] | None:
    """A function of shapes and seconds that runs the model on seeded inputs, and returns whether it succeeded.

    Seconds are those of the calling thread, in which all of a run is: other processes do not add to them.
    None if the model has too many nodes, ONNX Runtime cannot load it, or a check would take too much memory.
    """
    if listed(proto.graph) > MAX_LISTED:
        return None
    if sum(a.nbytes for a in arrays.values()) > MAX_PACKED and any(map(rounds_if_packed, nodes_of(proto.graph.node))):
        return None
    weights = {name: contiguous(array) for name, array in arrays.items()}
    try:
        most = with_texts(MOST_BYTES, longest_text(proto.graph, arrays, proto.functions))
        options = session_options(threads=1, optimise="none")
        session = open_session(safe_model(proto).SerializeToString(), options, most=most)
    except InputError:  # its texts may be of any length
        return None
    except Exception as error:  # it lacks an operator, for instance; its classes have no common base
        pass_foreign(error)
        return None
    large = {i.name: weights[i.name] for i in session.get_inputs() if i.name in weights}
    values = [value_of(i) for i in proto.graph.input if i.name not in weights]
    outputs = [o.name for o in session.get_outputs()]
    narrow = any(dtype_of(o.type) is not None for o in session.get_outputs())  # numpy has no arrays for these

    def run(shapes: Shapes, seconds: float) -> bool:
        inputs = {v.name: Value(v.name, v.dtype, tuple(shapes.get(v.name, v.shape or ()))) for v in values}
        if sum(v.nbytes for v in inputs.values()) > MAX_INPUTS:
            return False
        try:
            feed: Mapping[str, Any] = {**draw_inputs(proto, inputs, weights, 0), **large}
        except HeteroccError:
            return False
        limit = onnxruntime_package().RunOptions()
        limit.log_severity_level = 4
        ended = threading.Event()
        watch = threading.Thread(target=_end_late, args=(limit, clock_of_this_thread(), max(seconds, 0.1), ended))
        watch.start()
        try:
            if narrow or any(is_narrow(a) for a in feed.values()):
                session.run_with_ort_values(outputs, {name: ort_value(a) for name, a in feed.items()}, limit)
            else:
                session.run(outputs, feed, limit)
        except Exception as error:  # this shape does not fit, or it took too long
            pass_foreign(error)
            return False
        finally:
            ended.set()
            watch.join()
        return True

    return run


def clock_of_this_thread() -> Callable[[], float]:
    """The seconds that this thread has run, for any thread to read; those of the day where a system does not say."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic
    return partial(time.clock_gettime, time.pthread_getcpuclockid(threading.get_ident()))


def _end_late(limit: Any, clock: Callable[[], float], seconds: float, ended: threading.Event) -> None:
    """End a run that has not `ended` after so many seconds of a clock, which is not faster than the day's."""
    end = clock() + seconds
    while (left := end - clock()) > 0:
        if ended.wait(left):
            return
    limit.terminate = True
