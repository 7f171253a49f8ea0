"""Lowering for CUDA devices: kernels as machine code (a cubin), host code for the CPU, weights as parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import tirx

from heterocc.artifacts.errors import DeviceError, LoweringError
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.file import CUDA_ARCH
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.lower.backend import LoweredPartition, PartitionJob
from heterocc.compiler.lower.codegen.shared_object import (
    Executable,
    build_executable,
    kernels_executable,
    shared_object,
)
from heterocc.compiler.lower.codegen.tvm_target import gpu_target
from heterocc.compiler.lower.cuda.codegen import captured_sources, packed_cubins
from heterocc.compiler.lower.cuda.toolchain import CudaCompiler, KernelRefusedError, find_compiler
from heterocc.compiler.lower.gpu.code_passes import PIPELINE
from heterocc.compiler.lower.gpu.constants import CUDA, with_exact_constants
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.gpu.stages import GpuStages
from heterocc.compiler.lower.stages import Stages, lowering, node_of, refusal, trial_job, whole_job
from heterocc.compiler.lower.tried import Tried

if TYPE_CHECKING:
    from tvm.target import Target

THREADS = 1024
"""The most threads of a block on every GPU of compute capability 2.0 or later."""

SHARED_BYTES = 48 * 1024
"""The most shared memory of a block that a kernel may declare, in bytes. Newer GPUs have more, but only on request at
the launch."""


def arch_of(device: TargetDevice) -> str:
    """The GPU architecture of a device, such as `sm_90`.

    Raises DeviceError if the device does not specify one. There is no default, as a cubin is for one architecture.
    """
    arch = device.target.get("arch")
    if not isinstance(arch, str) or CUDA_ARCH.fullmatch(arch) is None:
        raise DeviceError(
            f"device {device.name} does not specify its GPU architecture",
            where=device.target_json(),
            hint='set target.arch in its device file, for example to "sm_90"',
        )
    return arch


def limits_of(device: TargetDevice) -> Limits:
    """The limits of a device for schedules."""
    threads = int(device.target.get("max_num_threads", THREADS))  # type: ignore[arg-type]  # a number by its name
    shared = int(device.target.get("max_shared_memory_per_block", SHARED_BYTES))  # type: ignore[arg-type]
    return Limits(max(1, min(threads, THREADS)), False, device.dtypes, shared=min(shared, SHARED_BYTES))


def cuda_target(device: TargetDevice) -> Target:
    """The `tvm.target.Target` of a device, with host code for the CPU of this machine and baseline instructions.

    Raises DeviceError if TVM refuses the device's attributes.
    """
    threads = device.target.get("max_num_threads", THREADS)
    return gpu_target(
        device,
        "cuda",
        arch=arch_of(device),
        max_num_threads=threads,
        max_threads_per_block=threads,
        max_shared_memory_per_block=SHARED_BYTES,
        thread_warp_size=32,
    )


class CudaLowering:
    """The CUDA back end: see Lowering."""

    def lower(self, job: PartitionJob) -> LoweredPartition:
        """Lower one partition to an ELF shared object that contains the machine code of its kernels.

        Raises LoweringError (HC203), LinkerMissingError (HC406), CudaCompilerMissingError (HC408), DeviceError.
        """
        compiler = find_compiler(arch_of(job.device))  # first, as it fails early without a compiler
        with lowering(job):
            source = _tried.take(job) or _source(job)
            code = _exported(source, compiler, job)
        texts = enumerate(source.texts)
        return source.stages.lowered(code, ((f"kernels{i or ''}.cu", text.strip() + "\n") for i, text in texts))

    def trial(self, model: ImportedModel, node: str, device: TargetDevice) -> str | None:
        """Import, legalise and schedule the node alone, and generate its source; return the reason if that fails."""
        return refusal(lambda: _source(trial_job(model, node, device)))

    def trial_whole(self, model: ImportedModel, device: TargetDevice) -> bool:
        """Generate the source of all nodes, which is kept for the lowering that most likely follows."""
        return _tried.keep(whole_job(model, device), _source)


@dataclass(frozen=True, slots=True)
class _Source:
    """The code of a partition: its kernels, the executable that launches them, and the CUDA source of its modules, one
    or none for a partition without kernels."""

    stages: Stages
    executable: Executable
    texts: tuple[str, ...]


_tried: Tried[_Source] = Tried()


def _source(job: PartitionJob) -> _Source:
    target = cuda_target(job.device)
    stages = _stages(job, target)
    with captured_sources() as sources:
        executable = build_executable(stages.entry, target, pipeline=PIPELINE)
    return _Source(stages, executable, tuple(sources))


def _stages(job: PartitionJob, target: Target) -> Stages:
    arch = arch_of(job.device)
    return GpuStages(
        target,
        limits_of(job.device),
        alone=lambda functions: _alone(functions, target, arch),
        after=lambda module: with_exact_constants(module, CUDA),
    ).run(job)


def _alone(functions: Mapping[str, tirx.PrimFunc], target: Target, arch: str) -> bytes:
    with captured_sources() as sources:
        executable = kernels_executable(functions, target)
    compiler = find_compiler(arch)
    with packed_cubins({source: compiler.cubin(source, arch) for source in sources}):
        return shared_object(executable, None)


def _exported(source: _Source, compiler: CudaCompiler, job: PartitionJob) -> bytes:
    try:
        cubins = {text: compiler.cubin(text, arch_of(job.device)) for text in source.texts}
    except KernelRefusedError as error:
        node = node_of(error.kernel or "", source.stages.scheduled.kernels)
        raise LoweringError(
            f"a kernel for {job.device.name} cannot be compiled: {error}",
            where=f"node '{node}'" if node else f"partition {job.name}",
            hint="list another device after this one",
        ) from error
    with packed_cubins(cubins):
        return shared_object(source.executable, None)
