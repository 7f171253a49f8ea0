"""The steps from a partition job to scheduled kernels that all GPU back ends share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heterocc.artifacts.manifest import ANY_SIZE
from heterocc.compiler.lower.backend import PartitionJob
from heterocc.compiler.lower.fault import plant_fault
from heterocc.compiler.lower.gpu.items import MOST_ITEMS, over_items
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.gpu.schedule import schedule_kernels
from heterocc.compiler.lower.gpu.tuning.tune import tuner_for
from heterocc.compiler.lower.pipeline import KernelModule, destination_passing, import_partition, kernel_module
from heterocc.compiler.lower.relax.separable import is_separable
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
        batch = self._over_batch(job)
        if batch is not None:
            return batch
        module = self.before(plant_fault(kernel_module(job, self.target), job))
        tuner = tuner_for(job, self.alone)
        most = Variables(job.model).most(job.model.planned)
        scheduled = self.after(schedule_kernels(module, self.target, self.limits, tuner))
        return Stages(module, scheduled, destination_passing(scheduled, most), tuner.chosen if tuner else ())

    def _over_batch(self, job: PartitionJob) -> Stages | None:
        """The partition as kernels for one item that run for all, if its only named dimension is a batch of these."""
        symbols = job.model.symbols
        if symbols is None or len(symbols.names) != 1:
            return None
        (name,) = symbols.names
        size, most = Variables(job.model).variable(name), job.model.planned.get(name, ANY_SIZE).max
        if most is None or most > MOST_ITEMS:
            return None
        if not is_separable(import_partition(job, self.target).mod, size.name, len(job.inputs)):
            return None
        single = dataclasses.replace(job, model=job.model.at({name: 1}))
        module = self.before(plant_fault(kernel_module(single, self.target), single))
        tuner = tuner_for(single, self.alone)
        scheduled = over_items(schedule_kernels(module, self.target, self.limits, tuner), size)
        if scheduled is None:
            return None
        scheduled = self.after(scheduled)
        entry = destination_passing(scheduled, {size.name: most})
        return Stages(module, scheduled, entry, tuner.chosen if tuner else ())
