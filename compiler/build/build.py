"""Lowering of the partitions of a plan, each once, even if placement changes others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from heterocc.artifacts.errors import HeteroccError, LoweringError
from heterocc.artifacts.files.writing import atomic_write
from heterocc.artifacts.text.names import file_name
from heterocc.compiler.api.progress import Progress, Reporter
from heterocc.compiler.build.ahead import LoweringAhead
from heterocc.compiler.build.kept import lower_kept
from heterocc.compiler.build.tuning import TunedPartition
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.files.blobs import open_blobs
from heterocc.compiler.files.records import open_records
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.named_inputs import with_names
from heterocc.compiler.lower import lowering_for
from heterocc.compiler.lower.backend import LoweredPartition, PartitionJob, Tuning
from heterocc.compiler.lower.codegen.busy_cores import beside_busy_cores
from heterocc.compiler.lower.progress import watched
from heterocc.compiler.lower.tuning.timing import interleaved
from heterocc.passes.plan import Plan
from heterocc.passes.show.printer import count
from heterocc.runtime.machine.ranking import GPU_BACKENDS


@dataclass(frozen=True, slots=True)
class BuiltPlan:
    """A plan and the code of its partitions, in run order."""

    plan: Plan
    jobs: tuple[PartitionJob, ...]
    lowered: tuple[LoweredPartition, ...]

    @property
    def tuned(self) -> tuple[TunedPartition, ...]:
        """The partitions whose kernels were tuned by timing."""
        pairs = zip(self.jobs, self.lowered, strict=True)
        return tuple(TunedPartition(job.name, job.device.name, low.tuned) for job, low in pairs if low.tuned)


def jobs_of(plan: Plan, model: ImportedModel, devices: Iterable[TargetDevice]) -> tuple[PartitionJob, ...]:
    """The jobs for lowering the partitions of a plan; partition `i` has the name `p<i>`."""
    by_name = {d.name: d for d in devices}
    found = []
    for i, part in enumerate(plan.partitions):
        device, inputs = by_name[part.device], plan.inputs_of(i)
        if device.backend != "ort":
            inputs = with_names(model, part.nodes, inputs)
        found.append(PartitionJob(f"p{i}", model, device, part.nodes, inputs, plan.outputs_of(i)))
    return tuple(found)


class DoesNotLower(Exception):  # noqa: N818  # caught by the driver, which places the nodes on another device
    """A partition cannot be lowered.

    Holds its device, the nodes at fault, their message, and the error to raise if no other device can run them.
    """

    def __init__(self, device: str, nodes: tuple[str, ...], message: str, error: LoweringError) -> None:
        super().__init__(message)
        self.device, self.nodes, self.message, self.error = device, nodes, message, error


_Key = tuple[str, str | None, tuple[str, ...], tuple[str, ...], tuple[str, ...]]


class Builder:
    """Lowers partitions and caches them by device, target, nodes and interface."""

    def __init__(
        self,
        model: ImportedModel,
        devices: Iterable[TargetDevice],
        reporter: Reporter,
        *,
        ahead: LoweringAhead | None = None,
    ) -> None:
        """`ahead` lowers partitions that are likely to be built: see `begin_expected`."""
        self._ahead = ahead
        self._likely: tuple[tuple[Plan, tuple[TargetDevice, ...]], ...] = ()
        self._model = model
        self._devices = tuple(devices)
        self._reporter = reporter
        self._records = open_records("tuning")
        self._done: dict[_Key, LoweredPartition] = {}
        self._begun: dict[_Key, Future[LoweredPartition]] = {}

    def build(self, plan: Plan, devices: Iterable[TargetDevice] | None = None) -> BuiltPlan:
        """Lower every partition of `plan`, for `devices` if a variant's differ from the builder's.

        Raises DoesNotLower for the first that fails.
        """
        jobs = jobs_of(plan, self._model, self._devices if devices is None else devices)
        todo = [job for job in jobs if self._key(job) not in self._done]
        with self._reporter.stage("lowering") as progress:
            for number, job in enumerate(todo, start=1):
                part = f" {number}/{len(todo)}" if len(todo) > 1 else ""
                progress.begin(f"{job.name}{part} for {job.device.name} ({count(len(job.nodes), 'node')})")
                with watched(progress):
                    self._done[self._key(job)] = self._taken(job) or self._next(self._tuned(job, progress))
        if self._records is not None and self._records.failure is not None:
            self._reporter.note(self._records.failure)
        return BuiltPlan(plan, jobs, tuple(self._done[self._key(job)] for job in jobs))

    def expect(self, plans: Iterable[tuple[Plan, Iterable[TargetDevice]]]) -> None:
        """Set the plans, with their devices, that are likely to be built after the next check."""
        self._likely = tuple((plan, tuple(devices)) for plan, devices in plans)

    def begin_expected(self, running: PartitionJob) -> None:
        """Lower the CPU partitions of expected plans in a thread, if a GPU's driver is about to compile a partition.

        Nothing else may be lowered until `finish`: TVM's scopes of tags and of builders belong to the process.
        """
        if self._ahead is not None and running.device.backend in GPU_BACKENDS:
            for plan, devices in self._likely:
                for job in jobs_of(plan, self._model, devices):
                    key = self._key(job)
                    if job.device.backend == "cpu" and key not in self._done and key not in self._begun:
                        self._begun[key] = self._ahead.begin(partial(self._quietly, job))

    def finish(self) -> None:
        """Wait until nothing is being lowered."""
        if self._ahead is not None:
            self._ahead.finish()

    def _taken(self, job: PartitionJob) -> LoweredPartition | None:
        """A partition whose lowering was begun; None for others. Raises what the lowering raised."""
        begun = self._begun.pop(self._key(job), None)
        return None if begun is None else begun.result()

    def _next(self, job: PartitionJob) -> LoweredPartition:
        self.finish()
        return self._lower(job)

    def _quietly(self, job: PartitionJob) -> LoweredPartition:
        with beside_busy_cores(1):
            return self._lower(job)

    def _tuned(self, job: PartitionJob, progress: Progress) -> PartitionJob:
        """The job, with tuning of its kernels if the device requests it and is present."""
        if not (job.device.tunes and job.device.present):
            return job
        if self._records is None:
            self._reporter.note(f"{job.device.name}.tune=on without a cache: the next compile times its kernels again")
        return replace(job, tuning=Tuning(interleaved, self._records, progress.item))

    @staticmethod
    def _lower(job: PartitionJob) -> LoweredPartition:
        try:
            return lower_kept(job, open_blobs(), _lowered)
        except LoweringError as error:
            nodes, message = at_fault(job, _lowered)
            raise DoesNotLower(job.device.name, nodes, message or error.message, error) from error

    @staticmethod
    def _key(job: PartitionJob) -> _Key:
        return job.device.name, job.device.target_json(), job.nodes, job.inputs, job.outputs


def _lowered(job: PartitionJob) -> LoweredPartition:
    return lowering_for(job.device).lower(job)


def write_dumps(built: BuiltPlan, directory: Path, variant: str) -> None:
    """Write each partition's IR and source as `<variant>-<partition>.<what>`."""
    for job, lowered in zip(built.jobs, built.lowered, strict=True):
        for name, text in lowered.dumps:
            atomic_write(directory / f"{file_name(variant)}-{job.name}.{file_name(name)}", text)


