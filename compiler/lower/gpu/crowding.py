"""Kernels of more tensors than a launch takes: fused ones are lowered again without fusion, others are refused."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import tirx

from heterocc.artifacts.errors import LoweringError
from heterocc.compiler.lower.pipeline import KernelModule
from heterocc.compiler.lower.stages import Stages

_UNFUSED = {"relax.FuseOps.max_depth": 1}


def uncrowded(stages: Callable[[], Stages], most: int) -> Stages:
    """What `stages` gives, without fusion where fused kernels have more than `most` tensors."""
    first = stages()
    if not _crowded(first.scheduled, most):
        return first
    with tvm.transform.PassContext(opt_level=3, config=_UNFUSED):
        return stages()


def refuse_crowded(module: KernelModule, most: int) -> None:
    """Raises LoweringError (HC203) for the first kernel of more than `most` tensors."""
    for name, count in _crowded(module, most):
        raise LoweringError(
            f"a kernel has {count} tensors, and the device takes {most}",
            where=f"kernel '{name}'",
            hint="give the node to another device",
        )


def _crowded(module: KernelModule, most: int) -> list[tuple[str, int]]:
    kernels = ((gvar.name_hint, f) for gvar, f in module.mod.functions_items() if isinstance(f, tirx.PrimFunc))
    return [(name, len(f.params)) for name, f in kernels if len(f.params) > most]
