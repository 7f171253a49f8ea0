"""Comparison of a result with its reference, with the tolerances of all of heterocc's checks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heterocc.artifacts.dtypes import is_narrow


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Equal within `max(atol, scale·max|reference|) + rtol·|reference|`, elementwise.

    Integers may differ by `steps`. A tensor whose signal-to-noise ratio is at least `snr` dB is accepted as a whole,
    because quantisation can turn a difference in the last bit into a whole step of an element.
    """

    rtol: float = 1e-3
    atol: float = 1e-5
    scale: float = 1e-4
    steps: int = 0
    snr: float = math.inf

    def absolute(self, reference: np.ndarray[Any, Any]) -> float:
        """The absolute tolerance for a reference tensor, from its finite elements."""
        finite = (piece[np.isfinite(piece)] for piece in _pieces(reference))
        largest = max((float(np.abs(piece).max()) for piece in finite if piece.size), default=0.0)
        return max(self.atol, self.scale * largest)


FLOAT32 = Tolerance()
FLOAT16 = Tolerance(rtol=1e-2, atol=1e-3, scale=1e-2)
QUANTISED = Tolerance(steps=1, snr=30.0)
"""For values that depend on quantised ones: 8 bits give 30 to 45 dB, and ONNX Runtime's own levels differ as much."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of one tensor from its reference.

    `snr` is the signal-to-noise ratio in dB, infinite if they are equal. `reason` is a description of the error, None
    if the tensor is within the tolerance. `unchecked` is the reason why the comparison proves nothing: there was no
    reference, or any computation would have given the same result.
    """

    name: str
    max_abs: float
    mean_abs: float
    snr: float
    reason: str | None
    unchecked: str | None = None

    @property
    def ok(self) -> bool:
        """Return whether the tensor is within the tolerance."""
        return self.reason is None

    def to_json(self) -> dict[str, object]:
        """The form of `--json`; an infinite ratio, and every number of an unchecked tensor, becomes None."""

        def number(value: float) -> float | None:
            return value if math.isfinite(value) and self.unchecked is None else None

        return {
            "name": self.name,
            "max_abs": number(self.max_abs),
            "mean_abs": number(self.mean_abs),
            "snr_db": number(self.snr),
            "ok": self.ok,
            "reason": self.reason,
            "unchecked": self.unchecked,
        }


_FEW = 16
"""Integer and boolean tensors of at most this many elements (shapes, flags, labels) are often constant."""


def blindness(reference: Any) -> str | None:
    """The reason why equality with `reference` proves little, such as "it is NaN throughout", or None.

    Always None for a value that is not a numeric tensor.
    """
    if not isinstance(reference, np.ndarray):
        return None
    if is_narrow(reference):
        return blindness(reference.astype(np.float32))
    if not reference.size:
        return "it has no elements"
    if reference.dtype.kind == "f":
        if not any(np.isfinite(piece).any() for piece in _pieces(reference)):
            if all(np.isnan(piece).all() for piece in _pieces(reference)):
                return "it is NaN throughout"
            infinite = all(np.isinf(piece).all() for piece in _pieces(reference))
            return "it is infinite throughout" if infinite else "it has no finite element"
    elif reference.dtype.kind not in "iub" or reference.size <= _FEW:
        return None
    first = reference[(0,) * reference.ndim]
    if reference.size > 1 and all((piece == first).all() for piece in _pieces(reference)):
        return f"it is {first} throughout"
    return None


