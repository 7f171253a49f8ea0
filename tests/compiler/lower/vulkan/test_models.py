"""Whole networks on the Vulkan device, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.vulkan.lowering import VulkanLowering
from heterocc.runtime.native.vulkan_api import vulkan_unavailable_reason
from tests import models
from tests.compiler.lower.gpu_run import whole
from tests.compiler.lower.vulkan_run import first_device, run

REASON = vulkan_unavailable_reason()
pytestmark = [
    pytest.mark.vulkan,
    pytest.mark.models,
    pytest.mark.skipif(REASON is not None, reason=f"no Vulkan device: {REASON}"),
]


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "resnet50", "densenet121", "inception_v1"])
def test_networks_match_onnx_runtime(name: str) -> None:
    path = models.light(name)
    model = import_model(path)
    feeds = models.feeds(path)
    lowered = VulkanLowering().lower(whole(model, first_device()))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    expected = onnxruntime.InferenceSession(str(path), options).run(None, feeds)
    for got, want in zip(run(model, lowered, feeds), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * float(np.abs(want).max()))
