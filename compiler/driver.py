"""One compile, from the model to the bundle: import, query, place, lower, check, pack."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from heterocc.artifacts.errors import InputError, OutputFileError, UnsupportedOpError, WrongResultError
from heterocc.compiler.affinity import affinity_from, write_affinity_file
from heterocc.compiler.build import Builder, BuiltPlan, DoesNotLower, write_dumps
from heterocc.compiler.check import Checker, CheckResult, Wrong
from heterocc.compiler.devices.device import Device
from heterocc.compiler.devices.names import resolve_devices
from heterocc.compiler.feed import feed_for
from heterocc.compiler.files import atomic_write
from heterocc.compiler.imported import ImportedModel
from heterocc.compiler.onnx_import import import_model
from heterocc.compiler.options import CompileOptions
from heterocc.compiler.pack import GoldenVectors, Piece, VariantParts, pack
from heterocc.compiler.pipeline import Trace, require_placed, run_pipeline
from heterocc.compiler.precision_cost import PrecisionCost, told
from heterocc.compiler.query import QueryResult, machine, precisions_of, query_model
from heterocc.compiler.reference import Reference
from heterocc.compiler.report import CompileReport, Moved, Reporter
from heterocc.passes.affinity import Affinity
from heterocc.passes.base import Pass, parse_pipeline, policy_pipeline
from heterocc.passes.dot import dot_files
from heterocc.passes.plan import Plan
from heterocc.passes.printer import print_plan, summary


def compile_model(
    model: str | Path,
    output: str | Path | None = None,
    options: CompileOptions | None = None,
    reporter: Reporter | None = None,
    **overrides: Any,
) -> CompileReport:
    """Compile an ONNX model into a bundle; `overrides` are fields of CompileOptions.

    `output` defaults to the model's name with `.hcb` in the current directory. Stops early where
    `options.stop_after` says so; the report's `output` is None then.
    Raises a HeteroccError for whatever the user can mend.
    """
    options = replace(options or CompileOptions(), **_normalised(overrides))
    path = Path(model)
    target = Path(output) if output is not None else Path(f"{path.stem}.hcb")
    if options.stop_after is None or options.stop_after == "pack":
        _require_directory(target)
    job = _prepare(path, options, reporter or Reporter())
    if options.stop_after == "import":
        plan = Plan.initial(job.model.graph, machine(job.model, job.devices, job.query))
        return job.report(plan, f"{len(job.model.graph.nodes)} nodes imported")
    return job.compile(target)


def partition_model(
    model: str | Path,
    options: CompileOptions | None = None,
    reporter: Reporter | None = None,
    *,
    write_affinity: Path | None = None,
    **overrides: Any,
) -> CompileReport:
    """Place the model's nodes and stop before lowering."""
    options = replace(options or CompileOptions(), **_normalised(overrides))
    job = _prepare(Path(model), options, reporter or Reporter())
    plan = job.place(job.devices, job.affinity)
    job.write_dot(plan)
    if write_affinity is not None:
        write_affinity_file(plan, write_affinity)
    return job.report(plan, summary(plan))


def query_devices(model: str | Path, options: CompileOptions, reporter: Reporter | None = None) -> QueryResult:
    """Ask every listed device about every node."""
    return _prepare(Path(model), options, reporter or Reporter()).query


