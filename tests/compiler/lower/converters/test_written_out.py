"""Operators written out as steps of arithmetic give the same on a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.compiler.lower.converters.test_indexing import DEVICES, Run, node
from tests.compiler.lower.lowered import assert_same, model, run_ort

RNG = np.random.default_rng(8)


@pytest.mark.parametrize("run", DEVICES)
def test_determinants_agree(run: Run, tmp_path: Path) -> None:
    nodes = [
        node("Det", "squares"),
    ]
    inputs = {
        "squares": RNG.standard_normal((5, 3, 3)).astype(np.float32),
    }
    wanted = run_ort(model(nodes, inputs, [n.output[0] for n in nodes], opset=17), inputs)
    assert_same(run(nodes, inputs, {}, tmp_path), wanted)


@pytest.mark.parametrize("run", DEVICES)
def test_fourier_transforms_agree(run: Run, tmp_path: Path) -> None:
    nodes = [node("DFT", "signal", axis=1, onesided=1)]
    inputs = {"signal": RNG.standard_normal((2, 10, 1)).astype(np.float32)}
    wanted = run_ort(model(nodes, inputs, [n.output[0] for n in nodes], opset=17), inputs)
    assert_same(run(nodes, inputs, {}, tmp_path), wanted)
