"""The check of a compile: compares every partition with ONNX Runtime, and traces errors to their nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from heterocc.artifacts.dtypes import container
from heterocc.artifacts.errors import BundleError, HeteroccError, InputError, InputValueError, LoweringError
from heterocc.artifacts.weights.weight_file import Draft
from heterocc.compiler.api.progress import Reporter
from heterocc.compiler.build.build import BuiltPlan
from heterocc.compiler.build.pack import Piece, VariantParts, pack
from heterocc.compiler.checking.bisect import beyond_half, first_wrong_kernel
from heterocc.compiler.checking.branches import branches, other_branches
from heterocc.compiler.checking.compare import FLOAT32, Difference, Tolerance
from heterocc.compiler.checking.judge import Judge
from heterocc.compiler.checking.locally import wrong_on_its_own_inputs
from heterocc.compiler.checking.memory import Memory
from heterocc.compiler.checking.precision_cost import PrecisionCost, cost_of
from heterocc.compiler.checking.reference import Reference
from heterocc.compiler.checking.verdict import CheckResult, Fault, Right, Unchecked, Verdict, Wrong, joined
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.files.scratch import scratch_folder
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.named_inputs import with_names
from heterocc.compiler.importer.random_nodes import random_values
from heterocc.compiler.lower import lowering_for
from heterocc.compiler.lower.backend import LoweredPartition, PartitionJob
from heterocc.compiler.lower.half.policy import LARGEST
from heterocc.passes.show.printer import count
from heterocc.runtime import Session, load


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a partition: the difference of each output, the cost and the binaries as in Right."""

    differences: tuple[Difference, ...]
    cost: PrecisionCost | None
    binaries: bytes

    @property
    def wrong(self) -> Difference | None:
        """The first output that differs."""
        return next((d for d in self.differences if not d.ok), None)

    @property
    def unseen(self) -> tuple[str, ...]:
        """The reasons of the outputs whose comparison proves nothing."""
        return tuple(d.unchecked for d in self.differences if d.unchecked)


