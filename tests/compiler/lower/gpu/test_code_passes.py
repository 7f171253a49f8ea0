"""The passes over GPU kernels: the same device code as by TVM's default ones, and host code with fewer checks."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from heterocc.compiler.lower.opencl import lowering
from heterocc.compiler.lower.opencl.lowering import OpenclLowering
from heterocc.runtime.native.opencl_api import load_opencl, opencl_unavailable_reason
from tests.compiler.lower.gpu_run import Graph, Runner, conv_of, node

RNG = np.random.default_rng(2)
RUNNER = Runner("opencl", OpenclLowering(), load_opencl)
UNUSED = re.compile(r"^ *\w+ cse_v\d+ = .*;\n", re.MULTILINE)
GRAPHS = {
    "convolution": conv_of(RNG, (1, 8, 13, 13), (20, 8, 3, 3), "Relu", pads=[1, 1, 1, 1]),
    "softmax": Graph({"x": RNG.standard_normal((7, 33), dtype=np.float32)}, [node("Softmax", "x")]),
    "transposition": Graph({"x": RNG.standard_normal((2, 3, 4, 5), dtype=np.float32)}, [node("Transpose", "x")]),
}

pytestmark = pytest.mark.skipif(opencl_unavailable_reason() is not None, reason="no OpenCL device here")


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_device_code_differs_in_unused_variables_alone(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, sizes = [], []
    for pipeline in (lowering.PIPELINE, "default"):
        monkeypatch.setattr(lowering, "PIPELINE", pipeline)
        _, lowered = RUNNER.lower(graph, tmp_path)
        sources.append({name: text for name, text in lowered.dumps if name.endswith(".cl")})
        sizes.append(len(lowered.code))
    assert sources[0]
    assert sources[0] == {name: UNUSED.sub("", text) for name, text in sources[1].items()}
    assert sizes[0] < sizes[1]
