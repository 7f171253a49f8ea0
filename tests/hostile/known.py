"""Defects that the search finds and that are not mended yet, and answers that differ from ONNX Runtime's on purpose."""

from __future__ import annotations

from collections.abc import Mapping

from tests.hostile.search import Finding

NOT_SEARCHED: Mapping[str, str] = {
    "AllClassNMS": "an operator of an old framework, which neither ONNX nor ONNX Runtime has",
    "Constant": "has no inputs",
    "Optional": "its result is not a tensor; OptionalGetElement and OptionalHasElement are searched",
    "RandomNormal": "has no inputs",
    "RandomUniform": "has no inputs",
}
"""Operators that have a converter and no model, with the reason."""


def explained(finding: Finding) -> str:
    """The reason why a finding is no news; empty if it is."""
    return ""
