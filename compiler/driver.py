"""One compile, from the model to the bundle: import, query, then place, lower and check each variant, pack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from heterocc.artifacts.errors import InputError, OutputFileError, UnsupportedOpError
from heterocc.compiler.affinity import affinity_from, write_affinity_file
from heterocc.compiler.build import Builder, write_dumps
from heterocc.compiler.check import Checker
from heterocc.compiler.devices.names import resolve_lists
from heterocc.compiler.feed import feed_for
from heterocc.compiler.files import atomic_write
from heterocc.compiler.imported import ImportedModel
from heterocc.compiler.keywords import with_overrides
from heterocc.compiler.onnx_import import import_model
from heterocc.compiler.options import CompileOptions
from heterocc.compiler.pack import GoldenVectors, pack, weights_of
from heterocc.compiler.pipeline import Trace, require_placed
from heterocc.compiler.precision_cost import PrecisionCost, told
from heterocc.compiler.query import QueryResult, machine, precisions_of, query_model
from heterocc.compiler.reference import Reference
from heterocc.compiler.report import CompileReport, Moved, Reporter, VariantPlan, timed
from heterocc.compiler.source import AnyModel, ModelSource, as_source
from heterocc.compiler.tuning import TunedPartition, left_out, remembered
from heterocc.compiler.variant_build import BuiltVariant, Variants
from heterocc.compiler.variants import MAIN, VariantSpec, all_devices, cpu_spec, variant_specs
from heterocc.passes.base import parse_pipeline, policy_pipeline
from heterocc.passes.dot import dot_files
from heterocc.passes.plan import Plan


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

    `model` is a path, a ModelProto or the bytes of one; `base_dir` is the folder of the external data of a model
    without a file. `output` defaults to the name of the model's file with `.hcb` in the current directory. Stops early
    where `options.stop_after` says so; the report's `output` is None then.
    Raises a HeteroccError for whatever the user can mend.
    """
    options = with_overrides(compile_model, options, _normalised(overrides))
    source = as_source(model, base_dir)
    target = Path(output) if output is not None else source.default_output()
    if options.stop_after is None or options.stop_after == "pack":
        _require_directory(target)
    job = _prepare(source, options, reporter or Reporter())
    if options.stop_after == "import":
        plan = Plan.initial(job.model.graph, machine(job.model, job.specs[0].devices, job.variants.query))
        return replace(
            job.report(VariantPlan(MAIN, plan)), plans=(), summary=f"{len(job.model.graph.nodes)} nodes imported"
        )
    return job.compile(target)


def partition_model(
    model: AnyModel,
    options: CompileOptions | None = None,
    reporter: Reporter | None = None,
    *,
    write_affinity: Path | None = None,
    base_dir: str | Path | None = None,
    **overrides: Any,
) -> CompileReport:
    """Place the model's nodes for the main variant and stop before lowering; see `compile_model` for the model."""
    options = with_overrides(partition_model, options, _normalised(overrides))
    job = _prepare(as_source(model, base_dir), options, reporter or Reporter())
    main = VariantPlan(MAIN, job.variants.place(job.specs[0]))
    job.write_dots([main])
    if write_affinity is not None:
        write_affinity_file(main.plan, write_affinity)
    return job.report(main)


def query_devices(model: AnyModel, options: CompileOptions, reporter: Reporter | None = None) -> QueryResult:
    """Ask every listed device about every node."""
    return _prepare(as_source(model), options, reporter or Reporter()).variants.query


