"""Results of 16 bits behind products are rounded by kernels of their own, so that the products are generated ones."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.reference import reference_session
from tests.symbolic_models import dynamic_model


def _model() -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    weight = np.random.default_rng(0).standard_normal((96, 64)).astype(np.float16)
    return dynamic_model(nodes, {"x": ("float16", ("rows", 96))}, ["y"], {"w": weight})


@pytest.mark.parametrize("dims", [{}, {"rows": 9}], ids=["any rows", "nine rows"])
def test_no_product_writes_16_bits(dims: dict[str, int], tmp_path: Path) -> None:
    model = _model()
    options = {"cpu_variant": False, "check": False, "measure": False, "dump_dir": tmp_path}
    compile_model(model, tmp_path / "m.hcb", devices="CPU", dims=dims, **options)
    (kernels,) = tmp_path.glob("*.kernels.py")
    products = [
        text for text in re.split(r"@[TR]\.(?:prim_func|function)", kernels.read_text()) if "with T.init()" in text
    ]
    assert products and not any("float16" in text for text in products)
    feed = {"x": np.random.default_rng(1).standard_normal((9, 96)).astype(np.float16)}
    with load(tmp_path / "m.hcb") as session:
        (wanted,) = reference_session(model).run(None, feed)
        np.testing.assert_allclose(session.run(feed)["y"], wanted, rtol=2e-3, atol=2e-2)
