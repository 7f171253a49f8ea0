"""One-sided Fourier transforms of real frames, folded to a quarter of their terms, against numpy in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from heterocc.compiler import compile_model
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.relax.importer import import_function
from heterocc.runtime import load
from tests.compiler.lower.lowered import job, model, run_cpu

RNG = np.random.default_rng(0)
node = onnx.helper.make_node


def parts(spectrum: np.ndarray) -> np.ndarray:
    """Real and imaginary parts beside each other."""
    return np.stack([spectrum.real, spectrum.imag], -1)


@pytest.mark.parametrize(("size", "taken"), [(64, 64), (64, 50), (68, 36), (72, 20), (400, 160), (64, 9), (512, 512)])
def test_frames_that_are_continued_with_zeros_agree(size: int, taken: int) -> None:
    x = RNG.standard_normal((2, taken, 3, 1)).astype(np.float32)
    nodes = [node("DFT", ["x", "length"], ["y"], axis=1, onesided=1)]
    made = model(nodes, {"x": x}, ["y"], {"length": np.array(size)}, opset=17)
    assert "folded" in import_function(job(made)).mod.script()
    right = parts(np.fft.rfft(x[..., 0].astype(np.float64), size, 1))
    np.testing.assert_allclose(run_cpu(made, {"x": x})["y"], right, atol=3e-7 * taken)


@pytest.mark.parametrize("attributes", ["axis = 1, onesided = 1, inverse = 0", "axis = 1", "axis = 1, inverse = 1"])
def test_only_one_sided_transforms_are_folded(attributes: str) -> None:
    made = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 17]> agraph (float[b, 64, 1] x) => (float[p,q,r] y)'
        f" {{ y = DFT<{attributes}>(x) }}"
    )
    converted = import_function(job(import_model(made, keep_dims=True))).mod.script()
    assert ("folded" in converted) == ("onesided" in attributes)


@pytest.mark.parametrize("window", [True, False])
def test_frames_of_a_signal_of_any_length_are_folded(window: bool, tmp_path: Path) -> None:
    weights = np.linspace(0.1, 1, 80).astype(np.float32)
    given = f"float[80] w = {{{', '.join(map(str, weights))}}}" if window else "int64 length = {80}"
    made = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 17]> agraph (float[b,s] x) => (float[b,f,n,p] y)'
        f" <int64 step = {{30}}, {given}> {{ y = STFT(x, step, {'w' if window else ', length'}) }}"
    )
    assert "folded" in import_function(job(import_model(made, keep_dims=True))).mod.script()
    compile_model(made, tmp_path / "m.hcb", devices="CPU")
    with load(tmp_path / "m.hcb") as session:
        for batch, samples in ((1, 80), (2, 139), (3, 1000)):
            x = RNG.standard_normal((batch, samples)).astype(np.float32)
            frames = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), 80, 1)[:, ::30]
            right = parts(np.fft.rfft(frames * weights if window else frames))
            np.testing.assert_allclose(session.run({"x": x})["y"], right, atol=2e-5)


def test_a_signal_of_a_fixed_length_is_folded() -> None:
    x = RNG.standard_normal((2, 200, 1)).astype(np.float32)
    weights = RNG.random(64).astype(np.float32)
    constants = {"step": np.array(48), "w": weights}
    made = model([node("STFT", ["x", "step", "w"], ["y"], onesided=1)], {"x": x}, ["y"], constants, opset=17)
    assert "folded" in import_function(job(made)).mod.script()
    frames = np.lib.stride_tricks.sliding_window_view(x[..., 0].astype(np.float64), 64, 1)[:, ::48]
    np.testing.assert_allclose(run_cpu(made, {"x": x})["y"], parts(np.fft.rfft(frames * weights)), atol=2e-5)
