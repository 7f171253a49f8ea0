"""Lowering for Vulkan devices: kernels in SPIR-V, host code for the CPU, weights as parameters."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tvm
from tvm import relax, tirx

from heterocc.artifacts.errors import LoweringError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.lower.backend import LoweredPartition, PartitionJob
from heterocc.compiler.lower.codegen.shared_object import (
    Executable,
    build_executable,
    kernels_executable,
    shared_object,
)
from heterocc.compiler.lower.gpu.code_passes import PIPELINE
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.gpu.stages import GpuStages
from heterocc.compiler.lower.gpu.tensor_limit import within_tensor_limit
from heterocc.compiler.lower.pipeline import KernelModule
from heterocc.compiler.lower.stages import Stages, lowering, node_of, refusal, trial_job, whole_job
from heterocc.compiler.lower.tried import Tried
from heterocc.compiler.lower.vulkan.codegen import device_kernels, generating
from heterocc.compiler.lower.vulkan.kernel import Feature, Kernel
from heterocc.compiler.lower.vulkan.spirv import Op
from heterocc.compiler.lower.vulkan.target import GRID, VulkanLimits, limits_of, vulkan_target

if TYPE_CHECKING:
    from tvm.target import Target

_REQUIRED: dict[Feature, str] = {
    Feature.FLOAT16: "fp16",
    Feature.FLOAT64: "fp64",
    Feature.INT8: "int8",
    Feature.INT16: "int16",
    Feature.INT64: "int64",
    Feature.STORAGE_8BIT: "storage8",
    Feature.STORAGE_16BIT: "storage16",
    Feature.SUBGROUP_ARITHMETIC: "subgroup_arithmetic",
    Feature.NAN16: "nan16",
    Feature.NAN32: "nan32",
    Feature.NAN64: "nan64",
}

_TILE = (4, 16)
_SOFTWARE_TILE = (16, 256)
"""The largest side and area of a tile of sums. lavapipe runs invocations in SIMD lanes, but does not need many of them,
and a load costs a branch per invocation, as much as fifty additions. So even a tile that spills registers is faster."""


class VulkanLowering:
    """The Vulkan back end: see Lowering."""

    def lower(self, job: PartitionJob) -> LoweredPartition:
        """Lower one partition to an ELF shared object that contains the SPIR-V of its kernels.

        Raises LoweringError (HC203), LinkerMissingError (HC406), NativePluginError (HC407).
        """
        with lowering(job):
            code = _tried.take(job) or _code(job)
        return code.stages.lowered(
            shared_object(code.executable, None),
            ((f"{kernel.name}.spvasm", disassemble(kernel.code)) for kernel in code.kernels),
            requires=_requires(code.kernels),
        )

    def trial(self, model: ImportedModel, node: str, device: TargetDevice) -> str | None:
        """Import, legalise and schedule the node alone, and generate its SPIR-V; return the reason if that fails."""
        job, target = trial_job(model, node, device), vulkan_target(device)
        return refusal(lambda: kernels_of(job, target, limits_of(device)))

    def trial_whole(self, model: ImportedModel, device: TargetDevice) -> bool:
        """Generate the code of all nodes, which is kept for the lowering that most likely follows."""
        return _tried.keep(whole_job(model, device), _code)


@dataclass(frozen=True, slots=True)
class _Code:
    """The code of a partition: its kernels, and the executable that launches them."""

    stages: Stages
    executable: Executable
    kernels: tuple[Kernel, ...]


_tried: Tried[_Code] = Tried()


def kernels_of(job: PartitionJob, target: Target, limits: VulkanLimits) -> list[Kernel]:
    """The partition's kernels without host code. It does not need the plug-in.

    Raises LoweringError, and any exception of TVM's.
    """
    scheduled = _stages(job, target, limits).scheduled
    return device_kernels(tvm.IRModule(_functions(scheduled)), target, limits)


def _stages(job: PartitionJob, target: Target, limits: VulkanLimits) -> Stages:
    """The partition's kernels before and after scheduling, without fusion if fused ones have too many buffers."""
    steps = GpuStages(target, _gpu_limits(job.device, limits), lambda functions: _alone(functions, target, limits))
    return within_tensor_limit(lambda: steps.run(job), limits.buffers)


