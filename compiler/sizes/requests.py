"""The shapes for which a bundle is compiled: one request for each set of shapes and combination of sizes."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

from heterocc.artifacts.errors import HeteroccError, Hint, ShapeOptionError
from heterocc.artifacts.manifest import ANY_SIZE, Range
from heterocc.compiler.devices.lists import each_has, names_in, only_numbers, takes_dynamic
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.importer.reading.defaults import FEW_NODES
from heterocc.compiler.importer.reading.source import ModelSource
from heterocc.compiler.importer.unchanged import import_unchanged
from heterocc.compiler.options import CompileOptions
from heterocc.runtime.feeds import nearest
from heterocc.runtime.files.shape_options import MAX_ELEMENTS
from heterocc.runtime.select.request import DeviceRequest

MAX_REQUESTS = 16
"""Maximum number of shapes of one bundle. Each is compiled and checked in turn, which takes its own time and code."""

_MAX_LABEL = 60
_MOST_APART = 2
"""The most dimensions whose size 1 gets code of its own, because a result has another rank."""
_MOST_ONES = 4
"""The most with those whose size 1 is broadcast."""


@dataclass(frozen=True, slots=True)
class ShapeRequest:
    """Shapes of inputs and sizes of named dimensions for one import; `label` is what distinguishes it from others.

    `bounds` are the least and largest size of named dimensions that stay dynamic. With `keep_dims`, dimensions that are
    not fixed stay dynamic; otherwise they are an error. `is_further` marks those after the first, `is_general` the last
    of those that the user asked for, and `is_open` one for all sizes that no other fixes. One that `is_optional` is
    left out, with a note, if it cannot be compiled; `is_rest` marks the one for sizes that are excluded from the code
    of the general one, which ONNX Runtime takes. One that `replaces` is for runs that replace initializers, which
    ONNX Runtime takes, too. `unchanged` is the reason, if there is one, for which ONNX Runtime takes the whole model as
    it was given.
    """

    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    bounds: Mapping[str, Range] = field(default_factory=dict)
    label: str = ""
    keep_dims: bool = False
    is_further: bool = False
    is_general: bool = False
    is_open: bool = False
    is_optional: bool = False
    is_rest: bool = False
    replaces: bool = False
    unchanged: str = ""

    @property
    def at(self) -> str:
        """The label as the end of a sentence; empty for the only request."""
        return f" at {self.label}" if self.label else ""

    def named(self, name: str) -> str:
        """The name of a variant for these shapes: `main@batch=8`."""
        return f"{name}@{self.label[:_MAX_LABEL]}"

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Make errors name the shapes."""
        try:
            yield
        except HeteroccError as error:
            if self.label and self.label not in error.message:
                error.message = f"{error.message}{self.at}"
            raise


