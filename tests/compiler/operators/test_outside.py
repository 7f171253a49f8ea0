"""An operator that a program adds by one record: it is compiled, checked and run like heterocc's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import heterocc.runtime
from heterocc.artifacts.errors import HeteroccError, UnsupportedOpError
from heterocc.compiler import compile_model
from heterocc.compiler.files.records import _INCLUDED, toolchain_digest
from heterocc.compiler.importer.estimates.flops import node_flops
from heterocc.compiler.importer.inputs.domains import Domains, Interval
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.half.policy import reads_float32, writes_float32
from heterocc.compiler.operators import table
from heterocc.passes.graph import Node, Value
from tests.compiler.onnx_build import model, node, noise, value
from tests.compiler.operators.added import ADDED
from tests.reference import reference_session


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler without the records that it has of the operators that are added."""
    for operator in ADDED:
        monkeypatch.delitem(table._TABLE, (operator.domain, operator.name), raising=False)


@pytest.fixture
def added(unknown: None) -> Iterator[None]:
    """The records of operators from outside, for one test."""
    for operator in ADDED:
        table.add(operator)
    yield
    for operator in ADDED:
        del table._TABLE[operator.domain, operator.name]
        _INCLUDED.pop()
    toolchain_digest.cache_clear()


def _network() -> onnx.ModelProto:
    nodes = [
        node("CDist", "points others", "far", metric="euclidean", domain="com.microsoft"),
        node("Neg", "far", "near"),
    ]
    inputs = [value("points", ["n", "k"]), value("others", ["m", "w"])]
    return model(nodes, inputs, [value("near", ["n", "m"])], domains=[("com.microsoft", 1)])


@pytest.mark.usefixtures("unknown")
def test_an_operator_without_a_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOpError, match="CDist"):
        compile_model(_network(), tmp_path / "m.hcb", devices="CPU")


@pytest.mark.usefixtures("added")
def test_one_record_compiles_an_operator(tmp_path: Path) -> None:
    proto = _network()
    compile_model(proto, tmp_path / "m.hcb", devices="CPU")
    with heterocc.runtime.load(tmp_path / "m.hcb") as session:
        for n, m, k in ((3, 5, 4), (1, 2, 8)):
            feed = {"points": noise(n, k), "others": noise(m, k) + 3}
            expected = reference_session(proto).run(None, feed)[0]
            np.testing.assert_allclose(session.run(feed)["near"], expected, rtol=1e-4, atol=1e-5)
        with pytest.raises(HeteroccError):
            session.run({"points": noise(3, 4), "others": noise(3, 5)})


@pytest.mark.usefixtures("added")
def test_integers_are_followed_through_an_added_operator(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape first", "count"),
        node("ExpandDims", "count axis", "rows", domain="com.microsoft"),
        node("Concat", "rows rest", "wanted", axis=0),
        node("Reshape", "x wanted", "y"),
    ]
    constants = {"first": np.array(0), "axis": np.array(0, np.int32), "rest": np.array([-1])}
    inputs, outputs = [value("x", ["n", 2, 3])], [value("y", [None, None])]
    proto = model(nodes, inputs, outputs, constants, domains=[("com.microsoft", 1)])
    assert import_model(proto, keep_dims=True).graph.values["y"].shape == ("n", 6)
    compile_model(proto, tmp_path / "m.hcb", devices="CPU")
    with heterocc.runtime.load(tmp_path / "m.hcb") as session:
        for n in (1, 4):
            x = noise(n, 2, 3)
            np.testing.assert_array_equal(session.run({"x": x})["y"], x.reshape(n, 6))


def _crops() -> onnx.ModelProto:
    """Crops of images, of a size that an input says, and what follows from them."""
    nodes = [
        node("CropAndResize", "x boxes numbers size", "crops", extrapolation_value=0.5, domain="com.microsoft"),
        node("Neg", "crops", "y"),
        node("ReduceMean", "crops", "means", axes=[2, 3], keepdims=0),
    ]
    inputs = [
        value("x", ["batch", 2, "h", "w"]),
        value("boxes", ["n", 4]),
        value("numbers", ["n"], TensorProto.INT32),
        value("size", [2], TensorProto.INT32),
    ]
    outputs = [value("y", ["n", 2, None, None]), value("means", ["n", 2])]
    return model(nodes, inputs, outputs, domains=[("com.microsoft", 1)])


@pytest.mark.usefixtures("added")
def test_an_added_operator_may_have_results_whose_sizes_only_the_run_knows(tmp_path: Path) -> None:
    proto = _crops()
    compile_model(proto, tmp_path / "m.hcb", devices="CPU")
    reference = reference_session(proto)
    boxes = np.array([[0.0, 0.1, 0.9, 1.0], [0.2, 0.8, 0.7, 0.1], [-0.5, 0.0, 1.5, 0.5]], np.float32)
    with heterocc.runtime.load(tmp_path / "m.hcb") as session:
        for count, size in ((3, (4, 5)), (1, (1, 7)), (2, (9, 1))):
            feed = {
                "x": noise(2, 2, 6, 5),
                "boxes": boxes[:count],
                "numbers": np.arange(count, dtype=np.int32) % 2,
                "size": np.array(size, np.int32),
            }
            found = session.run(feed)
            assert found["y"].shape == (count, 2, *size)
            for name, expected in zip(found, reference.run(None, feed), strict=True):
                np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)
        with pytest.raises(HeteroccError, match="a size that it is given is negative"):
            session.run({**feed, "size": np.array([3, -1], np.int32)})
        with pytest.raises(HeteroccError):
            session.run({**feed, "numbers": np.arange(2, 4, dtype=np.int32)})


@pytest.mark.usefixtures("added")
def test_everybody_who_looks_a_fact_up_gets_that_of_an_added_record() -> None:
    proto = _network()
    found, added = proto.graph.node[0], Node("d", "com.microsoft::CDist", ("points", "others"), ("far",))
    sizes = {"points": (3, 4), "others": (5, 4), "far": (3, 5)}
    values = {name: Value(name, "float32", shape) for name, shape in sizes.items()}
    assert node_flops(found, added, values) == 3 * 3 * 5 * 4
    assert writes_float32(added) and not reads_float32(added)
    given = Domains(proto, {}).of(Value("points", "float32", ("n", "k")), "points")
    assert isinstance(given, Interval) and (given.low, given.high) == (-2.0, 2.0)


def test_cached_answers_depend_on_the_file_of_an_added_operator(added: None) -> None:
    with_it = toolchain_digest()
    included = _INCLUDED.pop()
    toolchain_digest.cache_clear()
    without = toolchain_digest()
    _INCLUDED.append(included)
    assert with_it != without
