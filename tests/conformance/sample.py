"""Some of ONNX's node tests. To collect all of them takes seconds."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from typing import Any

from onnx.backend.test.case import node


def onnx_cases(operators: Sequence[str], names: Sequence[str]) -> list[Any]:
    """ONNX's test cases of these names, which modules of these operators define."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some cases compute their own expectation with overflows
        for operator in operators:
            importlib.import_module(f"{node.__name__}.{operator}")
    found = {case.name: case for case in node._NodeTestCases}
    return [found[name] for name in names]
