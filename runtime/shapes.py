"""The variants of one choice of devices for several shapes of inputs, and which of them runs a request."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from heterocc.artifacts.bundle import Bundle
from heterocc.artifacts.dynamic import input_shapes
from heterocc.artifacts.errors import FeedError, Hint, UsageError
from heterocc.artifacts.files.locks import renewed_lock
from heterocc.artifacts.frozen import frozen
from heterocc.artifacts.manifest import TensorSpec, Variant
from heterocc.runtime import forks
from heterocc.runtime.conditions import Conditions
from heterocc.runtime.feeds import TensorInfo
from heterocc.runtime.pool import ContextPool
from heterocc.runtime.runs import Runs
from heterocc.runtime.select.opening import open_further

Shape = tuple[int, ...]


@frozen
class Ready:
    """A loaded variant: its contexts, its runs, its outputs under the model's names, and what its inputs must meet."""

    variant: Variant
    pool: ContextPool
    runs: Runs
    outputs: tuple[TensorSpec, ...]
    conditions: Conditions | None

    @classmethod
    def of(cls, bundle: Bundle, variant: Variant, pool: ContextPool, names: Sequence[str] | None = None) -> Ready:
        """A variant with the contexts that were loaded for it; `names` are those of its inputs, if not the model's."""
        model = bundle.manifest.model
        inputs, outputs = names or [t.name for t in model.inputs], [t.name for t in model.outputs]
        runs = Runs(bundle, variant, inputs, outputs)
        conditions = Conditions(variant, inputs, bundle.path) if variant.conditions else None
        return cls(variant, pool, runs, named(variant, variant.outputs, outputs), conditions)


class ShapeVariants:
    """The variants of one choice of devices. Each is loaded when a request first needs it. Thread-safe.

    They share the bundle's weights in memory, and layouts of weights that several of them read.
    """

    def __init__(self, bundle: Bundle, first: Ready, inputs: Sequence[TensorInfo], *, profile: bool) -> None:
        """`first` is loaded already; `inputs` are the model's, with the sizes that all variants allow together."""
        self._bundle = bundle
        self._profile = profile
        self._inputs = tuple(inputs)
        self.variants = bundle.manifest.with_shapes(first.variant)
        self._loaded = {first.variant.name: first}
        self._lock = renewed_lock()
        self._static: dict[tuple[Shape | None, ...], Variant] = {}
        self._others: list[Variant] = []
        for variant in self.variants:
            shapes = input_shapes(variant)
            if all(shape is None or all(isinstance(d, int) for d in shape) for shape in shapes):
                self._static[shapes] = variant  # type: ignore[index]
            else:
                self._others.append(variant)
        sure = [*self._static.values(), *filter(_knows_its_shapes, self._others)]
        self._sure = {v.name for v in (sure if self._static else [*sure, *self._others[:1]])}
        self._ranked = tuple(shape is not None for shape in input_shapes(first.variant))

    @property
    def ready(self) -> tuple[Ready, ...]:
        """Those that are loaded."""
        return tuple(self._loaded.values())

    def is_sure(self, variant: Variant) -> bool:
        """Whether no other variant is preferred for a request that native code of this one accepts."""
        return variant.name in self._sure

    def close(self) -> tuple[Ready, ...]:
        """Return the loaded variants, which the caller closes. Waits for one that loads; later ones are refused."""
        with self._lock:
            loaded, self._loaded = self._loaded, {}
        return tuple(loaded.values())

    def of(self, arrays: Sequence[Any]) -> Ready:
        """The variant for checked inputs. Raises FeedError (HC110) if there is none, and the errors of `load`."""
        shapes = tuple(array.shape if ranked else None for array, ranked in zip(arrays, self._ranked, strict=True))
        variant = self._static.get(shapes)
        if variant is None:
            variant = self._of_any_size(arrays, shapes)
            if variant is None:
                raise self._refusal(shapes)
        return self._loaded.get(variant.name) or self._load(variant)

    def _of_any_size(self, arrays: Sequence[Any], shapes: Sequence[Shape | None]) -> Variant | None:
        """The first variant with dynamic dimensions that takes inputs of these shapes and whose conditions they meet.

        If they meet those of none, it is the first that takes the shapes, which then says what is not met.
        """
        fitting = [variant for variant in self._others if fits(variant, shapes)]
        if len(fitting) > 1:
            names = [info.name for info in self._inputs]
            for variant in fitting:
                if not variant.conditions or Conditions(variant, names, self._bundle.path).are_met(arrays):
                    return variant
        return fitting[0] if fitting else None

    def matching(self, shapes: Mapping[str, Sequence[int]]) -> Ready:
        """The first variant of static shapes with these shapes of inputs. Raises FeedError (HC110) if there is none."""
        names = [info.name for info in self._inputs]
        for name in shapes:
            if name not in names:
                raise FeedError(
                    f"the model has no input '{name}'", where=self._bundle.path, hint=f"inputs: {', '.join(names)}"
                )
        wanted = tuple(_shape(name, shapes[name]) if name in shapes else None for name in names)
        for found, variant in self._static.items():
            if all(want is None or want == shape for want, shape in zip(wanted, found, strict=True)):
                return self._loaded.get(variant.name) or self._load(variant)
        if self._others:
            raise FeedError(
                f"only fixed shapes can be bound, and {self._text(wanted)} are not among them",
                where=self._bundle.path,
                hint=Hint(
                    "use Session.run, or compile the model for them, too (`shape_sets`)",
                    "use Session.run, or compile the model for them, too (--shapes)",
                ),
            )
        raise self._refusal(wanted)

    def _load(self, variant: Variant) -> Ready:
        with self._lock, forks.working(self._bundle.path):
            if not self._loaded:
                raise UsageError("the session is closed", where=self._bundle.path)
            found = self._loaded.get(variant.name)
            if found is None:
                chains = [ready.pool.chain for ready in self._loaded.values()]
                pool = open_further(self._bundle, variant, chains, profile=self._profile)
                found = Ready.of(self._bundle, variant, pool)
                self._loaded[variant.name] = found
            return found

    def _refusal(self, shapes: Sequence[Shape | None]) -> FeedError:
        """The error for shapes that inputs may have, but not together."""
        untied = None if self._static else self._untied(shapes)
        if untied is not None:
            hint = "dimensions of one name have the same size in all inputs"
            return FeedError(untied, where=self._bundle.path, hint=hint)
        have = " | ".join(shapes_text(variant, [info.name for info in self._inputs]) for variant in self.variants[:8])
        more = " | …" if len(self.variants) > 8 else ""
        return FeedError(
            f"the bundle has no code for the shapes {self._text(shapes)} together",
            where=self._bundle.path,
            hint=Hint(
                f"compile the model for them, too (`shape_sets`); it has: {have}{more}",
                f"compile the model for them, too (--shapes); it has: {have}{more}",
            ),
        )

    def _untied(self, shapes: Sequence[Shape | None]) -> str | None:
        """What a dimension is in two inputs, if that is why the first variant refuses shapes."""
        found: dict[str, tuple[int, str]] = {}
        for info, want, shape in zip(self._inputs, input_shapes(self._others[0]), shapes, strict=True):
            for dim, size in zip(want or (), shape or (), strict=False):
                if isinstance(dim, str):
                    first, name = found.setdefault(dim, (size, info.name))
                    if first != size:
                        return f"dimension '{dim}' is {first} in '{name}' and {size} in '{info.name}'"
        return None

    def _text(self, shapes: Sequence[Shape | None]) -> str:
        """Shapes of inputs as text: `x=8,3; n=8`."""
        return "; ".join(
            f"{info.name}={','.join(map(str, shape))}"
            for info, shape in zip(self._inputs, shapes, strict=True)
            if shape is not None
        )


