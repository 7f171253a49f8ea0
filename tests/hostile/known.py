"""Defects that the search finds and that are not mended yet, and answers that differ from ONNX Runtime's on purpose."""

from __future__ import annotations

from tests.hostile.search import Finding


def explained(finding: Finding) -> str:
    """The reason why a finding is no news; empty if it is."""
    return ""
