"""Real networks over three devices that share no memory, so that every transfer is one, equal ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.differential.harness import ON_DEVICE, able, fetch, random_placement, run_fresh

THREE = ("VULKAN", "OPENCL", "CPU")
QUICK = ("mnist_cntk.onnx",)
REAL = (
    "mtcnn_pnet.onnx",
    "squeezenet",
    "shufflenet",
    "mtcnn_onet.onnx",
    "ppocr_mobile_v2_cls.onnx",
    "ddddocr_det_yolox.onnx",
)

pytestmark = [*ON_DEVICE["VULKAN"], *ON_DEVICE["OPENCL"]]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.models)])
@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=pytest.mark.models) for n in REAL)])
def test_every_node_on_a_random_one_of_three_discrete_devices_equals_onnx_runtime(
    name: str, seed: int, tmp_path: Path
) -> None:
    path, shapes, tolerance = fetch(name)
    pinned = random_placement(able(path, shapes, THREE), seed)
    outcome = run_fresh(
        path,
        tmp_path,
        ",".join((*THREE, "ORT")),
        shapes=shapes,
        affinity=pinned,
        tolerance=tolerance,
        variables={f"HETEROCC_{device}_FAULT": "discrete" for device in ("OPENCL", "VULKAN")},
    )
    outcome.assert_right()
    assert len({p.device for p in outcome.report.plan.partitions}) == len(THREE)
