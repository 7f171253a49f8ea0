"""Lowering for OpenCL devices: kernels in OpenCL C, host code for the CPU, weights outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import tirx

from heterocc.artifacts.errors import HeteroccError, LoweringError
from heterocc.compiler.devices.device import Device
from heterocc.compiler.imported import ImportedModel
from heterocc.compiler.lower.base import LoweredPartition, PartitionJob
from heterocc.compiler.lower.codegen import build_executable, shared_object
from heterocc.compiler.lower.fault import plant_fault
from heterocc.compiler.lower.frontend import KernelModule, destination_passing, first_line, kernel_module
from heterocc.compiler.lower.gpu.schedule import schedule_kernels, tensor_dtypes
from heterocc.compiler.lower.opencl.constants import with_double_infinities
from heterocc.compiler.lower.opencl.source import completed_source
from heterocc.compiler.lower.opencl.target import limits_of, opencl_target


class OpenclLowering:
    """The OpenCL back end: see Lowering."""

    def lower(self, job: PartitionJob) -> LoweredPartition:
        """Lower one partition to an ELF shared object that carries its kernels' source.

        Raises LoweringError (HC203), LinkerMissingError (HC406).
        """
        target = opencl_target(job.device)
        try:
            module, scheduled = _scheduled(job, target)
            entry = destination_passing(scheduled)
            with completed_source() as sources:
                executable = build_executable(entry, target)
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
            code=shared_object(executable, None),
            params=tuple(np.ascontiguousarray(a) for a in scheduled.arrays.values()),
            param_names=tuple(scheduled.arrays),
            kernels=scheduled.kernels,
            requires=_requires(scheduled),
            dumps=(
                ("kernels.py", _text(module.mod)),
                ("scheduled.py", _text(scheduled.mod)),
                ("entry.py", _text(entry)),
                *((f"{name}.cl", text) for name, text in sorted(sources.items())),
            ),
        )

    def trial(self, model: ImportedModel, node: str, device: Device) -> str | None:
        """Import, legalise and schedule the node alone, without generating code."""
        found = model.graph.node_by_name[node]
        inputs = tuple(v for v in dict.fromkeys(found.inputs) if v not in model.graph.constants)
        job = PartitionJob("trial", model, device, (node,), inputs, found.outputs, trial=True)
        try:
            _, scheduled = _scheduled(job, opencl_target(device))
            destination_passing(scheduled)
        except HeteroccError as error:
            return error.message
        except Exception as error:  # see lower
            return f"it does not lower: {first_line(error)}"
        return None


def _scheduled(job: PartitionJob, target: Any) -> tuple[KernelModule, KernelModule]:
    """The partition's kernels before and after scheduling."""
    module = plant_fault(kernel_module(job, target), job)
    return module, with_double_infinities(schedule_kernels(module, target, limits_of(job.device)))


def _requires(module: KernelModule) -> tuple[str, ...]:
    """What the kernels need of a device beyond OpenCL 1.2."""
    dtypes = {d for _, f in module.mod.functions_items() if isinstance(f, tirx.PrimFunc) for d in tensor_dtypes(f)}
    return tuple(name for dtype, name in (("float16", "fp16"), ("float64", "fp64")) if dtype in dtypes)


def _text(mod: tvm.IRModule) -> str:
    return str(mod.script(show_meta=False)) + "\n"