def _alone(functions: Mapping[str, tirx.PrimFunc], target: Target, limits: VulkanLimits) -> bytes:
    with generating(limits):
        return shared_object(kernels_executable(functions, target), None)


def _gpu_limits(device: TargetDevice, limits: VulkanLimits) -> Limits:
    return Limits(
        group=limits.threads,
        vectors=False,
        dtypes=device.dtypes,
        grid=GRID,
        tile=_SOFTWARE_TILE if device.software else _TILE,
        shared=limits.shared_bytes,
        software=device.software,
        buffers=limits.buffers,
    )


def _code(job: PartitionJob) -> _Code:
    target, limits = vulkan_target(job.device), limits_of(job.device)
    stages = _stages(job, target, limits)
    with generating(limits) as generation:
        try:
            executable = build_executable(stages.entry, target, pipeline=PIPELINE)
        except Exception as error:
            pass_foreign(error)
            if generation.problem is None:
                raise
            raise _placed(generation.problem, stages.scheduled) from None
    return _Code(stages, executable, tuple(generation.kernels))


def _placed(error: LoweringError, module: KernelModule) -> LoweringError:
    """The error with the node of the kernel at fault as its place."""
    where = error.where or ""
    node = node_of(where.removeprefix("kernel '"), module.kernels) if where.startswith("kernel '") else None
    return LoweringError(error.message, where=f"node '{node}'" if node else error.where, hint=error.hint)


def _functions(module: KernelModule) -> dict[relax.GlobalVar, tirx.PrimFunc]:
    return {gvar: f for gvar, f in module.mod.functions_items() if isinstance(f, tirx.PrimFunc)}


def _requires(kernels: tuple[Kernel, ...]) -> tuple[str, ...]:
    """The optional Vulkan 1.1 features that the kernels need, by the runtime's names."""
    features = Feature(0)
    for kernel in kernels:
        features |= kernel.features
    return tuple(sorted(name for feature, name in _REQUIRED.items() if feature in features))


_HEADER = 5
_WITHOUT_RESULT = frozenset(
    [
        *(Op.NAME, Op.EXTENSION, Op.MEMORY_MODEL, Op.ENTRY_POINT, Op.EXECUTION_MODE, Op.CAPABILITY, Op.FUNCTION_END),
        *(Op.STORE, Op.DECORATE, Op.MEMBER_DECORATE, Op.CONTROL_BARRIER, Op.LOOP_MERGE, Op.SELECTION_MERGE),
        *(Op.BRANCH, Op.BRANCH_CONDITIONAL, Op.RETURN),
    ]
)
_WITHOUT_TYPE = frozenset(
    [
        *(Op.EXT_INST_IMPORT, Op.TYPE_VOID, Op.TYPE_BOOL, Op.TYPE_INT, Op.TYPE_FLOAT, Op.TYPE_VECTOR, Op.TYPE_ARRAY),
        *(Op.TYPE_RUNTIME_ARRAY, Op.TYPE_STRUCT, Op.TYPE_POINTER, Op.TYPE_FUNCTION, Op.LABEL),
    ]
)


def disassemble(code: bytes) -> str:
    """The instructions of a module as text. Operands, both ids and literals, are printed as numbers."""
    words = struct.unpack(f"<{len(code) // 4}I", code)
    lines = []
    place = _HEADER
    while place < len(words):
        op, length = Op(words[place] & 0xFFFF), words[place] >> 16
        operands = list(words[place + 1 : place + length])
        place += length
        name = "Op" + "".join(part.capitalize() for part in op.name.split("_"))
        if op in _WITHOUT_RESULT:
            lines.append(" ".join([name, *map(str, operands)]))
        elif op in _WITHOUT_TYPE:
            lines.append(" ".join([f"%{operands[0]} = {name}", *map(str, operands[1:])]))
        else:
            lines.append(" ".join([f"%{operands[1]} = {name} %{operands[0]}", *map(str, operands[2:])]))
    return "\n".join(lines) + "\n"
