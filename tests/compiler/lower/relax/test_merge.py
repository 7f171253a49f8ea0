"""Kernels of the same rows as one."""

from __future__ import annotations

import numpy as np
import tvm
from onnx import helper
from tvm import tirx

from heterocc.compiler.lower.cpu.generate.rows.joins import _joins
from heterocc.compiler.lower.pipeline import kernel_module
from heterocc.compiler.lower.relax.merge import merge_rows
from tests.compiler.lower.lowered import job, model


def test_kernels_of_equal_layers_are_joined_once() -> None:
    assert _considered(layers=4) == _considered(layers=8)


def _considered(layers: int) -> tuple[int, int]:
    """The kernels of normalisations between products that are considered, and the kernels of a layer with these."""
    rng = np.random.default_rng(0)
    constants = {"w": rng.standard_normal((24, 24)).astype(np.float32), "s": np.ones(24, np.float32)}
    nodes = [
        node
        for n in range(layers)
        for node in (
            helper.make_node("MatMul", [f"x{n}", "w"], [f"p{n}"]),
            helper.make_node("LayerNormalization", [f"p{n}", "s"], [f"x{n + 1}"]),
        )
    ]
    made = model(nodes, {"x0": np.ones((10, 24), np.float32)}, [f"x{layers}"], constants)
    module = kernel_module(job(made), tvm.target.Target("llvm"))
    considered: list[tirx.PrimFunc] = []

    def form(function: tirx.PrimFunc) -> bool:
        considered.append(function)
        return _joins(function)

    joined = merge_rows(module, form)
    assert len(joined.kernels) < len(module.kernels)
    return len(considered), len(joined.kernels) // layers
