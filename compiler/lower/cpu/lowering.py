"""Lowering for CPUs: LLVM code, parallel and vectorised, weights outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from heterocc.artifacts.errors import HeteroccError, LoweringError
from heterocc.compiler.devices.device import Device
from heterocc.compiler.devices.host import code_features, host_cpu
from heterocc.compiler.imported import ImportedModel
from heterocc.compiler.lower.base import LoweredPartition, PartitionJob
from heterocc.compiler.lower.codegen import build_executable, shared_object
from heterocc.compiler.lower.cpu.schedule import schedule_kernels
from heterocc.compiler.lower.cpu.target import cpu_target, triple_of
from heterocc.compiler.lower.fault import plant_fault
from heterocc.compiler.lower.frontend import KernelModule, destination_passing, first_line, kernel_module


class CpuLowering:
    """The CPU back end: see Lowering."""

    def lower(self, job: PartitionJob) -> LoweredPartition:
        """Lower one partition to an ELF shared object. Raises LoweringError (HC203), LinkerMissingError (HC406)."""
        target = cpu_target(job.device)
        try:
            module, scheduled = _scheduled(job, target)
            entry = destination_passing(scheduled)
            executable = build_executable(entry, target)
        except HeteroccError:
            raise
        except Exception as error:  # TVM raises its own classes, ValueError, TypeError, KeyError …
            raise LoweringError(
                f"partition {job.name} does not lower for {job.device.name}: {first_line(error)}",
                where=f"{len(job.nodes)} nodes from '{job.nodes[0]}'",
                hint="`--dump-dir` keeps what was lowered; `--devices` with ORT last makes the model compile",
            ) from error
        return LoweredPartition(
            kind="tvm",
            code=shared_object(executable, triple_of(target)),
            params=tuple(np.ascontiguousarray(a) for a in scheduled.arrays.values()),
            param_names=tuple(scheduled.arrays),
            kernels=scheduled.kernels,
            cpu_features=code_features(job.device.target or host_cpu().target),
            dumps=(
                ("kernels.py", _text(module.mod)),
                ("scheduled.py", _text(scheduled.mod)),
                ("entry.py", _text(entry)),
            ),
        )

    def trial(self, model: ImportedModel, node: str, device: Device) -> str | None:
        """Import, legalise and schedule the node alone, without generating code."""
        found = model.graph.node_by_name[node]
        inputs = tuple(v for v in dict.fromkeys(found.inputs) if v not in model.graph.constants)
        job = PartitionJob("trial", model, device, (node,), inputs, found.outputs)
        try:
            _, scheduled = _scheduled(job, cpu_target(device))
            destination_passing(scheduled)
        except HeteroccError as error:
            return error.message
        except Exception as error:  # see lower
            return f"it does not lower: {first_line(error)}"
        return None


def _scheduled(job: PartitionJob, target: Any) -> tuple[KernelModule, KernelModule]:
    """The partition's kernels before and after scheduling."""
    module = plant_fault(kernel_module(job, target, before=[relax.backend.DispatchSortScan()]), job)
    return module, schedule_kernels(module, target)


def _text(mod: tvm.IRModule) -> str:
    return str(mod.script(show_meta=False)) + "\n"