def compare(name: str, got: Any, reference: Any, tolerance: Tolerance = FLOAT32) -> Difference:
    """Compare one output with its reference. Both are numpy arrays or Python values (maps, sequences)."""
    if not isinstance(reference, np.ndarray) or not isinstance(got, np.ndarray):
        return _compare_opaque(name, got, reference, tolerance)
    if got.dtype != reference.dtype or got.shape != reference.shape:
        what = f"is {got.dtype}{list(got.shape)}, expected {reference.dtype}{list(reference.shape)}"
        return Difference(name, math.inf, math.inf, -math.inf, what)
    if reference.size == 0:
        return Difference(name, 0.0, 0.0, math.inf, None)
    if is_narrow(reference):
        coarse = replace(tolerance, rtol=max(tolerance.rtol, FLOAT16.rtol))
        return compare(name, got.astype(np.float32), reference.astype(np.float32), coarse)
    if reference.dtype.kind not in "fiub":
        return _exact(name, got, reference)
    absolute = tolerance.absolute(reference) if reference.dtype.kind == "f" else 0.0
    found = _Errors()
    ours, expected = got.reshape(-1), reference.reshape(-1)
    for start in range(0, reference.size, _PIECE):
        piece = slice(start, start + _PIECE)
        found.add(start, ours[piece], expected[piece], tolerance, absolute)
    snr = math.inf if found.noise == 0 else -math.inf
    if found.noise and found.signal and math.isfinite(found.noise):
        snr = 10 * math.log10(found.signal / found.noise)
    reason: str | None = None
    if found.bad and not (reference.dtype.kind in "fiu" and tolerance.snr <= snr < math.inf):
        index = np.unravel_index(found.place, reference.shape)
        place = ",".join(str(int(i)) for i in index)
        reason = (
            f"{found.bad} of {reference.size} elements differ, worst at [{place}]: "
            f"{got[index]!s} instead of {reference[index]!s}"
        )
    return Difference(name, found.most, found.total / reference.size, snr, reason)


_PIECE = 1 << 18
"""Elements that are compared at a time: temporary arrays of all of them would be most of a compile's memory."""


def _pieces(array: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """The elements of an array, some at a time."""
    flat = array.reshape(-1)
    return (flat[start : start + _PIECE] for start in range(0, flat.size, _PIECE))


@dataclass(slots=True)
class _Errors:
    """Sums over the elements of a tensor: `place` is where the largest error beyond the tolerance is, `worst`."""

    signal: float = 0.0
    noise: float = 0.0
    total: float = 0.0
    most: float = 0.0
    bad: int = 0
    place: int = 0
    worst: float = -1.0

    def add(
        self,
        start: int,
        got: np.ndarray[Any, Any],
        reference: np.ndarray[Any, Any],
        tolerance: Tolerance,
        absolute: float,
    ) -> None:
        """Add elements from a place on; `absolute` is the tolerance's for all of the tensor."""
        a, b = got.astype(np.float64), reference.astype(np.float64)
        same = (got == reference) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.where(same, 0.0, np.abs(a - b))
        if reference.dtype.kind in "iu":  # large ones that differ may be one number in float64
            error = np.where(same, 0.0, np.maximum(error, 1.0))
        error = np.where(np.isnan(error), np.inf, error)
        finite = np.where(np.isfinite(b), b, 0.0)
        is_float = reference.dtype.kind == "f"
        bad = error > (absolute + tolerance.rtol * np.abs(finite) if is_float else float(tolerance.steps))
        self.signal += float(np.sum(finite**2))
        self.noise += float(np.sum(error**2))
        self.total += float(error.sum())
        self.most = max(self.most, float(error.max()))
        if bad.any():
            self.bad += int(bad.sum())
            place = int(np.argmax(np.where(bad, error, -1.0)))
            if error[place] > self.worst:
                self.place, self.worst = start + place, float(error[place])


def _exact(name: str, got: np.ndarray[Any, Any], reference: np.ndarray[Any, Any]) -> Difference:
    wrong = int(np.sum(got != reference))
    if not wrong:
        return Difference(name, 0.0, 0.0, math.inf, None)
    return Difference(name, math.inf, math.inf, -math.inf, f"{wrong} of {reference.size} elements differ")


def _compare_opaque(name: str, got: Any, reference: Any, tolerance: Tolerance) -> Difference:
    """Compare sequences and maps in ONNX Runtime's form: lists and dicts of arrays or scalars."""
    if isinstance(reference, list) and isinstance(got, list) and len(got) == len(reference):
        parts = [compare(f"{name}[{i}]", g, r, tolerance) for i, (g, r) in enumerate(zip(got, reference, strict=True))]
    elif isinstance(reference, dict) and isinstance(got, dict) and list(got) == list(reference):
        parts = [compare(f"{name}[{k!r}]", np.asarray(got[k]), np.asarray(r), tolerance) for k, r in reference.items()]
    else:
        same = bool(got == reference)
        error = 0.0 if same else math.inf
        return Difference(name, error, error, math.inf, None if same else "differs")
    worst = next((p for p in parts if not p.ok), None)
    return Difference(
        name,
        max((p.max_abs for p in parts), default=0.0),
        max((p.mean_abs for p in parts), default=0.0),
        min((p.snr for p in parts), default=math.inf),
        None if worst is None else f"{worst.name}: {worst.reason}",
    )
