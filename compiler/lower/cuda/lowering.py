"""Lowering for CUDA devices: kernels as machine code (a cubin), host code for the CPU, weights outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm

from heterocc.artifacts.errors import HeteroccError, LoweringError
from heterocc.compiler.devices.device import Device
from heterocc.compiler.imported import ImportedModel
from heterocc.compiler.lower.base import LoweredPartition, PartitionJob
from heterocc.compiler.lower.codegen import Executable, build_executable, shared_object
from heterocc.compiler.lower.cuda.codegen import captured_sources, packed_cubins
from heterocc.compiler.lower.cuda.target import arch_of, cuda_target, limits_of
from heterocc.compiler.lower.cuda.toolchain import CudaCompiler, KernelRefusedError, find_compiler
from heterocc.compiler.lower.fault import plant_fault
from heterocc.compiler.lower.frontend import KernelModule, destination_passing, first_line, kernel_module
from heterocc.compiler.lower.gpu.schedule import schedule_kernels


class CudaLowering:
    """The CUDA back end: see Lowering."""

    def lower(self, job: PartitionJob) -> LoweredPartition:
        """Lower one partition to an ELF shared object that carries its kernels' machine code.

        Raises LoweringError (HC203), LinkerMissingError (HC406), CudaCompilerMissingError (HC408), DeviceError.
        """
        target = cuda_target(job.device)
        compiler = find_compiler()  # first: without one the rest is in vain
        try:
            module, scheduled = _scheduled(job, target)
            entry = destination_passing(scheduled)
            executable, sources = _built(entry, target)
            code = _exported(executable, sources, compiler, job, scheduled)
        except HeteroccError:
            raise
        except Exception as error:  # TVM raises its own classes, ValueError, TypeError, KeyError …
            raise LoweringError(
                f"partition {job.name} does not lower for {job.device.name}: {first_line(error)}",
                where=f"{len(job.nodes)} nodes from '{job.nodes[0]}'",
                hint="`--dump-dir` keeps what was lowered; list CPU behind the device to keep the model compiling",
            ) from error
        return LoweredPartition(
            kind="tvm",
            code=code,
            params=tuple(np.ascontiguousarray(a) for a in scheduled.arrays.values()),
            param_names=tuple(scheduled.arrays),
            kernels=scheduled.kernels,
            dumps=(
                ("kernels.py", _text(module.mod)),
                ("scheduled.py", _text(scheduled.mod)),
                ("entry.py", _text(entry)),
                *((f"kernels{i or ''}.cu", text.strip() + "\n") for i, text in enumerate(sources)),
            ),
        )

    def trial(self, model: ImportedModel, node: str, device: Device) -> str | None:
        """Import, legalise and schedule the node alone, and generate its code, without compiling it."""
        found = model.graph.node_by_name[node]
        inputs = tuple(v for v in dict.fromkeys(found.inputs) if v not in model.graph.constants)
        job = PartitionJob("trial", model, device, (node,), inputs, found.outputs, trial=True)
        try:
            target = cuda_target(device)
            _, scheduled = _scheduled(job, target)
            _built(destination_passing(scheduled), target)
        except HeteroccError as error:
            return error.message
        except Exception as error:  # see lower
            return f"it does not lower: {first_line(error)}"
        return None


def _scheduled(job: PartitionJob, target: Any) -> tuple[KernelModule, KernelModule]:
    """The partition's kernels before and after scheduling."""
    module = plant_fault(kernel_module(job, target), job)
    return module, schedule_kernels(module, target, limits_of(job.device))


def _built(entry: tvm.IRModule, target: Any) -> tuple[Executable, tuple[str, ...]]:
    """The executable and the CUDA source of its modules: one, or none where a partition has no kernels."""
    with captured_sources() as sources:
        return build_executable(entry, target), tuple(sources)


def _exported(
    executable: Executable,
    sources: tuple[str, ...],
    compiler: CudaCompiler,
    job: PartitionJob,
    module: KernelModule,
) -> bytes:
    try:
        cubins = {source: compiler.cubin(source, arch_of(job.device)) for source in sources}
    except KernelRefusedError as error:
        names = sorted((k for k in module.kernels if k.nodes), key=lambda k: -len(k.symbol))
        node = next((k.nodes[-1] for k in names if (error.kernel or "").startswith(f"{k.symbol}_kernel")), None)
        raise LoweringError(
            f"a kernel for {job.device.name} does not compile: {error}",
            where=f"node '{node}'" if node else f"partition {job.name}",
            hint="give the node to another device",
        ) from error
    with packed_cubins(cubins):
        return shared_object(executable, None)


def _text(mod: tvm.IRModule) -> str:
    return str(mod.script(show_meta=False)) + "\n"
