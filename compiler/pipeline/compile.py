"""The conductor: what is compiled, at which sizes, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, Unpack

from heterocc.artifacts.errors import HeteroccError, Hint, InternalError, PassError, ShapeOptionError
from heterocc.artifacts.files.reading import reading
from heterocc.artifacts.foreign import handlers_heard
from heterocc.artifacts.signing.keys import read_signing_key
from heterocc.artifacts.version import require_one_release
from heterocc.artifacts.weights.weight_file import Draft
from heterocc.compiler.api.collection import collecting_rarely
from heterocc.compiler.api.progress import Reporter
from heterocc.compiler.build.ahead import LoweringAhead
from heterocc.compiler.build.build import write_dumps
from heterocc.compiler.checking.ahead import VectorsAhead
from heterocc.compiler.checking.compressing import with_caches, with_weights
from heterocc.compiler.importer.reading.source import AnyModel, ModelSource, as_source
from heterocc.compiler.options import CompileOptions, Options, named_options, with_overrides
from heterocc.compiler.pipeline.checked import Checked, check
from heterocc.compiler.pipeline.expected import Expected, expect
from heterocc.compiler.pipeline.explained import note_placement, write_report
from heterocc.compiler.pipeline.fallback import falling_back
from heterocc.compiler.pipeline.imported import Imported, import_at
from heterocc.compiler.pipeline.packed import in_order, write_bundle
from heterocc.compiler.pipeline.placed import CpuVariants, Placed, place, write_graphs
from heterocc.compiler.pipeline.queried import Queried, query
from heterocc.compiler.pipeline.report import CompileReport, PlacedVariant
from heterocc.compiler.pipeline.request import Request, files_of
from heterocc.compiler.pipeline.variants import one_for_each_code
from heterocc.compiler.placement.affinity_file import write_affinity_file
from heterocc.compiler.placement.machine import build_machine
from heterocc.compiler.placement.run_passes import require_placed
from heterocc.compiler.sizes.requests import (
    ShapeRequest,
    apart,
    request_for_replacing,
    request_for_rest,
    require_different,
    shape_requests,
)
from heterocc.compiler.support.query import QueryResult
from heterocc.passes.base import MEASURED
from heterocc.passes.plan import Plan

Before = TypeVar("Before", bound=Imported)
After = TypeVar("After")


@named_options
@handlers_heard()
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
    measures = packs or options.stop_after == "lower"
    if isinstance(options.sign, Path):
        options = replace(options, sign=read_signing_key(options.sign))
    with reading(files_of(source, options)):
        show = reporter or Reporter()
        source, compression = with_weights(source, options, show)
        source = with_caches(source, options, show)

        def attempt(sizes: Sequence[ShapeRequest]) -> CompileReport:
            with VectorsAhead() as vectors, LoweringAhead() as lowering, Draft(target) as draft:
                request = Request(
                    source=source,
                    options=options,
                    reporter=show,
                    target=target if packs else None,
                    measures=measures,
                    vectors=vectors if measures else None,
                    lowering=lowering,
                    draft=draft if packs and target.parent.is_dir() else None,
                )
                return _compile(request, sizes, draft)

        report = falling_back(attempt, shape_requests(options), source, options, show)
        return replace(report, weights=compression, warnings=tuple(show.warnings))


@named_options
@handlers_heard()
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
    source, path = as_source(model, base_dir), None if write_affinity is None else Path(write_affinity)
    with reading(files_of(source, options)):
        show = reporter or Reporter()
        source, compression = with_weights(source, options, show)
        source = with_caches(source, options, show)
        placed = place_main(source, options, show, path)
        plan = placed.placed[0].plan
        write_report(placed, plan)
        if path is not None:
            write_affinity_file(plan, path)
        return replace(_report([placed], placed.reports), weights=compression)


def place_main(
    source: ModelSource, options: CompileOptions, reporter: Reporter, affinity: Path | None = None
) -> Placed:
    """Place the nodes of the main variant, as `partition_model` does, and note what is remarkable."""
    return falling_back(
        lambda sizes: _place_main(source, options, reporter, affinity, sizes),
        shape_requests(options),
        source,
        options,
        reporter,
    )


def _place_main(
    source: ModelSource,
    options: CompileOptions,
    reporter: Reporter,
    affinity: Path | None,
    sizes: Sequence[ShapeRequest],
) -> Placed:
    queried = _query_once(source, options, reporter, affinity, sizes)
    main = PlacedVariant(queried.specs[0], queried.place(queried.specs[0]))
    placed = queried.then(Placed, placed=(main,))
    note_placement(placed, [main.plan])
    write_graphs(placed)
    return placed


@handlers_heard()
@collecting_rarely()
def query_devices(model: AnyModel, options: CompileOptions, reporter: Reporter | None = None) -> QueryResult:
    """Query every listed device about every node."""
    source, show = as_source(model), reporter or Reporter()
    return falling_back(
        lambda sizes: _query_once(source, options, show, None, sizes).query,
        shape_requests(options),
        source,
        options,
        show,
    )


def query_once(
    source: ModelSource,
    options: CompileOptions,
    reporter: Reporter,
    target: Path | None = None,
    *,
    calibrated: bool = True,
) -> Queried:
    """The steps of a command that works at one set of sizes, up to the query; parameters are as in Request.

    Raises ShapeOptionError (HC106) if the options request several sets.
    """
    return _query_once(source, options, reporter, target, shape_requests(options), calibrated=calibrated)


def _query_once(
    source: ModelSource,
    options: CompileOptions,
    reporter: Reporter,
    target: Path | None,
    sizes: Sequence[ShapeRequest],
    *,
    calibrated: bool = True,
) -> Queried:
    if len(sizes) > 1:
        raise ShapeOptionError(
            f"{len(sizes)} combinations of shapes are requested, and this command works with one",
            where=Hint("hints=…", "--hint"),
            hint=Hint("give `shapes` or `dims`", "give --shape or --dim"),
        )
    request = Request(source=source, options=options, reporter=reporter, target=target, calibrated=calibrated)
    return query(import_at(request, sizes[0]))


def _compile(request: Request, sizes: Sequence[ShapeRequest], draft: Draft) -> CompileReport:
    """The steps of a compile, each for all sizes in turn, up to the one after which it stops."""
    options = request.options
    imported = _imported(request, sizes)
    if options.stop_after == "import":
        return _imported_report(imported)

    placed = _with_code(_each(place, _each(query, imported)))
    for each in placed:
        write_graphs(each)
    if request.policy != MEASURED:
        note_placement(placed[0], [variant.plan for variant in placed[0].placed])
    if options.stop_after == "partition":
        write_report(placed[0], placed[0].placed[0].plan)
        beside = _cpu_variants(placed)
        plans = [[*p.placed, *cpu.placed] for p, cpu in zip(placed, beside, strict=True)]
        return _report(placed, in_order(plans))

    for plan in (variant.plan for each in placed for variant in each.placed):
        require_placed(plan)
    takers = _takers(placed, options.inputs)
    expected = _each(lambda each: expect(each, options.inputs if each in takers else None), placed)
    if request.policy != MEASURED:
        expected = _with_likely(expected)
    checked = _without_excluding(_with_rest(_each(check, expected)))
    beside = _cpu_variants(checked)
    checked = [each.with_cpu(cpu.placed).with_larger() for each, cpu in zip(checked, beside, strict=True)]

    variants = in_order([each.variants for each in checked])
    reports = [variant.report for variant in variants]
    write_report(checked[0], reports[0].plan, variants[0])
    if options.dump_dir is not None:
        for done in variants:
            write_dumps(done.built, options.dump_dir, done.spec.name)
    if options.stop_after == "lower":
        return _report(checked, reports)
    packed = write_bundle(checked, draft, _replacing(imported))
    return replace(_report(checked, reports), output=packed.path, size=packed.size, variants=packed.variants)


def _each(step: Callable[[Before], After], values: Iterable[Before]) -> list[After]:
    """The results of a step; sizes that are optional and with which it fails are left out, with a note."""
    found = []
    for value in values:
        with _leaving_out(value.shapes, value.reporter):
            found.append(step(value))
    return found


@contextmanager
def _leaving_out(shapes: ShapeRequest, reporter: Reporter) -> Iterator[None]:
    """Turn errors of the user's model into a note, if the sizes are optional."""
    try:
        yield
    except (PassError, InternalError):
        raise
    except HeteroccError as error:
        if not shapes.is_optional:
            raise
        reporter.note(f"no code for sizes other than those given: {error.message}")


