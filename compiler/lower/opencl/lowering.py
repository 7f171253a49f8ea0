"""Lowering for OpenCL devices: kernels in OpenCL C, host code for the CPU, weights as parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import tvm
import tvm_ffi
from tvm import ir, tirx

from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.lower.backend import LoweredPartition, PartitionJob
from heterocc.compiler.lower.codegen.shared_object import build_executable, kernels_executable, shared_object
from heterocc.compiler.lower.codegen.tvm_target import gpu_target
from heterocc.compiler.lower.gpu.code_passes import PIPELINE
from heterocc.compiler.lower.gpu.constants import OPENCL, with_exact_constants
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.gpu.schedule import tensor_dtypes
from heterocc.compiler.lower.gpu.stages import GpuStages
from heterocc.compiler.lower.gpu.tensor_limit import check_tensor_limit, within_tensor_limit
from heterocc.compiler.lower.kernels.expressions import dtype_of
from heterocc.compiler.lower.kernels.functions.error_function import erf
from heterocc.compiler.lower.kernels.functions.lanes import FLOAT32, Lanes
from heterocc.compiler.lower.opencl.source import completed_source
from heterocc.compiler.lower.pipeline import KernelModule
from heterocc.compiler.lower.stages import Stages, lowering, refusal, trial_job, whole_job
from heterocc.compiler.lower.tried import Tried

if TYPE_CHECKING:
    from tvm.target import Target

SMALLEST_GROUP = 64
"""The most work items of a group if the device does not specify it."""

SMALLEST_SHARED = 16384
"""The shared memory of a group in bytes if the device does not specify it: half of OpenCL 1.2's minimum."""


MOST_TENSORS = 128
"""The most tensors of a kernel: OpenCL 1.2 guarantees 1024 bytes of arguments, and a pointer is 8 bytes."""


def limits_of(device: TargetDevice) -> Limits:
    """The limits of a device."""
    group = int(device.target.get("max_num_threads", SMALLEST_GROUP))  # type: ignore[arg-type]  # a number by its name
    shared = int(device.target.get("max_shared_memory_per_block", SMALLEST_SHARED))  # type: ignore[arg-type]
    processor = device.software or device.unit == "cpu"
    return Limits(max(1, group), processor, device.dtypes, shared=shared, software=processor, buffers=MOST_TENSORS)


def opencl_target(device: TargetDevice) -> Target:
    """The `tvm.target.Target` of a device, with host code for the CPU of this machine and baseline instructions.

    Raises DeviceError if TVM refuses the device's attributes.
    """
    return gpu_target(device, "opencl")


class OpenclLowering:
    """The OpenCL back end: see Lowering."""

    def lower(self, job: PartitionJob) -> LoweredPartition:
        """Lower one partition to an ELF shared object that contains the source of its kernels.

        Raises LoweringError (HC203), LinkerMissingError (HC406).
        """
        target = opencl_target(job.device)
        with lowering(job):
            stages = _tried.take(job) or _stages(job, target)
            with completed_source() as sources:
                executable = build_executable(stages.entry, target, pipeline=PIPELINE)
        return stages.lowered(
            shared_object(executable, None),
            ((f"{name}.cl", text) for name, text in sorted(sources.items())),
            requires=_requires(stages.scheduled),
        )

    def trial(self, model: ImportedModel, node: str, device: TargetDevice) -> str | None:
        """Import, legalise and schedule the node alone, without generating code; return the reason if that fails."""
        job = trial_job(model, node, device)
        return refusal(lambda: _stages(job, opencl_target(device)))

    def trial_whole(self, model: ImportedModel, device: TargetDevice) -> bool:
        """Import, legalise and schedule all nodes; the kernels are kept for the lowering that most likely follows."""
        return _tried.keep(whole_job(model, device), lambda job: _stages(job, opencl_target(device)))


_tried: Tried[Stages] = Tried()


def _stages(job: PartitionJob, target: Target) -> Stages:
    """The partition's kernels before and after scheduling. Raises LoweringError, and any exception of TVM's."""
    limits = limits_of(job.device)
    steps = GpuStages(
        target,
        limits,
        alone=lambda functions: _alone(functions, target),
        before=lambda module: erf_as_arithmetic(module) if job.device.software else module,
        after=lambda module: with_exact_constants(module, OPENCL),
    )
    stages = within_tensor_limit(lambda: steps.run(job), limits.buffers)
    check_tensor_limit(stages.scheduled, limits.buffers)
    return stages


def _alone(functions: Mapping[str, tirx.PrimFunc], target: Target) -> bytes:
    with completed_source():
        return shared_object(kernels_executable(functions, target), None)


def _requires(module: KernelModule) -> tuple[str, ...]:
    """The optional OpenCL 1.2 features that the kernels need."""
    dtypes = {d for _, f in module.mod.functions_items() if isinstance(f, tirx.PrimFunc) for d in tensor_dtypes(f)}
    return tuple(name for dtype, name in (("float16", "fp16"), ("float64", "fp64")) if dtype in dtypes)


def erf_as_arithmetic(module: KernelModule) -> KernelModule:
    """The module with every float32 error function as arithmetic, within 2 ulp (OpenCL allows 16)."""
    mod = tvm.IRModule(dict(module.mod.functions_items()), attrs=module.mod.attrs)
    for gvar, function in module.mod.functions_items():
        if isinstance(function, tirx.PrimFunc) and "T.erf(" in str(function.script(show_meta=False)):
            mod.update_func(gvar, tvm_ffi.structural_map(function, [(ir.Call, _replaced)], order="post"))
    return dataclasses.replace(module, mod=mod)


def _replaced(call: tirx.Expr) -> tirx.Expr:
    if getattr(call.op, "name", "") != "tirx.erf" or dtype_of(call) != FLOAT32:
        return call
    lanes = Lanes(1, fused=False)
    return lanes.closed(erf(lanes.argument(call.args[0])))
