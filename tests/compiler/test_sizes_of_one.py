"""Dimensions that code has a number or another's name for, and that a node broadcasts where they are 1."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from numpy.testing import assert_allclose
from onnx import helper

from heterocc.artifacts.errors import FeedError
from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.compiler.onnx_build import noise
from tests.compiler.small import save
from tests.reference import reference_session

Dims = list[int | str | None]


@pytest.mark.parametrize(
    ("op_type", "first", "second", "others", "equation"),
    [
        ("PRelu", [3, 4], [None, None], (3, 4), ""),
        ("Einsum", [1, 3, 4], ["m", 4, "c"], (5, 2), "bij,bjk->bik"),
        ("Einsum", [2, "b"], ["b2", 2], (4, 4), "ij,jk"),
    ],
    ids=["a slope with unnamed sizes", "a batch of one", "two names"],
)
def test_a_size_of_1_is_broadcast_on_the_cpu_alone(
    tmp_path: Path, op_type: str, first: Dims, second: Dims, others: tuple[int, int], equation: str
) -> None:
    path, attributes = tmp_path / "m.onnx", {"equation": equation} if equation else {}
    shapes: Any = {"x": first, "y": second}
    save(path, [helper.make_node(op_type, ["x", "y"], ["z"], **attributes)], shapes, {"z": None})  # type: ignore[dict-item]
    compile_model(path, tmp_path / "m.hcb", devices="CPU", measure=False)
    reference = reference_session(path)
    with load(tmp_path / "m.hcb") as session:
        for sizes in itertools.product(*((1, other) for other in others)):
            left = iter(sizes)
            x, y = (noise(*(d if isinstance(d, int) else next(left) for d in dims)) for dims in (first, second))
            assert_allclose(session.run({"x": x, "y": y})["z"], reference.run(None, {"x": x, "y": y})[0], 1e-5, 1e-6)


def test_a_size_that_is_neither_1_nor_what_the_code_is_for_is_refused_with_both(tmp_path: Path) -> None:
    path, shapes = tmp_path / "m.onnx", {"x": [3, 4], "y": ["p", 4]}
    save(path, [helper.make_node("Sub", ["x", "y"], ["z"])], shapes, {"z": None})  # type: ignore[dict-item, arg-type]
    compile_model(path, tmp_path / "m.hcb", devices="CPU", measure=False)
    with load(tmp_path / "m.hcb") as session, pytest.raises(FeedError, match="'p' of input 'y' must be 1 or 3, got 2"):
        session.run({"x": noise(3, 4), "y": noise(2, 4)})
