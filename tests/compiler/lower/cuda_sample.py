"""A small product for a GPU, and the compiler of its CUDA code if one is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from heterocc.artifacts.errors import CudaCompilerMissingError
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.lower.cuda.toolchain import CudaCompiler, find_compiler
from tests.compiler.lower.lowered import job, model

HOPPER = TargetDevice("CUDA", "cuda", target={"kind": "cuda", "arch": "sm_90"}, present=False)
RNG = np.random.default_rng(0)


def real_compiler() -> CudaCompiler | None:
    try:
        return find_compiler("sm_90")
    except CudaCompilerMissingError:
        return None


needs_compiler = pytest.mark.skipif(real_compiler() is None, reason="neither nvrtc nor nvcc is installed")


def weights(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def multiply() -> Any:
    made = model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": weights(4, 8)}, ["y"], {"w": weights(8, 16)})
    return job(made, HOPPER)
