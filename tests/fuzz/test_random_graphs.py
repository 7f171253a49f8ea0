"""Random small networks on every device that compiles kernels equal ONNX Runtime."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented

from heterocc.compiler.checking.compare import compare
from heterocc.runtime.native import opencl_unavailable_reason
from heterocc.runtime.native.vulkan_api import vulkan_unavailable_reason
from tests.compiler.lower import gpu_run, lowered, opencl_run, vulkan_run
from tests.few_examples import few
from tests.fuzz.random_graphs import networks
from tests.fuzz.random_network import Network

DEVICES = [
    name
    for name, missing in (
        ("OPENCL", opencl_unavailable_reason()),
        ("VULKAN", vulkan_unavailable_reason()),
        ("CPU", None),
    )
    if missing is None
]


def results(device: str, graph: gpu_run.Graph, folder: Path) -> list[np.ndarray]:
    """The outputs on a device."""
    if device == "CPU":
        model = gpu_run.imported(graph, folder)
        feeds = {name: graph.inputs[model.sources[name]] for name in model.graph.inputs}
        return list(lowered.run_cpu(model, feeds).values())
    runner = opencl_run if device == "OPENCL" else vulkan_run
    return runner.run(*runner.lower(graph, folder), graph.inputs)


def agree(network: Network) -> None:
    """Every device gives what ONNX Runtime gives."""
    used = {name for n in network.nodes for name in n.input}
    inputs = {name: a for name, a in network.inputs.items() if name in used}
    graph = gpu_run.Graph(inputs, network.nodes, {n: a for n, a in network.constants.items() if n in used})
    try:
        expected = graph.reference()
    except NotImplemented:
        reject()  # an operator that ONNX Runtime has for float32 alone
    wrong = []
    # Vulkan has no functions of float64.
    for device in (d for d in DEVICES if network.dtype == "float32" or d != "VULKAN"):
        with tempfile.TemporaryDirectory() as folder:
            found = results(device, graph, Path(folder))
        differences = (compare(f"{device} {i}", a, b) for i, (a, b) in enumerate(zip(found, expected, strict=True)))
        wrong += [f"{d.name}: {d.reason}" for d in differences if not d.ok]
    assert wrong == []


@few(3)
@given(networks())
def test_a_random_network_equals_onnx_runtime_on_every_device(network: Network) -> None:
    agree(network)


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(networks())
def test_many_random_networks_equal_onnx_runtime_on_every_device(network: Network) -> None:
    agree(network)
