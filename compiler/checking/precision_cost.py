"""The cost of half precision: the error of each partition and of the model's outputs, found by the check."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heterocc.compiler.checking.compare import Difference


@dataclass(frozen=True, slots=True)
class PrecisionCost:
    """The error of one partition in half precision, or of the model's outputs (`partition` is None).

    `devices` are those that compute in half precision, `precision` is the name of it; `value` is the
    output with the worst signal-to-noise ratio `snr`
    (dB, infinite if it is exact), `error` its largest error and `largest` its largest magnitude.
    """

    devices: tuple[str, ...]
    partition: str | None
    value: str
    error: float
    largest: float
    snr: float
    precision: str = "f16"

    def sentence(self) -> str:
        """The cost in one sentence without a full stop."""
        who = " and ".join(self.devices)
        computes = f"{who} {'computes' if len(self.devices) == 1 else 'compute'} in {self.precision}"
        ratio = "exact" if math.isinf(self.snr) else f"SNR {self.snr:.0f} dB"
        cost = f"largest error {self.error:.2g} of an output of {self.largest:.3g} ({ratio}), in '{self.value}'"
        return f"{computes}: {cost} of {self.partition if self.partition is not None else 'the model'}"

    def to_json(self) -> dict[str, object]:
        """The form of `heterocc compile --json`; an infinite ratio becomes None."""
        return {
            "devices": list(self.devices),
            "partition": self.partition,
            "value": self.value,
            "max_abs": self.error,
            "largest": self.largest,
            "snr_db": self.snr if math.isfinite(self.snr) else None,
        }


def cost_of(
    devices: Sequence[str],
    partition: str | None,
    found: Iterable[Difference],
    reference: Mapping[str, Any],
    precision: str = "f16",
) -> PrecisionCost | None:
    """The cost by the worst of the floating-point values in `found`, whose names are those of `reference`.

    None if there is no such value, or if one is not finite.
    """
    costs = [
        PrecisionCost(tuple(devices), partition, d.name, d.max_abs, _largest(reference[d.name]), d.snr, precision)
        for d in found
        if isinstance(reference[d.name], np.ndarray) and reference[d.name].dtype.kind == "f"
    ]
    costs = [c for c in costs if math.isfinite(c.error)]
    return min(costs, key=lambda c: c.snr, default=None)


def cost_sentences(costs: Sequence[PrecisionCost]) -> tuple[str, ...]:
    """One sentence per device, on its worst partition, and one on the model's outputs, without duplicates."""
    whole = [c for c in costs if c.partition is None]
    worst: dict[tuple[str, ...], PrecisionCost] = {}
    for cost in costs:
        if cost.partition is not None and replace(cost, partition=None) not in whole:
            known = worst.get(cost.devices)
            worst[cost.devices] = cost if known is None or cost.snr < known.snr else known
    return tuple(c.sentence() for c in (*worst.values(), *whole))


def _largest(array: np.ndarray[Any, Any]) -> float:
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0
