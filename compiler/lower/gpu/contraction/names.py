"""Variables for the values of a kernel that are used more than once."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from heterocc.compiler.lower.gpu.contraction.filtering import Matrix


class Names:
    """The variables, and the statements that bind them, in order."""

    def __init__(self) -> None:
        self.binds: list[tirx.Bind] = []

    def bind(self, value: tirx.Expr) -> tirx.Var:
        """Bind a value to a new variable."""
        name = tirx.Var(f"value{len(self.binds)}", "float32")
        self.binds.append(tirx.Bind(name, value))
        return name

    def transformed(self, matrix: Matrix, values: list[list[tirx.Var]]) -> list[list[tirx.Var]]:
        """The product matrix · values · matrixᵀ."""
        columns = [list(column) for column in zip(*values, strict=True)]
        half = [[self._sum(row, column) for column in columns] for row in matrix]
        return [[self._sum(row, line) for row in matrix] for line in half]

    def _sum(self, factors: Sequence[float], values: Sequence[tirx.Var]) -> tirx.Var:
        used = [(f, v) for f, v in zip(factors, values, strict=True) if f]
        terms = [(f, v if abs(f) == 1 else v * tirx.const(abs(f), "float32")) for f, v in used]
        terms.sort(key=lambda term: term[0] < 0)  # positive terms first; the sort is stable
        (first, total), *rest = terms
        if first < 0:
            total = tirx.const(0, "float32") - total
        for factor, term in rest:
            total = total + term if factor > 0 else total - term
        return self.bind(total)
