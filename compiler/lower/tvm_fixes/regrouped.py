"""Kernels of Reshape to symbolic sizes, dimension by dimension.

TVM computes the index of a reshaped element from its place in the whole tensor, and divides that by each dimension.
With symbolic dimensions it cannot simplify this: it then neither fuses the kernel with a transposition beside it nor
sees that it copies nothing. But most reshapes split or merge few dimensions, and leave the others as they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import relax, te, tirx

from heterocc.compiler.lower.variables import factors, in_one_form

_Factors = tuple[int, "Counter[str]"]


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring dimensions of the data, and those of the result with as many elements, by their numbers."""

    data: tuple[int, ...]
    result: tuple[int, ...]


def reshape_kernel(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """A call of a kernel in place of a Reshape to symbolic sizes; None if its dimensions do not fall into groups."""
    shape, wanted = _sizes(call.args[0]), _sizes(call)
    if shape is None or wanted is None or all(isinstance(d, tirx.IntImm) for d in (*shape, *wanted)):
        return None
    groups = grouped(shape, wanted)
    if groups is None or not all(_is_divided_by_numbers(group, shape) for group in groups):
        return None

    def compute(data: te.Tensor, sizes: Sequence[tirx.Expr]) -> te.Tensor:
        # `sizes` and those of `data` have the variables of the kernel.
        def at(*place: tirx.Var) -> tirx.Expr:
            found: list[tirx.Expr] = [tirx.const(0, "int64")] * len(shape)
            for group in groups:
                flat = _flat([place[n] for n in group.result], [sizes[n] for n in group.result])
                for number, digit in zip(group.data, _digits(flat, [data.shape[n] for n in group.data]), strict=True):
                    found[number] = digit
            return data(*found)

        return te.compute(list(sizes), at, name="T_reshape")

    return builder.call_te(compute, call.args[0], call.ty.shape, primfunc_name_hint="reshape")


def _sizes(value: relax.Expr) -> list[tirx.Expr] | None:
    shape = value.ty.shape if isinstance(value.ty, relax.TensorType) else None
    return list(shape.values) if isinstance(shape, relax.ShapeExpr) else None


def grouped(shape: Sequence[tirx.Expr], wanted: Sequence[tirx.Expr]) -> list[Group] | None:
    """The smallest groups of two shapes of as many elements, in order; None if no sizes are equal that must be.

    Dimensions of size 1 are groups without a partner.
    """
    left = [(n, _factors(d)) for n, d in enumerate(shape)]
    right = [(n, _factors(d)) for n, d in enumerate(wanted)]
    ones = [Group((n,), ()) for n, found in left if found == _ONE]
    ones += [Group((), (n,)) for n, found in right if found == _ONE]
    left, right = ([item for item in side if item[1] != _ONE] for side in (left, right))
    groups = []
    while left or right:
        if not left or not right:
            return None
        data, result = [left.pop(0)], [right.pop(0)]
        while (missing := _product(data)) != (given := _product(result)):
            if _divides(missing, given) and left:
                data.append(left.pop(0))
            elif _divides(given, missing) and right:
                result.append(right.pop(0))
            else:
                return None
        groups.append(Group(tuple(n for n, _ in data), tuple(n for n, _ in result)))
    return groups + ones


_ONE: _Factors = (1, Counter())


def _factors(dim: tirx.Expr) -> _Factors:
    """A dimension as a number times sizes, each as text."""
    parts = factors(in_one_form(dim))
    number = math.prod(int(p) for p in parts if isinstance(p, tirx.IntImm))
    return number, Counter(str(p) for p in parts if not isinstance(p, tirx.IntImm))


def _product(dims: Sequence[tuple[int, _Factors]]) -> _Factors:
    names: Counter[str] = Counter()
    for _, (_, here) in dims:
        names += here
    return math.prod(number for _, (number, _) in dims), names


def _divides(part: _Factors, whole: _Factors) -> bool:
    return part[0] != 0 and whole[0] % part[0] == 0 and part[1] <= whole[1]


def _is_divided_by_numbers(group: Group, shape: Sequence[tirx.Expr]) -> bool:
    """Whether the index in each dimension of the data needs no division by a symbolic size."""
    inner = [shape[n] for n in group.data[1:]]
    return len(group.result) == 0 or all(isinstance(d, tirx.IntImm) for d in inner)


def _flat(place: Sequence[tirx.Expr], sizes: Sequence[tirx.Expr]) -> tirx.Expr:
    total: tirx.Expr = tirx.const(0, "int64")
    for number, (value, size) in enumerate(zip(place, sizes, strict=True)):
        total = value if number == 0 else total * size + value
    return total


def _digits(flat: tirx.Expr, sizes: Sequence[tirx.Expr]) -> list[tirx.Expr]:
    """The index in each of `sizes`, all but the first of which are numbers."""
    digits: list[tirx.Expr] = []
    for size in reversed(sizes[1:]):
        digits.append(tirx.floormod(flat, size))
        flat = tirx.floordiv(flat, size)
    return [*([flat] if sizes else []), *reversed(digits)]
