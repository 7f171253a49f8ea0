"""Fourier transforms and images whose sizes are inputs of the model or constants, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime
import pytest

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler import compile_model
from heterocc.compiler.lower.converters.signals import fourier
from heterocc.runtime import load

RNG = np.random.default_rng(0)
SIGNAL = RNG.standard_normal((2, 40, 1)).astype(np.float32)
WINDOW = RNG.random(12).astype(np.float32)
CASES = {
    "frames of a computed length": (
        "agraph (float[2,40,1] x, int64 step, int64 length) => (float[b,f,n,p] y)"
        " { y = STFT<onesided = 1>(x, step, , length) }",
        [{"x": SIGNAL, "step": np.array(s), "length": np.array(n)} for s, n in ((5, 12), (4, 16))],
    ),
    "frames by constants with a window": (
        "agraph (float[2,40,1] x, float[12] w) => (float[b,f,n,p] y) <int64 step = {7}>"
        " { y = STFT<onesided = 1>(x, step, w) }",
        [{"x": SIGNAL, "w": WINDOW}],
    ),
    "a transform along a computed axis": (
        "agraph (float[2,40,1] x, int64 axis) => (float[a,b,c] y) { y = DFT(x, , axis) }",
        [{"x": SIGNAL, "axis": np.array(n)} for n in (0, 1, -2)],
    ),
    "a grid of a computed size": (
        "agraph (float[2,2,3] x, int64[4] size) => (float[n,h,w,c] y) { y = AffineGrid<align_corners = 1>(x, size) }",
        [{"x": RNG.standard_normal((2, 2, 3)).astype(np.float32), "size": np.array(n)} for n in ([2, 1, 4, 5],)],
    ),
    "columns of a computed block": (
        "agraph (float[1,8,n] x, int64[2] image, int64[2] block) => (float[n,c,h,w] y)"
        " { y = Col2Im<pads = [1, 0, 0, 1], strides = [2, 1]>(x, image, block) }",
        [
            {"x": RNG.standard_normal((1, 8, n)).astype(np.float32), "image": np.array(i), "block": np.array(b)}
            for n, i, b in ((15, [5, 5], [2, 2]), (4, [6, 3], [1, 4]))
        ],
    ),
}


SLOW = ("frames by constants with a window", "a grid of a computed size")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in CASES])
def test_results_of_computed_sizes_equal_onnx_runtime(name: str, tmp_path: Path) -> None:
    text, feeds = CASES[name]
    made = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> {text}')
    compile_model(made, tmp_path / "m.hcb", devices="CPU", cpu_variant=False, check=False)
    reference = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    with load(tmp_path / "m.hcb") as session:
        for feed in feeds:
            expected = np.asarray(reference.run(None, feed)[0])
            np.testing.assert_allclose(session.run(feed)["y"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("parts", "window"), [(1, True), (2, True), (1, False)])
def test_frames_of_a_signal_of_any_length_are_a_convolution(
    parts: int, window: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fourier, "frames_transformed", lambda *_: pytest.fail("it is computed term by term"))
    taps = ", ".join(str(0.1 * n) for n in range(1, 13))
    given = f"float[12] w = {{{taps}}}" if window else "int64 length = {12}"
    inputs = "x, step, w" if window else "x, step, , length"
    made = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 17]> agraph (float[b,s,{parts}] x) => (float[b,f,n,p] y)'
        f" <int64 step = {{5}}, {given}> {{ y = STFT<onesided = {2 - parts}>({inputs}) }}"
    )
    report = compile_model(made, tmp_path / "m.hcb", devices="CPU")
    assert not report.warnings
    reference = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    with load(tmp_path / "m.hcb") as session:
        for batch, samples in ((1, 12), (2, 40), (3, 16), (1, 2000)):
            feed = {"x": RNG.standard_normal((batch, samples, parts)).astype(np.float32)}
            expected = np.asarray(reference.run(None, feed)[0])
            np.testing.assert_allclose(session.run(feed)["y"], expected, rtol=1e-4, atol=1e-4)
        with pytest.raises(HeteroccError):
            session.run({"x": np.zeros((1, 11, parts), np.float32)})


@pytest.mark.parametrize("attributes", ["axis = 1, onesided = 1", "axis = 1", "axis = 1, inverse = 1", "axis = -2"])
def test_transforms_of_any_number_of_rows_are_products(
    attributes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fourier, "transformed", lambda *_: pytest.fail("it is computed term by term"))
    shape = "b, 20, n, 1" if "-2" not in attributes else "b, n, 20, 1"
    made = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 17]> agraph (float[{shape}] x) => (float[p,q,r,s] y)'
        f" {{ y = DFT<{attributes}>(x) }}"
    )
    compile_model(made, tmp_path / "m.hcb", devices="CPU")
    reference = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    with load(tmp_path / "m.hcb") as session:
        for batch, rows in ((1, 1), (2, 7), (5, 16)):
            sizes = {"b": batch, "n": rows}
            signal = RNG.standard_normal([sizes.get(d) or int(d) for d in shape.split(", ")]).astype(np.float32)
            expected = np.asarray(reference.run(None, {"x": signal})[0])
            np.testing.assert_allclose(session.run({"x": signal})["y"], expected, rtol=1e-4, atol=1e-4)


TRANSFORM = {
    "of real numbers": ("b, n, 1", "axis = 1", "x, length"),
    "of complex numbers": ("b, n, 2", "axis = 1, inverse = 1", "x, length"),
    "of the first half": ("b, n, 1", "axis = 1, onesided = 1", "x, length"),
}


@pytest.mark.parametrize("name", TRANSFORM)
def test_a_transform_has_the_length_that_a_request_gives_whether_a_power_of_two_or_not(
    name: str, tmp_path: Path
) -> None:
    shape, attributes, inputs = TRANSFORM[name]
    made = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 17]> agraph (float[{shape}] x, int64 length) => (float[p,q,r] y)'
        f" {{ y = DFT<{attributes}>({inputs}) }}"
    )
    compile_model(made, tmp_path / "m.hcb", devices="CPU", cpu_variant=False, check=False)
    with load(tmp_path / "m.hcb") as session:
        for count, length in ((9, 9), (9, 16), (16, 7), (40, 1), (3, 2), (5, 1000), (1500, 1500)):
            signal = RNG.standard_normal((2, count, int(shape[-1]))).astype(np.float32)
            numbers = signal[..., 0] + 1j * signal[..., -1] if shape[-1] == "2" else signal[..., 0]
            transform = (
                np.fft.ifft if "inverse" in attributes else np.fft.rfft if "onesided" in attributes else np.fft.fft
            )
            wanted = transform(numbers.astype(np.complex128 if shape[-1] == "2" else np.float64), n=length, axis=1)
            found = session.run({"x": signal, "length": np.array(length)})["y"]
            scale = np.abs(wanted).max()
            np.testing.assert_allclose(found, np.stack([wanted.real, wanted.imag], -1), rtol=0, atol=1e-6 * scale)


def test_the_time_of_a_transform_of_any_length_hardly_grows_faster_than_the_length(tmp_path: Path) -> None:
    made = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17]> agraph (float[b,n,1] x) => (float[p,q,r] y) { y = DFT<axis = 1>(x) }'
    )
    report = compile_model(made, tmp_path / "m.hcb", cpu_variant=False, check=False, measure=False)
    assert [p.device for p in report.plan.partitions] == ["CPU"]
    x = np.ones((1, 100_003, 1), np.float32)  # with the square it would take a quarter of an hour
    with load(tmp_path / "m.hcb") as session:
        found = session.run({"x": x})["y"]
    np.testing.assert_allclose(found[0, :2], [[100_003, 0], [0, 0]], atol=1e-3)
