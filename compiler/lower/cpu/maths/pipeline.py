"""TVM's passes from scheduled kernels to code, with functions of real numbers as arithmetic on vectors."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm.tirx import get_tir_pipeline
from tvm.tirx.compilation_pipeline import register_tir_pipeline

from heterocc.compiler.lower.cpu.maths.rules import expand_functions, mark_functions

PIPELINE = "heterocc_cpu"
"""The name by which `tvm.tirx.build` and `relax.build` find these passes."""


def _passes() -> tuple[tvm.transform.Pass, Callable[[], tvm.transform.Pass], Callable[[], tvm.transform.Pass]]:
    kernels, host, device = get_tir_pipeline("default")

    def host_code() -> tvm.transform.Pass:
        return tvm.transform.Sequential([_pass(expand_functions), host()])

    return tvm.transform.Sequential([_pass(mark_functions), kernels]), host_code, device


def _pass(step: Callable[[tvm.IRModule], tvm.IRModule]) -> tvm.transform.Pass:
    return tvm.transform.module_pass(lambda mod, _context: step(mod), opt_level=0, name=step.__name__)


register_tir_pipeline(PIPELINE, _passes)
