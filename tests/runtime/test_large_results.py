"""Results for which there is not enough memory: a typed error, after which the session still runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.compiler import compile_model
from tests.fresh_process import fresh

COUNT = 2**24
"""Results of 64 MiB."""

PROGRAM = """
import resource
import numpy as np
from heterocc.artifacts.errors import DeviceMemoryError
from heterocc.runtime import load
with load(PATH) as session:
    x = np.ones(1, np.float32)
    session.run({"x": x})
    pages = int(open("/proc/self/statm").read().split()[0])
    first = session.run({"x": x})
    kept = [first]
    resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + 2**28, resource.RLIM_INFINITY))
    try:
        for _ in range(20):
            kept.append(session.run({"x": x}))
    except DeviceMemoryError as error:
        print(error.code, error.where)
    del kept, first
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(session.run({"x": x})["y"][-1])
"""


@pytest.mark.parametrize("devices", ["CPU", "CPU,ORT"])
def test_results_that_are_too_large_are_a_typed_error(tmp_path: Path, devices: str) -> None:
    graph = helper.make_graph(
        [helper.make_node("Expand", ["x", "s"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [COUNT])],
        [numpy_helper.from_array(np.array([COUNT]), "s")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    path = tmp_path / "m.hcb"
    compile_model(made, path, devices=devices, check=False)
    assert fresh(f"PATH = {str(path)!r}\n{PROGRAM}").split() == ["HC404", "the", "host", "1.0"]