def _imported(request: Request, sizes: Sequence[ShapeRequest]) -> list[Imported]:
    """The model at all requested sizes, and at those that its import leaves out of the code for these."""
    found: list[Imported] = []
    todo = list(sizes)
    for shapes in todo:
        with _leaving_out(shapes, request.reporter):
            imported = import_at(request, shapes)
            found.append(imported)
            todo += apart(shapes, imported.model, request.options.lists) if len(todo) == 1 else ()
            if shapes.is_general and imported.leaves_sizes:
                todo.append(request_for_rest(shapes))
    found = [imported for imported in found if not imported.is_idle]
    require_different([(imported.shapes, imported.model) for imported in found])
    return found


def _with_code(placed: Sequence[Placed]) -> list[Placed]:
    """Without variants that would have the same code as others at all sizes."""
    kept = {
        spec.choice or spec.name
        for each in placed
        for spec in one_for_each_code(each.specs, [variant.plan for variant in each.placed])
    }
    return [each.keeping(kept) for each in placed]


def _takers(placed: Sequence[Placed], inputs: Path | None) -> list[Placed]:
    """The sizes that the user's inputs have; the first ones, which refuse them, if none has."""
    if inputs is None:
        return []
    return [each for each in placed if len(placed) == 1 or each.takes(inputs)] or [placed[0]]


