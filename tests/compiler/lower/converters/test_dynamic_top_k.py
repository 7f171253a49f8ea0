"""TopK of any number of rows, and along an axis of any size."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.symbolic_models import dynamic_model


@pytest.mark.parametrize(
    ("shape", "axis", "k"),
    [
        (("n", 300), -1, 1),
        (("n", "m", 40), 2, 30),
        (("n", 50, 7), 1, 3),
        (("n", 30, 20), 1, 4),
        ((6, "n"), -1, 5),
        (("m", "n"), -1, 20),
        ((2, "n", 20), 1, 3),
        ((2, "n", 3), 1, 6),
    ],
)
def test_any_number_of_rows_is_searched_by_generated_code(
    shape: tuple[str | int, ...], axis: int, k: int, tmp_path: Path
) -> None:
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", "places"], axis=axis)]
    model = dynamic_model(nodes, {"x": ("float32", shape)}, ["y", "places"], {"k": np.array([k])})
    compile_model(model, tmp_path / "m.hcb", devices="CPU", check=False)
    with zipfile.ZipFile(tmp_path / "m.hcb") as bundle:
        code = b"".join(bundle.read(name) for name in bundle.namelist() if name.endswith(".so"))
    assert b"contrib.sort" not in code  # the sort of TVM's runtime, three times as slow
    with load(tmp_path / "m.hcb", threads=1) as session:
        for size in (1, 3, 17) if shape[axis] != "n" else (k, k + 1, 64 + k, 333):
            x = np.random.default_rng(0).standard_normal([n if isinstance(n, int) else size for n in shape])
            found = session.run({"x": x.astype(np.float32)})
            first = np.argsort(-x.astype(np.float32), axis, kind="stable").take(range(k), axis)
            np.testing.assert_array_equal(found["places"], first)
            np.testing.assert_array_equal(found["y"], np.take_along_axis(x.astype(np.float32), first, axis))


@pytest.mark.parametrize("shape", [("n", 4), (4, "n + m")])
def test_fewer_elements_than_are_asked_for_are_an_error(shape: tuple[str | int, ...], tmp_path: Path) -> None:
    axis = 0 if shape[0] == "n" else 1
    data = [helper.make_node("Concat", ["x", "z"], ["d"], axis=1)] if axis else []
    nodes = [*data, helper.make_node("TopK", ["d" if axis else "x", "k"], ["y", "places"], axis=axis)]
    given = {"x": ("float32", (4, "n")), "z": ("float32", (4, "m"))} if axis else {"x": ("float32", shape)}
    compile_model(dynamic_model(nodes, given, ["y", "places"], {"k": np.array([5])}), tmp_path / "m.hcb", devices="CPU")
    feed = {
        name: np.ones([2 if isinstance(n, str) else n for n in dims], np.float32) for name, (_, dims) in given.items()
    }
    with load(tmp_path / "m.hcb", threads=1) as session, pytest.raises(HeteroccError):
        session.run(feed)
