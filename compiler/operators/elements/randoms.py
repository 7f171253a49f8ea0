"""Operators whose results are drawn."""

from __future__ import annotations

from heterocc.compiler.operators.record import MICROSOFT, Operator, nothing
from heterocc.compiler.symbolic.requirement import Needs


def drawn(needs: Needs) -> None:
    """Multinomial: there is a class to draw."""
    needs.at_least(0, 1, 1)


OPERATORS = (
    Operator("Bernoulli", needs=nothing, random=True, intervals={0: (0.0, 1.0)}, unread="dtype"),
    Operator("Multinomial", needs=drawn, random=True, unread="dtype"),
    *(Operator(name, needs=nothing, random=True, unread="dtype shape") for name in ("RandomNormal", "RandomUniform")),
    *(Operator(name, needs=nothing, random=True, unread="dtype") for name in ("RandomNormalLike", "RandomUniformLike")),
    Operator("Sampling", MICROSOFT, random=True),
    *(Operator(name, MICROSOFT, training=4) for name in ("BiasDropout", "BitmaskBiasDropout")),
    Operator("BitmaskDropout", MICROSOFT, training=2),
)
