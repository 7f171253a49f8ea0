"""Scan of operator set 8, whose states and sequences have a batch axis."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.compiler.onnx_build import model, node, noise, value
from tests.reference import reference_session

BODY = helper.make_graph(
    [node("Add", "state a", "sum"), node("Mul", "sum b", "next"), node("Tanh", "next", "seen")],
    "body",
    [value("state", [2]), value("a", [2]), value("b", [2])],
    [value("next", [2]), value("seen", [2])],
)


@pytest.mark.parametrize("devices", ["CPU", "CPU,ORT"])
@pytest.mark.parametrize("directions", [None, [0, 1]], ids=["forward", "both"])
@pytest.mark.parametrize("dims", [(3, 4), ("n", 4), ("n", "length")], ids=["fixed", "batch", "any"])
def test_each_item_of_the_batch_is_scanned(
    tmp_path: Path, dims: tuple[int | str, int | str], directions: list[int] | None, devices: str
) -> None:
    batch, length = dims
    more = {} if directions is None else {"directions": directions}
    scan = node("Scan", "- s a_all b_all", "last all", "scan", body=BODY, num_scan_inputs=2, **more)
    inputs = [value("s", [batch, 2]), value("a_all", [batch, length, 2]), value("b_all", [batch, length, 2])]
    proto = model([scan], inputs, [value("last"), value("all")], opset=8, ir_version=3)
    report = compile_model(proto, tmp_path / "m.hcb", devices=devices)
    assert not any("stays at operator set 8" in note for note in report.notes)
    feed = {"s": noise(3, 2), "a_all": noise(3, 4, 2, seed=1), "b_all": noise(3, 4, 2, seed=2)}
    expected = reference_session(proto).run(["last", "all"], feed)
    with load(tmp_path / "m.hcb") as session:
        for found, right in zip(session.run(["last", "all"], feed), expected, strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)


def test_lengths_of_sequences_are_left_to_onnx_runtime(tmp_path: Path) -> None:
    scan = node("Scan", "lengths s a_all b_all", "last all", "scan", body=BODY, num_scan_inputs=2)
    inputs = [value("s", [3, 2]), value("a_all", [3, 4, 2]), value("b_all", [3, 4, 2]), value("lengths", [3], 7)]
    proto = model([scan], inputs, [value("last"), value("all")], opset=8, ir_version=3)
    report = compile_model(proto, tmp_path / "m.hcb")
    assert any("Scan has lengths of sequences in 8" in note for note in report.notes)
    feed = {"s": noise(3, 2), "a_all": noise(3, 4, 2), "b_all": noise(3, 4, 2), "lengths": np.array([4, 2, 1])}
    expected = reference_session(proto).run(["last", "all"], feed)
    with load(tmp_path / "m.hcb") as session:
        for found, right in zip(session.run(["last", "all"], feed), expected, strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)