class Checker:
    """Runs each partition alone on the reference's values, so that errors do not accumulate along the chain.

    `feed` holds the graph's inputs by internal name, `known` values that ONNX Runtime computed from them in one run.
    Code that was checked before is not run again; `memory` has the verdicts of earlier compiles for the same inputs.
    `draft` gets the bundle of the first partition that runs. `before_running` is called with each partition before it
    runs, `before_lowering` before a node is lowered alone. With `of_branch` only the input that chooses a branch was
    changed, so the other inputs may not fit this branch: an InputValueError of a run is raised, and says nothing about
    the code.
    """

    def __init__(
        self,
        model: ImportedModel,
        feed: Mapping[str, Any],
        reporter: Reporter,
        base: Tolerance = FLOAT32,
        known: Mapping[str, Any] | None = None,
        memory: Memory | None = None,
        draft: Draft | None = None,
        before_running: Callable[[PartitionJob], None] = lambda job: None,
        before_lowering: Callable[[], None] = lambda: None,
        of_branch: bool = False,
    ) -> None:
        self._model = model
        self._of_branch = of_branch
        self._before_running = before_running
        self._before_lowering = before_lowering
        self._feed = dict(feed)
        self._known = dict(known or {})
        self._reporter = reporter
        self._base = base
        self._memory = memory
        self._draft = draft
        self._remembered: set[LoweredPartition] = set()
        self._verdicts: dict[LoweredPartition, Verdict] = {}
        self._others: dict[str, Checker] = {}
        self._said: set[str] = set()

    def check(self, built: BuiltPlan) -> CheckResult:
        """Compare every partition that can run here with ONNX Runtime."""
        pairs = tuple(zip(built.jobs, built.lowered, strict=True))
        self._compare(pairs, sum(len(job.nodes) for job in built.jobs) if len(built.jobs) > 1 else None)
        known = tuple(job.name for job, lowered in pairs if lowered in self._remembered)
        verdicts = tuple(self._verdicts[lowered] for _, lowered in pairs)
        found = self._with_other_branches(CheckResult(built.jobs, verdicts, remembered=known), pairs)
        return found if found.faults else replace(found, costs=self._costs(built, found))

    def _compare(self, pairs: Sequence[tuple[PartitionJob, LoweredPartition]], nodes: int | None) -> None:
        """Find the verdict on each partition; `nodes` is the number to show, if any."""
        for job, lowered in pairs:
            self._remember(job, lowered)
        values = self._border_values([job for job, lowered in pairs if lowered not in self._verdicts])
        with self._reporter.stage("checking", nodes) as progress:
            for job, lowered in pairs:
                progress.begin(f"{job.name} on {job.device.name} ({count(len(job.nodes), 'node')}), running it")
                if lowered not in self._verdicts:
                    self._verdicts[lowered] = self._verdict(job, lowered, values)
                    if self._memory is not None:
                        self._memory.keep_verdict(job, lowered, self._verdicts[lowered])
                progress.step(steps=len(job.nodes))

    def _with_other_branches(
        self, found: CheckResult, pairs: Sequence[tuple[PartitionJob, LoweredPartition]]
    ) -> CheckResult:
        """The verdicts after further runs that take other branches of the partitions that were right."""
        forks = {node.name for node in self._model.proto.graph.node if branches(node)}
        verdicts = {pair[1]: verdict for pair, verdict in zip(pairs, found.verdicts, strict=True)}
        for name, feed in other_branches(self._model, self._feed):
            some = [
                (job, lowered)
                for job, lowered in pairs
                if isinstance(verdicts[lowered], Right) and not job.device.last_resort
                if not forks.isdisjoint(job.nodes)
            ]
            other = self._others.setdefault(name, self._for(name, feed))
            try:
                other._compare(some, None)
            except InputError as error:  # the branch needs other inputs, too
                source = self._model.sources.get(name, name)
                text = f"the branch for {source} = {feed[name].item()} is not checked: {error.message}"
                if text not in self._said:
                    self._reporter.note(text)
                self._said.add(text)
            # If the inputs did not fit a partition, only those before it have verdicts.
            verdicts |= {pair[1]: v for pair in some if isinstance(v := other._verdicts.get(pair[1]), Wrong)}
        return replace(found, verdicts=tuple(verdicts[lowered] for _, lowered in pairs))

    def _for(self, name: str, feed: Mapping[str, Any]) -> Checker:
        """A checker for inputs in which another branch of this name is chosen."""
        memory = None if self._memory is None else self._memory.of_branch(name)
        return Checker(
            self._model,
            feed,
            self._reporter,
            self._base,
            memory=memory,
            before_running=self._before_running,
            before_lowering=self._before_lowering,
            of_branch=True,
        )

    def _remember(self, job: PartitionJob, lowered: LoweredPartition) -> None:
        """Take the verdict of an earlier compile on a partition, if there is one."""
        if self._memory is not None and lowered not in self._verdicts and job.device.present:
            found = self._memory.verdict(job, lowered)
            if found is not None:
                self._verdicts[lowered] = found
                self._remembered.add(lowered)

    def _border_values(self, jobs: Sequence[PartitionJob]) -> dict[str, Any]:
        names = dict.fromkeys(v for job in jobs for v in (*job.inputs, *job.outputs))
        if all(name in self._feed or name in self._known for name in names):
            return {**self._known, **self._feed}
        return {**self._feed, **Reference(self._model, list(names)).run(self._feed)}

    def _cannot_check(self, job: PartitionJob, values: Mapping[str, Any]) -> str | None:
        if not job.device.present:
            return "the device is not on this machine; verify the bundle on one that has it"
        types = self._model.graph.values
        if any(not isinstance(values[v], np.ndarray) and not container(types[v].dtype) for v in job.inputs):
            return "it reads a value that is not a tensor"
        return None

    def _verdict(self, job: PartitionJob, lowered: LoweredPartition, values: Mapping[str, Any]) -> Verdict:
        reason = self._cannot_check(job, values)
        if reason is not None:
            return Unchecked(reason)
        run = self._run(job, lowered, values)
        if isinstance(run, HeteroccError):
            return self._blame(job, lowered, values, run)
        if run.wrong is not None:
            if job.device.last_resort:
                # ONNX Runtime against itself, with and without its fusions: both are right, and no device is left.
                reason = f"ONNX Runtime's own fusions change {run.wrong.name}: {run.wrong.reason}"
                return Unchecked(reason, run.cost, run.binaries)
            if self._amplifies(job, lowered, values, run):
                return Right((), run.cost, run.binaries)
            beyond = self._beyond_half(job, lowered, values) if job.device.half else ()
            return Wrong(beyond) if beyond else self._blame(job, lowered, values, run.wrong)
        if len(run.unseen) == len(run.differences):
            return Unchecked(joined(run.unseen), run.cost, run.binaries)
        random = random_values(self._model, job.nodes)
        unseen = run.unseen if any(name in random for name in job.outputs) else ()
        return Right(unseen, run.cost, run.binaries)

    def _amplifies(self, job: PartitionJob, lowered: LoweredPartition, values: Mapping[str, Any], run: _Run) -> bool:
        """Whether wrong results are rounding that the model amplifies: each kernel is right on what it reads.

        Results are doubted only if they depend on quantised values or on choices such as that of the largest number, or
        if a perturbed reference is as wrong: the sine of a phase of many turns.
        """
        if lowered.kind != "tvm" or not _written_inside(lowered):
            return False
        judge = self._judge(job, values, job.outputs)
        wrong = [d.name for d in run.differences if not d.ok]
        if not all(judge.is_coarse(n) or judge.is_decided(n) or judge.is_amplified(n, values[n]) for n in wrong):
            return False
        feed = {name: values[name] for name in job.inputs}
        with self._bundle(job, lowered) as bundle, load(bundle) as session:
            found = wrong_on_its_own_inputs(session, job, feed, judge)
        return found is None

    def _blame(
        self, job: PartitionJob, lowered: LoweredPartition, values: Mapping[str, Any], found: Difference | HeteroccError
    ) -> Wrong:
        """The node at fault, or all suspects if they fail only together."""
        suspects, error = self._suspects(job, lowered, values, found)
        for name in suspects:
            alone = self._alone(job.device, name)
            if alone is not None:
                return Wrong((Fault(job.device.name, (name,), alone),))
        # Each is right alone, but they are wrong together: all nodes of the fused kernel must move.
        return Wrong((Fault(job.device.name, suspects, error),))

    def _run(self, job: PartitionJob, lowered: LoweredPartition, values: Mapping[str, Any]) -> _Run | HeteroccError:
        """Run a partition and compare its outputs; returns the error if the run raises one."""
        binaries = b""
        try:
            with self._bundle(job, lowered) as bundle, self._running(job, bundle) as session:
                results = session.run({name: values[name] for name in job.inputs})
                if job.device.keeps_binaries:  # after the run: PoCL compiles for the sizes of launches
                    binaries = session.kernel_binaries().get(job.name, b"")
        except InputValueError as error:
            if self._of_branch:
                raise
            return error  # ONNX Runtime computes with these values
        except (InputError, BundleError):  # of the environment: no memory files, no /proc
            raise
        except HeteroccError as error:
            return error
        judge = self._judge(job, values, job.outputs)
        found = tuple(judge.compare(name, results[name], values[name]) for name in job.outputs)
        short = job.device.half or job.device.rounds_products
        cost = cost_of((job.device.name,), job.name, found, values, _precision([job])) if short else None
        return _Run(found, cost, binaries)

    def _running(self, job: PartitionJob, path: Path) -> Session:
        self._before_running(job)
        return load(path)

    def _costs(self, built: BuiltPlan, found: CheckResult) -> tuple[PrecisionCost, ...]:
        """The cost of half precision for each partition and, if all of them were compared, for the model's outputs."""
        costs = [
            replace(verdict.cost, partition=job.name)
            for job, verdict in zip(built.jobs, found.verdicts, strict=True)
            if not isinstance(verdict, Wrong) and verdict.cost is not None
        ]
        if any(job.device.half or job.device.rounds_products for job in built.jobs) and not found.unchecked:
            # One partition is the whole model.
            whole = [replace(c, partition=None) for c in costs] if len(built.jobs) == 1 else self._whole_cost(built)
            costs += whole
        return tuple(replace(cost, value=self._model.sources.get(cost.value, cost.value)) for cost in costs)

    def _whole_cost(self, built: BuiltPlan) -> list[PrecisionCost]:
        """The cost for the model's outputs, of all partitions in turn; warns if rounding does not explain it."""
        graph = self._model.graph
        pieces = [Piece(job, lowered) for job, lowered in zip(built.jobs, built.lowered, strict=True)]
        with self._packed(pieces, graph.inputs, graph.outputs) as bundle, load(bundle) as session:
            results = session.run({name: self._feed[name] for name in graph.inputs})
        expected = Reference(self._model, graph.outputs).run(self._feed)
        halved = [job for job in built.jobs if job.device.half or job.device.rounds_products]
        half = [name for job in halved if job.device.half for name in job.nodes]
        paired = [name for job in halved if job.device.rounds_products for name in job.nodes]
        judge = Judge(self._plain(), self._feed, graph.outputs, base=self._base, half=half, paired=paired)
        found = [judge.compare(name, results[name], expected[name]) for name in graph.outputs]
        for difference in found:
            if not difference.ok:
                self._reporter.warn(f"half precision changes the output '{difference.name}': {difference.reason}")
        names = tuple(dict.fromkeys(job.device.name for job in halved))
        cost = cost_of(names, None, found, expected, _precision(halved))
        return [cost] if cost is not None else []

    def _beyond_half(
        self, job: PartitionJob, lowered: LoweredPartition, values: Mapping[str, Any]
    ) -> tuple[Fault, ...]:
        """The nodes whose values are stored in float16 between kernels but exceed its range."""
        graph, feed = self._model.graph, {name: values[name] for name in job.inputs}
        inside = [v for v in _written_inside(lowered) if v in graph.producer]
        if not inside:
            return ()
        expected = Reference(self._model, inside, nodes=job.nodes, inputs=job.inputs).run(feed)
        with self._bundle(job, lowered) as bundle, load(bundle) as session:
            found = beyond_half(session, feed, job.name, expected)
        return tuple(
            Fault(job.device.name, (graph.producer[v],), f"{v} reaches {largest:.4g}; float16 ends at {LARGEST:.0f}")
            for v, largest in found.items()
        )

    def _suspects(
        self, job: PartitionJob, lowered: LoweredPartition, values: Mapping[str, Any], found: Difference | HeteroccError
    ) -> tuple[tuple[str, ...], str]:
        """The nodes that may be at fault, in graph order, and the error."""
        if isinstance(found, HeteroccError):
            return job.nodes, found.message
        error = f"{found.name} {found.reason}"
        inside = [v for v in _written_inside(lowered) if v in self._model.graph.producer]
        if lowered.kind == "tvm" and inside:
            feed = {name: values[name] for name in job.inputs}
            wanted = list(dict.fromkeys((*inside, *job.outputs)))
            expected = Reference(self._model, wanted, nodes=job.nodes, inputs=job.inputs).run(feed)
            with self._bundle(job, lowered) as bundle, load(bundle) as session:
                culprit = first_wrong_kernel(session, feed, job.name, expected, self._judge(job, feed, wanted))
            if culprit is not None:
                nodes = next(k.nodes for k in lowered.kernels if k.symbol == culprit.kernel)
                return nodes, f"{culprit.difference.name} {culprit.difference.reason}"
        return job.nodes, error

    def _alone(self, device: TargetDevice, name: str) -> str | None:
        """The error of one node compiled alone for the device, or None."""
        node = self._model.graph.node_by_name[name]
        inputs = tuple(v for v in dict.fromkeys(node.inputs) if v not in self._model.graph.constants)
        if device.backend != "ort":
            inputs = with_names(self._model, (name,), inputs)
        job = PartitionJob("p0", self._model, device, (name,), inputs, node.outputs)
        values = {**self._feed, **Reference(self._model, [*inputs, *node.outputs]).run(self._feed)}
        if self._cannot_check(job, values) is not None:
            return None
        self._before_lowering()
        try:
            lowered = lowering_for(device).lower(job)
        except LoweringError:
            return None  # beside other nodes it can be lowered, so this says nothing about its result
        try:
            run = self._run(job, lowered, values)
        except HeteroccError as error:
            return error.message
        if isinstance(run, HeteroccError):
            return run.message
        return None if run.wrong is None else f"{run.wrong.name} {run.wrong.reason}"

    def _judge(self, job: PartitionJob, values: Mapping[str, Any], names: Sequence[str]) -> Judge:
        feed = {name: values[name] for name in job.inputs}
        half = job.nodes if job.device.half else ()
        paired = job.nodes if job.device.rounds_products else ()
        return Judge(self._plain(), feed, names, job.nodes, job.inputs, self._base, half=half, paired=paired)

    def _plain(self) -> ImportedModel:
        """The model with internal names only, because values between partitions have no user-visible names."""
        return replace(self._model, sources={}, dimensions={}, defaults={})

    def _bundle(self, job: PartitionJob, lowered: LoweredPartition) -> AbstractContextManager[Path]:
        return self._packed([Piece(job, lowered)], job.inputs, job.outputs)

    @contextmanager
    def _packed(self, pieces: Sequence[Piece], inputs: Sequence[str], outputs: Sequence[str]) -> Iterator[Path]:
        """A bundle of some partitions: the draft if it is not written yet, else a file that is removed."""
        devices = tuple({piece.job.device.name: piece.job.device for piece in pieces}.values())
        parts = [VariantParts("check", devices, tuple(pieces), tuple(inputs), tuple(outputs), "", "")]
        draft, self._draft = self._draft, None
        if draft is not None:
            pack(draft.target, self._plain(), parts, into=draft)
            assert draft.path is not None
            yield draft.path
            return
        with scratch_folder("check") as folder:
            pack(folder / "check.hcb", self._plain(), parts, durable=False)
            yield folder / "check.hcb"


def _precision(jobs: Sequence[PartitionJob]) -> str:
    """The precision of the devices of some partitions, not all of them float32."""
    return " and ".join(sorted({"f16" if job.device.half else "bf16" for job in jobs}))


def _written_inside(lowered: LoweredPartition) -> list[str]:
    """The graph values that kernels write, without duplicates, in run order."""
    return list(dict.fromkeys(v for k in lowered.kernels for v in k.outputs))
