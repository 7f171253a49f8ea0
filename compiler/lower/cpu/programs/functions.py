"""Functions of the runtime that programs call for sequences and optional values (runtime/native/cpu/sequences.h)."""

from __future__ import annotations

from collections.abc import Sequence

OWN = "heterocc.sequence."
"""How the names of those begin that the CPU plug-in has."""

TUPLE, NOTHING = "vm.builtin.make_tuple", "vm.builtin.null_value"
AT, INSERT, LENGTH, JOIN, STACK, HAS, GET, CHECK = (
    OWN + name for name in ("at", "insert", "length", "join", "stack", "has", "get", "check")
)


def fixed_sizes(shape: Sequence[int | str | None]) -> tuple[int, ...]:
    """A shape as CHECK takes it: -1 for any size."""
    return tuple(d if isinstance(d, int) else -1 for d in shape)
