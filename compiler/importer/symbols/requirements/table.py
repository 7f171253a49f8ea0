"""The requirements of each operator that compiled code computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from heterocc.compiler.importer.symbols.given import Given, Shape
from heterocc.compiler.importer.symbols.operators.contrib import MICROSOFT
from heterocc.compiler.importer.symbols.operators.ml import ML
from heterocc.compiler.importer.symbols.requirements import elementwise, indexing, normalization, shaping, windows
from heterocc.compiler.importer.symbols.requirements.requirement import Needs, Requirement

Rule = Callable[[Needs], None]

_RULES: Mapping[str, Mapping[str, Rule]] = {
    "": {
        **elementwise.RULES,
        **indexing.RULES,
        **normalization.RULES,
        **shaping.RULES,
        **windows.RULES,
    },
    MICROSOFT: {},
    ML: {},
}


def requirements_of(given: Given, result: Shape) -> Iterator[Requirement]:
    """What a node needs of sizes, without what holds for all; `result` is the shape of its first output."""
    rule = _RULES.get(given.node.domain, {}).get(given.node.op_type)
    if rule is None or not given.shapes:
        return
    needs = Needs(given, result)
    rule(needs)
    yield from (needed for needed in dict.fromkeys(needs.found) if not needed.always)
