"""OpenVINO as a peer of benchmarks on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def openvino_runner(model: Path, feed: dict[str, Any], threads: int) -> Callable[[], object]:
    """A function that runs one OpenVINO infer request in float32. Raises ImportError, RuntimeError."""
    # OpenVINO reports its use in a process of its own, which imports the benchmark's main module first: a second or two
    # in which the runners beside it have one core less. Without the package that does so, nothing is reported.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    request = openvino.Core().compile_model(str(model), "CPU", config).create_infer_request()
    inputs = dict(feed)
    request.infer(inputs)
    return lambda: request.infer(inputs)
