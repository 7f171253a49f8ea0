"""What a compile stores in fewer bits than its float model: weights, and keys and values; what is lost and saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import onnx

from heterocc.artifacts.errors import Hint, InputError, UsageError
from heterocc.compiler.api.progress import Reporter
from heterocc.compiler.checking.as_given import CannotRunError
from heterocc.compiler.checking.vectors import find_vectors
from heterocc.compiler.checking.weight_cost import (
    MOST_LOST,
    OutputError,
    ProductCost,
    cache_errors,
    output_errors,
    product_costs,
)
from heterocc.compiler.devices.config import config_texts
from heterocc.compiler.devices.properties import cache_type
from heterocc.compiler.importer.caches import store_caches
from heterocc.compiler.importer.compressed import large_products
from heterocc.compiler.importer.given import GivenModel
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.reading.source import ModelSource
from heterocc.compiler.importer.weight_form import WeightForm
from heterocc.compiler.options import CompileOptions
from heterocc.compiler.sizes.requests import model_at, shape_requests
from heterocc.passes.show.printer import count, human_bytes

_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Compression:
    """The products whose weights were compressed, those that lose too much, and the errors of the model's outputs.

    `unknown` is the reason why the errors are not known. `kept` are nodes that the user excluded.
    """

    form: str
    products: tuple[ProductCost, ...]
    excluded: tuple[ProductCost, ...]
    kept: tuple[str, ...]
    errors: tuple[OutputError, ...]
    unknown: str | None = None

    @property
    def sizes(self) -> tuple[int, int]:
        """The bytes of the products' weights before and after; a weight that several products read counts once."""
        each = {p.product.weight: (p.before, p.after) for p in self.products}
        return sum(before for before, _ in each.values()), sum(after for _, after in each.values())

    def notes(self) -> tuple[str, ...]:
        """Sentences without a full stop."""
        before, after = self.sizes
        what = f"weights of {count(len(self.products), 'product')} in {self.form}"
        lines = [f"{what}: {human_bytes(before)} become {human_bytes(after)}"]
        lines += _errors(self.form, self.errors, self.unknown)
        lines += [
            f"the weight of '{p.product.node}' stays as it is: {p.lost:.0%} of the product would be lost"
            for p in self.excluded
        ]
        return tuple(lines)

    def to_json(self) -> dict[str, object]:
        """As `heterocc compile --json` prints it."""
        before, after = self.sizes
        return {
            "form": self.form,
            "products": [{"node": p.product.node, "lost": round(p.lost, 6)} for p in self.products],
            "excluded": [{"node": p.product.node, "lost": round(p.lost, 6)} for p in self.excluded],
            "kept": list(self.kept),
            "bytes_before": before,
            "bytes_after": after,
            "outputs": [e.to_json() for e in self.errors],
            "unknown": self.unknown,
        }


def _errors(cause: str, errors: Sequence[OutputError], unknown: str | None) -> list[str]:
    """Sentences without a full stop; `unknown` is the reason why the errors are not known."""
    worst = sorted(errors, key=lambda e: e.snr)
    more = f", and {count(len(worst) - _SHOWN, 'output')} with less" if len(worst) > _SHOWN else ""
    lines = [f"largest errors by {cause}: {', '.join(e.text() for e in worst[:_SHOWN])}{more}"] if worst else []
    return lines if unknown is None else [*lines, f"the errors by {cause} are not known: {unknown}"]


def with_weights(
    source: ModelSource, options: CompileOptions, reporter: Reporter
) -> tuple[ModelSource, Compression | None]:
    """The source with the form of weights that the options ask for; and what it costs, which is noted.

    Raises UsageError (HC120) for a form that is not known, or a pattern to keep that fits no large product.
    """
    if options.weights is None:
        if options.weights_keep:
            raise UsageError(
                "weights_keep is given without weights",
                where=Hint("weights_keep=…", "--weights-keep"),
                hint=Hint("give weights='int4' or 'int8', too", "give --weights int4 or int8, too"),
            )
        return source, None
    form = WeightForm.parse(options.weights)
    request = next(iter(shape_requests(options)))
    with reporter.stage("compressing weights"), request.naming():
        model = model_at(source, request, options.lists)
        assert model.given is not None
        form, kept = _keeping(form, model.given, options)
        done = _compression(form, kept, model, model.given, options)
    for note in done.notes():
        reporter.note(note)
    if not done.products:
        reporter.warn(f"no weight is compressed in {form}: the model has no large product with a constant in float32")
    return replace(source, weights=form.keeping(frozenset(p.product.node for p in done.excluded))), done


