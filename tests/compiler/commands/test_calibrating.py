"""`heterocc calibrate`: times of nodes and links, kept on disk and used by later placements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import heterocc.compiler.commands.calibrating as calibrating
from heterocc.artifacts.errors import UsageError
from heterocc.compiler import calibrate_model, partition_model
from heterocc.compiler.cli.main import app
from heterocc.compiler.devices.file import read_device_file
from heterocc.compiler.devices.host import host_cpu
from heterocc.compiler.devices.names import host_device
from heterocc.compiler.files.records import DiskRecords
from heterocc.compiler.placement.machine import SHARED_LINK, link_between
from heterocc.compiler.support.calibration import measured_times, read_link, write_link
from heterocc.passes.cost import Link
from heterocc.passes.estimate import plan_seconds
from tests.compiler.small import conv_net


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("HETEROCC_CALIBRATION")
    # Only the times: trials and kernels come from the cache of all tests.
    monkeypatch.setattr("heterocc.compiler.support.calibration.cache_dir", lambda: tmp_path / "cache")
    monkeypatch.setattr(calibrating, "BUDGET", 0.05)
    return tmp_path / "cache"


def test_times_are_measured_once_kept_and_used_by_later_placements(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = conv_net(tmp_path / "m.onnx")
    before = partition_model(model, devices="CPU")
    (first,) = calibrate_model(model, devices="CPU")
    assert (first.device, first.nodes, first.known, first.why_not) == ("CPU", 8, 0, None)
    assert 0 < first.measured < 1 and first.estimated == pytest.approx(plan_seconds(before.plan))
    assert first.off is not None and first.off >= 1 and "8 nodes timed" in first.sentence()

    after = partition_model(model, devices="CPU")
    assert "placement uses measured times of CPU (from `heterocc calibrate`)" in after.notes
    assert plan_seconds(after.plan) == pytest.approx(first.measured)
    assert after.plan.machine.seconds["CPU"].keys() == {n.name for n in after.plan.graph.nodes}

    (second,) = calibrate_model(model, devices="CPU")
    assert (second.nodes, second.known) == (0, 8) and second.sentence().endswith("were stored before")
    for record in own_cache.glob("calibration-v1/*/*"):
        record.write_text("damaged")
        break
    (third,) = calibrate_model(model, devices="CPU")
    assert third.nodes == 8

    monkeypatch.setenv("HETEROCC_CALIBRATION", "off")
    assert plan_seconds(partition_model(model, devices="CPU").plan) == plan_seconds(before.plan)
    with pytest.raises(UsageError, match="times cannot be stored"):
        calibrate_model(model, devices="CPU")


def test_a_model_with_integer_inputs_is_timed_on_values_that_it_accepts(tmp_path: Path, own_cache: Path) -> None:
    weight = numpy_helper.from_array(np.ones((5, 4), np.float32), "w")
    nodes = [helper.make_node("Gather", ["w", "ids"], ["g"]), helper.make_node("Relu", ["g"], ["y"])]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 4])
    graph = helper.make_graph(nodes, "rows", [ids], [y], [weight])
    (found,) = calibrate_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), devices="CPU"
    )
    assert (found.nodes, found.why_not) == (2, None)


def test_an_interrupted_call_keeps_the_devices_that_were_done(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = conv_net(tmp_path / "m.onnx")
    other = f'name = "OTHER"\nbackend = "cpu"\ntarget = {{ mcpu = "{host_cpu().name}" }}\n'
    (tmp_path / "other.toml").write_text(other)
    options: dict[str, Any] = {"devices": "CPU,OTHER", "device_files": tmp_path / "other.toml"}
    measure = calibrating._node_seconds

    def stops(job: Any, built: Any, device: Any, feed: Any) -> Any:
        if device.name == "OTHER":
            raise KeyboardInterrupt
        return measure(job, built, device, feed)

    monkeypatch.setattr(calibrating, "_node_seconds", stops)
    with pytest.raises(KeyboardInterrupt):
        calibrate_model(model, **options)
    (note,) = [n for n in partition_model(model, **options).notes if n.startswith("measured times")]
    assert note == "measured times are not used: OTHER has them for 0 of 8 nodes (see `heterocc calibrate`)"
    monkeypatch.setattr(calibrating, "_node_seconds", measure)
    assert [c.nodes for c in calibrate_model(model, **options)] == [0, 8]


def test_a_device_that_is_not_here_is_reported_and_others_are_timed(tmp_path: Path, own_cache: Path) -> None:
    (tmp_path / "like.toml").write_text('name = "LIKE"\nbackend = "opencl"\n')
    done = CliRunner().invoke(
        app, ["calibrate", str(conv_net(tmp_path / "m.onnx")), "-d", "LIKE,CPU", "--device-file",
              str(tmp_path / "like.toml"), "--json"]
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    like, cpu = json.loads(done.stdout)["devices"]
    assert like["why_not"] == "it is not on this machine" and cpu["nodes"] == 8


def test_a_link_follows_from_copies_of_two_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    def takes(small: float, large: float) -> Link:
        monkeypatch.setattr(calibrating, "_copy_seconds", lambda job, device, size: large if size > 4096 else small)
        return calibrating._link(None, None)  # type: ignore[arg-type]

    link = takes(1e-5 + 4096 / 1e10, 1e-5 + (1 << 24) / 1e10)
    assert link.latency == pytest.approx(1e-5) and link.bandwidth == pytest.approx(1e10)
    assert takes(2e-7, 1e-7) == Link(1e-6, 1e13)


def test_a_measured_link_replaces_the_one_by_kind_but_not_a_stated_one(tmp_path: Path) -> None:
    (tmp_path / "like.toml").write_text('name = "LIKE"\nbackend = "opencl"\nunit = "integrated"\n')
    like, cpu = read_device_file(tmp_path / "like.toml"), host_device()
    measured = Link(3e-6, 5e9)
    assert link_between(like, cpu) == SHARED_LINK and link_between(like, cpu, {"LIKE": measured}) == measured
    (tmp_path / "like.toml").write_text('name = "LIKE"\nbackend = "opencl"\nlinks = { CPU = { latency = 1.0 } }\n')
    assert link_between(read_device_file(tmp_path / "like.toml"), cpu, {"LIKE": measured}).latency == 1.0
    records = DiskRecords(tmp_path, "calibration")
    assert read_link(records, like) is None
    write_link(records, like, measured)
    assert read_link(records, like) == measured


def test_nothing_is_read_without_a_calibration(own_cache: Path) -> None:
    assert measured_times(None, (), {}).notes == ()  # type: ignore[arg-type]
