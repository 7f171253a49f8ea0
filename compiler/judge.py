"""Judges a value against ONNX Runtime's: by element where arithmetic is fine, as a whole where it is coarse.

Quantising turns a difference in the last bit, now and then, into a whole step, and layer after layer of it into a
difference everywhere; ONNX Runtime at two optimisation levels can be 15 dB apart from itself. How far rounding alone
takes a value is measured: the reference runs once more with inputs and weights shaken in their last bits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from heterocc.compiler.compare import FLOAT16, FLOAT32, QUANTISED, Difference, Tolerance, compare
from heterocc.compiler.imported import ImportedModel
from heterocc.compiler.reference import Reference

_QUANTISING = frozenset(
    {
        "DynamicQuantizeLSTM",
        "DynamicQuantizeLinear",
        "DynamicQuantizeMatMul",
        "MatMulIntegerToFloat",
        "QAttention",
        "QGemm",
        "QuantizeLinear",
    }
)
_MARGIN = 6.0
"""dB that a result may be further off than the shaken reference."""
_LEAST = 3.0
"""dB below which nothing is right, however much the model amplifies."""


@dataclass
class Judge:
    """Compares values of one run with the reference's.

    `feed` is by names of the imported graph; `nodes` and `inputs` say which part of it ran (all of it without them),
    `names` which values will be asked about. The shaken reference runs when the first coarse value is in doubt.
    """

    model: ImportedModel
    feed: Mapping[str, Any]
    names: Sequence[str]
    nodes: Sequence[str] | None = None
    inputs: Sequence[str] | None = None
    base: Tolerance = FLOAT32
    _coarse: frozenset[str] = field(init=False)
    _shaken: dict[str, Any] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._coarse = coarse_values(self.model)

    def compare(self, name: str, got: Any, reference: Any, label: str | None = None) -> Difference:
        """Compare the value `name` (shown as `label`) with the reference's."""
        shown = label or name
        if name not in self._coarse:
            return compare(shown, got, reference, self.base)
        wide = self.tolerance(name)
        found = compare(shown, got, reference, wide)
        if found.ok:
            return found
        least = self.least_snr(name, reference)
        return compare(shown, got, reference, replace(wide, snr=least)) if least < wide.snr else found

    def tolerance(self, name: str) -> Tolerance:
        """The tolerance of a value before anything is measured."""
        if name not in self._coarse:
            return self.base
        half = self.model.graph.values[name].dtype in ("float16", "bfloat16")
        return replace(FLOAT16 if half else self.base, steps=QUANTISED.steps, snr=QUANTISED.snr)

    def least_snr(self, name: str, reference: Any) -> float:
        """dB from which on a coarse value is right as a whole."""
        if self._shaken is None:
            wanted = [n for n in dict.fromkeys(self.names) if n in self._coarse]
            shaken = Reference(self.model, wanted, nodes=self.nodes, inputs=self.inputs, shaken=True)
            self._shaken = shaken.run(self.feed)
        again = self._shaken.get(name)
        if not isinstance(again, np.ndarray):
            return QUANTISED.snr
        return max(_LEAST, min(QUANTISED.snr, compare(name, again, reference).snr - _MARGIN))


def coarse_values(model: ImportedModel) -> frozenset[str]:
    """The values that depend on one that a node of the graph quantised or rounded to 16 bits."""
    values = model.graph.values
    found: set[str] = set()
    for node in model.graph.nodes:
        if _quantises(node.op_type) or _any_half(values[v].dtype for v in node.outputs) or _meets(node.inputs, found):
            found.update(node.outputs)
    return frozenset(found)


def _quantises(op_type: str) -> bool:
    name = op_type.rpartition("::")[2]
    return name in _QUANTISING or name.startswith("QLinear")


def _any_half(dtypes: Iterable[str]) -> bool:
    return any(dtype in ("float16", "bfloat16") for dtype in dtypes)


def _meets(names: Iterable[str], found: Collection[str]) -> bool:
    return any(name in found for name in names)
