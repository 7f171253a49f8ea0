"""Runs small graphs on the OpenCL and the Vulkan device here, as these are and scheduled as if they were real GPUs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterocc.compiler.devices.device import TargetDevice
from heterocc.runtime.native import opencl_unavailable_reason
from heterocc.runtime.native.vulkan_api import vulkan_unavailable_reason
from tests.compiler.lower import opencl_run, vulkan_run
from tests.compiler.lower.gpu_run import Graph, Runner

_REASONS = {"opencl": opencl_unavailable_reason(), "vulkan": vulkan_unavailable_reason()}
_RUNNERS = {r.backend: r for r in (opencl_run.RUNNER, vulkan_run.RUNNER)}


def _place(api: str, form: str = "", *more: pytest.MarkDecorator) -> Any:
    skip = pytest.mark.skipif(_REASONS[api] is not None, reason=f"no {api} device: {_REASONS[api]}")
    return pytest.param(f"{api}{form}", marks=[skip, getattr(pytest.mark, api), *more])


APIS = [_place(api) for api in _RUNNERS]
"""The devices as they are."""

PLACES = [
    _place("opencl", "", pytest.mark.slow),
    _place("opencl", "-as-gpu"),
    _place("vulkan"),
    _place("vulkan", "-as-gpu", pytest.mark.slow),
]
"""The devices to run on: `opencl` is scheduled for the device here, `opencl-as-gpu` as if it were hardware.

The usual suite meets each API and each form, `slow` all four.
"""


def runner(place: str) -> Runner:
    """The module that lowers and runs for the API."""
    return _RUNNERS[place.removesuffix("-as-gpu")]


def device(place: str) -> TargetDevice:
    """The device of a place."""
    found = runner(place).first_device()
    if not place.endswith("-as-gpu"):
        return found
    return dataclasses.replace(found, software=False, unit="discrete")


def outputs(graph: Graph, place: str, folder: Path) -> tuple[list[np.ndarray], frozenset[str]]:
    """The graph's outputs there, and the names of the rules that scheduled its kernels."""
    api = runner(place)
    model, lowered = api.lower(graph, folder, device(place))
    text = dict(lowered.dumps)["scheduled.py"]
    return api.run(model, lowered, graph.inputs), frozenset(re.findall(r'"heterocc\.rule": "([^"]+)"', text))


def wrong(found: Sequence[np.ndarray], expected: Sequence[np.ndarray], tolerance: float) -> list[str]:
    """The tensors whose difference from float64, relative to their largest value, is above the tolerance."""
    differences = []
    for index, (got, want) in enumerate(zip(found, expected, strict=True)):
        if got.shape != want.shape:
            differences.append(f"output {index}: {got.shape} against {want.shape}")
            continue
        scale = max(1.0, float(np.max(np.abs(want), initial=0.0, where=np.isfinite(want))))
        same = np.isclose(got.astype(np.float64), want, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
        if not same.all():
            differences.append(f"output {index}: {np.count_nonzero(~same)} of {same.size} elements")
    return differences
