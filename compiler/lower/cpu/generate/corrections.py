"""What the models of forms misjudge: one factor for each form and kind of core.

The factors are relative, so that "direct" is 1. They were fitted to forms that were timed one beside the other, for
16 registers on a Zen 3 and a Zen 4, for AVX-512 on Zen 4, Zen 5 and an Intel server.
"""

from __future__ import annotations

from collections.abc import Mapping

from heterocc.compiler.lower.cpu.generate.isa import Isa

NARROW: dict[str, float] = {
    "product": 1.04,
    "pixels": 1.03,
    "copied rows": 0.985,
    "rows in place": 0.94,
    "filtering": 0.98,
    "planes": 0.7,
    "copied planes": 0.8,
}
"""Of cores with 16 registers (AVX2)."""

WIDE: dict[str, float] = {
    "product": 1.055,
    "pixels": 1.06,
    "blocks of inputs": 1.26,
    "copied rows": 1.02,
    "rows in place": 1.08,
    "filtering": 1.05,
    "planes": 0.8,
    "copied planes": 0.85,
    "masked planes": 0.5,
}
"""Of cores with 32 registers of 16 lanes (AVX-512)."""

NEON: dict[str, float] = {"product": 1.02, "filtering": 1.3, "planes": 0.45, "copied planes": 0.55}
"""Of cores with 32 registers of four lanes: not measured, but by the choices that were made before."""


def correction(form: str, isa: Isa) -> float:
    """The factor of a form's modelled time."""
    return _of(isa).get(form, 1.0)


def _of(isa: Isa) -> Mapping[str, float]:
    if isa.registers <= 16:
        return NARROW
    return WIDE if isa.masks else NEON
