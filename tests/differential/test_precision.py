"""Whole networks on the CPU are no further from float64 than ONNX Runtime is, for numbers of any size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests import models
from tests.wide_network import compute, without_softmax

SIZES = {"usual": 1.0, "large": 1e4, "small": 1e-4, "denormal": 1e-39}
SEEDS = 3
SLACK = 1.25
"""By which factor the root of the mean square error may exceed ONNX Runtime's. Inputs too small to matter leave one
sample of random roundings: shufflenet's ratios are 0.89 (usual and large), 1.09 (small) and 1.14 (denormal)."""


@pytest.mark.models
@pytest.mark.parametrize("name", ["shufflenet"])
def test_a_whole_network_is_as_near_to_float64_as_onnx_runtime(name: str, tmp_path: Path) -> None:
    model = without_softmax(onnx.load(models.light(name)))
    onnx.save(model, tmp_path / "m.onnx")
    compile_model(tmp_path / "m.onnx", tmp_path / "m.hcb", devices="CPU")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    peer = onnxruntime.InferenceSession(tmp_path / "m.onnx", options, providers=["CPUExecutionProvider"])
    errors = {}
    with load(tmp_path / "m.hcb") as session:
        (given,) = session.inputs
        assert given.shape is not None
        shape = tuple(int(n or 1) for n in given.shape)
        for size, factor in SIZES.items():
            squares = np.zeros(2)
            for seed in range(SEEDS):
                x = (np.random.default_rng(seed).standard_normal(shape) * factor).astype(np.float32)
                right = compute(model, x)
                found = [next(iter(session.run({given.name: x}).values())), peer.run(None, {given.name: x})[0]]
                squares += [np.mean((y.reshape(right.shape) - right) ** 2) / np.mean(right**2) for y in found]
            errors[size] = np.sqrt(squares / SEEDS)
    print("".join(f"\n{name} {size}: {ours:.2e}, ONNX Runtime {theirs:.2e}" for size, (ours, theirs) in errors.items()))
    assert {size for size, (ours, theirs) in errors.items() if not ours <= SLACK * theirs} == set()
