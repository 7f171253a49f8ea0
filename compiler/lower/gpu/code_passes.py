"""TVM's default passes from scheduled kernels to code for GPUs, without what costs time and changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm.tirx import get_tir_pipeline
from tvm.tirx.compilation_pipeline import register_tir_pipeline

from heterocc.compiler.lower.codegen.argument_checks import with_few_checks
from heterocc.compiler.lower.codegen.passes import as_pass

PIPELINE = "heterocc_gpu"
"""The name by which `tvm.tirx.build` and `relax.build` find these passes."""

UNDONE = ["tirx.CommonSubexprElim"]
"""A pass whose names of expressions TVM's last simplification replaces by the expressions, so that vector loads are
seen to be aligned. It leaves variables without use."""


def _passes() -> tuple[tvm.transform.Pass, Callable[[], tvm.transform.Pass], Callable[[], tvm.transform.Pass]]:
    kernels, host, device = get_tir_pipeline("default")

    def lowered(mod: tvm.IRModule) -> tvm.IRModule:
        context = tvm.transform.PassContext.current()
        with tvm.transform.PassContext(context.opt_level, disabled_pass=UNDONE, config=dict(context.config)):
            return kernels(mod)

    def host_code() -> tvm.transform.Pass:
        return tvm.transform.Sequential([as_pass(with_few_checks), host()])

    return as_pass(lowered), host_code, device


register_tir_pipeline(PIPELINE, _passes)
