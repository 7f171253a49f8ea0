"""Sizes that are known only at run time, in generators of kernels that are written for numbers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Never, TypeAlias, TypeVar

import tvm_ffi
from tvm import tirx

from heterocc.compiler.lower.cpu.assumptions import Assumptions, Rule

if TYPE_CHECKING:
    from typing_extensions import TypeIs


@tvm_ffi.register_error
class SizeUnknownError(TypeError):
    """A generator needs the number of a size that is known only at run time, so that it cannot write the kernel."""


_CURRENT: ContextVar[Assumptions | None] = ContextVar("assumptions", default=None)


def dims_of(function: tirx.PrimFunc) -> list[tirx.Expr]:
    """The dimensions of a kernel's arguments, and the numbers among these."""
    return [dim for param in function.params for dim in getattr(param, "shape", [param])]


def has_sizes(function: tirx.PrimFunc) -> bool:
    """Whether sizes of a kernel are known only at run time."""
    return not all(isinstance(dim, tirx.IntImm) for dim in dims_of(function))


@contextmanager
def assuming(dims: Iterable[tirx.Expr]) -> Iterator[Assumptions]:
    """Expressions of the variables of `dims` are Dims inside, in place of unknown."""
    assumptions = Assumptions(dims)
    token = _CURRENT.set(assumptions)
    try:
        yield assumptions
    finally:
        _CURRENT.reset(token)


_Result = TypeVar("_Result")


def attempt(step: Callable[[], _Result | None]) -> _Result | None:
    """The result of a step. If it is None, or if the step needs a number, its guards are forgotten."""
    current = _CURRENT.get()
    if current is None:
        return step()
    before = len(current.guards)
    try:
        result = step()
    except TypeError as error:
        # An operation on numbers that sizes do not have names their class; any other mistake is one of the generator.
        if not isinstance(error, SizeUnknownError) and Dim.__name__ not in str(error):
            raise
        result = None
    if result is None:
        del current.guards[before:]
    return result


def with_guards(step: Callable[[], _Result | None]) -> tuple[_Result | None, tuple[tirx.Expr, ...]]:
    """As `attempt`, with the guards of the step, which are not in force until they are put so by `restore`."""
    current = _CURRENT.get()
    if current is None:
        return step(), ()
    before = len(current.guards)
    result = attempt(step)
    guards = tuple(current.guards[before:])
    del current.guards[before:]
    return result, guards


def restore(guards: Iterable[tirx.Expr]) -> None:
    """Put the guards of a step in force."""
    current = _CURRENT.get()
    if current is not None:
        current.assume(guards)


def size_of(expr: tirx.Expr) -> Size | None:
    """The size that an expression is: an int, inside `assuming` also a Dim; None for any other expression."""
    if isinstance(expr, tirx.IntImm):
        return int(expr)
    current = _CURRENT.get()
    value = None if current is None else current.typical(expr)
    return None if value is None else Dim(value, expr)


def typical(size: Size) -> int:
    """A number to choose by: the size, or a typical value of one that is known only at run time."""
    return size.typical if isinstance(size, Dim) else size


def is_number(size: Size) -> TypeIs[int]:
    """Whether a size is known when code is generated."""
    return not isinstance(size, Dim)


def as_number(size: Size) -> int:
    """The number that a size is. Raises SizeUnknownError if it is known only at run time."""
    if isinstance(size, Dim):
        raise SizeUnknownError(f"the size {size} is known only at run time")
    return size


def is_one(size: Size | None) -> bool:
    """Whether a size is 1. One known only at run time counts as more: loops and strides are right for 1, too."""
    return not isinstance(size, Dim) and size == 1


