"""Cases of operators and modes that the other lists of cases lack."""

from __future__ import annotations

from tests.differential.operators import Case

OWN: list[Case] = []
