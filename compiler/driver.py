"""One compile, from the model to the bundle: import, query, then place, lower and check each variant, pack."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from heterocc.artifacts.dtypes import is_narrow
from heterocc.artifacts.errors import Hint, InputError, ModelRunError, UnsupportedOpError
from heterocc.artifacts.files.reading import reading
from heterocc.artifacts.names import file_name
from heterocc.compiler.build.build import Builder, write_dumps
from heterocc.compiler.build.pack import half_nodes, pack, weights_of
from heterocc.compiler.build.tuning import left_out, remembered
from heterocc.compiler.checking.check import Checker
from heterocc.compiler.checking.vectors import Vectors, find_vectors, golden_vectors
from heterocc.compiler.devices.config import config_texts
from heterocc.compiler.devices.cpu_targets import with_cpu_targets
from heterocc.compiler.devices.names import ORT_IS_LAST, resolve_lists
from heterocc.compiler.files.writing import atomic_write, make_folder, require_writable
from heterocc.compiler.importer.as_written import graph_as_written
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.importer.random_nodes import not_compared
from heterocc.compiler.importer.reading.source import AnyModel, ModelSource, as_source
from heterocc.compiler.importer.shapes.shape_rules import empty_at_fault
from heterocc.compiler.options import CompileOptions, with_overrides
from heterocc.compiler.placement.affinity_file import affinity_from, write_affinity_file
from heterocc.compiler.placement.cost_table import load_cost_table, place_by_table
from heterocc.compiler.placement.machine import build_machine
from heterocc.compiler.placement.run_passes import Trace, require_placed
from heterocc.compiler.progress import Reporter, timed
from heterocc.compiler.report import CompileReport, VariantReport
from heterocc.compiler.support.query import QueryResult, query_model
from heterocc.compiler.support.traits import traits_of
from heterocc.compiler.variant_build import BuiltVariant, VariantBuilder
from heterocc.compiler.variants import MAIN, VariantSpec, all_devices, cpu_specs, one_for_each_code, variant_specs
from heterocc.passes.base import parse_pipeline, policy_pipeline
from heterocc.passes.plan import Plan
from heterocc.passes.show.dot import dot_files


def compile_model(
    model: AnyModel,
    output: str | Path | None = None,
    options: CompileOptions | None = None,
    reporter: Reporter | None = None,
    *,
    base_dir: str | Path | None = None,
    **overrides: Any,
) -> CompileReport:
    """Compile an ONNX model into a bundle; `overrides` are fields of CompileOptions.

    `model` is a path, a ModelProto, or the bytes of one; `base_dir` is the folder of the external data of a model
    without a file. `output` defaults to the name of the model's file with the suffix `.hcb`, in the current directory.
    With `options.stop_after` the compile stops early, and the report's `output` is None.
    Raises a HeteroccError for every error that the user can correct.
    """
    options = with_overrides(compile_model, options, overrides)
    source = as_source(model, base_dir)
    target = Path(output) if output is not None else source.default_output()
    packs = options.stop_after is None or options.stop_after == "pack"
    with reading(_files(source, options)):
        job = _prepare(source, options, reporter or Reporter(), target if packs else None)
        if options.stop_after == "import":
            plan = Plan.initial(
                job.model.graph, build_machine(job.model, job.specs[0].devices, job.variants.query.reasons())
            )
            return replace(
                job.report(VariantReport(MAIN, plan)), plans=(), summary=f"{len(job.model.graph.nodes)} nodes imported"
            )
        return job.compile(target)


def partition_model(
    model: AnyModel,
    options: CompileOptions | None = None,
    reporter: Reporter | None = None,
    *,
    write_affinity: str | Path | None = None,
    base_dir: str | Path | None = None,
    **overrides: Any,
) -> CompileReport:
    """Place the model's nodes for the main variant and stop before lowering; `model` is as in `compile_model`."""
    options = with_overrides(partition_model, options, overrides)
    source, place = as_source(model, base_dir), None if write_affinity is None else Path(write_affinity)
    with reading(_files(source, options)):
        job = _prepare(source, options, reporter or Reporter(), place)
        main = VariantReport(MAIN, job.variants.place(job.specs[0]))
        job.write_dots([main])
        if place is not None:
            write_affinity_file(main.plan, place)
        return job.report(main)


