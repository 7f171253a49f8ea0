"""TVM's passes from scheduled kernels to code for GPUs: its default ones, with fewer checks and shorter kernels."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import tirx
from tvm.tirx import get_tir_pipeline
from tvm.tirx.compilation_pipeline import register_tir_pipeline

from heterocc.compiler.lower.codegen.argument_checks import with_few_checks

PIPELINE = "heterocc_gpu"
"""The name by which `tvm.tirx.build` and `relax.build` find these passes."""


def _passes() -> tuple[tvm.transform.Pass, Callable[[], tvm.transform.Pass], Callable[[], tvm.transform.Pass]]:
    kernels, host, _ = get_tir_pipeline("default")

    def few_checks(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        return with_few_checks(mod)

    def host_code() -> tvm.transform.Pass:
        checks = tvm.transform.module_pass(few_checks, opt_level=0, name="heterocc_few_checks")
        return tvm.transform.Sequential([checks, host()])

    return kernels, host_code, _device_code


def _device_code() -> tvm.transform.Pass:
    """TVM's last passes over kernels, without the simplification that puts common subexpressions back in all places."""
    return tvm.transform.Sequential([tirx.transform.LowerWarpMemory(), tirx.transform.LowerIntrin()])


register_tir_pipeline(PIPELINE, _passes)
