"""Operators whose results are drawn."""

from __future__ import annotations

from heterocc.compiler.operators.record import Operator, nothing
from heterocc.compiler.symbolic.requirement import Needs


def drawn(needs: Needs) -> None:
    """Multinomial: there is a class to draw."""
    needs.at_least(0, 1, 1)


OPERATORS = (
    Operator("Bernoulli", needs=nothing, intervals={0: (0.0, 1.0)}, unread="dtype"),
    Operator("Multinomial", needs=drawn, unread="dtype"),
    *(Operator(name, needs=nothing, unread="dtype shape") for name in ("RandomNormal", "RandomUniform")),
    *(Operator(name, needs=nothing, unread="dtype") for name in ("RandomNormalLike", "RandomUniformLike")),
)
