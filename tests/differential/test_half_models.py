"""Real models in half precision, run in a fresh process, equal ONNX Runtime in float32 as far as 11 bits go."""

from pathlib import Path

import pytest

from heterocc.compiler.checking.compare import FLOAT16
from heterocc.runtime.native import cuda_unavailable_reason
from heterocc.runtime.native.vulkan_api import vulkan_unavailable_reason
from tests.differential.harness import Outcome, fetch, run_fresh

REASON = vulkan_unavailable_reason()
on_vulkan = [pytest.mark.vulkan, pytest.mark.skipif(REASON is not None, reason=f"no Vulkan device: {REASON}")]
NO_GPU = cuda_unavailable_reason()
on_cuda = [pytest.mark.cuda, pytest.mark.skipif(NO_GPU is not None, reason=f"no NVIDIA GPU here: {NO_GPU}")]
NAMES = ("squeezenet", "ppocr_mobile_v2_cls.onnx", "mtcnn_onet.onnx", "espcn_bsd300_x3.onnx")


def half(name: str, work: Path, device: str = "VULKAN") -> Outcome:
    path, shapes, _ = fetch(name)
    properties = [f"{device}.precision=f16"]
    return run_fresh(
        path, work, f"{device},CPU,ORT", shapes=shapes, tolerance=FLOAT16, cpu_variant=False, properties=properties
    )


@pytest.mark.parametrize(
    ("name", "device"),
    [
        pytest.param("mnist_cntk.onnx", "VULKAN", marks=on_vulkan),
        *(pytest.param(name, "VULKAN", marks=[*on_vulkan, pytest.mark.models]) for name in NAMES),
        *(pytest.param(name, "CUDA", marks=on_cuda) for name in ("mnist_cntk.onnx", *NAMES)),
    ],
)
def test_a_model_in_half_precision_equals_onnx_runtime(name: str, device: str, tmp_path: Path) -> None:
    outcome = half(name, tmp_path, device)
    outcome.assert_right()
    assert not outcome.report.moved
    assert min(d.snr for d in outcome.differences) > 40
    assert max(d.max_abs for d in outcome.differences) > 0  # it is not float32
    assert [c.partition for _, c in outcome.report.costs][-1] is None


@pytest.mark.vulkan
@pytest.mark.models
@pytest.mark.skipif(REASON is not None, reason=f"no Vulkan device: {REASON}")
def test_the_nodes_of_a_network_that_leave_the_range_of_float16_move(tmp_path: Path) -> None:
    outcome = half("resnet50", tmp_path)  # with drawn weights: the last residual sums reach 71,000
    outcome.assert_right()
    assert 0 < len(outcome.report.moved) < 10
    assert all("float16 ends at 65504" in m.error and m.target == "CPU" for m in outcome.report.moved)
