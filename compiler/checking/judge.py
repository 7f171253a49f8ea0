"""Comparison of values with ONNX Runtime's: by element for fine arithmetic, as a whole for coarse arithmetic.

Quantisation can turn a difference in the last bit into a whole step, and several layers of it into a difference of all
elements; ONNX Runtime's results at two optimisation levels can differ by 15 dB. The effect of rounding alone is
measured: the reference runs a second time with inputs and weights perturbed in their last bits.

The same holds for nodes that a device computed in half precision. The reference runs four times with the values rounded
that the device may round, in a different way each time. A result may have four times the error of the worst of them
(`_FACTOR`), by its largest error and by its signal-to-noise ratio. The reference rounds more values than a device,
which keeps fused ones in registers. The factor allows for roundings towards zero, which Vulkan permits and which have
twice the error, and for the randomness of four samples.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from heterocc.compiler.checking.compare import FLOAT16, FLOAT32, QUANTISED, Difference, Tolerance, blindness, compare
from heterocc.compiler.checking.half_reference import SCALES
from heterocc.compiler.checking.reference import Reference
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.random_nodes import random_values
from heterocc.compiler.lower.half.policy import LARGEST
from heterocc.compiler.operators.record import FIRST
from heterocc.compiler.operators.table import makes_choice, of_node, of_type

_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_MARGIN = 6.0
"""The margin in dB by which a result may be worse than the perturbed reference."""
_FACTOR = 4.0
"""The factor by which the error of a result in half precision may exceed the rounding reference's (12 dB)."""
_LEAST = 3.0
"""The ratio in dB below which no value is correct, however much the model amplifies errors."""


