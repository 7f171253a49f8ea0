"""ONNX Runtime's memory of a process can be bounded; in a process of its own, which ONNX Runtime bounds once."""

from __future__ import annotations

import subprocess
import sys

BOUNDED = """
import numpy as np
import onnx
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info as value

from heterocc.artifacts.errors import DeviceMemoryError, InputValueError
from heterocc.runtime.execute.faults import device_fault
from heterocc.runtime.execute.ort_session import bound_memory, open_session, session_options

bound_memory(64 << 20)
sessions = []
for name in ("first", "second"):
    graph = make_graph(
        [make_node("ConstantOfShape", ["n"], ["big"], "fill"), make_node("ReduceSum", ["big"], ["y"])], name,
        [value("n", onnx.TensorProto.INT64, [1])], [value("y", onnx.TensorProto.FLOAT, None)],
    )
    model = make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8)
    sessions.append(open_session(model.SerializeToString(), session_options(threads=1)))

def run(session, count):
    try:
        return session.run(None, {"n": np.array([count])})[0]
    except Exception as error:
        return device_fault(error, "running partition 'p0'", "ORT")

for session in sessions:
    assert run(session, 1000).shape == (1,)
    fault = run(session, 10**8)
    assert type(fault) is InputValueError, fault
    assert fault.message.startswith("ConstantOfShape 'fill': Available memory of "), fault
assert run(sessions[0], 10 << 20).shape == (1,)  # 40 MB, which the arena keeps
fault = run(sessions[1], 10 << 20)
assert isinstance(fault, np.ndarray | DeviceMemoryError), fault
"""


def test_all_sessions_of_a_process_share_what_they_may_take() -> None:
    done = subprocess.run([sys.executable, "-c", BOUNDED], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
