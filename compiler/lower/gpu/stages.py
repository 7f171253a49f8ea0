"""The steps from a partition job to scheduled kernels that all GPU back ends share."""

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
from heterocc.compiler.lower.variables import Variables

if TYPE_CHECKING:
    from tvm import tirx
    from tvm.target import Target


def _unchanged(module: KernelModule) -> KernelModule:
    return module


@dataclass(frozen=True, slots=True)
class GpuStages:
    """The parameters of lowering for one GPU API.

    `target` is a `tvm.target.Target` with a host. `alone` compiles kernels without an entry, to time them on the
    device: it takes functions by name and returns a shared object. `before` and `after` are passes over the kernels
    that run before and after scheduling.
    """

    target: Target
    limits: Limits
    alone: Callable[[Mapping[str, tirx.PrimFunc]], bytes]
    before: Callable[[KernelModule], KernelModule] = _unchanged
    after: Callable[[KernelModule], KernelModule] = _unchanged

    def run(self, job: PartitionJob) -> Stages:
        """Lower a partition to scheduled kernels. Raises LoweringError, and any exception of TVM's."""
        module = self.before(plant_fault(kernel_module(job, self.target), job))
        tuner = tuner_for(job, self.alone)
        most = Variables(job.model).most(job.model.planned)
        scheduled = self.after(schedule_kernels(module, self.target, self.limits, tuner))
        return Stages(module, scheduled, destination_passing(scheduled, most), tuner.chosen if tuner else ())