def with_caches(source: ModelSource, options: CompileOptions, reporter: Reporter) -> ModelSource:
    """The source with keys and values of the type that the property `kv_precision` asks for; what it costs is noted."""
    dtype = cache_type((*config_texts(options.config), *options.properties))
    if dtype is None:
        return source
    request = next(iter(shape_requests(options)))
    with reporter.stage("storing keys and values in 16 bits"), request.naming():
        model = model_at(source, request, options.lists)
        assert model.given is not None
        stored = onnx.ModelProto()
        stored.CopyFrom(model.given.proto)
        caches = store_caches(stored, dtype)
        if not caches:
            reporter.warn(f"no keys and values become {dtype}: the model has none in float32 that it takes and returns")
            return source
        reporter.note(
            f"{count(len(caches), 'input')} of keys and values, and the outputs that lengthen them, are {dtype}"
        )
        inputs, unknown = _inputs(model, model.given, replace(options, inputs=None))
        if options.inputs is not None:
            inputs, unknown = None, "the given inputs are rounded already"
        errors: tuple[OutputError, ...] = ()
        try:
            errors = () if inputs is None else cache_errors(model.given, stored, caches, inputs)
        except CannotRunError as error:
            unknown = str(error)
    for note in _errors(f"keys and values in {dtype}", errors, unknown):
        reporter.note(note)
    return replace(source, caches=dtype)


def _keeping(form: WeightForm, given: GivenModel, options: CompileOptions) -> tuple[WeightForm, tuple[str, ...]]:
    """The form with the nodes whose name, or whose weight's name, a pattern of the user fits."""
    products = list(large_products(given.proto.graph, given.weights))
    kept: dict[str, None] = {}
    for pattern in options.weights_keep:
        fitting = [p.node for p in products if any(fnmatchcase(name, pattern) for name in (p.node, p.weight))]
        if not fitting:
            shown = ", ".join(f"'{p.node}'" for p in products[:_SHOWN])
            raise UsageError(
                f"'{pattern}' fits no large product",
                where=Hint("weights_keep=…", "--weights-keep"),
                hint=f"the model has {count(len(products), 'large product')}" + (f": {shown}, …" if products else ""),
            )
        kept |= dict.fromkeys(fitting)
    return form.keeping(frozenset(kept)), tuple(kept)


def _compression(
    form: WeightForm, kept: tuple[str, ...], model: ImportedModel, given: GivenModel, options: CompileOptions
) -> Compression:
    inputs, unknown = _inputs(model, given, options)
    try:
        costs = product_costs(given, form, inputs)
    except CannotRunError as error:
        inputs, unknown = None, str(error)
        costs = product_costs(given, form, None)
    products = tuple(cost for cost in costs if cost.lost <= MOST_LOST)
    excluded = tuple(cost for cost in costs if not cost.lost <= MOST_LOST)
    errors: tuple[OutputError, ...] = ()
    if inputs is not None and products:
        used = form.keeping(frozenset(cost.product.node for cost in excluded))
        try:
            errors = output_errors(given, used, inputs)
        except CannotRunError as error:
            unknown = str(error)
    return Compression(str(form), products, excluded, kept, errors, unknown)


def _inputs(
    model: ImportedModel, given: GivenModel, options: CompileOptions
) -> tuple[dict[str, Any] | None, str | None]:
    """The inputs with which the model is checked, by its own names; None, and the reason, if there are none."""
    try:
        found = find_vectors(model, options.inputs, options.seed)
    except InputError as error:
        if options.inputs is not None:
            raise
        return None, error.message
    return {given.names[name]: value for name, value in found.inputs.items()}, None