def shape_requests(options: CompileOptions) -> tuple[ShapeRequest, ...]:
    """The requests of a compile, at least one, each set of shapes with each combination of hinted sizes.

    If every list of devices has one that takes dynamic dimensions, those that are not fixed stay dynamic, and a last
    request beside hints and sets leaves all of these dynamic, for sizes that no other fixes. It is optional unless
    every list has ONNX Runtime.

    Raises ShapeOptionError (HC106) for a name or shape that is given twice, and for more than MAX_REQUESTS.
    """
    sets: Sequence[Mapping[str, Sequence[int]]] = options.shape_sets or ({},)
    fixed = {name: size for name, size in options.dims.items() if not isinstance(size, Range)}
    bounds = {name: size for name, size in options.dims.items() if isinstance(size, Range)}
    keep = takes_dynamic(options.lists)
    if bounds and not keep:
        raise ShapeOptionError(
            f"the bounds of '{next(iter(bounds))}' need a device that takes dynamic dimensions",
            where=Hint("dims=…", "--dim"),
            hint=Hint("add CPU or ORT to `devices`, or give a size", "add CPU or ORT to --devices, or give a size"),
        )
    for name, sizes in options.hints.items():
        if name in fixed:
            raise ShapeOptionError(
                f"dimension '{name}' is fixed to {fixed[name]} and has hints",
                where=Hint(f"hints={{'{name}': …}}", f"--hint {name}=…"),
                hint=Hint("leave it out of `dims` or `hints`", "leave out --dim or --hint"),
            )
        allowed = bounds.get(name, Range(max=MAX_ELEMENTS))
        for size in sizes:
            if isinstance(size, int) and size not in allowed:
                raise ShapeOptionError(
                    f"the hint {size} for dimension '{name}' is not in its bounds, {allowed}",
                    where=Hint(f"hints={{'{name}': …}}", f"--hint {name}=…"),
                    hint="leave it out, or widen the bounds",
                )
    for shapes in sets:
        for name in shapes:
            if name in options.shapes:
                raise ShapeOptionError(
                    f"the shape of '{name}' is fixed, and given in a set of shapes",
                    where=Hint(f"shape_sets={{'{name}': …}}", f"--shapes {name}=…"),
                    hint=Hint("leave it out of `shapes` or `shape_sets`", "leave out --shape or --shapes"),
                )
    number = len(sets) * prod(len(sizes) for sizes in options.hints.values())
    if number > MAX_REQUESTS:
        raise ShapeOptionError(
            f"{number} combinations of shapes are requested, more than {MAX_REQUESTS}",
            where=Hint("hints=…", "--hint"),
            hint=Hint(
                "name the combinations that matter with `shape_sets`", "name the combinations that matter with --shapes"
            ),
        )
    found = []
    for shapes in sets:
        for sizes in product(*options.hints.values()):
            dims = dict(zip(options.hints, sizes, strict=True))
            label = ",".join(f"{name}={size}" for name, size in dims.items())
            texts = [f"{name}={'x'.join(map(str, shape))}" for name, shape in shapes.items()]
            label = ";".join([*texts, *([label] if label else [])])
            label = label if number > 1 or keep else ""
            found.append(ShapeRequest({**options.shapes, **shapes}, {**fixed, **dims}, bounds, label, keep_dims=keep))
    if keep and (options.shape_sets or options.hints):
        optional = not each_has(options.lists, "ORT")
        found.append(
            ShapeRequest(options.shapes, fixed, bounds, "any", keep_dims=True, is_open=True, is_optional=optional)
        )
    last = len(found) - 1
    return tuple(replace(r, is_further=place > 0, is_general=place == last) for place, r in enumerate(found))


def model_at(source: ModelSource, request: ShapeRequest, lists: Sequence[DeviceRequest]) -> ImportedModel:
    """Import a model for lists of devices, at the sizes of a request. Raises the errors of the import."""
    if request.unchanged:
        return import_unchanged(source, shapes=request.shapes, dims=request.dims, replacing=request.replaces)
    model = import_model(
        source,
        shapes=request.shapes,
        dims=request.dims,
        keep_dims=request.keep_dims,
        only_numbers=only_numbers(lists),
        assume=excludes_sizes(request, lists),
        replacing=request.replaces,
        exact=request.is_rest,
    )
    return with_samples_in_bounds(model, request.bounds)


def request_for_rest(request: ShapeRequest) -> ShapeRequest:
    """A further request for the sizes that the import of this one excludes (`ImportedModel.assumes`)."""
    further = replace(request, is_further=True, is_general=False)
    return replace(further, label="other sizes", is_open=False, is_optional=True, is_rest=True)


def request_for_replacing(request: ShapeRequest) -> ShapeRequest:
    """A further request for runs that replace initializers which are constants of the code (`ImportedModel.held`)."""
    return replace(request_for_rest(request), label="other values", replaces=True)


def apart(request: ShapeRequest, model: ImportedModel, lists: Sequence[DeviceRequest]) -> list[ShapeRequest]:
    """Further requests for the size 1 of dimensions with which a result has another rank (`ImportedModel.apart`).

    So have small models for dimensions that a node would broadcast with this size (`ImportedModel.ones`), unless ONNX
    Runtime takes what is excluded.
    """
    in_file = {name for names in model.dimensions.values() for name in names}
    names = list(model.apart[:_MOST_APART])
    if only_numbers(lists) and len(model.graph.nodes) <= FEW_NODES:
        names = list(dict.fromkeys((*names, *model.ones)))[:_MOST_ONES]
    names = [name for name in names if request.bounds.get(name, ANY_SIZE).min <= 1]
    found = []
    for chosen in product((False, True), repeat=len(names)):
        ones = {name: 1 for name, one in zip(names, chosen, strict=True) if one}
        shapes = _shapes_with(model, ones, in_file)
        if ones and shapes is not None:
            dims = {name: 1 for name in ones if name in in_file}
            bounds = {name: both for name, both in request.bounds.items() if name not in ones}
            label = ",".join(f"{name}=1" for name in ones)
            changed = replace(request, shapes={**request.shapes, **shapes}, dims={**request.dims, **dims})
            changed = replace(changed, bounds=bounds, label=label, is_further=True, is_general=False)
            found.append(replace(changed, is_optional=not ones.keys().isdisjoint(model.ones)))
    return found


