from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.opencl.lowering import OpenclLowering
from heterocc.runtime.native import opencl_unavailable_reason
from tests import models
from tests.compiler.lower.gpu_run import whole
from tests.compiler.lower.opencl_run import first_device, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.opencl,
    pytest.mark.skipif(
        opencl_unavailable_reason() is not None, reason=f"no OpenCL device: {opencl_unavailable_reason()}"
    ),
]


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "resnet50", "inception_v2", "densenet121"])
def test_a_classic_network_as_a_whole_matches_onnx_runtime(name: str) -> None:
    try:
        path = models.light(name)
    except models.ModelUnavailableError as error:
        pytest.skip(str(error))
    feeds = models.feeds(path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    expected = onnxruntime.InferenceSession(path, options).run(None, feeds)
    model = import_model(path)
    results = run(model, OpenclLowering().lower(whole(model, first_device())), feeds)
    for got, want in zip(results, expected, strict=True):
        assert np.abs(got - want).max() <= 1e-4 * max(1.0, float(np.abs(want).max()))
