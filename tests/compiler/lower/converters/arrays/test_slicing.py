"""Slices whose start is a size of the run with a sign: the last `n` rows, as attention takes those of new tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from heterocc.artifacts.errors import FeedError
from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.compiler.onnx_build import model, node, noise, value
from tests.compiler.small import save
from tests.reference import reference_session


@pytest.mark.parametrize(("factor", "step"), [(-1, 1), (-2, 1), (-1, -1), (1, 1)])
def test_a_negative_size_is_a_start_counted_from_the_end(tmp_path: Path, factor: int, step: int) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["rows"], end=1),
        helper.make_node("Mul", ["rows", "factor"], ["start"]),
        helper.make_node("Slice", ["all", "start", "end", "axis", "step"], ["some"]),
        helper.make_node("Relu", ["some"], ["y"]),
    ]
    constants = {
        "factor": np.array([factor]),
        "end": np.array([np.iinfo(np.int64).max if step > 0 else np.iinfo(np.int64).min]),
        "axis": np.array([0]),
        "step": np.array([step]),
    }
    path = save(tmp_path / "m.onnx", nodes, {"x": ["n", 3], "all": ["total", 8]}, {"y": [None, 8]}, constants)
    compile_model(path, tmp_path / "m.hcb", devices="CPU", measure=False)
    reference = reference_session(path)
    with load(tmp_path / "m.hcb") as session:
        for rows, total in ((1, 5), (2, 5), (3, 7), (1, 1), (3, 3), (3, 4)):
            feed = {"x": np.zeros((rows, 3), np.float32)}
            feed["all"] = np.arange(1, 1 + total * 8, dtype=np.float32).reshape(total, 8)
            np.testing.assert_array_equal(session.run(feed)["y"], reference.run(None, feed)[0])


def test_a_start_that_may_be_before_the_front_or_behind_it(tmp_path: Path) -> None:
    """All rows less twice the new ones: with many new ones it is negative, and counts from the end."""
    nodes = [
        helper.make_node("Shape", ["x"], ["rows"], end=1),
        helper.make_node("Shape", ["all"], ["total"], end=1),
        helper.make_node("Mul", ["rows", "two"], ["twice"]),
        helper.make_node("Sub", ["total", "twice"], ["start"]),
        helper.make_node("Slice", ["all", "start", "end", "axis"], ["some"]),
        helper.make_node("Relu", ["some"], ["y"]),
    ]
    constants = {"two": np.array([2]), "end": np.array([1 << 40]), "axis": np.array([0])}
    path = save(tmp_path / "m.onnx", nodes, {"x": ["n", 3], "all": ["total", 8]}, {"y": [None, 8]}, constants)
    compile_model(path, tmp_path / "m.hcb", devices="CPU", measure=False)
    reference = reference_session(path)
    with load(tmp_path / "m.hcb") as session:
        for rows, total in ((1, 5), (2, 5), (3, 5), (3, 4), (4, 4), (1, 2)):
            feed = {"x": np.zeros((rows, 3), np.float32)}
            feed["all"] = np.arange(1, 1 + total * 8, dtype=np.float32).reshape(total, 8)
            np.testing.assert_array_equal(session.run(feed)["y"], reference.run(None, feed)[0])


@pytest.mark.parametrize("step", [-1, -2, 1])
def test_a_slice_that_a_request_gives_has_no_elements_of_an_empty_dimension(tmp_path: Path, step: int) -> None:
    parts = [value(name, [1], onnx.TensorProto.INT64) for name in ("start", "end", "axis", "step")]
    cut = node("Slice", "x start end axis step", "y")
    proto = model([cut], [value("x", ["a", "b"]), *parts], [value("y")])
    compile_model(proto, tmp_path / "m.hcb", devices="CPU", check=False)
    with load(tmp_path / "m.hcb") as session:
        for width in (0, 1, 3):
            for start, end in ((-1, -4), (0, 2), (2, -9)):
                given = {"start": start, "end": end, "axis": 1, "step": step}
                feed = {"x": noise(2, width), **{name: np.array([number]) for name, number in given.items()}}
                (wanted,) = reference_session(proto).run(None, feed)
                np.testing.assert_array_equal(session.run(feed)["y"], wanted)


@pytest.mark.parametrize(
    ("devices", "start", "end", "step"),
    [
        ("CPU", -1, 2**63 - 1, 1),
        ("CPU", -1, -2, 1),
        ("CPU", -1, 2, 1),
        ("CPU", -2, -(2**63), -1),
        ("ORT", -1, 2**63 - 1, 1),
    ],
)
def test_a_slice_of_the_last_elements_reads_none_of_an_empty_dimension(
    tmp_path: Path, devices: str, start: int, end: int, step: int
) -> None:
    """Its result was taken to have a row, which was other memory."""
    nodes = [helper.make_node("Slice", ["x", "start", "end", "axis", "step"], ["y"])]
    given = {"start": start, "end": end, "axis": 0, "step": step}
    constants = {name: np.array([number]) for name, number in given.items()}
    path = save(tmp_path / "m.onnx", nodes, {"x": ["n", 2]}, {"y": [None, 2]}, constants)
    compile_model(path, tmp_path / "m.hcb", devices=devices, measure=False)
    reference = reference_session(path)
    with load(tmp_path / "m.hcb") as session:
        for rows in range(4):
            feed = {"x": np.arange(1, 1 + rows * 2, dtype=np.float32).reshape(rows, 2)}
            try:
                found = session.run(feed)["y"]
            except FeedError as error:
                assert rows == 0, error
                continue
            np.testing.assert_array_equal(found, reference.run(None, feed)[0])
