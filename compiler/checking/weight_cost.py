"""The cost of numbers in fewer bits: what each product and each output of the model loses, in ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from heterocc.compiler.checking.as_given import CannotRunError, run_given
from heterocc.compiler.importer.compressed import LargeProduct, compress, compressed, large_products, weight_of
from heterocc.compiler.importer.given import GivenModel
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.reading.read import read_model
from heterocc.compiler.importer.reading.source import ModelSource
from heterocc.compiler.importer.weight_form import WeightForm

MOST_LOST = 0.2
"""The largest error of a compressed product, as a share of the product, both by their mean squares.

Normally distributed weights lose 0.08 with 4 bits in blocks of 32, and 0.005 with 8 bits.
"""

_ROWS = 64
"""The rows of a product that are compared."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class OutputError:
    """The error of an output by compressed weights: the largest one, the largest magnitude, and the ratio in dB."""

    name: str
    error: float
    largest: float
    snr: float

    def text(self) -> str:
        """`'y' 0.02 of 3.1 (SNR 40 dB)`."""
        ratio = "exact" if math.isinf(self.snr) else f"SNR {self.snr:.0f} dB"
        return f"'{self.name}' {self.error:.2g} of {self.largest:.3g} ({ratio})"

    def to_json(self) -> dict[str, object]:
        """As `heterocc compile --json` prints it; what is not finite becomes None."""
        return {
            "name": self.name,
            "max_abs": self.error if math.isfinite(self.error) else None,
            "largest": self.largest,
            "snr_db": self.snr if math.isfinite(self.snr) else None,
        }


@dataclass(frozen=True, slots=True)
class ProductCost:
    """What a product loses if it is compressed: a share of its mean square, and the bytes before and after."""

    product: LargeProduct
    lost: float
    before: int
    after: int


def product_costs(given: GivenModel, form: WeightForm, inputs: Mapping[str, Any] | None) -> list[ProductCost]:
    """The cost of each large product that the form does not keep.

    On the factors that it gets for these inputs of the model, by its own names; without them, and within bodies of
    other nodes, as if its factors were random numbers. Raises CannotRunError if ONNX Runtime cannot run the model.
    """
    graph, weights = given.proto.graph, given.weights
    products = [p for p in large_products(graph, weights) if p.node not in form.keep]
    seen = {p.factor for p in products if not p.inner and p.factor not in weights}
    factors = {} if inputs is None or not seen else run_given(given, sorted(seen), inputs)
    return [_cost(p, weight_of(p, graph, weights), form, factors.get(p.factor)) for p in products]


def _cost(product: LargeProduct, weight: Array, form: WeightForm, factor: Array | None) -> ProductCost:
    weight = np.ascontiguousarray(weight)
    codes = compressed(weight, form)
    exact, found = weight.astype(np.float32), codes.numbers()
    error = found - exact
    if factor is not None and factor.size:
        rows = factor.reshape(-1, factor.shape[-1])
        rows = rows[:: max(1, len(rows) // _ROWS)][:_ROWS].astype(np.float32)
        exact, error = rows @ exact, rows @ error
    size = _root_mean_square(exact)
    lost = _root_mean_square(error) / size if size else 0.0
    return ProductCost(product, lost, weight.nbytes, codes.nbytes)


def output_errors(given: GivenModel, form: WeightForm, inputs: Mapping[str, Any]) -> tuple[OutputError, ...]:
    """The errors of the outputs that are floating-point numbers, by the model's own names, as are `inputs`.

    Raises CannotRunError if ONNX Runtime cannot run the model.
    """
    names = [o.name for o in given.proto.graph.output]
    exact = run_given(given, names, inputs)
    proto, weights = onnx.ModelProto(), dict(given.weights)
    proto.CopyFrom(given.proto)
    compress(proto, weights, form)
    found = run_given(GivenModel(proto, weights, given.names), names, inputs)
    return errors_between(exact, found)


def cache_errors(
    given: GivenModel, stored: onnx.ModelProto, caches: Mapping[str, str], inputs: Mapping[str, Any]
) -> tuple[OutputError, ...]:
    """The errors of the outputs of `stored`, the nodes of `given` with `caches` in 16 bits, other than the caches.

    `caches` are outputs by inputs, as `store_caches` has them. Raises CannotRunError as `output_errors` does.
    """
    names = [o.name for o in given.proto.graph.output if o.name not in caches.values()]
    types = {i.name: helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type) for i in stored.graph.input}
    rounded = {name: array.astype(types[name]) if name in caches else array for name, array in inputs.items()}
    exact = run_given(given, names, inputs)
    return errors_between(exact, run_given(GivenModel(stored, given.weights, given.names), names, rounded))


def errors_by_weights(
    path: Path, model: ImportedModel, feed: Mapping[str, Any], outputs: Mapping[str, Any]
) -> tuple[OutputError, ...]:
    """The errors of `outputs` of an imported model with compressed weights, on the inputs `feed`.

    Both are by the imported graph's names. `path` is the model without compressed weights; the result is empty if ONNX
    Runtime cannot run it.
    """
    draft, _ = read_model(ModelSource(path))
    names = {o.name for o in draft.graph.output}
    own = {model.sources[name]: name for name in (*model.graph.inputs, *model.graph.outputs)}
    found = {name: outputs[inner] for name, inner in own.items() if name in names and inner in outputs}
    inputs = {name: feed[inner] for name, inner in own.items() if inner in feed}
    try:
        return errors_between(run_given(GivenModel.of(draft), list(found), inputs), found)
    except CannotRunError:
        return ()


def errors_between(exact: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[OutputError, ...]:
    """The errors of the values in both that are floating-point numbers."""
    pairs = ((name, exact[name], found[name]) for name in exact if name in found)
    return tuple(
        _error(name, one, other)
        for name, one, other in pairs
        if isinstance(one, np.ndarray) and one.dtype.kind == "f" and one.size and one.shape == other.shape
    )


def _error(name: str, exact: Array, found: Array) -> OutputError:
    finite = np.isfinite(exact) & np.isfinite(found)
    one, other = exact[finite].astype(np.float64), found[finite].astype(np.float64)
    if not one.size:
        return OutputError(name, math.nan, 0.0, -math.inf)
    error = _root_mean_square(other - one)
    snr = 20 * math.log10(_root_mean_square(one) / error) if error and one.any() else (-math.inf if error else math.inf)
    return OutputError(name, float(np.abs(other - one).max()), float(np.abs(one).max()), snr)


def _root_mean_square(array: Array) -> float:
    return float(np.sqrt(np.mean(np.square(array, dtype=np.float64)))) if array.size else 0.0