def _cpu_variants(placed: Sequence[Placed], *, noted: bool = True) -> list[CpuVariants]:
    """The CPU-only variants at all sizes beside those that use other devices at any, with notes if there are none."""
    used = [
        frozenset(device for report in same for device in report.plan.device_of.values())
        for same in zip(*(each.reports for each in placed), strict=True)
    ]
    found = [each.cpu_variants(used) for each in placed]
    for each, cpu in zip(placed, found, strict=True):
        for note in cpu.notes if noted else ():
            each.reporter.note(note)
    return found


def _with_likely(expected: Sequence[Expected]) -> list[Expected]:
    """With the CPU-only variants that are likely to follow, which are lowered beside a check."""
    return [replace(each, likely=cpu) for each, cpu in zip(expected, _cpu_variants(expected, noted=False), strict=True)]


def _with_rest(checked: list[Checked]) -> list[Checked]:
    """With the code for the sizes at which ONNX Runtime is faster than the plan of another, if that is so."""
    split = next((each for each in checked if each.is_split), None)
    if split is None or any(each.shapes.is_rest for each in checked):
        return checked
    rest = request_for_rest(split.shapes)
    with _leaving_out(rest, split.reporter):
        return [*checked, check(expect(place(query(import_at(split.request, rest))), None))]
    return [each.for_all_sizes() if each is split else each for each in checked]


def _replacing(imported: Sequence[Imported]) -> Checked | None:
    """What runs the model with other values of initializers that the code has as constants; None if there are none.

    It is for the sizes of the general variant.
    """
    general = next((each for each in imported if each.shapes.is_general), imported[0])
    if not general.holds_initializers:
        return None
    try:
        return check(expect(place(query(import_at(general.request, request_for_replacing(general.shapes)))), None))
    except (PassError, InternalError):
        raise
    except HeteroccError as error:
        general.reporter.note(f"no run replaces initializers after all: {error.message}")
        return None


def _without_excluding(checked: list[Checked]) -> list[Checked]:
    """Without code that ONNX Runtime runs alone, if the sizes that it excludes run there, too.

    That for the excluded sizes, which excludes none, takes its place.
    """
    rest = next((each for each in checked if each.shapes.is_rest), None)
    excluding = next((each for each in checked if each.shapes.is_general), None)
    if rest is None or excluding is None:
        return checked
    if not excluding.runs_in_last_resort:
        for variant in rest.variants:
            sizes = "sizes that are excluded above" if excluding.model.assumes else "other sizes"
            rest.reporter.note(f"{sizes} run in ONNX Runtime, in variant {variant.spec.name}")
        return checked
    rest.reporter.note("ONNX Runtime runs the whole model, and no size is excluded")
    whole = rest.in_place_of(excluding)
    return [whole if each is excluding else each for each in checked if each is not rest]


def _imported_report(imported: Sequence[Imported]) -> CompileReport:
    """The report of a compile that stops after the import: no node has a device, and none was asked."""
    first = imported[0]
    devices = first.specs[0].devices
    machine = build_machine(first.model, devices, {device.name: {} for device in devices})
    report = _report(imported, [PlacedVariant(first.specs[0], Plan.initial(first.model.graph, machine))])
    return replace(report, plans=(), summary=f"{len(first.model.graph.nodes)} nodes imported")


def _report(all_sizes: Sequence[Imported], variants: Sequence[PlacedVariant]) -> CompileReport:
    """The report on the work done so far; the first variant is the main one."""
    first = all_sizes[0]
    unchecked = (text for each in all_sizes if isinstance(each, Expected) for text in each.unchecked)
    return CompileReport(
        plan=variants[0].plan,
        summary=variants[0].summary,
        plans=tuple(variants),
        unseen=tuple(dict.fromkeys(unchecked)),
        notes=tuple(first.reporter.notes),
        warnings=tuple(first.reporter.warnings),
        seconds=dict(first.request.seconds),
        pass_seconds=tuple(t for each in all_sizes if isinstance(each, Queried) for t in each.trace.timings),
    )
