"""Results whose rank depends on whether a dimension is 1: the compile makes code of its own for that size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from heterocc.artifacts.errors import FeedError
from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.compiler.onnx_build import noise
from tests.compiler.small import save
from tests.reference import reference_session


@pytest.mark.parametrize(
    ("opset", "dims", "sizes"),
    [
        (13, ["n", 8], [(1, 8), (2, 8), (5, 8)]),
        (11, ["n", 1, "c"], [(1, 1, 1), (1, 1, 3), (3, 1, 1), (2, 1, 4)]),
        (13, ["n", "c"], [(1, 1), (1, 3), (3, 1), (2, 4)]),
        (13, [None, 8], [(1, 8), (2, 8)]),
    ],
    ids=["one", "two-with-one", "two", "unnamed"],
)
def test_a_squeeze_without_axes_gives_the_rank_of_each_request(
    tmp_path: Path, opset: int, dims: list[int | str], sizes: list[tuple[int, ...]]
) -> None:
    path = tmp_path / "m.onnx"
    nodes = [helper.make_node("Abs", ["x"], ["a"]), helper.make_node("Squeeze", ["a"], ["y"])]
    save(path, nodes, {"x": dims}, {"y": None}, opset=opset)  # type: ignore[arg-type, dict-item]
    compile_model(path, tmp_path / "m.hcb", devices="CPU")
    reference = reference_session(path)
    with load(tmp_path / "m.hcb") as session:
        for shape in sizes:
            x = noise(*shape)
            found, right = session.run({"x": x})["y"], reference.run(None, {"x": x})[0]
            assert found.shape == right.shape
            np.testing.assert_array_equal(found, right)


def test_a_bundle_for_other_sizes_alone_refuses_the_size_1(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(path, [helper.make_node("Squeeze", ["x"], ["y"])], {"x": ["n", 8]}, {"y": None})  # type: ignore[dict-item]
    report = compile_model(path, tmp_path / "m.hcb", devices="CPU", dims={"n": (2, 9)})
    assert report.variants == ("main",)
    with load(tmp_path / "m.hcb") as session:
        assert session.run({"x": noise(2, 8)})["y"].shape == (2, 8)
        with pytest.raises(FeedError, match="dimension 'n' of input 'x' must be 2 to 9, got 1"):
            session.run({"x": noise(1, 8)})
