"""The stages that every GPU back end goes through, from a partition job to its scheduled kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heterocc.compiler.lower.backend import PartitionJob
from heterocc.compiler.lower.fault import plant_fault
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.gpu.schedule import schedule_kernels
from heterocc.compiler.lower.gpu.tuning.tune import tuner_for
from heterocc.compiler.lower.pipeline import KernelModule, destination_passing, kernel_module
from heterocc.compiler.lower.stages import Stages

if TYPE_CHECKING:
    from tvm import tirx
    from tvm.target import Target


def _unchanged(module: KernelModule) -> KernelModule:
    return module


@dataclass(frozen=True, slots=True)
class GpuStages:
    """How one API's kernels are made.

    `target` is TVM's, with a host. `alone` compiles kernels without an entry, for timing them on the device: from
    functions by name to a shared object. `before` and `after` change the kernels before and after scheduling.
    """

    target: Target
    limits: Limits
    alone: Callable[[Mapping[str, tirx.PrimFunc]], bytes]
    before: Callable[[KernelModule], KernelModule] = _unchanged
    after: Callable[[KernelModule], KernelModule] = _unchanged

    def of(self, job: PartitionJob) -> Stages:
        """Lower a partition as far as scheduled kernels. Raises LoweringError and what TVM raises."""
        module = self.before(plant_fault(kernel_module(job, self.target), job))
        tuner = tuner_for(job, self.alone)
        scheduled = self.after(schedule_kernels(module, self.target, self.limits, tuner))
        return Stages(module, scheduled, destination_passing(scheduled), tuner.chosen if tuner else ())
