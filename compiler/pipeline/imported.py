"""The first step of a compile: import the model at one set of sizes, and resolve its devices."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from heterocc.artifacts.errors import DynamicShapeError, Hint
from heterocc.compiler.api.progress import Reporter, timed
from heterocc.compiler.build.tuning import left_out
from heterocc.compiler.checking.ahead import VectorsBegun, warm_up
from heterocc.compiler.devices.config import config_texts
from heterocc.compiler.devices.cpu_targets import with_cpu_targets, with_possible_products
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.names import ORT_IS_LAST, resolve_lists
from heterocc.compiler.importer.denormals import without_denormals
from heterocc.compiler.importer.details import details_of
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.pipeline.request import Request
from heterocc.compiler.pipeline.variants import VariantSpec, all_devices, last_resort_of, variant_specs
from heterocc.compiler.sizes.planned import with_planned_sizes
from heterocc.compiler.sizes.requests import ShapeRequest, model_at, require_bounds, require_possible
from heterocc.compiler.support.traits import traits_of
from heterocc.passes.explain.details import Details
from heterocc.runtime.files.npz import npz_shapes

Step = TypeVar("Step", bound="Imported")


@dataclass(frozen=True, kw_only=True, eq=False)
class Imported:
    """The model at one set of sizes, and the variants that the user asked for.

    `assumed` are notes on default bounds of dynamic dimensions, which apply if a GPU runs nodes. `begun` is the search
    for test vectors, if a thread has begun it.
    """

    request: Request
    shapes: ShapeRequest
    model: ImportedModel
    specs: tuple[VariantSpec, ...]
    assumed: tuple[Hint | str, ...]
    begun: VectorsBegun | None

    def then(self, step: type[Step], **found: Any) -> Step:
        """The value of a later step: all of this one, and what the step found."""
        return step(**{known.name: getattr(self, known.name) for known in fields(self)} | found)

    @property
    def reporter(self) -> Reporter:
        """The receiver of notes and warnings."""
        return self.request.reporter

    @property
    def devices(self) -> tuple[TargetDevice, ...]:
        """The devices of all variants."""
        return all_devices(spec.devices for spec in self.specs)

    @property
    def input_shapes(self) -> dict[str, tuple[int | str | None, ...]]:
        """The shapes of the model's inputs, by their names in the model."""
        model = self.model
        shapes = ((model.sources.get(name, name), model.input_shape(name)) for name in model.graph.inputs)
        return {source: shape for source, shape in shapes if shape is not None}

    @cached_property
    def details(self) -> Details:
        """What reports show of the model beside its graph."""
        return details_of(self.model)

    @property
    def is_idle(self) -> bool:
        """Whether it is for all other sizes of a model that has no dynamic dimension left."""
        return self.shapes.is_further and self.shapes.is_open and not self.model.dynamic_inputs

    @property
    def leaves_sizes(self) -> bool:
        """Whether sizes are excluded with which ONNX Runtime, which is in every list, might run the model."""
        return self.model.assumes and all(any(d.last_resort for d in spec.devices) for spec in self.specs)

    @property
    def holds_initializers(self) -> bool:
        """Whether the code has initializers as constants that a run in ONNX Runtime, which is listed, may replace."""
        return bool(self.model.held) and all(any(d.last_resort for d in spec.devices) for spec in self.specs)

    def takes(self, path: Path) -> bool:
        """Whether the inputs in a file have these sizes."""
        shapes = npz_shapes(path)
        return all(shapes.get(name) == shape for name, shape in self.input_shapes.items())

    def at_shapes(self, spec: VariantSpec) -> VariantSpec:
        """A spec at these sizes, with a name of its own if they are not the bundle's first."""
        found, shapes = self.input_shapes, self.shapes
        names = {dim for shape in found.values() for dim in shape if isinstance(dim, str)}
        spec = replace(spec, shapes=found, bounds={n: sizes for n, sizes in shapes.bounds.items() if n in names})
        return replace(spec, name=shapes.named(spec.name), choice=spec.name) if shapes.is_further else spec


def import_at(request: Request, shapes: ShapeRequest) -> Imported:
    """Import the model, and resolve the devices and the variants. Notes are those of the import and of devices."""
    options, reporter = request.options, request.reporter
    importing = reporter.stage(f"importing {request.source.path.name}{shapes.at}")
    resolve = partial(
        resolve_lists,
        options.lists,
        options.device_files,
        options.properties,
        config=options.config,
        fast_math=options.fast_math,
    )
    with importing, timed(request.seconds, "import"), shapes.naming():
        try:
            model = model_at(request.source, shapes, options.lists)
        except DynamicShapeError:
            resolve()  # a device that is unknown or missing comes first: its hint may be all that the user needs
            raise
    require_bounds(shapes, model)
    request.require_places()  # again, because the model's external data is known now
    lists, notes = resolve(traits=partial(traits_of, model))
    if any(device.backend == "cpu" for device in all_devices(lists)):
        require_possible(shapes, model)
    lists, untargeted = with_cpu_targets(
        lists, options.cpu_targets, (*options.properties, *config_texts(options.config))
    )
    lists, unpaired = with_possible_products(lists, fall_back=bool(options.cpu_targets))
    devices = all_devices(lists)
    if all(device.flushes_denormals for device in devices):
        model = without_denormals(model)
    model, assumed = with_planned_sizes(model, shapes.bounds, devices)
    begun = None
    if request.vectors is not None:
        begun = request.vectors.begin(
            model, options.inputs, options.seed, reads=not options.recheck, check=options.check
        )
        if options.check:
            warm_up(devices)
    specs, passed_over = variant_specs(lists, model.graph.nodes, request.affinity)
    if shapes.is_rest or shapes.unchanged:
        specs, passed_over = tuple(map(last_resort_of, specs)), ()
    said = (*model.notes, *notes, *untargeted, *unpaired, *passed_over)
    for note in () if shapes.replaces else said:  # those of the variants for the same sizes
        if note != ORT_IS_LAST:
            reporter.note(note)
    for text in (*(note for note in notes if note == ORT_IS_LAST), *left_out(devices)):
        reporter.warn(text)
    found = Imported(request=request, shapes=shapes, model=model, specs=specs, assumed=assumed, begun=begun)
    return replace(found, specs=tuple(map(found.at_shapes, specs)))
