"""One function for kernels whose code differs only in numbers that follow from the sizes of their arguments.

A network of dense blocks has dozens of 1x1 convolutions that differ in the number of input channels alone. In their
code this is the end of a loop and the distance between panels of weights. As variables, which a call reads from the
shapes of its arguments, they leave one function to compile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call

from heterocc.compiler.lower.kernels.expressions import parts_of
from heterocc.compiler.lower.written import SOURCE

Numbers = tuple[int, ...]
"""A number of each of several kernels."""

_FORMS = (tirx.ForKind.VECTORIZED, tirx.ForKind.UNROLLED)
"""Kinds of loops whose code depends on their length."""

_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)

T = TypeVar("T")


def families(functions: Sequence[tirx.PrimFunc]) -> list[list[int]]:
    """The places of kernels before they are scheduled, those together whose code may be common."""
    places = _grouped(range(len(functions)), lambda n: _rows(functions[n]))
    return sorted(
        (f for alike in places for f in _grouped(alike, lambda n: _numbers_and_form(functions[n])[1])), key=min
    )


def with_common_code(functions: Sequence[tirx.PrimFunc]) -> list[tirx.PrimFunc]:
    """The kernels of a family with one function in place of several, where these differ only in numbers.

    Kernels with a schedule's blocks stay as they are: TVM would have to find the regions of these for variables.

    Such a function has variables for dimensions of its arguments. Those of a kernel in their place give this kernel,
    number by number. Lengths of vectors and of unrolled loops, divisors, and the lengths of rows, which are distances
    between reads in the innermost loops, stay numbers.
    """
    done = list(functions)
    generated = [
        n for n, function in enumerate(functions) if len(functions) > 1 and not parts_of(function.body, s_tir.SBlock)
    ]
    read = {n: _numbers_and_form(functions[n]) for n in generated}
    numbers = {n: values for n, (values, _) in read.items()}
    for alike in _grouped(generated, lambda n: (_rows(functions[n]), read[n][1])):
        for places in _grouped(alike, lambda n: _fixed(functions[n])):
            _join(done, places, numbers)
    return done


def _grouped(values: Sequence[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """The values with equal keys together, in the order of the first ones; a single one needs no key."""
    if len(values) == 1:
        return [list(values)]
    groups: dict[Hashable, list[T]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return list(groups.values())


def _join(done: list[tirx.PrimFunc], places: list[int], numbers: Mapping[int, Sequence[int]]) -> None:
    """Put one function in the places of kernels that are equal but for numbers, or several if numbers follow from no
    size: one for each set of these.
    """
    if len(places) < 2:
        return
    members = [_plain(done[place]) for place in places]
    rows = list(zip(*(numbers[place] for place in places), strict=True))
    differing = {place: row for place, row in enumerate(rows) if len(set(row)) > 1}
    if not differing:
        return
    sizes = _sizes(members)
    values = {row: _value(row, sizes) for row in dict.fromkeys(differing.values())}
    unknown = [row for row, value in values.items() if value is None]
    if unknown:
        for part in _grouped(range(len(places)), lambda n: tuple(row[n] for row in unknown)):
            _join(done, [places[n] for n in part], numbers)
        return
    known = {place: value for place, row in differing.items() if (value := values[row]) is not None}
    code = _code(members, known)
    if code is not None:
        sources = [done[place].attrs.get(SOURCE) for place in places]
        if None not in sources:
            code = code.with_attr(SOURCE, hashlib.sha256("\n".join(map(str, sources)).encode()).hexdigest())
        for place in places:
            done[place] = code


def _code(members: Sequence[tirx.PrimFunc], values: Mapping[int, _Value]) -> tirx.PrimFunc | None:
    """The first kernel with variables in the places of numbers; None if one of the kernels is not an instance of it."""
    for kernel, member in enumerate(members):
        made = _replaced(members[0], {p: value.constant(kernel) for p, value in values.items()})
        if not tvm_ffi.structural_equal(made, member):
            return None
    made = _replaced(members[0], {p: value.expression for p, value in values.items()})
    return tirx.PrimFunc(list(made.params), made.body, attrs=made.attrs)  # its type has the variables, too


def _plain(function: tirx.PrimFunc) -> tirx.PrimFunc:
    return function.with_attr("global_symbol", "kernel").without_attr(SOURCE)


def _numbers_and_form(function: tirx.PrimFunc) -> tuple[list[int], int]:
    """All whole numbers of a kernel, in the order in which `_replaced` finds them, and a number that is equal for
    kernels that differ only in these.
    """
    numbers: list[int] = []
    none = tirx.IntImm("int64", 0)  # of any type: kernels that differ in types of numbers are found out in `_code`

    def zero(number: tirx.IntImm) -> tirx.IntImm:
        numbers.append(number.value)
        return none

    without = tvm_ffi.structural_map(_plain(function), [(tirx.IntImm, zero)], order="post")
    return numbers, int(tvm_ffi.structural_hash(without))


def _rows(function: tirx.PrimFunc) -> Numbers:
    """The last dimension of each argument that has several; -1 for one that is known only at run time."""
    shapes = [param.ty.shape for param in function.params if isinstance(param.ty, tirx.BufferType)]
    lasts = [shape[-1] if len(shape) > 1 else 0 for shape in shapes]
    return tuple(int(n) if isinstance(n, int | tirx.IntImm) else -1 for n in lasts)


def _fixed(function: tirx.PrimFunc) -> Numbers:
    """The numbers that decide about the form of code: lengths of vectors and unrolled loops, arguments of functions,
    and divisors, as a division by a variable takes many times as long as by a number. Those of indices that are
    computed once, before loops, are left out.
    """
    numbers: list[Any] = []
    once = set(map(_index_stored, parts_of(function.body, tirx.BufferStore)))
    rules = [
        (tirx.For, lambda loop: numbers.append(loop.extent if loop.kind in _FORMS else 0)),
        (tirx.Ramp, lambda ramp: numbers.extend((ramp.stride, ramp.lanes))),
        (tirx.Broadcast, lambda vector: numbers.append(vector.lanes)),
        (Call, lambda call: numbers.extend(call.args)),
        (_DIVISIONS, lambda division: numbers.append(0 if hash(division) in once else division.b)),
        (tirx.AttrStmt, lambda mark: numbers.append(mark.value)),
    ]
    tvm_ffi.structural_walk(function.body, rules, order="post")
    return tuple(int(n) for n in numbers if isinstance(n, int | tirx.IntImm))


def _index_stored(store: tirx.BufferStore) -> int:
    """The hash of the value of an index that is stored alone, to be computed once (`emit.bound`), of 0 for others."""
    shape = store.buffer.shape
    alone = len(shape) == 1 and isinstance(shape[0], tirx.IntImm) and int(shape[0]) == 1
    return hash(store.value) if alone and str(store.value.ty.dtype) == "int64" else 0


def _replaced(function: tirx.PrimFunc, values: Mapping[int, Callable[[str], tirx.Expr]]) -> tirx.PrimFunc:
    """The kernel with other values of a dtype for numbers, by their places."""
    place = -1

    def replaced(number: tirx.IntImm) -> tirx.Expr:
        nonlocal place
        place += 1
        return values[place](str(number.ty.dtype)) if place in values else number

    return tvm_ffi.structural_map(function, [(tirx.IntImm, replaced)], order="post")


@dataclass(frozen=True, slots=True)
class _Value:
    """A number that follows from a size: `(size * times + plus) / by`, without a remainder in any of the kernels.

    `sizes` are the numbers of this dimension of arguments in each kernel.
    """

    sizes: Numbers
    variable: tirx.Var
    times: int
    plus: int
    by: int

    def constant(self, kernel: int) -> Callable[[str], tirx.IntImm]:
        """The number in one of the kernels, for a dtype."""
        return lambda dtype: tirx.IntImm(dtype, (self.sizes[kernel] * self.times + self.plus) // self.by)

    def expression(self, dtype: str) -> tirx.Expr:
        """The number of a kernel whose argument has the size."""
        value: tirx.Expr = self.variable
        own = str(self.variable.ty.dtype)
        value = value if self.times == 1 else value * tirx.IntImm(own, self.times)
        value = value if self.plus == 0 else value + tirx.IntImm(own, self.plus)
        value = value if self.by == 1 else tirx.truncdiv(value, tirx.IntImm(own, self.by))
        return value if dtype == own else tirx.Cast(dtype, value)


def _sizes(functions: Sequence[tirx.PrimFunc]) -> dict[Numbers, tirx.Var]:
    """A variable for each dimension in which the arguments of kernels differ, by its numbers in them."""
    sizes: dict[Numbers, tirx.Var] = {}
    for params in zip(*(function.params for function in functions), strict=True):
        if not isinstance(params[0].ty, tirx.BufferType):
            continue
        for dims in zip(*(param.ty.shape for param in params), strict=True):
            if not all(isinstance(dim, tirx.IntImm) for dim in dims):
                continue
            numbers = tuple(int(dim) for dim in dims)
            if len(set(numbers)) > 1 and numbers not in sizes:
                sizes[numbers] = tirx.Var(f"n{len(sizes)}", dims[0].ty.dtype)
    return sizes


def _value(numbers: Numbers, sizes: Mapping[Numbers, tirx.Var]) -> _Value | None:
    """How a number follows from one of the sizes, as a multiple if it is one; None if it does not."""
    fits = [value for size in sizes.items() if (value := _fit(numbers, *size)) is not None]
    return min(fits, key=lambda value: value.plus != 0, default=None)


def _fit(numbers: Numbers, sizes: Numbers, variable: tirx.Var) -> _Value | None:
    """A multiple of a size and a number. Any two kernels have one, which may be chance, and a third one excludes it."""
    (s0, n0), (s1, n1), *_ = [*dict(zip(sizes, numbers, strict=True)).items(), (0, 0)]
    if len(set(sizes)) < 2:
        return None
    slope = Fraction(n1 - n0, s1 - s0)
    start = n0 - slope * s0
    if not slope or any(slope * s + start != n for n, s in zip(numbers, sizes, strict=True)):
        return None
    by = slope.denominator * start.denominator
    return _Value(sizes, variable, int(slope * by), int(start * by), by)
