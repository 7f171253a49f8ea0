"""One compile, from the model to the bundle: import, query, then place, lower and check each variant, pack."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar, Unpack

from heterocc.artifacts.errors import HeteroccError, InternalError, PassError
from heterocc.artifacts.files.reading import reading
from heterocc.artifacts.files.writing import make_folder
from heterocc.artifacts.signing.keys import SigningKey, read_signing_key
from heterocc.artifacts.version import require_one_release
from heterocc.artifacts.weight_file import Draft
from heterocc.compiler.build.ahead import LoweringAhead
from heterocc.compiler.build.build import write_dumps
from heterocc.compiler.build.pack import VariantParts, pack, weights_of
from heterocc.compiler.checking.ahead import VectorsAhead
from heterocc.compiler.collection import collecting_rarely
from heterocc.compiler.importer.as_written import graph_as_written
from heterocc.compiler.importer.reading.source import AnyModel, ModelSource, as_source
from heterocc.compiler.options import CompileOptions, Options, named_options, with_overrides
from heterocc.compiler.pipeline.compressing import with_weights
from heterocc.compiler.pipeline.job import Job, graphs
from heterocc.compiler.pipeline.preparation import files_of, prepare
from heterocc.compiler.pipeline.report import CompileReport, VariantReport
from heterocc.compiler.pipeline.variant_build import BuiltVariant
from heterocc.compiler.pipeline.variants import MAIN, VariantSpec, one_for_each_code
from heterocc.compiler.placement.affinity_file import write_affinity_file
from heterocc.compiler.placement.cost_table import load_cost_table, place_by_table
from heterocc.compiler.placement.machine import build_machine
from heterocc.compiler.placement.run_passes import require_no_objective, require_placed
from heterocc.compiler.progress import Reporter, timed
from heterocc.compiler.sizes.requests import (
    ShapeRequest,
    apart,
    request_for_rest,
    require_different,
    shape_requests,
)
from heterocc.compiler.support.query import QueryResult
from heterocc.passes.base import MEASURED, parse_pipeline, policy_pipeline
from heterocc.passes.explain.record import write_record
from heterocc.passes.plan import Plan

T = TypeVar("T")


@named_options
@collecting_rarely()
def compile_model(
    model: AnyModel,
    output: str | Path | None = None,
    options: CompileOptions | None = None,
    reporter: Reporter | None = None,
    *,
    base_dir: str | Path | None = None,
    **overrides: Unpack[Options],
) -> CompileReport:
    """Compile an ONNX model into a bundle; `overrides` are options, as in CompileOptions.

    `model` is a path, a ModelProto, or the bytes of one; `base_dir` is the folder of the external data of a model
    without a file. `output` defaults to the name of the model's file with the suffix `.hcb`, in the current directory.
    With `options.stop_after` the compile stops early, and the report's `output` is None.
    Raises a HeteroccError for every error that the user can correct.
    """
    require_one_release()
    options = with_overrides(compile_model, options, overrides)
    source = as_source(model, base_dir)
    target = Path(output) if output is not None else source.default_output()
    packs = options.stop_after is None or options.stop_after == "pack"
    if isinstance(options.sign, Path):
        options = replace(options, sign=read_signing_key(options.sign))
    with (
        reading(files_of(source, options)),
        VectorsAhead() as vectors,
        LoweringAhead() as lowering,
        Draft(target) as draft,
    ):
        show = reporter or Reporter()
        source, compression = with_weights(source, options, show)
        measures = options.stop_after in (None, "lower", "pack")
        ahead = vectors if measures else None
        place = target if packs else None
        jobs: list[Job] = []
        requests = list(shape_requests(options))
        general = requests[-1]

        def prepared(request: ShapeRequest) -> Job:
            further = request is not requests[0]
            job = prepare(source, options, show, place, request, further=further, measures=measures, ahead=ahead)
            job.lowering_ahead = lowering
            job.may_split = request is general
            job.excluding = next((j for j in jobs if j.request is general), None) if request.is_rest else None
            return job

        for request in requests:
            with _leaving_out(request, show):
                job = prepared(request)
                jobs.append(job)
                requests += apart(request, job.model) if len(requests) == 1 else ()
                if request is general and job.leaves_sizes:
                    requests.append(request_for_rest(request))
        jobs = [job for job in jobs if not job.is_idle]
        require_different([(job.request, job.model) for job in jobs])
        if options.stop_after == "import":
            job = jobs[0]
            plan = Plan.initial(
                job.model.graph, build_machine(job.model, job.specs[0].devices, job.variants.query.reasons())
            )
            nodes = f"{len(job.model.graph.nodes)} nodes imported"
            report = replace(_report(jobs, [VariantReport(MAIN, plan)]), plans=(), summary=nodes)
            return replace(report, weights=compression)
        if packs and target.parent.is_dir():
            jobs[0].draft = draft
        report = _compile(jobs, draft, lambda job: prepared(request_for_rest(job.request)))
        return replace(report, weights=compression)


@named_options
@collecting_rarely()
def partition_model(
    model: AnyModel,
    options: CompileOptions | None = None,
    reporter: Reporter | None = None,
    *,
    write_affinity: str | Path | None = None,
    base_dir: str | Path | None = None,
    **overrides: Unpack[Options],
) -> CompileReport:
    """Place the model's nodes for the main variant and stop before lowering; `model` is as in `compile_model`."""
    options = with_overrides(partition_model, options, overrides)
    source, place = as_source(model, base_dir), None if write_affinity is None else Path(write_affinity)
    with reading(files_of(source, options)):
        source, compression = with_weights(source, options, reporter or Reporter())
        job, main = place_main(source, options, reporter or Reporter(), place)
        job.write_report(main.plan)
        if place is not None:
            write_affinity_file(main.plan, place)
        return replace(_report([job], [main]), weights=compression)