def _shape(name: str, shape: Sequence[int]) -> Shape:
    """A shape that a caller gives. Raises FeedError (HC110) for anything else, such as the input's array."""
    try:
        return tuple(operator.index(size) for size in shape)
    except TypeError:
        raise FeedError(
            f"the shape of '{name}' is not a sequence of whole numbers",
            hint="bind takes shapes; values are written to the arrays in `inputs` of the Binding",
        ) from None


def shapes_text(variant: Variant, names: Sequence[str]) -> str:
    """The shapes of a variant's inputs as text: `x=8,3,224,224; n=8`."""
    texts = []
    for name, shape in zip(names, input_shapes(variant), strict=True):
        if shape is not None:
            texts.append(f"{name}={','.join('?' if d is None else str(d) for d in shape)}")
    return "; ".join(texts)


def named(variant: Variant, values: Sequence[int], names: Sequence[str]) -> tuple[TensorSpec, ...]:
    """The variant's specs under the model's names."""
    return tuple(variant.values[v].model_copy(update={"name": n}) for v, n in zip(values, names, strict=True))


def _knows_its_shapes(variant: Variant) -> bool:
    """Whether fast runs of a variant are of shapes that it ran before (`Runs.run_fast`): an ONNX Runtime session."""
    return len(variant.partitions) == 1 and variant.partitions[0].kind == "onnx"


def fits(variant: Variant, shapes: Sequence[Shape | None]) -> bool:
    """Whether a variant with dynamic dimensions takes inputs of these shapes."""
    sizes: dict[str, int] = {}
    for want, shape in zip(input_shapes(variant), shapes, strict=True):
        if want is None or shape is None:
            continue
        if len(want) != len(shape):
            return False
        for dim, size in zip(want, shape, strict=True):
            if isinstance(dim, int) and dim != size:
                return False
            if isinstance(dim, str):
                bounds = variant.bounds.get(dim)
                if sizes.setdefault(dim, size) != size:
                    return False
                if bounds is not None and size not in bounds:
                    return False
    return True
