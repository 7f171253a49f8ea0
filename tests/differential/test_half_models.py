"""Real models in half precision, run in a fresh process, equal ONNX Runtime in float32 as far as 11 bits go."""

from pathlib import Path

import pytest
from harness import fetch, run_fresh

from heterocc.compiler.compare import FLOAT16
from heterocc.runtime.native.vulkan_api import vulkan_unavailable_reason

REASON = vulkan_unavailable_reason()
pytestmark = [
    pytest.mark.vulkan,
    pytest.mark.skipif(REASON is not None, reason=f"no Vulkan device: {REASON}"),
]
NAMES = ("squeezenet", "resnet50", "ppocr_mobile_v2_cls.onnx", "mtcnn_onet.onnx", "espcn_bsd300_x3.onnx")


@pytest.mark.parametrize("name", ["mnist_cntk.onnx", *(pytest.param(n, marks=pytest.mark.models) for n in NAMES)])
def test_a_model_in_half_precision_on_vulkan_equals_onnx_runtime(name: str, tmp_path: Path) -> None:
    path, shapes, _ = fetch(name)
    outcome = run_fresh(
        path,
        tmp_path,
        "VULKAN,CPU,ORT",
        shapes=shapes,
        tolerance=FLOAT16,
        cpu_variant=False,
        properties=["VULKAN.precision=f16"],
    )
    outcome.assert_right()
    assert not outcome.report.moved
    assert min(d.snr for d in outcome.differences) > 40
    assert max(d.max_abs for d in outcome.differences) > 0  # it is not float32
    assert [c.partition for _, c in outcome.report.costs][-1] is None
