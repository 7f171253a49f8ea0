"""Sizes of a model's named dimensions as TVM's variables and expressions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import tvm_ffi
from tvm import sym, tirx

from heterocc.artifacts.errors import LoweringError
from heterocc.artifacts.manifest import Range
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.named_inputs import plain_names
from heterocc.compiler.symbolic.sizes import Compound, Size, number
from heterocc.passes.graph import Value

_EMPTY, _FILLED, _LIKE = "e", "d", "_like"
"""Parts of variables' names, which only this module reads: their first letter, and the text before a typical value."""

Extent = Any
"""A dimension: an int, or a `tirx.Expr` of variables."""


class Variables:
    """A variable for each named size of a model, and expressions of them for sizes and shapes."""

    def __init__(self, model: ImportedModel) -> None:
        symbols = self._symbols = model.symbols
        self._sizes = {} if symbols is None else symbols.sizes
        self._contents = model.contents if symbols is None else symbols.contents
        names = () if symbols is None else (*symbols.names, *symbols.fresh)
        empty = model.may_be_empty if symbols is None else model.may_be_empty | symbols.fresh.keys()
        self._vars = {
            name: size_variable(f"{i}_{_identifier(name)}", "int64", empty=name in empty)
            for i, name in enumerate(names)
        }

    def variable(self, name: str) -> tirx.Var:
        """The variable of a named dimension."""
        return self._vars[name]

    def most(self, planned: Mapping[str, Range]) -> dict[str, int]:
        """The largest sizes by the names of the variables."""
        return {self._vars[n].name: found.max or 0 for n, found in planned.items() if n in self._vars}

    def __bool__(self) -> bool:
        return bool(self._vars)

    def shape(self, value: Value) -> tuple[Extent, ...] | None:
        """The shape of a value; None if a dimension is known only at run time."""
        if value.shape is None or None in value.shape:
            return None
        return tuple(d if isinstance(d, int) else self.extent(self._sizes[d]) for d in value.shape if d is not None)

    def agree(self, one: Value, other: Value) -> bool:
        """Whether two values have equal shapes in each run, because of assumptions about sizes."""
        if self._symbols is None:
            return False
        left, right = self._symbols.shape_of(one), self._symbols.shape_of(other)
        if left is None or right is None or len(left) != len(right):
            return False
        known = [(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None]
        return len(known) == len(left) and all(self._symbols.agree(a, b) for a, b in known)

    def contents(self, name: str) -> tuple[tuple[Extent, ...], tuple[int, ...]] | None:
        """The elements of an integer value that follow from sizes, and its shape; None if they do not."""
        found = self._contents.get(name)
        if found is None or any(e is None for e in found.flat):
            return None
        return tuple(self.extent(e) for e in found.flat), found.shape

    def extent(self, size: Size) -> Extent:
        """A size as a number or an expression."""
        if size.number is not None:
            return size.number
        total: Extent = 0
        for product, count in size.terms:
            term: Extent = count
            for atom in product:
                factor = self._compound(atom) if isinstance(atom, Compound) else self._vars[atom]
                term = factor if isinstance(term, int) and term == 1 else term * factor
            total = term if isinstance(total, int) and total == 0 else total + term
        return total

    def of_text(self, text: str) -> Extent:
        """The size of a text: a number, or an expression of named dimensions."""
        known = self._sizes.get(text)
        return int(text) if known is None else self.extent(known)

    def _compound(self, compound: Compound) -> tirx.Expr:
        left, right = (as_int64(self.extent(side)) for side in (compound.left, compound.right))
        rule = {"//": tirx.floordiv, "min": tirx.min, "max": tirx.max}[compound.kind]
        return rule(left, right)


def as_int64(extent: Extent) -> tirx.Expr:
    """An extent as an expression."""
    return tirx.const(extent, "int64") if isinstance(extent, int) else extent


def can_be_empty(dim: tirx.Expr) -> bool:
    """Whether a dimension may be 0 in a valid run: its least value is 0, or it depends on a size that may be 0."""
    if isinstance(dim, tirx.IntImm):
        return int(dim) == 0
    limited: list[tirx.Max] = []
    tvm_ffi.structural_walk(dim, [(tirx.Max, limited.append)], order="post")
    if limited:
        return bool(sym.Analyzer().const_int_bound(dim).min_value < 1)
    return any(may_be_empty(var) for var in tirx.analysis.undefined_vars(dim))


def size_variable(name: str, dtype: Any, *, empty: bool = False, typical: int | None = None) -> tirx.Var:
    """A variable for a size that is at least 1, or 0 if it may be empty, with a typical value of its own if it has one.

    These facts are parts of its name, because TVM's variables have no other place for them.
    """
    like = "" if typical is None else f"{_LIKE}{typical}"
    return tirx.Var(f"{_EMPTY if empty else _FILLED}{name}{like}", dtype)


def with_typical(variable: tirx.Var, typical: int) -> tirx.Var:
    """Another variable for the same size, with a typical value of its own."""
    return tirx.Var(f"{variable.name}{_LIKE}{typical}", variable.ty)


def may_be_empty(variable: tirx.Var) -> bool:
    """Whether a size may be 0."""
    return bool(variable.name.startswith(_EMPTY))


def typical_of(variable: tirx.Var) -> int | None:
    """The typical value of a variable; None if it has none of its own."""
    _, _, number = variable.name.rpartition(_LIKE)
    return int(number) if number.isdigit() and _LIKE in variable.name else None


def without_typical(script: str) -> str:
    """The text of a function without its variables' typical values."""
    return re.sub(rf"{_LIKE}\d+", "", script)


def same(left: Sequence[Extent], right: Sequence[Extent]) -> bool:
    """Whether two shapes are equal for all sizes, as far as TVM can prove it."""
    analyzer = sym.Analyzer()
    return len(left) == len(right) and all(
        analyzer.can_prove_equal(a, b) or analyzer.can_prove_equal(in_one_form(a), in_one_form(b))
        for a, b in zip(map(as_int64, left), map(as_int64, right), strict=True)
    )


_Node = TypeVar("_Node")


def in_one_form(node: _Node) -> _Node:
    """An expression or function in which equal sizes of maps look alike, for TVM's proofs.

    A number added to a quotient is part of what is divided, because TVM does not see that (n - 1) // 4 + 1, the size of
    a convolution's result, and (n + 3) // 4 are equal; and the quotients and variables of a product are in one order.
    """
    analyzer = sym.Analyzer()

    def whole(expr: tirx.Add) -> tirx.Expr:
        quotient, number = expr.a, expr.b
        if not isinstance(number, tirx.IntImm):
            return expr
        if isinstance(quotient, tirx.Mul):  # 160 * (n // 4) + 160
            parts = factors(quotient)
            times = math.prod(int(f) for f in parts if isinstance(f, tirx.IntImm))
            inner = [f for f in parts if not isinstance(f, tirx.IntImm)]
            if len(inner) != 1 or not isinstance(inner[0], tirx.FloorDiv) or not times or int(number) % times:
                return expr
            return whole(inner[0] + tirx.const(int(number) // times, number.ty)) * tirx.const(times, number.ty)
        if not isinstance(quotient, tirx.FloorDiv):
            return expr
        return tirx.floordiv(analyzer.simplify(quotient.a + number * quotient.b), quotient.b)

    def ordered(expr: tirx.Mul) -> tirx.Expr:
        sizes = [f for f in factors(expr) if isinstance(f, tirx.Var | tirx.FloorDiv)]
        others = [f for f in factors(expr) if not isinstance(f, tirx.Var | tirx.FloorDiv)]
        return math.prod(sorted(sizes, key=lambda size: str(size).lstrip("(")), start=math.prod(others))

    rules = [(tirx.Add, whole), (tirx.Mul, ordered)]
    return tvm_ffi.structural_map(node, rules, order="post")  # type: ignore[no-any-return]


def factors(expr: tirx.Expr) -> list[tirx.Expr]:
    """The factors of a product."""
    return [*factors(expr.a), *factors(expr.b)] if isinstance(expr, tirx.Mul) else [expr]


def require_names(model: ImportedModel, inputs: Sequence[str], given: Iterable[str], where: str) -> None:
    """Raise LoweringError if an input has a dimension that is an expression of names that no input has.

    `given` are names whose sizes are arguments of their own.
    """
    symbols = model.symbols
    if symbols is None:
        return
    plain = plain_names(model, inputs) | set(given)
    for name in inputs:
        for size in symbols.shape_of(model.graph.values[name]) or ():
            missing = sorted((size or number(0)).names - plain)
            if missing:
                text = "" if size is None else size.text
                raise LoweringError(
                    f"the size '{text}' of '{name}' depends on '{missing[0]}', which no input has", where=where
                )


def _identifier(name: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
