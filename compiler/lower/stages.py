"""Code shared by the back ends that compile with TVM: reporting failures, trial lowerings, assembling results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import tvm

from heterocc.artifacts.errors import HeteroccError, LoweringError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.named_inputs import with_names
from heterocc.compiler.lower.backend import Dumps, KernelInfo, LoweredPartition, PartitionJob, Tuned
from heterocc.compiler.lower.pipeline import KernelModule
from heterocc.compiler.lower.reasons import reason_of

CPU_HINT = "list CPU after this device"
"""The hint of an error about a partition that cannot be lowered for a device other than the CPU."""


@dataclass(frozen=True, slots=True)
class Stages:
    """The intermediate forms of a partition: its kernels before and after scheduling, the module with its entry, and
    the kernels whose schedules were chosen by timing."""

    module: KernelModule
    scheduled: KernelModule
    entry: tvm.IRModule
    tuned: tuple[Tuned, ...] = ()

    def lowered(
        self,
        code: bytes,
        dumps: Iterable[tuple[str, str]] = (),
        alignment: Literal[1, 64] = 64,
        cpu_features: tuple[str, ...] = (),
        requires: tuple[str, ...] = (),
    ) -> LoweredPartition:
        """The lowered partition."""
        forms = {"kernels": self.module.mod, "scheduled": self.scheduled.mod, "entry": self.entry}
        return LoweredPartition(
            kind="tvm",
            code=code,
            params=tuple(np.asarray(a, order="C") for a in self.scheduled.arrays.values()),
            param_names=tuple(self.scheduled.arrays),
            arranged=tuple(self.scheduled.arranged.get(name) for name in self.scheduled.arrays),
            kernels=self.scheduled.kernels,
            tuned=self.tuned,
            alignment=alignment,
            dumps=Dumps(lambda: (*((f"{name}.py", _text(mod)) for name, mod in forms.items()), *dumps)),
            cpu_features=cpu_features,
            requires=requires,
        )


@contextmanager
def lowering(job: PartitionJob, advice: str = CPU_HINT) -> Iterator[None]:
    """Convert any exception of TVM's in the block to a LoweringError (HC203), with `advice` in its hint."""
    try:
        yield
    except HeteroccError:
        raise
    except Exception as error:  # TVM raises its own classes, ValueError, TypeError, KeyError …
        pass_foreign(error)
        raise LoweringError(
            f"partition {job.name} cannot be lowered for {job.device.name}: {reason_of(error)}",
            where=f"{len(job.nodes)} nodes from '{job.nodes[0]}'",
            hint=f"`--dump-dir` keeps the IR of the partition; {advice}",
        ) from error


def trial_job(model: ImportedModel, node: str, device: TargetDevice, *, trial: bool = True) -> PartitionJob:
    """A job for a partition that consists of one node."""
    found = model.graph.node_by_name[node]
    inputs = tuple(v for v in dict.fromkeys(found.inputs) if v not in model.graph.constants)
    inputs = with_names(model, (node,), inputs)
    return PartitionJob("trial", model, device, (node,), inputs, found.outputs, trial=trial)


def whole_job(model: ImportedModel, device: TargetDevice) -> PartitionJob:
    """The job for a plan's only partition: inputs in order of their first use, outputs in order of their writing."""
    graph = model.graph
    names, wanted = tuple(node.name for node in graph.nodes), set(graph.outputs)
    reads = dict.fromkeys(v for node in graph.nodes for v in node.inputs)
    inputs = tuple(v for v in reads if v not in graph.constants and v not in graph.producer)
    outputs = tuple(v for node in graph.nodes for v in node.outputs if v in wanted)
    return PartitionJob("p0", model, device, names, with_names(model, names, inputs), outputs)


def refusal(attempt: Callable[[], Any]) -> str | None:
    """The reason why an attempt to lower a node fails, in one sentence; None if it succeeds."""
    try:
        attempt()
    except HeteroccError as error:
        return error.message
    except Exception as error:  # as in `lowering`
        pass_foreign(error)
        return reason_of(error)
    return None


def node_of(function: str, kernels: Sequence[KernelInfo]) -> str | None:
    """The graph node that a device function computes; TVM names the function after the kernel that launches it."""
    longest_first = sorted((k for k in kernels if k.nodes), key=lambda k: -len(k.symbol))
    return next((k.nodes[-1] for k in longest_first if function.startswith(f"{k.symbol}_kernel")), None)


def _text(mod: tvm.IRModule) -> str:
    return str(mod.script(show_meta=False)) + "\n"