def place_main(
    source: ModelSource, options: CompileOptions, reporter: Reporter, affinity: Path | None = None
) -> tuple[Job, VariantReport]:
    """Place the nodes of the main variant, as `partition_model` does, and note what is remarkable."""
    job = prepare(source, options, reporter, affinity)
    main = VariantReport(MAIN, job.variants.place(job.specs[0]), shapes=job.shapes)
    job.note_placement([main.plan])
    job.write_dots([main])
    return job, main


def partition_by_table(
    model: AnyModel,
    cost_table: str | Path,
    *,
    policy: str = "optimal",
    objective: str = "latency",
    passes: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Place the nodes of a model, taken as it is written, by a table of costs, without any device.

    Returns the plan as JSON-compatible data, with costs in microseconds (docs/placement.md), and the values whose size
    is not known and counts as 0. Raises an InputError (HC1xx) for an error in the model, the table or the options,
    UnsupportedOpError (HC201) for a node that no device can run.
    """
    if passes is not None:
        require_no_objective(objective)
    pipeline = policy_pipeline(policy, objective) if passes is None else parse_pipeline(passes)
    source, path = as_source(model, None), Path(cost_table)
    files: dict[str | os.PathLike[str], str] = {path: "the cost table"}
    with reading(files if source.data is not None else {**files, source.path: "the model"}):
        table = load_cost_table(path)
        graph, unknown = graph_as_written(source, shapes, table.node_us, dims)
        return place_by_table(graph, table, pipeline, policy if passes is None else passes), unknown


@collecting_rarely()
def query_devices(model: AnyModel, options: CompileOptions, reporter: Reporter | None = None) -> QueryResult:
    """Query every listed device about every node."""
    return prepare(as_source(model), options, reporter or Reporter()).variants.query


def _compile(jobs: Sequence[Job], draft: Draft, rest: Callable[[Job], Job]) -> CompileReport:
    """Place, lower, check and pack the variants of all jobs, of which the first has the bundle's first shapes.

    `rest` prepares the job for the sizes that another one does not take.
    """
    options, reporter = jobs[0].options, jobs[0].reporter
    jobs = [job for job in jobs if _can(job, job.place)]
    kept = {
        spec.choice or spec.name
        for job in jobs
        for spec in one_for_each_code(job.specs, [variant.plan for variant in job.placed])
    }
    for job in jobs:
        job.keep(kept)
        job.write_dots(job.placed)
    if jobs[0].policy != MEASURED:
        jobs[0].note_placement([variant.plan for variant in jobs[0].placed])
    if options.stop_after == "partition":
        jobs[0].write_report(jobs[0].placed[0].plan)
        return _report(jobs, _in_order(jobs, lambda job: job.placed, _placed_cpu(jobs)))
    given = options.inputs
    taking = [] if given is None else [job for job in jobs if len(jobs) == 1 or job.takes(given)] or [jobs[0]]
    for job in jobs:
        for variant in job.placed:
            require_placed(variant.plan)
        job.inputs = given if job in taking else None
    jobs = [job for job in jobs if _can(job, job.prepare_check)]
    measured = jobs[0].policy == MEASURED
    expected = [[] for _ in jobs] if measured else _cpu(jobs, lambda job: job.placed, expected=True)
    jobs = [job for job, specs in zip(jobs, expected, strict=True) if _can(job, partial(job.build, specs))]
    jobs = _without_excluding(_with_rest(jobs, rest))
    for job, specs in zip(jobs, _cpu(jobs, lambda job: [built.report for built in job.built]), strict=True):
        job.build_cpu(specs)
        job.add_larger()
    built = _in_order(jobs, lambda job: job.built, [[] for _ in jobs])
    reports = [variant.report for variant in built]
    jobs[0].write_report(reports[0].plan, reports[0].timed)
    if options.dump_dir is not None:
        for made in built:
            write_dumps(made.built, options.dump_dir, made.spec.name)
    if options.stop_after == "lower":
        return _report(jobs, reports)
    owner = {id(variant): job for job in jobs for variant in job.built}
    parts = _with_choices([_parts(owner[id(variant)], variant) for variant in built])
    packing = reporter.stage("packing weights", weights_of(parts))
    with packing as progress, timed(jobs[0].variants.seconds, "pack"):
        asked = [report for report, variant in zip(reports, built, strict=True) if not variant.spec.automatic]
        texts = {f"graphs/{name}": text for report in asked for name, text in graphs(report)}
        target = draft.target
        make_folder(target.parent)
        shown = [job for job in jobs if job.excluding is None or not any(job.excluding is other for other in jobs)]
        vectors = [job.golden([p for p in parts if p.model is job.model]) for job in shown]
        goldens = [found for found in vectors if found is not None]
        key = options.sign if isinstance(options.sign, SigningKey) else None
        pack(target, jobs[0].model, parts, goldens=goldens, texts=texts, progress=progress, key=key, draft=draft)
    names = tuple(report.name for report in reports)
    return replace(_report(jobs, reports), output=target, size=target.stat().st_size, variants=names)


@contextmanager
def _leaving_out(request: ShapeRequest, reporter: Reporter) -> Iterator[None]:
    """Turn errors of the user's model into a note, if the request is optional."""
    try:
        yield
    except (PassError, InternalError):
        raise
    except HeteroccError as error:
        if not request.is_optional:
            raise
        reporter.note(f"no code for sizes other than those given: {error.message}")


def _can(job: Job, step: Callable[[], None]) -> bool:
    """Run a step of a job. False, with a note, if it fails and the job's shapes are optional."""
    with _leaving_out(job.request, job.reporter):
        step()
        return True
    return False


def _with_rest(jobs: list[Job], rest: Callable[[Job], Job]) -> list[Job]:
    """The jobs with one for the sizes at which ONNX Runtime is faster than the plan of another, if that is so."""
    split = next((job for job in jobs if job.split), None)
    if split is None or any(job.excluding is split for job in jobs):
        return jobs
    with _leaving_out(request_for_rest(split.request), split.reporter):
        job = rest(split)
        for step in (job.place, job.prepare_check, job.build):
            step()
        return [*jobs, job]
    split.take_all_sizes()
    return jobs


def _without_excluding(jobs: list[Job]) -> list[Job]:
    """The jobs without one that ONNX Runtime runs alone, if another runs the sizes that are excluded from it there.

    The other, which excludes none, takes its place.
    """
    rest = next((job for job in jobs if job.excluding is not None), None)
    excluding = None if rest is None else rest.excluding
    if rest is None or excluding is None or excluding not in jobs:
        return jobs
    last = {device.name for spec in excluding.specs for device in spec.devices if device.last_resort}
    if any(set(variant.built.plan.device_of.values()) - last for variant in excluding.built):
        for other in rest.built:
            sizes = "sizes that are excluded above" if excluding.model.assumes else "other sizes"
            rest.reporter.note(f"{sizes} run in ONNX Runtime, in variant {other.spec.name}")
        return jobs
    rest.reporter.note("ONNX Runtime runs the whole model, and no size is excluded")
    rest.take_place_of(excluding)
    return [rest if job is excluding else job for job in jobs if job is not rest]


def _parts(job: Job, variant: BuiltVariant) -> VariantParts:
    """The contents of a variant, with the record of its placement."""
    report = variant.report
    record = write_record(job.recorded(report.plan, report.name, report.timed))
    about = [f"for sizes that variant {variant.spec.choice} excludes"] if job.request.is_rest and job.further else []
    return replace(variant.parts(job.model, [*about, *job.unseen]), record=record)


def _cpu(
    jobs: Sequence[Job], reports: Callable[[Job], list[VariantReport]], *, expected: bool = False
) -> list[list[tuple[VariantSpec, Plan]]]:
    """The placed CPU-only variants of each job beside these; all jobs have them if one needs them."""
    found = [reports(job) for job in jobs]
    used = [
        frozenset(device for report in same for device in report.plan.device_of.values())
        for same in zip(*found, strict=True)
    ]
    return [job.place_cpu(used, expected=expected) for job in jobs]


def _placed_cpu(jobs: Sequence[Job]) -> list[list[VariantReport]]:
    return [
        [VariantReport(spec.name, plan, shapes=spec.shapes) for spec, plan in specs]
        for specs in _cpu(jobs, lambda job: job.placed)
    ]


def _in_order(jobs: Sequence[Job], of: Callable[[Job], Sequence[T]], more: Sequence[Sequence[T]]) -> list[T]:
    """The variants in the bundle's order: those of one choice of devices together, in the order of the shapes."""
    lists = [[*of(job), *rest] for job, rest in zip(jobs, more, strict=True)]
    return [variant for same in zip_longest(*lists) for variant in same if variant is not None]


def _with_choices(parts: Sequence[VariantParts]) -> list[VariantParts]:
    """The parts, of which the first of each choice of devices has no `choice`, and the others its name."""
    first: dict[str, str] = {}
    found = []
    for part in parts:
        choice = part.choice or part.name
        leader = first.setdefault(choice, part.name)
        found.append(replace(part, choice=None if leader == part.name else leader))
    return found


def _report(jobs: Sequence[Job], variants: Sequence[VariantReport]) -> CompileReport:
    """The report on the work done so far; the first variant is the main one."""
    first = jobs[0]
    seconds: dict[str, float] = {}
    for job in jobs:
        for stage, spent in job.variants.seconds.items():
            seconds[stage] = seconds.get(stage, 0.0) + spent
    return CompileReport(
        plan=variants[0].plan,
        summary=variants[0].summary,
        plans=tuple(variants),
        unseen=tuple(dict.fromkeys(text for job in jobs for text in job.unchecked)),
        notes=tuple(first.reporter.notes),
        warnings=tuple(first.reporter.warnings),
        seconds=seconds,
        pass_seconds=tuple(timing for job in jobs for timing in job.variants.trace.timings),
    )