@dataclass
class Judge:
    """Compares values of one run with the reference's.

    `feed` is by names of the imported graph. `nodes` and `inputs` are the part of it that ran (all of it without them),
    `names` the values that will be compared, `half` the nodes that were computed in half precision, `paired` those
    whose products have factors rounded to bfloat16. The perturbed and
    the rounding reference run only if a value is in doubt.
    """

    model: ImportedModel
    feed: Mapping[str, Any]
    names: Sequence[str]
    nodes: Sequence[str] | None = None
    inputs: Sequence[str] | None = None
    base: Tolerance = FLOAT32
    half: Collection[str] = ()
    paired: Collection[str] = ()
    _coarse: frozenset[str] = field(init=False)
    _halved: frozenset[str] = field(init=False)
    _saturated: frozenset[str] = field(init=False)
    _random: Mapping[str, str] = field(init=False)
    _shaken: dict[str, Any] | None = field(default=None, init=False)
    _rounded: list[dict[str, Any]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._coarse = coarse_values(self.model)
        self._halved = downstream(self.model, (*self.half, *self.paired))
        self._saturated = saturated_values(self.model)
        self._random = random_values(self.model, self.nodes)

    def compare(self, name: str, got: Any, reference: Any, label: str | None = None) -> Difference:
        """Compare the value `name` (shown as `label`) with the reference's.

        A random value is not compared. The difference states this, and whether the reference proves nothing.
        """
        shown = label or name
        if name in self._random:
            return Difference(shown, 0.0, 0.0, math.inf, None, self._random[name])
        found = self._compare(name, got, reference, shown)
        if not found.ok and name in self._saturated and overflows(reference) and np.shape(got) == reference.shape:
            # Infinite and NaN in code, these are the largest number in ONNX Runtime, and 0 times it is 0.
            found = self._compare(name, np.where(np.isfinite(got), got, reference), reference, shown)
        return replace(found, unchecked=blindness(reference)) if found.ok else found

    def _compare(self, name: str, got: Any, reference: Any, shown: str) -> Difference:
        if name in self._halved:
            return self._compare_half(name, got, reference, shown)
        if name not in self._coarse:
            return compare(shown, got, reference, self.base)
        wide = self.tolerance(name)
        found = compare(shown, got, reference, wide)
        if found.ok:
            return found
        least = self.least_snr(name, reference)
        return compare(shown, got, reference, replace(wide, snr=least)) if least < wide.snr else found

    def is_coarse(self, name: str) -> bool:
        """Whether a value depends on one that is quantised or rounded to 16 bits, not on nodes in half precision."""
        return name in self._coarse and name not in self._halved

    def is_decided(self, name: str) -> bool:
        """Whether a value depends on a choice between computed numbers, which their rounding may turn."""
        values = self.model.graph.values
        deciding = [
            n.name
            for n in self.model.graph.nodes
            if makes_choice(n) and any(values[v].dtype in _FLOATS and v in self.model.graph.producer for v in n.inputs)
        ]
        return name not in self._halved and name in downstream(self.model, deciding)

    def tolerance(self, name: str) -> Tolerance:
        """The tolerance of a value before measurements."""
        if name not in self._coarse:
            return self.base
        half = self.model.graph.values[name].dtype in ("float16", "bfloat16")
        base = FLOAT16 if half else self.base
        atol = base.atol + QUANTISED.steps * step_of(self.model, name)
        return replace(base, atol=atol, steps=QUANTISED.steps, snr=QUANTISED.snr)

    def _compare_half(self, name: str, got: Any, reference: Any, shown: str) -> Difference:
        before = self.tolerance(name)
        plain = compare(shown, got, reference, before)
        if plain.ok or not isinstance(reference, np.ndarray) or not isinstance(got, np.ndarray):
            return plain
        if got.dtype != reference.dtype or got.shape != reference.shape or reference.dtype.kind not in "fiub":
            return plain
        samples = self._samples(name)
        if reference.dtype.kind != "f":
            # Rounding may invert a comparison of two close values: either result is correct.
            turned = np.logical_or.reduce([got == s for s in samples])
            return compare(shown, np.where(turned, reference, got), reference, before)
        noise = max((largest_error(s, reference) for s in samples), default=0.0)
        wide = replace(before, scale=0.0, atol=before.absolute(reference) + _FACTOR * noise)
        found, least = compare(shown, got, reference, wide), self.least_snr(name, reference)
        if found.ok and found.snr < least:
            reason = f"is {found.snr:.0f} dB from the reference, where half precision explains no less than {least:.0f}"
            return replace(found, reason=reason)
        overflow = not found.ok and bool(np.any(np.isfinite(reference) & ~np.isfinite(got)))
        overflow = overflow and bool(self.half)
        return replace(found, reason=f"{found.reason}; float16 ends at {LARGEST:.0f}") if overflow else found

    def _samples(self, name: str) -> list[np.ndarray[Any, Any]]:
        """The rounding reference's value for each way of rounding."""
        if self._rounded is None:
            wanted = [n for n in dict.fromkeys(self.names) if n in self._halved]
            nodes = None if self.nodes is None else set(self.nodes)
            half, paired = ([n for n in of if nodes is None or n in nodes] for of in (self.half, self.paired))
            rounding = Reference(self.model, wanted, nodes=self.nodes, inputs=self.inputs, half=half, paired=paired)
            self._rounded = [rounding.run(self.feed, scale) for scale in SCALES]
        found = (sample.get(name) for sample in self._rounded)
        return [array for array in found if isinstance(array, np.ndarray)]

    def least_snr(self, name: str, reference: Any) -> float:
        """The ratio in dB at which a coarse value is correct as a whole; below it, half precision is wrong."""
        if name in self._halved:
            ratios = [compare(name, s, reference).snr for s in self._samples(name)]
            least = min(ratios, default=math.inf) - 20 * math.log10(_FACTOR)
            return max(_LEAST, min(QUANTISED.snr, least) if name in self._coarse else least)
        return least_of(self._perturbed().get(name), reference)

    def is_amplified(self, name: str, reference: Any) -> bool:
        """Whether the perturbed reference's value is wrong, too: what is read amplifies rounding."""
        again = self._perturbed().get(name)
        return isinstance(again, np.ndarray) and not compare(name, again, reference, self.tolerance(name)).ok

    def _perturbed(self) -> Mapping[str, Any]:
        if self._shaken is None:
            wanted = list(dict.fromkeys(self.names))
            shaken = Reference(self.model, wanted, nodes=self.nodes, inputs=self.inputs, shaken=True)
            self._shaken = shaken.run(self.feed)
        return self._shaken


def compare_amplified(
    name: str, got: np.ndarray[Any, Any], reference: np.ndarray[Any, Any], again: np.ndarray[Any, Any], base: Tolerance
) -> Difference:
    """Compare a value of real numbers that may be as far from the reference as that of the perturbed one is.

    `again` is the perturbed reference's value, and `base` the tolerance beside that.
    """
    atol = base.absolute(reference) + _FACTOR * largest_error(again, reference)
    found = compare(name, got, reference, replace(base, scale=0.0, atol=atol))
    least = max(_LEAST, compare(name, again, reference).snr - _MARGIN)
    if not found.ok or found.snr >= least:
        return found
    return replace(found, reason=f"is {found.snr:.0f} dB from the reference, where rounding explains {least:.0f}")


def least_of(again: Any, reference: Any) -> float:
    """The ratio in dB at which a coarse value is correct, from that of a perturbed reference."""
    if not isinstance(again, np.ndarray):
        return QUANTISED.snr
    return max(_LEAST, min(QUANTISED.snr, compare("", again, reference).snr - _MARGIN))


def downstream(model: ImportedModel, nodes: Collection[str]) -> frozenset[str]:
    """The values that `nodes` write, and all values that depend on them."""
    found: set[str] = set()
    if nodes:
        chosen = frozenset(nodes)
        for node in model.graph.nodes:
            if node.name in chosen or _meets(node.inputs, found):
                found.update(node.outputs)
    return frozenset(found)


def saturated_values(model: ImportedModel) -> frozenset[str]:
    """The values that depend on sums that ONNX Runtime bounds at the largest float32."""
    return downstream(model, [n.name for n in model.graph.nodes if of_node(model.protos[n.name]).saturates])


def overflows(reference: Any) -> bool:
    """Whether float32 does not suffice for all of a tensor's elements."""
    if not isinstance(reference, np.ndarray) or reference.dtype != np.float32:
        return False
    return not bool((np.abs(reference) < np.finfo(np.float32).max).all())


def coarse_values(model: ImportedModel) -> frozenset[str]:
    """The values that depend on one that a node of the graph quantises or rounds to 16 bits.

    So do results of attention whose keys and values the compile stores in 16 bits: it reads rows as they are stored.
    """
    values, nodes = model.graph.values, model.graph.nodes
    casts = [n for n in nodes if of_type(n.op_type).casts] if model.caches else []
    stored = {v for n in casts if _any_half(values[v].dtype for v in n.outputs) for v in n.inputs}
    found: set[str] = set()
    for node in nodes:
        operator = of_node(model.protos[node.name])
        rounds = operator.quantised == "rounds"
        if operator.caches or operator.joins == "inputs" or operator.control == "branches":
            rounds |= _meets(node.outputs, stored)
        if rounds or _any_half(values[v].dtype for v in node.outputs) or _meets(node.inputs, found):
            found.update(node.outputs)
    return frozenset(found)


def step_of(model: ImportedModel, name: str) -> float:
    """The step of a value that a DequantizeLinear writes with one scale, directly or moved; 0 for any other.

    Where a sum is next to the middle of two steps, either is right, however small the other elements are.
    """
    graph = model.graph
    while name in graph.producer:
        node = graph.node_by_name[graph.producer[name]]
        if of_type(node.op_type).moves == FIRST:
            name = node.inputs[0]
            continue
        scale = model.weights.get(node.inputs[1]) if of_type(node.op_type).dequantises else None
        return float(abs(scale.reshape(()))) if scale is not None and scale.size == 1 else 0.0
    return 0.0


def largest_error(sample: np.ndarray[Any, Any], reference: np.ndarray[Any, Any]) -> float:
    """The largest difference of two arrays where both are finite."""
    finite = np.isfinite(sample) & np.isfinite(reference)
    error = np.abs(sample[finite].astype(np.float64) - reference[finite].astype(np.float64))
    return float(error.max()) if error.size else 0.0


def _any_half(dtypes: Iterable[str]) -> bool:
    return any(dtype in ("float16", "bfloat16") for dtype in dtypes)


def _meets(names: Iterable[str], found: Collection[str]) -> bool:
    return any(name in found for name in names)
