"""What code assumes of sizes that are known only at run time: typical values by which it is chosen, and guards."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tvm_ffi
from tvm import sym, tirx

from heterocc.compiler.lower.variables import can_be_empty, may_be_empty, typical_of

TYPICAL = (61, 67, 71, 73, 79, 83, 89, 97)
"""Values of a kernel's variables by which generators choose: primes, so that few sizes are equal by chance."""

LARGE = (
    (557, 569, 577, 587, 593, 599, 601, 607),
    (40009, 40013, 40031, 40037, 40039, 40063, 40087, 40093),
)
"""Typical values of variables whose quotients are sizes: the side of an image that was halved several times, or the
samples of a recording."""

_SMALL_QUOTIENT = 48


Rule = Callable[[Any, Any], Any]


class Assumptions:
    """The variables of sizes, and guards: conditions on them under which generated code is right.

    Variables are at least 1, those that may be empty at least 0. Dimensions that depend on one variable are
    at least 1, too: a smaller size is an error before the run (`least_sizes`), unless the variable may be 0 or the
    dimension is limited from below.
    """

    def __init__(self, dims: Iterable[tirx.Expr]) -> None:
        dims = list(dims)
        self.guards: list[tirx.Expr] = []
        self.analyzer = sym.Analyzer()
        self._typical: dict[int, tuple[tirx.Var, int]] = {}  # by the variable's address
        for dim in dims:
            for var in tirx.analysis.undefined_vars(dim):
                if hash(var) not in self._typical:
                    number = typical_of(var) or TYPICAL[len(self._typical) % len(TYPICAL)]
                    self._typical[hash(var)] = var, number
                    least = 0 if may_be_empty(var) else 1
                    self.analyzer.update(var, sym.ConstIntBound(least, sym.ConstIntBound.POS_INF))
        compound = [dim for dim in dims if not isinstance(dim, tirx.Var | tirx.IntImm)]
        self._enlarge(compound)
        self._values: dict[int, tuple[tirx.Expr, int | None]] = {}
        self._positive = [(dim, tirx.Var("dim", "int64")) for dim in compound if is_bounded(dim)]
        for _, var in self._positive:
            self.analyzer.update(var, sym.ConstIntBound(1, sym.ConstIntBound.POS_INF))

    @property
    def variables(self) -> tuple[tirx.Var, ...]:
        """The variables."""
        return tuple(var for var, _ in self._typical.values())

    def typical(self, expr: tirx.Expr) -> int | None:
        """The value of an expression for typical values of the variables; None if it is of other variables, too."""
        address = hash(expr)
        known = self._values.get(address)
        if known is None:
            known = self._values[address] = expr, self._computed(expr)  # with the expression, which keeps its address
        return known[1]

    def _computed(self, expr: tirx.Expr) -> int | None:
        def number(var: tirx.Var) -> tirx.Expr:
            known = self._typical.get(hash(var))
            return var if known is None else tirx.const(known[1], "int64")

        value = self.analyzer.simplify(tvm_ffi.structural_map(expr, [(tirx.Var, number)], order="post"))
        return int(value) if isinstance(value, tirx.IntImm) else None

    def is_positive(self, expr: tirx.Expr) -> bool:
        """Whether an expression of the variables is at least 1 in every run, as far as bounds of its parts show it."""
        if isinstance(expr, tirx.IntImm):
            return int(expr) >= 1
        return bool(self.analyzer.const_int_bound(self._as_positive(expr)).min_value >= 1)

    def _as_positive(self, expr: tirx.Expr) -> tirx.Expr:
        """The expression with a positive variable in place of each dimension that is at least 1."""

        def replaced(part: tirx.Expr) -> tirx.Expr:
            return next((var for dim, var in self._positive if tvm_ffi.structural_equal(dim, part)), part)

        kinds = (tirx.FloorDiv, tirx.Add, tirx.Sub, tirx.Mul, tirx.Min)
        return tvm_ffi.structural_map(expr, [(kind, replaced) for kind in kinds], order="post")

    def _enlarge(self, dims: list[tirx.Expr]) -> None:
        """Give large typical values to the variables of sizes that are small for the usual ones."""
        for large in LARGE:
            values = [(dim, self._computed(dim)) for dim in dims]
            small = [dim for dim, value in values if value is not None and value < _SMALL_QUOTIENT]
            used = {hash(var) for dim in small for var in tirx.analysis.undefined_vars(dim)}
            self._typical = {
                address: (var, large[i % len(large)] if address in used else number)
                for i, (address, (var, number)) in enumerate(self._typical.items())
            }

    def guard(self, rule: Rule, left: tirx.Expr, right: tirx.Expr) -> tirx.Expr | None:
        """A comparison as a guard; None if it holds for all sizes, or is assumed already."""
        zero = tirx.const(0, "int64")
        condition = rule(self.analyzer.canonical_simplify(left - right), zero)
        if self.analyzer.can_prove(condition):
            return None
        difference = self.analyzer.canonical_simplify(self._as_positive(left) - self._as_positive(right))
        known = self.analyzer.can_prove(rule(difference, zero)) or self._assumes(condition)
        return None if known else condition

    def _assumes(self, condition: tirx.Expr) -> bool:
        return any(tvm_ffi.structural_equal(condition, guard) for guard in self.guards)

    def assume(self, guards: Iterable[tirx.Expr]) -> None:
        """Put guards in force."""
        self.guards += [guard for guard in guards if not self._assumes(guard)]


def is_bounded(dim: tirx.Expr) -> bool:
    """Whether a dimension depends on one variable, which is at least 1, and is not limited from below."""
    variables = tirx.analysis.undefined_vars(dim)
    return len(variables) == 1 and not can_be_empty(dim)
