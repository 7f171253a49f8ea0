"""What every command on a model does first: import it, resolve the devices and query them."""

from __future__ import annotations

import os
from pathlib import Path

from heterocc.artifacts.errors import Hint, ShapeOptionError
from heterocc.artifacts.files.writing import require_writable
from heterocc.compiler.build.tuning import left_out
from heterocc.compiler.checking.ahead import VectorsAhead
from heterocc.compiler.checking.warm_up import warm_up
from heterocc.compiler.devices.config import config_texts
from heterocc.compiler.devices.cpu_targets import with_cpu_targets, with_possible_products
from heterocc.compiler.devices.names import ORT_IS_LAST, resolve_lists
from heterocc.compiler.importer.denormals import without_denormals
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.importer.reading.source import ModelSource
from heterocc.compiler.options import CompileOptions
from heterocc.compiler.pipeline.job import Job
from heterocc.compiler.pipeline.variant_build import VariantBuilder
from heterocc.compiler.pipeline.variants import all_devices, last_resort_of, variant_specs
from heterocc.compiler.placement.affinity_file import affinity_from
from heterocc.compiler.placement.run_passes import Trace, pipeline_of
from heterocc.compiler.progress import Reporter, timed
from heterocc.compiler.sizes.planned import with_planned_sizes
from heterocc.compiler.sizes.requests import (
    ShapeRequest,
    excludes_sizes,
    only_numbers,
    require_bounds,
    require_possible,
    shape_requests,
    with_samples_in_bounds,
)
from heterocc.compiler.support.calibration import Measured, measured_times
from heterocc.compiler.support.query import QueryResult, query_model
from heterocc.compiler.support.traits import traits_of


def files_of(source: ModelSource, options: CompileOptions) -> dict[str | os.PathLike[str], str]:
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
    if options.report is not None:
        require_writable(options.report)
    for folder in (options.dump_dir, options.dot_dir):
        if folder is not None:
            require_writable(folder, folder=True)


def prepare(
    source: ModelSource,
    options: CompileOptions,
    reporter: Reporter,
    target: Path | None = None,
    request: ShapeRequest | None = None,
    *,
    further: bool = False,
    measures: bool = False,
    calibrated: bool = True,
    ahead: VectorsAhead | None = None,
) -> Job:
    """Import the model, resolve the devices and query them. Options are checked before the import.

    `target` is the file that the command will write. `request` are the shapes, by default the only ones that the
    options request; `further` marks those after the first. `measures` allows the policy `measured`, `calibrated` the
    use of times that `heterocc calibrate` stored. `ahead` begins to look for the model's test vectors.
    """
    request = request or _only_request(options)
    _require_places(options, target)
    seconds: dict[str, float] = {}
    given = options.affinity
    # A query's result has a device for every node: the user's decisions are the entries that were set.
    affinity = affinity_from(given.pins() if isinstance(given, QueryResult) else given)
    policy, passes = pipeline_of(options, measures=measures)
    trace = Trace(options.dump_dir, options.pass_limit)
    names = (tuple(options.devices), *options.variants)
    without_ort = only_numbers(names)
    importing = reporter.stage(f"importing {source.path.name}{request.at}")
    with importing, timed(seconds, "import"), request.naming():
        model = import_model(
            source,
            shapes=request.shapes,
            dims=request.dims,
            keep_dims=request.keep_dims,
            only_numbers=without_ort,
            assume=excludes_sizes(request, names),
        )
    require_bounds(request, model)
    model = with_samples_in_bounds(model, request.bounds)
    _require_places(options, target)  # again, because the model's external data is known now
    lists, notes = resolve_lists(
        names,
        options.device_files,
        options.properties,
        config=options.config,
        fast_math=options.fast_math,
        traits=traits_of(model),
    )
    if any(device.backend == "cpu" for device in all_devices(lists)):
        require_possible(request, model)
    lists, untargeted = with_cpu_targets(
        lists, options.cpu_targets, (*options.properties, *config_texts(options.config))
    )
    lists, unpaired = with_possible_products(lists, fall_back=bool(options.cpu_targets))
    if all(device.flushes_denormals for device in all_devices(lists)):
        model = without_denormals(model)
    model, assumed = with_planned_sizes(model, request.bounds, all_devices(lists))
    if ahead is not None:
        ahead.begin(model, options.inputs, options.seed, reads=not options.recheck, check=options.check)
        if options.check:
            warm_up(all_devices(lists))
    specs, passed_over = variant_specs(lists, model.graph.nodes, affinity)
    if request.is_rest:
        specs, passed_over = tuple(map(last_resort_of, specs)), ()
    for note in (*model.notes, *notes, *untargeted, *unpaired, *passed_over):
        if note != ORT_IS_LAST:
            reporter.note(note)
    for text in (*(note for note in notes if note == ORT_IS_LAST), *left_out(all_devices(lists))):
        reporter.warn(text)
    queried = all_devices(spec.devices for spec in specs)
    with reporter.stage("querying devices", len(model.graph.nodes)) as progress, timed(seconds, "query"):
        query = query_model(model, queried, on_node=progress.step)
    for note in query.notes:
        reporter.note(note)
    measured = measured_times(model, queried, query.refusals) if calibrated else Measured()
    for note in measured.notes:
        reporter.note(note)
    builder = VariantBuilder(model, query, passes, trace, reporter, seconds, measured)
    job = Job(source.path.name, options, reporter, model, specs, builder, request, further, policy)
    job.assumed = assumed
    if ahead is not None:
        job.ahead = ahead
    job.specs = tuple(map(job.at_shapes, specs))
    return job


def _only_request(options: CompileOptions) -> ShapeRequest:
    """The request of a command that works at one set of shapes. Raises ShapeOptionError (HC106) for several."""
    requests = shape_requests(options)
    if len(requests) > 1:
        raise ShapeOptionError(
            f"{len(requests)} combinations of shapes are requested, and this command works with one",
            where=Hint("hints=…", "--hint"),
            hint=Hint("give `shapes` or `dims`", "give --shape or --dim"),
        )
    return requests[0]