def at_fault(job: PartitionJob, lower: Callable[[PartitionJob], object]) -> tuple[tuple[str, ...], str]:
    """The smallest sequence of the partition's nodes that cannot be lowered, found by bisection, and its error.

    `job` itself must fail to lower. If both halves can be lowered, the nodes fail only together, and all are returned.
    The error is empty if no part of `job` failed.
    """
    failed, error = job, ""
    while len(failed.nodes) > 1:
        middle = len(failed.nodes) // 2
        for half in (failed.nodes[:middle], failed.nodes[middle:]):
            part = _part(job, half)
            message = _failure(part, lower)
            if message is not None:
                failed, error = part, message
                break
        else:
            break
    return failed.nodes, error


def _failure(job: PartitionJob, lower: Callable[[PartitionJob], object]) -> str | None:
    try:
        lower(job)
    except HeteroccError as error:
        return error.message
    return None


def _part(job: PartitionJob, names: tuple[str, ...]) -> PartitionJob:
    """A partition of some consecutive nodes of another."""
    graph = job.model.graph
    nodes = [graph.node_by_name[name] for name in names]
    written = {v for n in nodes for v in n.outputs}
    inputs = [v for n in nodes for v in n.inputs if v not in written and v not in graph.constants]
    inside = frozenset(names)
    read_elsewhere = {v for n in graph.nodes if n.name not in inside for v in n.inputs}
    outputs = [v for n in nodes for v in n.outputs if v in read_elsewhere or v in graph.outputs]
    return PartitionJob(job.name, job.model, job.device, names, tuple(dict.fromkeys(inputs)), tuple(outputs))
