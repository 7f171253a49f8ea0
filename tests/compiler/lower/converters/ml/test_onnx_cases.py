"""ONNX's own tests of `ai.onnx.ml` whose inputs and outputs are numbers."""

from __future__ import annotations

import pytest

from tests.compiler.lower.lowered import CPU
from tests.differential.node_tests import cases, run_case


def of_numbers() -> list[str]:
    found = {n: c for n, c in cases("ai_onnx_ml").items() if "ai_onnx_ml" in n}
    return sorted(
        n for n, c in found.items() if all(a.dtype.kind not in "OUS" for a in (*c.feed.values(), *c.expected))
    )


@pytest.mark.parametrize("name", of_numbers())
def test_cases_of_onnx_pass(name: str) -> None:
    outcome = run_case(cases("ai_onnx_ml")[name], CPU)
    assert outcome.kind in ("right", "folded"), outcome
