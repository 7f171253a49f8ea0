"""The lanes with which vectors cover rows of outputs in the least time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.sizes import is_number

VECTOR_CYCLES = 0.75
HALF_CYCLES = 0.1
"""The time of a vector beside that of its lanes, relative to the lanes of a longest one: it is loaded across cache
lines, and multiplied in a cycle of any length; also of CPUs that take a cycle for each half (fitted on a Zen 4)."""


def covering_lanes(isa: Isa, places: int, fits: Callable[[int], bool] = lambda _: True) -> Isa:
    """The registers with the lanes that cover a row with the least modelled time, of those that fit if some do."""
    if not is_number(places):
        return isa
    sizes = [isa.lanes >> shift for shift in range(3) if isa.lanes >> shift >= min(4, isa.lanes)]
    sizes = [lanes for lanes in sizes if fits(lanes)] or sizes

    def cycles(lanes: int) -> float:
        vectors = -(-places // lanes)
        share = lanes / isa.lanes
        return vectors * (max(share, 0.5) + HALF_CYCLES if isa.core.halves else share + VECTOR_CYCLES)

    return replace(isa, lanes=min(sizes, key=lambda lanes: (cycles(lanes), -lanes)))
