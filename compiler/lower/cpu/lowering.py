"""Lowering for CPUs: LLVM code, parallel and vectorised, weights outside."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import tvm
from tvm import relax

from heterocc.artifacts.weights.layouts import CODES
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.host import code_features, host_cpu
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.named_inputs import hidden_names
from heterocc.compiler.lower.backend import Dumps, LoweredPartition, PartitionJob
from heterocc.compiler.lower.codegen.kernel_objects import KernelObjects
from heterocc.compiler.lower.codegen.shared_object import build_entries, build_executable, shared_object
from heterocc.compiler.lower.cpu.generate.candidates import Done
from heterocc.compiler.lower.cpu.generate.isa import Isa, has_pairs, isa_of
from heterocc.compiler.lower.cpu.maths.pipeline import PIPELINE
from heterocc.compiler.lower.cpu.narrow_weights import stored_types, with_narrow_weights
from heterocc.compiler.lower.cpu.programs.build import build_program, try_program
from heterocc.compiler.lower.cpu.programs.split import needs_program
from heterocc.compiler.lower.cpu.rewrites.attention import fuse_attention
from heterocc.compiler.lower.cpu.rewrites.channels_last import keep_channels_last
from heterocc.compiler.lower.cpu.rewrites.rounded_apart import rounded_apart
from heterocc.compiler.lower.cpu.schedule import schedule_kernels
from heterocc.compiler.lower.cpu.target import cpu_target, triple_of
from heterocc.compiler.lower.fault import plant_fault
from heterocc.compiler.lower.half.products import product_nodes
from heterocc.compiler.lower.pipeline import KernelModule, destination_passing, kernel_module
from heterocc.compiler.lower.relax.fusion import expansions_after_products_apart
from heterocc.compiler.lower.relax.views import joins_after_turns_apart
from heterocc.compiler.lower.stages import Stages, lowering, refusal, trial_job, whole_job
from heterocc.compiler.lower.tried import Tried
from heterocc.runtime.machine.matrix_permission import is_matrix_feature

if TYPE_CHECKING:
    from tvm.target import Target


_ADVICE = "`--devices` with ORT last makes the model compile"


class CpuLowering:
    """The CPU back end: see Lowering."""

    def lower(self, job: PartitionJob) -> LoweredPartition:
        """Lower one partition to an ELF shared object. Raises LoweringError (HC203), LinkerMissingError (HC406)."""
        target = cpu_target(job.device)
        if needs_program(job):
            return _lower_program(job, target)
        with lowering(job, _ADVICE), KernelObjects(target, PIPELINE) as objects:
            stages = _stages(job, target, objects)
            executable = build_executable(stages.entry, target, pipeline=PIPELINE, objects=objects)
        lowered = stages.lowered(
            shared_object(executable, triple_of(target)),
            cpu_features=_features(job.device, stages.scheduled.arrays.values()),
            alignment=1,
        )
        return with_narrow_weights(lowered, job)

    def trial(self, model: ImportedModel, node: str, device: TargetDevice) -> str | None:
        """Import and legalise the node alone, without writing its kernels: any kernel of arithmetic can be written."""
        job = trial_job(model, node, device, trial=False)
        # The node that computes such a size is in the same partition: all nodes that have it run on the CPU.
        hidden = hidden_names(model, job.nodes, job.inputs)
        job = dataclasses.replace(job, sizes=(hidden,) if hidden else ())
        target = cpu_target(device)
        if needs_program(job):
            return refusal(lambda: try_program(job, lambda part: _kernels(part, target)))
        return refusal(lambda: _kernels(job, target))

    def trial_whole(self, model: ImportedModel, device: TargetDevice) -> bool:
        """Import and legalise all nodes; the kernels are kept for the lowering that most likely follows."""
        job, target = whole_job(model, device), cpu_target(device)
        if needs_program(job):
            return _tried.keep(job, lambda whole: try_program(whole, lambda part: _kernels(part, target)))
        return _tried.keep(job, lambda whole: (_kernels(whole, target, in_place=True),))


_tried: Tried[tuple[KernelModule, ...]] = Tried()
"""The kernels of each part of a program, or of a whole partition."""


def _lower_program(job: PartitionJob, target: Target) -> LoweredPartition:
    """Lower a partition with branches, loops or sizes that it computes."""
    with lowering(job, _ADVICE), KernelObjects(target, PIPELINE) as objects:
        tried = iter(_tried.take(job) or ())
        known: dict[str, Done] = {}
        built = build_program(
            job,
            lambda part: plant_fault(next(tried, None) or _kernels(part, target), part),
            lambda module: _scheduled(module, job, target, objects, known, in_place=False),
        )
        entries = {part.name: part.entry for part in built.parts}
        forms = {
            f"{part.name}.{file}": mod
            for part in built.parts
            for file, mod in (("kernels", part.module.mod), ("scheduled", part.scheduled.mod), ("entry", part.entry))
        }
        executable = build_entries(
            entries, built.stores, lambda builder: built.bytecode.write(builder, "main"), target, PIPELINE, objects
        )
    lowered = LoweredPartition(
        kind="tvm",
        code=shared_object(executable, triple_of(target)),
        params=tuple(np.asarray(array, order="C") for _, array in built.arrays),
        param_names=tuple(name for name, _ in built.arrays),
        arranged=tuple(part.scheduled.arranged.get(name) for part in built.parts for name in part.scheduled.arrays),
        kernels=built.kernels,
        cpu_features=_features(job.device, (array for _, array in built.arrays)),
        alignment=1,
        sequences=built.bytecode.program.has_containers,
        dumps=Dumps(lambda: ((f"{name}.py", f"{mod.script(show_meta=False)}\n") for name, mod in forms.items())),
    )
    return with_narrow_weights(lowered, job)


def _features(device: TargetDevice, weights: Iterable[np.ndarray]) -> tuple[str, ...]:
    """The CPU features that code needs: those for matrices only with weights of bytes, as others are not multiplied so.

    A system may refuse a process the registers for them on a CPU that has them.
    """
    features = code_features(device.target or host_cpu().target)
    if any(array.dtype == np.int8 for array in weights):
        return features
    return tuple(f for f in features if not is_matrix_feature(f))


def _kernels(job: PartitionJob, target: Target, *, in_place: bool = False) -> KernelModule:
    """The unscheduled kernels; `in_place` says that results may be written into a concatenation or an output."""
    isa = _isa(job, target)
    before = [relax.backend.DispatchSortScan()]

    def apart(mod: tvm.IRModule) -> tvm.IRModule:
        mod = expansions_after_products_apart(mod, of_channels=True)
        return rounded_apart(joins_after_turns_apart(mod, outputs=True) if in_place else mod)

    return kernel_module(job, target, before, rewrite=lambda f: fuse_attention(keep_channels_last(f), isa), apart=apart)


def _isa(job: PartitionJob, target: Target) -> Isa:
    """The instruction set, with what the device's properties allow and its CPU can."""
    bfloat = job.device.rounds_products and has_pairs(target)
    return dataclasses.replace(isa_of(target), bfloat=bfloat, fast_math=job.device.fast_math)


def _scheduled(
    module: KernelModule,
    job: PartitionJob,
    target: Target,
    objects: KernelObjects,
    known: dict[str, Done] | None = None,
    *,
    in_place: bool = True,
) -> KernelModule:
    """The scheduled kernels; their compilation begins in `objects`."""
    isa = _isa(job, target)
    rounded = product_nodes(job.model, job.nodes) if isa.bfloat else ()
    return schedule_kernels(
        module,
        target,
        in_place=in_place,
        rounded=rounded,
        fast_math=isa.fast_math,
        on_kernel=objects.begin,
        known=known,
        stored=[CODES[name] for name in stored_types(job) if name != "float16" or isa.halves],
    )


def _stages(job: PartitionJob, target: Target, objects: KernelObjects) -> Stages:
    tried = _tried.take(job)
    module = plant_fault(tried[0] if tried else _kernels(job, target, in_place=True), job)
    scheduled = _scheduled(module, job, target, objects)
    return Stages(module, scheduled, destination_passing(scheduled))
