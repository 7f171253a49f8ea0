"""The shapes for which a bundle is compiled: one request for each set of shapes and combination of sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from math import prod

from heterocc.artifacts.errors import HeteroccError, Hint, ShapeOptionError
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.options import CompileOptions

MAX_REQUESTS = 16
"""Maximum number of shapes of one bundle. Each is compiled and checked in turn, which takes its own time and code."""

_MAX_LABEL = 60


@dataclass(frozen=True, slots=True)
class ShapeRequest:
    """Shapes of inputs and sizes of named dimensions for one import; `label` is what distinguishes it from others.

    With `keep_dims`, dimensions that are not fixed stay dynamic; otherwise they are an error. `is_open` marks the
    request for all sizes that no other fixes.
    """

    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    label: str = ""
    keep_dims: bool = False
    is_open: bool = False

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
    request with hints and sets leaves all of these dynamic, for sizes that no other request fixes.

    Raises ShapeOptionError (HC106) for a name or shape that is given twice, and for more than MAX_REQUESTS.
    """
    sets: Sequence[Mapping[str, Sequence[int]]] = options.shape_sets or ({},)
    for name in options.hints:
        if name in options.dims:
            raise ShapeOptionError(
                f"dimension '{name}' is fixed to {options.dims[name]} and has hints",
                where=Hint(f"hints={{'{name}': …}}", f"--hint {name}=…"),
                hint=Hint("leave it out of `dims` or `hints`", "leave out --dim or --hint"),
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
    keep = takes_dynamic((tuple(options.devices), *options.variants))
    found = []
    for shapes in sets:
        for sizes in product(*options.hints.values()):
            dims = dict(zip(options.hints, sizes, strict=True))
            label = ",".join(f"{name}={size}" for name, size in dims.items())
            texts = [f"{name}={'x'.join(map(str, shape))}" for name, shape in shapes.items()]
            label = ";".join([*texts, *([label] if label else [])])
            label = label if number > 1 or keep else ""
            found.append(ShapeRequest({**options.shapes, **shapes}, {**options.dims, **dims}, label, keep))
    if keep and (options.shape_sets or options.hints):
        found.append(ShapeRequest(options.shapes, options.dims, "any", keep_dims=True, is_open=True))
    return tuple(found)


def takes_dynamic(lists: Iterable[str | Sequence[str]]) -> bool:
    """Whether each list of devices has one that runs nodes of any shape, which is ONNX Runtime."""
    names = [[listed] if isinstance(listed, str) else listed for listed in lists]
    return all(any(name.strip().upper() == "ORT" for text in some for name in text.split(",")) for some in names)


def require_different(models: Sequence[tuple[ShapeRequest, ImportedModel]]) -> None:
    """Raise ShapeOptionError (HC106) if two requests fix the same shapes."""
    seen: dict[tuple[object, ...], ShapeRequest] = {}
    for request, model in models:
        shapes = tuple(model.input_shape(name) for name in model.graph.inputs)
        other = seen.setdefault(shapes, request)
        if other is not request:
            raise ShapeOptionError(
                f"{other.label} and {request.label} are the same shapes",
                where=model.name,
                hint="leave one of them out",
            )
