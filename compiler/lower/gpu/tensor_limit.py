"""The device's limit on the tensors of a launch: fused kernels over it are lowered without fusion, others refused."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import tirx

from heterocc.artifacts.errors import LoweringError
from heterocc.compiler.lower.pipeline import KernelModule
from heterocc.compiler.lower.stages import Stages

_UNFUSED = {"relax.FuseOps.max_depth": 1}


def within_tensor_limit(stages: Callable[[], Stages], most: int) -> Stages:
    """The result of `stages`, without fusion if a fused kernel has more than `most` tensors."""
    first = stages()
    if not _over_limit(first.scheduled, most):
        return first
    with tvm.transform.PassContext(opt_level=3, config=_UNFUSED):
        return stages()


def check_tensor_limit(module: KernelModule, most: int) -> None:
    """Raise LoweringError (HC203) if a kernel has more than `most` tensors."""
    for name, count in _over_limit(module, most):
        raise LoweringError(
            f"a kernel has {count} tensors, but the device allows only {most}",
            where=f"kernel '{name}'",
            hint="list another device after this one",
        )


def _over_limit(module: KernelModule, most: int) -> list[tuple[str, int]]:
    kernels = ((gvar.name_hint, f) for gvar, f in module.mod.functions_items() if isinstance(f, tirx.PrimFunc))
    return [(name, len(f.params)) for name, f in kernels if len(f.params) > most]
