"""Functions of the runtime that programs call for sequences and optional values (runtime/native/cpu/sequences.h)."""

from __future__ import annotations

OWN = "heterocc.sequence."
"""How the names of those begin that the CPU plug-in has."""

TUPLE, NOTHING = "vm.builtin.make_tuple", "vm.builtin.null_value"
AT, INSERT, LENGTH, JOIN, STACK, HAS, GET, CHECK = (
    OWN + name for name in ("at", "insert", "length", "join", "stack", "has", "get", "check")
)