def _shapes_with(
    model: ImportedModel, ones: Mapping[str, int], in_file: Container[str | None]
) -> dict[str, tuple[int, ...]] | None:
    """The shapes of inputs with a dimension of 1 that has no name in the file; None if they have other dynamic ones."""
    found = {}
    for name in model.graph.inputs:
        known, source = model.graph.values[name].shape or (), model.sources[name]
        labels = [label or f"{source}_{axis}" for axis, label in enumerate(model.dimensions.get(source, ()))]
        is_one = [d in ones or label in ones for d, label in zip(known, labels, strict=True)]
        shape = [1 if one else d for d, one in zip(known, is_one, strict=True)]
        if any(one and label not in in_file for one, label in zip(is_one, labels, strict=True)):
            sizes = tuple(d for d in shape if isinstance(d, int))
            if len(sizes) < len(shape):
                return None
            found[model.sources[name]] = sizes
    return found


def require_bounds(request: ShapeRequest, model: ImportedModel) -> None:
    """Raise ShapeOptionError (HC106) for bounds of a dimension that no input has."""
    known = list(dict.fromkeys(d for n in model.graph.inputs for d in model.names_of(n) if d is not None))
    for name in request.bounds:
        if name not in known:
            raise ShapeOptionError(
                f"no dimension of the model's inputs is named '{name}'",
                where=model.name,
                hint=nearest(name, known) if known else "its inputs have no named dimensions",
            )
        same = next((dim for n in model.graph.inputs for dim in _other_names(model, n, name)), None)
        if same is not None:
            raise ShapeOptionError(
                f"the model needs the dimensions '{name}' and '{same}' to be equal, and calls both '{same}'",
                where=model.name,
                hint=Hint(f"dims={{'{same}': …}}", f"--dim {same}=…"),
            )


def _other_names(model: ImportedModel, value: str, name: str) -> Iterator[str]:
    """The names that dimensions of an input got in place of this one."""
    dims = zip(model.names_of(value), model.graph.values[value].shape or (), strict=False)
    return (dim for known, dim in dims if known == name and isinstance(dim, str) and dim != name)


def require_possible(request: ShapeRequest, model: ImportedModel) -> None:
    """Raise ShapeOptionError (HC106) for bounds without a size that code for the CPU takes."""
    for name, asked in request.bounds.items():
        allowed = model.bounds.get(name, ANY_SIZE)
        if (asked & allowed).is_empty:
            raise ShapeOptionError(
                f"dimension '{name}' is bounded to {asked}, and code for the CPU takes {allowed}",
                where=Hint(f"dims={{'{name}': …}}", f"--dim {name}=…"),
                hint="give other bounds, or leave CPU out of the devices",
            )


def with_samples_in_bounds(model: ImportedModel, bounds: Mapping[str, Range]) -> ImportedModel:
    """The model with shapes of seeded inputs within the bounds of dimensions."""
    if not bounds or not model.samples:
        return model
    samples = {}
    for source, shape in model.samples.items():
        names = model.dimensions.get(source, (None,) * len(shape))
        limits = [bounds.get(name or "", ANY_SIZE) for name in names]
        samples[source] = tuple(limit.nearest(d) for d, limit in zip(shape, limits, strict=True))
    return replace(model, samples=samples)


def excludes_sizes(request: ShapeRequest, lists: Sequence[DeviceRequest]) -> bool:
    """Whether sizes with which nodes cannot run are excluded from what is compiled (decisions 40 and 86).

    With ONNX Runtime in the list it takes the excluded sizes; beside other devices than the CPU, nothing is excluded.
    """
    if request.is_rest:
        return False
    return only_numbers(lists) or all(names_in(listed) == {"CPU", "ORT"} for listed in lists)


def require_different(models: Sequence[tuple[ShapeRequest, ImportedModel]]) -> None:
    """Raise ShapeOptionError (HC106) if two requests fix the same shapes."""
    seen: dict[tuple[object, ...], ShapeRequest] = {}
    for request, model in models:
        if request.is_rest:
            continue
        shapes = tuple(model.input_shape(name) for name in model.graph.inputs)
        other = seen.setdefault(shapes, request)
        if other is not request:
            raise ShapeOptionError(
                f"{other.label} and {request.label} are the same shapes", where=model.name, hint="leave one of them out"
            )