def may_be_zero(size: Size) -> bool:
    """Whether a size is 0, or may be in a run."""
    if not isinstance(size, Dim):
        return size == 0
    current = _CURRENT.get()
    return current is None or not current.is_positive(size.expr)


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of sizes: whether it holds for the typical ones, and the guard of code for which it is so.

    Without a guard it is so for all sizes.
    """

    typical: bool
    guard: tirx.Expr | None = None

    def __bool__(self) -> bool:
        raise TypeError("a condition has no truth value: call `assumed`")


def at_least(size: Size, least: Size) -> Condition:
    """The condition that a size is not smaller than another."""
    return _condition(operator.ge, tirx.GE, tirx.LT, size, least)


def equal(a: Size, b: Size) -> Condition:
    """The condition that two sizes are equal."""
    return _condition(operator.eq, tirx.EQ, tirx.NE, a, b)


def _condition(rule: Rule, holds: Rule, fails: Rule, a: Size, b: Size) -> Condition:
    answer = rule(typical(a), typical(b))
    current = _CURRENT.get()
    if is_number(a) and is_number(b):
        return Condition(answer)
    assert current is not None, "sizes are compared outside `assuming`"
    return Condition(answer, current.guard(holds if answer else fails, index(a), index(b)))


def assumed(condition: Condition) -> bool:
    """Whether a condition holds for the typical sizes; that it does, or does not, is a guard of the code from here on.

    A form whose code is right for all sizes and only chosen by them asks for their `typical` values instead.
    """
    if condition.guard is not None:
        restore([condition.guard])
    return condition.typical


def proved(condition: Condition) -> bool:
    """Whether a condition holds, if the answer is the same for all sizes or a guard already; else SizeUnknownError."""
    if condition.guard is not None:
        raise SizeUnknownError(f"it is known only at the run whether {condition.guard}")
    return condition.typical


def same(a: Size, b: Size) -> bool:
    """Whether two sizes are equal, as `proved`; one that is known only at run time is more than the number 1."""
    return is_one(a) == is_one(b) and proved(equal(a, b))


def assume(condition: Condition) -> None:
    """Make a condition a guard of the code. Raises SizeUnknownError if it fails for the typical sizes."""
    if not assumed(condition):
        raise SizeUnknownError("the typical sizes are too small")


def are_equal(a: Size, b: Size) -> bool:
    """Whether two sizes are assumed to be equal. If they differ for the typical sizes, nothing is assumed."""
    return typical(a) == typical(b) and assumed(equal(a, b))


def all_equal(some: Sequence[Size], others: Sequence[Size]) -> bool:
    """Whether sizes are assumed to be equal to others, one by one."""
    return len(some) == len(others) and all(map(are_equal, some, others))


def moves(step: Size) -> bool:
    """Whether a stride is not 0. One that is known only at run time is none, unless it is for the typical sizes.

    It is a product of sizes: where one of these is 0, nothing is read at such a stride.
    """
    return typical(step) != 0 or not assumed(equal(step, 0))


def filled(lanes: int, *lengths: Size) -> int:
    """The number of lanes, halved until vectors are no longer than rows of these lengths."""
    while not all(assumed(at_least(length, lanes)) for length in lengths):
        lanes //= 2
    return lanes


def exceeds(length: Size, lanes: Size) -> bool:
    """Whether a row of this length may end inside its last vector."""
    return not (is_number(length) and is_number(lanes)) or length % lanes != 0


def within(lanes: int, length: Size) -> int:
    """The lanes of a vector inside a row: all, or as many as a row has that is known to be shorter."""
    return lanes if lanes == 1 or proved(at_least(length, lanes)) else as_number(length)


def smaller(a: Size, b: Size) -> Size:
    """The smaller of two sizes, computed at run time if it is not known."""
    return min(a, b) if is_number(a) and is_number(b) else _combined(a, b, min, tirx.min)


def larger(a: Size, b: Size) -> Size:
    """The larger of two sizes, computed at run time if it is not known."""
    return max(a, b) if is_number(a) and is_number(b) else _combined(a, b, max, tirx.max)


def zero_unless(size: Size, *conditions: tirx.Expr) -> Size:
    """The size if all conditions hold, else 0; its typical value is the size's."""
    return Dim(typical(size), tirx.Select(tirx.all(*conditions), index(size), tirx.const(0, "int64")))


