"""An operator that a program adds by one record: it is compiled, checked and run like heterocc's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import heterocc.runtime
from heterocc.artifacts.errors import HeteroccError, UnsupportedOpError
from heterocc.compiler import compile_model
from heterocc.compiler.files.records import _INCLUDED, toolchain_digest
from heterocc.compiler.operators import table
from tests.compiler.onnx_build import model, node, noise, value
from tests.compiler.operators.distances import CDIST
from tests.reference import reference_session


@pytest.fixture
def distances() -> Iterator[None]:
    """The record of CDist, for one test."""
    table.add(CDIST)
    yield
    del table._TABLE[CDIST.domain, CDIST.name]
    _INCLUDED.pop()
    toolchain_digest.cache_clear()


def _network() -> onnx.ModelProto:
    nodes = [
        node("CDist", "points others", "far", metric="euclidean", domain="com.microsoft"),
        node("Neg", "far", "near"),
    ]
    inputs = [value("points", ["n", "k"]), value("others", ["m", "w"])]
    return model(nodes, inputs, [value("near", ["n", "m"])], domains=[("com.microsoft", 1)])


def test_an_operator_without_a_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOpError, match="CDist"):
        compile_model(_network(), tmp_path / "m.hcb", devices="CPU")


@pytest.mark.usefixtures("distances")
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


def test_cached_answers_depend_on_the_file_of_an_added_operator(distances: None) -> None:
    with_it = toolchain_digest()
    included = _INCLUDED.pop()
    toolchain_digest.cache_clear()
    without = toolchain_digest()
    _INCLUDED.append(included)
    assert with_it != without
