"""Functions of float32 that the C library computes, lane by lane."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from heterocc.compiler.lower.kernels.functions.lanes import FLOAT32, Value


def by_library(name: str) -> Callable[..., Value]:
    """The C library's function `name` as one of vectors."""
    return lambda *values: values[0].lanes.bound(called(name, *values), FLOAT32)


def called(name: str, *values: Value) -> tirx.Expr:
    """A call of the C library's function `name` for each lane."""
    count = values[0].lanes.count
    if count == 1:
        return tirx.call_pure_extern(FLOAT32, name, *(v.expr for v in values))
    places = [tirx.IntImm("int32", i) for i in range(count)]
    numbers = [[tirx.Shuffle([v.expr], [place]) for v in values] for place in places]
    return tirx.Shuffle([tirx.call_pure_extern(FLOAT32, name, *each) for each in numbers], places)
