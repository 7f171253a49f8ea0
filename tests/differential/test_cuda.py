"""CUDA on a real GPU: networks against ONNX Runtime, and a node test of each operator against ONNX's expectation."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scripts.conformance.outcome import difference

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler.build.pack import Piece, VariantParts, pack
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.names import resolve_devices
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower import lowering_for
from heterocc.compiler.lower.backend import PartitionJob
from heterocc.compiler.support.cache import Answers
from heterocc.compiler.support.query import query_model
from heterocc.runtime import load
from heterocc.runtime.native import cuda_unavailable_reason
from tests.differential.harness import able, fetch, random_placement, run_fresh
from tests.differential.node_tests import Case
from tests.differential.test_node_tests import everything, one_for_each_operator

_REASON = cuda_unavailable_reason()
pytestmark = [pytest.mark.cuda, pytest.mark.skipif(_REASON is not None, reason=f"no NVIDIA GPU here: {_REASON}")]

NETWORKS = ("squeezenet", "shufflenet", "resnet50", "inception_v2", "densenet121", "vgg19")

PARTS = 16

KNOWN: dict[str, str] = {}
"""Cases that are wrong on CUDA and known to be, with the reason."""


@pytest.mark.models
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_on_a_gpu_equals_onnx_runtime(name: str, tmp_path: Path) -> None:
    path, shapes, tolerance = fetch(name)
    outcome = run_fresh(path, tmp_path, "CUDA,CPU", shapes=shapes, tolerance=tolerance)
    outcome.assert_right()
    assert not outcome.report.moved
    assert {p.device for p in outcome.report.plan.partitions} == {"CUDA"}


@pytest.mark.models
@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_a_random_half_of_the_nodes_on_a_gpu_equals_onnx_runtime(name: str, tmp_path: Path) -> None:
    path, shapes, tolerance = fetch(name)
    halves = random_placement(able(path, shapes, ("CUDA", "CPU")), seed=5)
    outcome = run_fresh(path, tmp_path, "CUDA,CPU", shapes=shapes, affinity=halves, tolerance=tolerance)
    outcome.assert_right()
    assert not outcome.report.moved


def test_one_node_test_of_each_operator_is_right_or_refused_on_a_gpu(tmp_path: Path) -> None:
    (device,), _ = resolve_devices("CUDA")
    cases = everything()
    found = {name: _outcome(cases[name], device, tmp_path / str(i)) for i, name in enumerate(_sample(cases))}
    wrong = [f"{name}: {text}" for name, text in found.items() if text not in ("right", "refused")]
    assert [w for w in wrong if w.split(":")[0] not in KNOWN] == []
    assert Counter(found.values())["right"] >= 95


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_node_test_is_right_or_refused_on_a_gpu(part: int, tmp_path: Path) -> None:
    (device,), _ = resolve_devices("CUDA")
    cases = list(everything().items())[part::PARTS]
    found = {name: _outcome(case, device, tmp_path / str(i)) for i, (name, case) in enumerate(cases)}
    wrong = [f"{name}: {text}" for name, text in found.items() if text not in ("right", "refused")]
    assert [w for w in wrong if w.split(":")[0] not in KNOWN] == []
    assert Counter(found.values())["right"] >= 2 * len(cases) // 5


def _sample(cases: dict[str, Case]) -> list[str]:
    return one_for_each_operator(cases)


def _outcome(case: Case, device: TargetDevice, folder: Path) -> str:
    """`right`, `refused` (by the import or the query), or the fault in words."""
    folder.mkdir()
    path = folder / "model.onnx"
    path.write_bytes(case.model.SerializeToString())
    try:
        model = import_model(path, shapes={name: value.shape for name, value in case.feed.items()})
    except HeteroccError:
        return "refused"
    if not model.graph.nodes or query_model(model, [device], cache=Answers()).nowhere:
        return "refused"
    graph = model.graph
    written = tuple(v for v in graph.outputs if v in graph.producer)
    job = PartitionJob("p0", model, device, tuple(n.name for n in graph.nodes), graph.inputs, written)
    feed = {name: case.feed[model.sources.get(name, name)] for name in graph.inputs}
    try:
        piece = Piece(job, lowering_for(device).lower(job))
        parts = VariantParts("node", (device,), (piece,), job.inputs, job.outputs, "", "")
        pack(folder / "node.hcb", dataclasses.replace(model, sources={}), [parts])
        with load(folder / "node.hcb") as session:
            results = session.run(feed)
    except HeteroccError as error:
        return str(error)
    by_name = {**feed, **model.weights, **results}
    return difference(case, [np.asarray(by_name[v]) for v in graph.outputs]) or "right"