def index(size: Size) -> tirx.Expr:
    """A size as an index, an expression of type int64."""
    return size.expr if isinstance(size, Dim) else _constant(size)


def divisor(size: Size) -> tirx.Expr:
    """A size as the divisor of an index, 1 for a size of 0.

    In code for fewer pixels than a vector, of rows whose number is fixed, TVM finds that the width is 0, and refuses a
    division by it.
    """
    return tirx.max(size.expr, _constant(1)) if isinstance(size, Dim) else _constant(size)


@lru_cache(maxsize=1 << 14)
def _constant(number: int) -> tirx.Expr:
    """A number as an expression. Kernels have few different numbers and write each of them often."""
    return tirx.const(number, "int64")


def _combined(a: Size, b: Size, number: Rule, rule: Rule) -> Size:
    expr = rule(index(a), index(b))
    value = number(typical(a), typical(b))
    return int(expr) if isinstance(expr, tirx.IntImm) else Dim(value, expr)


_Operator: TypeAlias = "Callable[[Dim, Size], Size]"


def _by_positive(rule: Rule) -> Rule:
    """A division whose divisor is at least 1 in every run.

    The number of tasks is often a quotient by a size. It is computed before the loop over tasks, and so also for a
    tensor without elements, whose sizes are 0: an integer division by 0 ends the process on x86.
    """

    def divided(left: tirx.Expr, divisor: tirx.Expr) -> tirx.Expr:
        current = _CURRENT.get()
        one = tirx.const(1, "int64")
        return rule(left, divisor if current is not None and current.is_positive(divisor) else tirx.max(divisor, one))

    return divided


def _arithmetic(number: Rule, rule: Rule) -> tuple[_Operator, _Operator]:
    """The operator of a size on the left, and on the right."""

    def left(self: Dim, other: Size) -> Size:
        return _combined(self, other, number, rule) if isinstance(other, int | Dim) else NotImplemented

    def right(self: Dim, other: Size) -> Size:
        return _combined(other, self, number, rule) if isinstance(other, int) else NotImplemented

    return left, right


class Dim:
    """A size that is known only at run time, in place of an int.

    `expr` is its expression of the kernel's variables, `typical` one of its values. Arithmetic gives other sizes. They
    have no order and are no truth values: a generator names what it assumes (`assumed(at_least(rows, 8))`) or what must
    be so for all sizes (`proved`, `same`, `is_one`), or asks for typical values.
    """

    __slots__ = ("expr", "typical")

    def __init__(self, typical: int, expr: tirx.Expr) -> None:
        self.typical, self.expr = typical, expr

    __add__, __radd__ = _arithmetic(operator.add, lambda a, b: a + b)
    __sub__, __rsub__ = _arithmetic(operator.sub, lambda a, b: a - b)
    __mul__, __rmul__ = _arithmetic(operator.mul, lambda a, b: a * b)
    __floordiv__, __rfloordiv__ = _arithmetic(operator.floordiv, _by_positive(tirx.floordiv))
    __mod__, __rmod__ = _arithmetic(operator.mod, _by_positive(tirx.floormod))

    def __neg__(self) -> Size:
        return 0 - self

    # Not for generators, as mypy tells them, but for tuples and sets of sizes.
    def __eq__(self, other: Never) -> bool:  # type: ignore[override]
        return same(self, other) if isinstance(other, int | Dim) else NotImplemented

    def __ne__(self, other: Never) -> bool:  # type: ignore[override]
        return not self == other

    def __hash__(self) -> int:
        return hash(self.typical)

    def __bool__(self) -> bool:
        raise SizeUnknownError(f"the size {self.expr} is known only at run time")

    def __repr__(self) -> str:
        return str(self.expr)


Size: TypeAlias = int | Dim
"""A number, or what takes its place in a kernel for sizes that are known only at run time."""
