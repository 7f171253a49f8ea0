"""The steps from a partition job to a Relax module of kernel calls, for every device that TVM compiles for.

    job ─ import_function ─► Relax operators ─ fold_weights ─ to_kernels ─ in_half ─► KernelModule ─ destination_passing
                                                       (on devices with precision=f16)  (the back end schedules here)

A back end calls `kernel_module`, schedules the kernels of the result (and may repack parameters), then
`destination_passing`, then `memory_passes` and its code generation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tvm
from tvm import relax

from heterocc.compiler.lower.backend import PartitionJob
from heterocc.compiler.lower.half.precision import in_half
from heterocc.compiler.lower.progress import phase
from heterocc.compiler.lower.relax.entry import call_by_symbol, destination_passing, memory_passes
from heterocc.compiler.lower.relax.fold import fold_weights
from heterocc.compiler.lower.relax.importer import ImportedFunction, import_function
from heterocc.compiler.lower.relax.kernels import KernelModule, to_kernels
from heterocc.compiler.lower.relax.repeated import without_repeated
from heterocc.compiler.lower.relax.tables import with_tables
from heterocc.compiler.lower.relax.tied import tied
from heterocc.compiler.lower.tvm_fixes.arrays import read_quickly
from heterocc.compiler.lower.tvm_fixes.size_order import order_sizes

if TYPE_CHECKING:
    from tvm.ir.transform import Pass
    from tvm.target import Target


__all__ = [
    "ImportedFunction",
    "KernelModule",
    "call_by_symbol",
    "destination_passing",
    "import_partition",
    "kernel_module",
    "memory_passes",
]

read_quickly()  # these for every back end of TVM, before its first module
order_sizes()


def import_partition(job: PartitionJob, target: Target) -> ImportedFunction:
    """The partition as Relax operators, with computations on weights alone folded, and repeated ones made once.

    Raises LoweringError that names the node at fault.
    """
    function = import_function(job)
    phase("folding weights")
    with target:
        mod = relax.transform.DecomposeOpsForInference()(function.mod)
        # Made once before, too: each folded value takes memory, and a run would compute those for which there is none.
        mod, arrays = fold_weights(without_repeated(mod), tied(function.arrays))
    function = dataclasses.replace(function, mod=without_repeated(mod), arrays=arrays)
    return with_tables(function) if job.device.backend == "cpu" else function


def kernel_module(
    job: PartitionJob,
    target: Target,
    before: Sequence[Pass] = (),
    rewrite: Callable[[ImportedFunction], ImportedFunction] | None = None,
    apart: Callable[[tvm.IRModule], tvm.IRModule] | None = None,
) -> KernelModule:
    """The partition as calls of unscheduled kernels named after graph nodes.

    `target` is a `tvm.target.Target` (with a host, for a GPU). `rewrite` puts kernels of the back end in place of
    operators; `before` are its passes, which run after that and before TVM's legalisation, and `apart` marks kernels
    that are not to be fused. Raises LoweringError that names the node at fault.
    """
    if not isinstance(target, tvm.target.Target):
        raise TypeError("target must be a tvm.target.Target")
    function = import_partition(job, target)
    if rewrite is not None:
        function = rewrite(function)
    phase("fusing nodes to kernels")
    module = to_kernels(function, target, before, apart)
    return in_half(module, job) if job.device.half else module