def partition_by_table(
    model: AnyModel,
    cost_table: str | Path,
    *,
    policy: str = "optimal",
    passes: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Place the nodes of a model, taken as it is written, by a table of costs, without any device.

    Returns the plan as JSON-compatible data, with costs in microseconds (docs/placement.md), and the values whose size
    is not known and counts as 0. Raises an InputError (HC1xx) for an error in the model, the table or the options,
    UnsupportedOpError (HC201) for a node that no device can run.
    """
    pipeline = policy_pipeline(policy) if passes is None else parse_pipeline(passes)
    source, path = as_source(model, None), Path(cost_table)
    files: dict[str | os.PathLike[str], str] = {path: "the cost table"}
    with reading(files if source.data is not None else {**files, source.path: "the model"}):
        table = load_cost_table(path)
        graph, unknown = graph_as_written(source, shapes, table.node_us)
        return place_by_table(graph, table, pipeline, policy if passes is None else passes), unknown


def query_devices(model: AnyModel, options: CompileOptions, reporter: Reporter | None = None) -> QueryResult:
    """Query every listed device about every node."""
    return _prepare(as_source(model), options, reporter or Reporter()).variants.query


def _files(source: ModelSource, options: CompileOptions) -> dict[str | os.PathLike[str], str]:
    """The files that a command on a model reads, with their roles; the import adds the model's external data."""
    files: dict[str | os.PathLike[str], str] = dict.fromkeys(
        (path for path in options.device_files if isinstance(path, Path)), "a device file"
    )
    if options.config is not None:
        files[options.config] = "the configuration file"
    if isinstance(options.affinity, Path):
        files[options.affinity] = "the affinity file"
    if options.inputs is not None:
        files[options.inputs] = "the file of inputs"
    return files if source.data is not None else {**files, source.path: "the model"}


def _require_places(options: CompileOptions, target: Path | None) -> None:
    """Raise OutputFileError (HC111) for outputs that cannot be written or are inputs, before any work is done."""
    if target is not None:
        require_writable(target)
    for folder in (options.dump_dir, options.dot_dir):
        if folder is not None:
            require_writable(folder, folder=True)


def _prepare(source: ModelSource, options: CompileOptions, reporter: Reporter, target: Path | None = None) -> _Job:
    """Import the model, resolve the devices and query them. Options are checked before the import.

    `target` is the file that the command will write.
    """
    _require_places(options, target)
    seconds: dict[str, float] = {}
    affinity = affinity_from(options.affinity)
    passes = policy_pipeline(options.policy) if options.passes is None else parse_pipeline(options.passes)
    trace = Trace(options.dump_dir, options.pass_limit)
    with reporter.stage(f"importing {source.path.name}"), timed(seconds, "import"):
        model = import_model(source, shapes=options.shapes)
    _require_places(options, target)  # again, because the model's external data is known now
    lists, notes = resolve_lists(
        (tuple(options.devices), *options.variants),
        options.device_files,
        options.properties,
        config=options.config,
        traits=traits_of(model),
    )
    lists, untargeted = with_cpu_targets(
        lists, options.cpu_targets, (*options.properties, *config_texts(options.config))
    )
    specs, passed_over = variant_specs(lists, model.graph.nodes, affinity)
    for note in (*model.notes, *notes, *untargeted, *passed_over):
        if note != ORT_IS_LAST:
            reporter.note(note)
    for text in (*(note for note in notes if note == ORT_IS_LAST), *left_out(all_devices(lists))):
        reporter.warn(text)
    with reporter.stage("querying devices", len(model.graph.nodes)) as progress, timed(seconds, "query"):
        query = query_model(model, all_devices(lists), on_node=progress.step)
    for note in query.notes:
        reporter.note(note)
    return _Job(
        source.path.name,
        options,
        reporter,
        model,
        specs,
        VariantBuilder(model, query, passes, trace, reporter, seconds),
    )


@dataclass
class _Job:
    """A running command on the model file `where`.

    `unseen` are outputs of the model that no check compares, with the reason; they are in every variant's notes.
    `unchecked` is the same for the report, or the reason why nothing is compared.
    """

    where: str
    options: CompileOptions
    reporter: Reporter
    model: ImportedModel
    specs: tuple[VariantSpec, ...]
    variants: VariantBuilder
    unseen: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def compile(self, target: Path) -> CompileReport:
        """Place, lower, check and pack all variants."""
        plans = {spec.name: self.variants.place(spec) for spec in self.specs}
        specs = one_for_each_code(self.specs, list(plans.values()))
        placed = [VariantReport(spec.name, plans[spec.name]) for spec in specs]
        self.write_dots(placed)
        if self.options.stop_after == "partition":
            return self.report(*placed, *(VariantReport(spec.name, plan) for spec, plan in self._cpu(placed)))
        for variant in placed:
            require_placed(variant.plan)
        feed, outputs = self._vectors()
        built = self._build(specs, placed, feed)
        reports = [variant.report for variant in built]
        if self.options.dump_dir is not None:
            for made in built:
                write_dumps(made.built, self.options.dump_dir, made.spec.name)
        if self.options.stop_after == "lower":
            return self.report(*reports)
        parts = [variant.parts(self.model, self.unseen) for variant in built]
        packing = self.reporter.stage("packing weights", weights_of(parts))
        with packing as progress, timed(self.variants.seconds, "pack"):
            asked = [report for report, variant in zip(reports, built, strict=True) if not variant.spec.automatic]
            texts = {f"graphs/{name}": text for report in asked for name, text in _graphs(report)}
            make_folder(target.parent)
            golden = None
            if feed is not None and outputs is not None:
                golden = golden_vectors(self.model, self.options.seed, feed, outputs, half_nodes(parts))
            pack(target, self.model, parts, golden=golden, texts=texts, progress=progress)
        names = tuple(report.name for report in reports)
        return replace(self.report(*reports), output=target, size=target.stat().st_size, variants=names)

    def _vectors(self) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
        """Inputs for the check, and ONNX Runtime's outputs for the golden vectors.

        Both are None, with a warning, if ONNX Runtime cannot run the model; the outputs are None if an input cannot be
        stored. Raises InputError for any failure with given inputs, and ModelRunError (HC115) for a model that ONNX
        Runtime rejects, unless the check is disabled.
        """
        try:
            with self.reporter.stage("running ONNX Runtime"), timed(self.variants.seconds, "reference"):
                found = find_vectors(self.model, self.options.inputs, self.options.seed)
        except InputError as error:
            blamed = empty_at_fault(self.options.shapes, error)
            if blamed is not None:
                raise blamed from error
            refused = isinstance(error, ModelRunError)
            if refused:
                error.where, error.hint = self.where, self._refused_hint()
            if self.options.inputs is not None or (refused and self.options.check):
                raise
            self.reporter.warn(f"no partition is checked, and the bundle has no golden vectors: {error.message}")
            self.unchecked.append(f"all: {error.message}")
            return None, None
        self._report_unseen(found)
        tensors = {n: v for n, v in found.outputs.items() if isinstance(v, np.ndarray) and v.dtype != object}
        golden = {n: v for n, v in tensors.items() if n not in found.random and not is_narrow(v)}
        narrow = [self.model.sources.get(n, n) for n, v in found.inputs.items() if is_narrow(v)]
        if narrow:
            self.reporter.note(f"the bundle has no golden vectors: .npy cannot store the input '{narrow[0]}'")
            return found.inputs, None
        return found.inputs, golden

    def _refused_hint(self) -> str:
        inputs = Hint("inputs that the model accepts (`inputs`), ", "inputs that the model accepts with --inputs, ")
        shapes = Hint("other `shapes`, ", "another --shape, ")
        unchecked = Hint("or check=False to compile", "or --no-check to compile") + " without running the model"
        if self.options.inputs is not None:
            inputs = Hint("other `inputs`, ", "other --inputs, ")
        hint: str = "give "
        for part in (inputs, shapes if self.options.shapes else "", unchecked):
            hint = hint + part
        return hint

    def _report_unseen(self, found: Vectors) -> None:
        """Report outputs that are not compared, and outputs whose values the check cannot judge."""
        sources = self.model.sources
        for name, reason in found.random.items():
            self.unseen.append(not_compared(sources.get(name, name), reason))
            self.reporter.note(self.unseen[-1])
        given = self.options.inputs is not None
        for name, reason in found.blind.items():
            on = "the given inputs" if given else "every seeded input that was tried"
            self.unseen.append(f"the check cannot judge output '{sources.get(name, name)}': {reason} on {on}")
            hint = Hint("; give real inputs (`inputs`)", "; give real inputs with --inputs")
            self.reporter.warn(self.unseen[-1] + ("" if given else hint))
        self.unchecked += self.unseen

    def _build(
        self, specs: Sequence[VariantSpec], placed: Sequence[VariantReport], feed: Mapping[str, Any] | None
    ) -> list[BuiltVariant]:
        """Build all variants, the CPU-only ones last."""
        devices = all_devices(spec.devices for spec in self.specs)
        builder = Builder(self.model, devices, self.reporter)
        checker = Checker(self.model, feed, self.reporter) if feed is not None and self.options.check else None
        built = []
        for spec, variant in zip(specs, placed, strict=True):
            built.append(self.variants.build(spec, variant.plan, builder, checker))
            self._note(built[-1])
        for cpu in self._cpu([variant.report for variant in built]):
            try:
                built.append(self.variants.build(*cpu, builder, checker))
            except UnsupportedOpError as error:
                self.reporter.note(f"no CPU variant: {error.message}")
            else:
                self._note(built[-1])
        return built

    def _cpu(self, beside: Sequence[VariantReport]) -> list[tuple[VariantSpec, Plan]]:
        """The placed CPU-only variants beside these; none if disabled or, with a note, if they cannot be placed."""
        if not self.options.cpu_variant:
            return []
        specs, why = cpu_specs(self.specs, [variant.plan for variant in beside])
        if why is not None:
            self.reporter.note(why)
        try:
            return [(spec, self.variants.place(spec)) for spec in specs]
        except UnsupportedOpError as error:
            self.reporter.note(f"no CPU variant: {error.message}")
            return []

    def _note(self, variant: BuiltVariant) -> None:
        """Note a variant's unchecked partitions, costs of half precision, missing binaries and tuned kernels."""
        report = variant.report
        for text in report.check_notes:
            self.reporter.note(text)
        for piece in variant.pieces:
            device = piece.job.device
            if device.keeps_binaries and not piece.binaries:
                self.reporter.note(
                    f"{device.name}.binaries=on has no effect on {piece.job.name}: its kernels did not run here, so "
                    "the driver compiles them when the bundle is first loaded"
                )
        for part in report.tuned:
            self.reporter.note(part.sentence() + remembered([part]))

    def write_dots(self, placed: Sequence[VariantReport]) -> None:
        """Write two graphs per variant to the folder of `--dot`, if given; further variants have subfolders."""
        if self.options.dot_dir is None:
            return
        for variant in placed:
            for name, text in _graphs(variant):
                atomic_write(self.options.dot_dir / name, text)

    def report(self, main: VariantReport, *others: VariantReport) -> CompileReport:
        """The report on the work done so far."""
        return CompileReport(
            plan=main.plan,
            summary=main.summary,
            plans=(main, *others),
            unseen=tuple(self.unchecked),
            notes=tuple(self.reporter.notes),
            warnings=tuple(self.reporter.warnings),
            seconds=self.variants.seconds,
            pass_seconds=tuple(self.variants.trace.timings),
        )


def _graphs(variant: VariantReport) -> list[tuple[str, str]]:
    """Names and texts of a variant's graphs; names of variants other than the main one begin with a folder."""
    folder = "" if variant.name == MAIN else f"{file_name(variant.name)}/"
    return [(f"{folder}{name}", text) for name, text in dot_files(variant.plan).items()]