def _normalised(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Python callers may write `devices="GPU,CPU"`, `variants="CPU"` and `affinity="file.toml"`."""
    fields = dict(overrides)
    for name in ("devices", "variants"):
        if isinstance(fields.get(name), str):
            fields[name] = (fields[name],)
    if isinstance(fields.get("affinity"), str):
        fields["affinity"] = Path(fields["affinity"])
    return fields


def _require_directory(target: Path) -> None:
    """Refuse an output that cannot be written before minutes of work go into it."""
    if target.is_dir():
        raise OutputFileError("the output is a directory", where=str(target), hint="name a file ending in .hcb")
    if not target.parent.is_dir():
        raise OutputFileError(f"there is no directory '{target.parent}'", where=str(target), hint="create it first")


def _prepare(source: ModelSource, options: CompileOptions, reporter: Reporter) -> _Job:
    """Import the model, resolve the devices and query them; what is wrong with the options is told first."""
    seconds: dict[str, float] = {}
    affinity = affinity_from(options.affinity)
    passes = policy_pipeline(options.policy) if options.passes is None else parse_pipeline(options.passes)
    trace = Trace(options.dump_dir, options.pass_limit, options.stop_after)
    with reporter.stage(f"importing {source.path.name}"), timed(seconds, "import"):
        model = import_model(source, shapes=options.shapes)
    lists, notes = resolve_lists(
        (tuple(options.devices), *options.variants),
        options.device_files,
        options.properties,
        precisions=precisions_of(model.graph),
    )
    specs, passed_over = variant_specs(lists, model.graph.nodes, affinity)
    for note in (*model.notes, *notes, *passed_over):
        reporter.note(note)
    for text in left_out(all_devices(lists)):
        reporter.warn(text)
    with reporter.stage("querying devices", len(model.graph.nodes)) as progress, timed(seconds, "query"):
        query = query_model(model, all_devices(lists), on_node=progress.step)
    for note in query.notes:
        reporter.note(note)
    return _Job(options, reporter, model, specs, Variants(model, query, passes, trace, reporter, seconds))


@dataclass
class _Job:
    """One command at work; the lists collect what its report tells of all variants."""

    options: CompileOptions
    reporter: Reporter
    model: ImportedModel
    specs: tuple[VariantSpec, ...]
    variants: Variants
    unchecked: list[str] = field(default_factory=list)
    moved: list[Moved] = field(default_factory=list)
    costs: list[tuple[str, PrecisionCost]] = field(default_factory=list)
    tuned: list[tuple[str, TunedPartition]] = field(default_factory=list)

    def compile(self, target: Path) -> CompileReport:
        """Place, lower, check and pack all variants."""
        placed = [VariantPlan(spec.name, self.variants.place(spec)) for spec in self.specs]
        self.write_dots(placed)
        if self.options.stop_after == "partition":
            cpu = self._cpu(placed)
            return self.report(*placed, *([VariantPlan(cpu[0].name, cpu[1])] if cpu is not None else []))
        for variant in placed:
            require_placed(variant.plan)
        feed, golden = self._vectors()
        built = self._build(placed, feed)
        plans = [VariantPlan(variant.spec.name, variant.plan) for variant in built]
        if self.options.dump_dir is not None:
            for made in built:
                write_dumps(made.built, self.options.dump_dir, made.spec.name)
        if self.options.stop_after == "lower":
            return self.report(*plans)
        parts = [variant.parts(self.model) for variant in built]
        packing = self.reporter.stage("packing weights", weights_of(parts))
        with packing as progress, timed(self.variants.seconds, "pack"):
            asked = [plan for plan, variant in zip(plans, built, strict=True) if not variant.spec.automatic]
            texts = {f"graphs/{name}": text for plan in asked for name, text in _graphs(plan)}
            pack(target, self.model, parts, golden=golden, texts=texts, progress=progress)
        names = tuple(plan.name for plan in plans)
        return replace(self.report(*plans), output=target, size=target.stat().st_size, variants=names)

    def _vectors(self) -> tuple[dict[str, Any] | None, GoldenVectors | None]:
        """Inputs for the check, and golden vectors from ONNX Runtime; None, with a note, where that fails."""
        try:
            with self.reporter.stage("running ONNX Runtime"), timed(self.variants.seconds, "reference"):
                feed = feed_for(self.model, self.options.inputs, self.options.seed)
                outputs = Reference(self.model, self.model.graph.outputs).run(feed)
        except InputError as error:
            if self.options.inputs is not None:
                raise
            self.reporter.warn(f"nothing is checked and the bundle has no golden vectors: {error.message}")
            self.unchecked.append(f"all: {error.message}")
            return None, None
        tensors = {n: v for n, v in outputs.items() if isinstance(v, np.ndarray) and v.dtype != object}
        return feed, GoldenVectors(self.options.seed, feed, tensors)

    def _build(self, placed: Sequence[VariantPlan], feed: dict[str, Any] | None) -> list[BuiltVariant]:
        """Code for all variants, the CPU-only one last."""
        devices = all_devices(spec.devices for spec in self.specs)
        builder = Builder(self.model, devices, self.reporter)
        checker = Checker(self.model, feed, self.reporter) if feed is not None and self.options.check else None
        built = []
        for spec, variant in zip(self.specs, placed, strict=True):
            built.append(self.variants.build(spec, variant.plan, builder, checker))
            self._tell(built[-1])
        cpu = self._cpu([VariantPlan(variant.spec.name, variant.plan) for variant in built])
        if cpu is not None:
            try:
                built.append(self.variants.build(*cpu, builder, checker))
            except UnsupportedOpError as error:
                self.reporter.note(f"no CPU variant: {error.message}")
            else:
                self._tell(built[-1])
        return built

    def _cpu(self, beside: Sequence[VariantPlan]) -> tuple[VariantSpec, Plan] | None:
        """The CPU-only variant beside these, placed; None where none is wanted or, with a note, where it cannot be."""
        if not self.options.cpu_variant:
            return None
        spec, why = cpu_spec(self.specs, [variant.plan for variant in beside])
        if why is not None:
            self.reporter.note(why)
        if spec is None:
            return None
        try:
            return spec, self.variants.place(spec)
        except UnsupportedOpError as error:
            self.reporter.note(f"no CPU variant: {error.message}")
            return None

    def _tell(self, variant: BuiltVariant) -> None:
        """Note what the check of a variant could not see, what half precision costs it, and what moved."""
        checks = variant.checks
        for text in checks.unchecked if checks is not None else ():
            self.reporter.note(f"not checked: {text}")
            self.unchecked.append(f"{variant.spec.name}: {text}")
        for text in told(checks.costs if checks is not None else ()):
            self.reporter.note(text)
        binaries = checks.binaries if checks is not None else (b"",) * len(variant.built.jobs)
        for job, data in zip(variant.built.jobs, binaries, strict=True):
            if job.device.keeps_binaries and not data:
                self.reporter.note(
                    f"{job.device.name}.binaries=on has no effect on {job.name}: its kernels did not run here, so the "
                    "driver compiles them when the bundle is first loaded"
                )
        for part in variant.built.tuned:
            self.reporter.note(part.sentence() + remembered([part]))
            self.tuned.append((variant.spec.name, part))
        self.costs += [(variant.spec.name, cost) for cost in (checks.costs if checks is not None else ())]
        self.moved += variant.moved

    def write_dots(self, placed: Sequence[VariantPlan]) -> None:
        """Write the two graphs of each variant where `--dot` asks for them, those of further ones in folders."""
        if self.options.dot_dir is None:
            return
        for variant in placed:
            for name, text in _graphs(variant):
                path = self.options.dot_dir / name
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                except OSError as error:
                    raise OutputFileError(
                        f"cannot make the directory: {error.strerror}", where=str(path.parent)
                    ) from error
                atomic_write(path, text)

    def report(self, main: VariantPlan, *others: VariantPlan) -> CompileReport:
        """The report as it stands."""
        return CompileReport(
            plan=main.plan,
            summary=main.summary,
            plans=(main, *others),
            moved=tuple(self.moved),
            unchecked=tuple(self.unchecked),
            costs=tuple(self.costs),
            tuned=tuple(self.tuned),
            notes=tuple(self.reporter.notes),
            warnings=tuple(self.reporter.warnings),
            seconds=self.variants.seconds,
            pass_seconds=tuple(self.variants.trace.timings),
        )


def _graphs(variant: VariantPlan) -> list[tuple[str, str]]:
    """Names and text of a variant's graphs; those of variants beside the main one lie in a folder of its name."""
    folder = "" if variant.name == MAIN else f"{variant.name}/"
    return [(f"{folder}{name}", text) for name, text in dot_files(variant.plan).items()]
