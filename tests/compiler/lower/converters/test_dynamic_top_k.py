"""TopK of any number of rows of a fixed length."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.symbolic_models import dynamic_model


@pytest.mark.parametrize(
    ("shape", "axis", "k"), [(("n", 300), -1, 1), (("n", "m", 40), 2, 30), (("n", 50, 7), 1, 3), (("n", 30, 20), 1, 4)]
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
        for size in (1, 3, 17):
            x = np.random.default_rng(0).standard_normal([n if isinstance(n, int) else size for n in shape])
            found = session.run({"x": x.astype(np.float32)})
            first = np.argsort(-x.astype(np.float32), axis, kind="stable").take(range(k), axis)
            np.testing.assert_array_equal(found["places"], first)
            np.testing.assert_array_equal(found["y"], np.take_along_axis(x.astype(np.float32), first, axis))