def _normalised(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Python callers may write `devices="GPU,CPU"` and `affinity="file.toml"`."""
    fields = dict(overrides)
    if isinstance(fields.get("devices"), str):
        fields["devices"] = (fields["devices"],)
    if isinstance(fields.get("affinity"), str):
        fields["affinity"] = Path(fields["affinity"])
    return fields


def _require_directory(target: Path) -> None:
    """Refuse an output that cannot be written before minutes of work go into it."""
    if target.is_dir():
        raise OutputFileError("the output is a directory", where=str(target), hint="name a file ending in .hcb")
    if not target.parent.is_dir():
        raise OutputFileError(f"there is no directory '{target.parent}'", where=str(target), hint="create it first")


def _prepare(path: Path, options: CompileOptions, reporter: Reporter) -> _Job:
    """Import the model, resolve the devices and query them; what is wrong with the options is told first."""
    seconds: dict[str, float] = {}
    affinity = affinity_from(options.affinity)
    passes = policy_pipeline(options.policy) if options.passes is None else parse_pipeline(options.passes)
    trace = Trace(options.dump_dir, options.pass_limit, options.stop_after)
    with reporter.stage(f"importing {path.name}"), _timed(seconds, "import"):
        model = import_model(path, shapes=options.shapes)
    devices, notes = resolve_devices(
        tuple(options.devices),
        options.device_files,
        options.properties,
        precisions=precisions_of(model.graph),
    )
    for note in (*model.notes, *notes):
        reporter.note(note)
    with reporter.stage("querying devices", len(model.graph.nodes)) as progress, _timed(seconds, "query"):
        query = query_model(model, devices, on_node=progress.step)
    for note in query.notes:
        reporter.note(note)
    return _Job(options, reporter, model, devices, query, affinity, passes, trace, seconds)


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start


@dataclass
class _Job:
    """One command at work. `wrong` collects what the check found, by device and node; placement avoids it."""

    options: CompileOptions
    reporter: Reporter
    model: ImportedModel
    devices: tuple[Device, ...]
    query: QueryResult
    affinity: Affinity
    passes: tuple[Pass, ...]
    trace: Trace
    seconds: dict[str, float]
    wrong: dict[str, dict[str, str]] = field(default_factory=dict)
    unchecked: list[str] = field(default_factory=list)
    moved: list[Moved] = field(default_factory=list)
    costs: list[tuple[str, PrecisionCost]] = field(default_factory=list)

    def place(self, devices: tuple[Device, ...], affinity: Affinity, variant: str = "") -> Plan:
        """Run the passes for some of the devices; what the check found wrong counts as refused."""
        with self.reporter.stage("placing"), _timed(self.seconds, "partition"):
            seen = machine(self.model, devices, self.query)
            refusals = {d.name: {**seen.refusals.get(d.name, {}), **self.wrong.get(d.name, {})} for d in devices}
            initial = Plan.initial(self.model.graph, replace(seen, refusals=refusals), affinity)
            return run_pipeline(initial, self.passes, self.trace, variant=variant)

    def compile(self, target: Path) -> CompileReport:
        """Place, lower, check and pack all variants."""
        plan = self.place(self.devices, self.affinity)
        self.write_dot(plan)
        if self.options.stop_after == "partition":
            return self.report(plan, summary(plan))
        require_placed(plan)
        feed, expected = self._vectors()
        builder = Builder(self.model, self.devices, self.reporter)
        checker = Checker(self.model, feed, self.reporter) if feed is not None and self.options.check else None
        main = self._build(builder, checker, plan, self.devices, self.affinity, "main")
        built = [("main", main)]
        cpu = self._cpu_variant(builder, checker, main[0].plan)
        if cpu is not None:
            built.append(("cpu", cpu))
        if self.options.dump_dir is not None:
            for name, (parts, _) in built:
                write_dumps(parts, self.options.dump_dir, name)
        if self.options.stop_after == "lower":
            return self.report(main[0].plan, summary(main[0].plan))
        variants = [self._parts(name, parts, checks) for name, (parts, checks) in built]
        golden = None
        if feed is not None and expected is not None:
            golden = GoldenVectors(self.options.seed, feed, expected)
        with self.reporter.stage("packing"), _timed(self.seconds, "pack"):
            texts = {f"graphs/{name}": text for name, text in dot_files(main[0].plan).items()}
            pack(target, self.model, variants, golden=golden, texts=texts)
        report = self.report(main[0].plan, summary(main[0].plan))
        return replace(report, output=target, size=target.stat().st_size, variants=tuple(v.name for v in variants))

    def _vectors(self) -> tuple[dict[str, Any] | None, dict[str, np.ndarray[Any, Any]] | None]:
        """Inputs for check and golden vectors, and ONNX Runtime's outputs; None, with a note, where that fails."""
        try:
            with self.reporter.stage("running ONNX Runtime"), _timed(self.seconds, "reference"):
                feed = feed_for(self.model, self.options.inputs, self.options.seed)
                outputs = Reference(self.model, self.model.graph.outputs).run(feed)
        except InputError as error:
            if self.options.inputs is not None:
                raise
            self.reporter.warn(f"nothing is checked and the bundle has no golden vectors: {error.message}")
            self.unchecked.append(f"all: {error.message}")
            return None, None
        tensors = {n: v for n, v in outputs.items() if isinstance(v, np.ndarray) and v.dtype != object}
        return feed, tensors

    def _build(
        self,
        builder: Builder,
        checker: Checker | None,
        plan: Plan,
        devices: tuple[Device, ...],
        affinity: Affinity,
        variant: str,
    ) -> tuple[BuiltPlan, CheckResult | None]:
        """Lower and check; a wrong node goes to the next device, and all is placed again."""
        while True:
            try:
                with _timed(self.seconds, "lower"):
                    built = builder.build(plan)
            except DoesNotLower as failed:
                plan = self._without(failed, plan, devices, affinity, variant)
                continue
            if checker is None:
                return built, None
            with _timed(self.seconds, "check"):
                checks = checker.check(built)
            if not checks.wrong:
                for text in checks.unchecked:
                    self.reporter.note(f"not checked: {text}")
                    self.unchecked.append(f"{variant}: {text}")
                for text in told(checks.costs):
                    self.reporter.note(text)
                self.costs += [(variant, cost) for cost in checks.costs]
                return built, checks
            for wrong in checks.wrong:
                for name in wrong.nodes:
                    self.wrong.setdefault(wrong.device, {})[name] = f"it computed a wrong result: {wrong.error}"
            before = plan
            try:
                plan = self.place(devices, affinity, "" if variant == "main" else variant)
            except UnsupportedOpError as error:
                raise WrongResultError(error.message, where=error.where, hint=error.hint) from error
            self._tell_moved(checks.wrong, before, plan)

    def _without(
        self, failed: DoesNotLower, plan: Plan, devices: tuple[Device, ...], affinity: Affinity, variant: str
    ) -> Plan:
        """The plan with what does not lower on other devices. Raises the LoweringError where none takes it."""
        for name in failed.nodes:
            self.wrong.setdefault(failed.device, {})[name] = f"it does not compile: {failed.told}"
        try:
            after = self.place(devices, affinity, "" if variant == "main" else variant)
        except UnsupportedOpError as error:
            raise failed.error from error
        self._tell_moved((Wrong(failed.device, failed.nodes, failed.told),), plan, after, "does not compile")
        return after

    def _tell_moved(
        self, found: tuple[Wrong, ...], before: Plan, after: Plan, what: str = "computes a wrong result"
    ) -> None:
        for wrong in found:
            for name in wrong.nodes:
                node = self.model.graph.node_by_name[name]
                source, target = before.device_of[name], after.device_of[name]
                self.moved.append(Moved(node.label, node.op_type, source, target, wrong.error))
            first = self.model.graph.node_by_name[wrong.nodes[0]]
            others = f" (with {len(wrong.nodes) - 1} other nodes)" if len(wrong.nodes) > 1 else ""
            path = f"on {wrong.device} and goes to {after.device_of[wrong.nodes[0]]}"
            self.reporter.warn(f"{first.op_type} '{first.label}'{others} {what} {path}: {wrong.error}")

    def _cpu_variant(
        self, builder: Builder, checker: Checker | None, main: Plan
    ) -> tuple[BuiltPlan, CheckResult | None] | None:
        """The CPU-only variant beside a heterogeneous one; None, with a note, where it cannot be."""
        backends = {d.backend for d in self.devices if d.name in set(main.device_of.values())}
        if not self.options.cpu_variant or backends <= {"cpu", "ort"}:
            return None
        devices = tuple(d for d in self.devices if d.backend in ("cpu", "ort"))
        if not any(d.backend == "cpu" for d in devices):
            self.reporter.note("no CPU variant: CPU is not among the devices")
            return None
        # Pins name devices that this variant does without.
        affinity = Affinity(mode="automatic")
        try:
            plan = self.place(devices, affinity, "cpu")
            return self._build(builder, checker, plan, devices, affinity, "cpu")
        except UnsupportedOpError as error:
            self.reporter.note(f"no CPU variant: {error.message}")
            return None

    def _parts(self, name: str, built: BuiltPlan, checks: CheckResult | None) -> VariantParts:
        checked = checks.checked if checks is not None else (False,) * len(built.jobs)
        pieces = tuple(Piece(j, low, c) for j, low, c in zip(built.jobs, built.lowered, checked, strict=True))
        notes = tuple(f"not checked: {text}" for text in (checks.unchecked if checks else ()))
        if checks is None and pieces:
            notes = ("not checked: compiled without the check",)
        moved = tuple(f"{m.op_type} '{m.node}' moved from {m.source} to {m.target}: {m.error}" for m in self.moved)
        return VariantParts(
            name=name,
            devices=self.devices,
            pieces=pieces,
            inputs=self.model.graph.inputs,
            outputs=self.model.graph.outputs,
            plan=print_plan(built.plan),
            summary=summary(built.plan),
            notes=notes + told(checks.costs if checks else ()) + moved,
        )

    def write_dot(self, plan: Plan) -> None:
        """Write the two graphs where `--dot` asks for them."""
        if self.options.dot_dir is None:
            return
        try:
            self.options.dot_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputFileError(
                f"cannot make the directory: {error.strerror}", where=str(self.options.dot_dir)
            ) from error
        for name, text in dot_files(plan).items():
            atomic_write(self.options.dot_dir / name, text)

    def report(self, plan: Plan, text: str) -> CompileReport:
        """The report as it stands."""
        return CompileReport(
            plan=plan,
            summary=text,
            moved=tuple(self.moved),
            unchecked=tuple(self.unchecked),
            costs=tuple(self.costs),
            notes=tuple(self.reporter.notes),
            warnings=tuple(self.reporter.warnings),
            seconds=self.seconds,
            pass_seconds=tuple(self.trace.timings),
        )
