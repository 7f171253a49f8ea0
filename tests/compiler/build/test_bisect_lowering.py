"""Partitions that do not lower although the trials of their nodes did: the faulty node is found and moved."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterocc.artifacts.errors import LoweringError
from heterocc.compiler import compile_model
from heterocc.compiler.build import build
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.lower import lowering_for
from heterocc.compiler.lower.backend import LoweredPartition, Lowering, PartitionJob
from tests.compiler.small import conv_net


class Refusing:
    """The CPU's lowering, that generates no code for a partition with all of `together` in it."""

    def __init__(self, real: Lowering, together: frozenset[str]) -> None:
        self.real, self.together = real, together

    def lower(self, job: PartitionJob) -> LoweredPartition:
        if self.together <= set(job.nodes):
            raise LoweringError("no code", where=job.name)
        return self.real.lower(job)


def refuse(monkeypatch: pytest.MonkeyPatch, *together: str) -> None:
    def choose(device: TargetDevice) -> object:
        return Refusing(lowering_for(device), frozenset(together)) if device.backend == "cpu" else lowering_for(device)

    monkeypatch.setattr(build, "lowering_for", choose)
    monkeypatch.setenv("HETEROCC_CACHE", "off")  # a partition that another test lowered would not be lowered again


def test_the_node_at_fault_goes_to_the_next_device_and_the_compile_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, "gate")
    report = compile_model(conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb", devices="CPU,ORT")
    assert report.plan.device_of["gate"] == "ORT"  # with the small partitions around it
    assert [m.node for m in report.moved] == ["gate"]
    assert any("'gate' does not compile on CPU and moves to ORT: no code" in w for w in report.warnings)


def test_nodes_that_only_fail_together_go_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, "conv1", "fc")
    report = compile_model(conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb", devices="CPU,ORT")
    assert set(report.plan.device_of.values()) == {"ORT"}


def test_without_another_device_the_error_is_the_lowerings_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, "gate")
    with pytest.raises(LoweringError, match="no code"):
        compile_model(conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb", devices="CPU")
