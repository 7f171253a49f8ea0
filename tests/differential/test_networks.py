"""Small networks of the kinds that people bring, compiled and run in a fresh process, equal ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.support.query import query_model
from tests.differential.harness import ON_DEVICE, run_fresh
from tests.networks import NETWORKS, network

QUICK = ("gan", "one_channel", "recognition_head")
"""The default suite: transposed convolutions, convolutions to one channel, a wide product with softmax."""

QUICK_ON_DEVICES = {"OPENCL": ("one_channel",), "VULKAN": ("gan", "recognition_head")}
"""The default suite, each on one of the devices."""

LOOPS = "recurrent layers run on CPUs only"
REFUSED: Mapping[str, Mapping[str, str]] = {"lstm_gru": {"LSTM": LOOPS, "GRU": LOOPS}}
"""By network the operators with nodes that no device but the CPU runs, each with a part of the reason that the query
gives; what runs after all must go from here."""


def marked(name: str, quick: tuple[str, ...] = QUICK) -> tuple[pytest.MarkDecorator, ...]:
    return () if name in quick else (pytest.mark.models,)


@pytest.mark.parametrize("name", [pytest.param(n, marks=marked(n)) for n in NETWORKS])
def test_a_network_on_cpu_alone_equals_onnx_runtime(name: str, tmp_path: Path) -> None:
    outcome = run_fresh(network(name), tmp_path, "CPU")
    outcome.assert_right()
    assert set(outcome.report.plan.device_of.values()) == {"CPU"}


@pytest.mark.parametrize(
    ("device", "name"),
    [
        pytest.param(device, name, marks=(*marks, *marked(name, QUICK_ON_DEVICES.get(device, ()))))
        for device, marks in ON_DEVICE.items()
        for name in NETWORKS
    ],
)
def test_a_network_on_a_device_but_for_what_is_listed_equals_onnx_runtime(
    device: str, name: str, tmp_path: Path
) -> None:
    path = network(name)
    query = query_model(import_model(path), [device, "CPU"])
    nodes = query.graph.node_by_name
    refused = {nodes[n].op_type: str(query.reason(n, device)) for n in query.unsupported(device)}
    listed = REFUSED.get(name, {})
    assert refused.keys() == listed.keys(), refused
    assert all(part in refused[op] for op, part in listed.items()), refused
    whole = {n: device for n in nodes if query.supports(n, device)}
    outcome = run_fresh(path, tmp_path, f"{device},CPU", affinity=whole, cpu_variant=False)
    outcome.assert_right()
    assert not outcome.report.moved
    assert {n for n, d in outcome.report.plan.device_of.items() if d == device} == set(whole)


def test_a_network_built_again_has_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    assert network("one_channel", first).read_bytes() == network("one_channel", second).read_bytes()
