"""Sums of products of float16 lose no digits on a GPU where large terms cancel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from tvm.script import tirx as T  # noqa: N812

from heterocc.compiler import compile_model
from heterocc.compiler.lower.gpu.wide_sums import with_wide_sums
from heterocc.runtime import load
from heterocc.runtime.native.vulkan_api import vulkan_unavailable_reason
from tests.compiler.onnx_build import model, node, save, value

F16 = TensorProto.FLOAT16


def cancelling(*shape: int) -> np.ndarray:
    """Small numbers, except the first and last along the last axis, which are large and of opposite signs."""
    found = np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float16)
    found[..., 0], found[..., -1] = 3000, -3000
    return found


@pytest.mark.vulkan
@pytest.mark.skipif(vulkan_unavailable_reason() is not None, reason=str(vulkan_unavailable_reason()))
@pytest.mark.parametrize("rows", [3, "n"])
def test_products_of_float16_are_summed_in_float32(tmp_path: Path, rows: int | str) -> None:
    """A product whose sum a later node of the kernel reads, of known and of symbolic size."""
    a = cancelling(3, 24)
    nodes = [node("MatMul", "a b", "p"), node("Relu", "p", "y")]
    path = save(
        tmp_path,
        model(nodes, [value("a", [rows, 24], F16)], [value("y", None, F16)], {"b": np.ones((24, 4), np.float16)}),
    )
    report = compile_model(path, tmp_path / "m.hcb", devices="VULKAN,CPU", cpu_variant=False, check=False)
    assert "VULKAN 2" in report.summary
    with load(tmp_path / "m.hcb") as session:
        found = session.run({"a": a})["y"]
    exact = np.maximum(a.astype(np.float64).sum(1, keepdims=True), 0)
    np.testing.assert_allclose(found, np.broadcast_to(exact, found.shape), rtol=2e-3)


def test_a_sum_that_a_kernel_returns_is_rounded_once() -> None:
    @T.prim_func(s_tir=True)
    def product(a: T.Buffer((4, 8), "float16"), b: T.Buffer((8, 4), "float16"), c: T.Buffer((4, 4), "float16")) -> None:
        for i, j, k in T.grid(4, 4, 8):
            with T.sblock("sum"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    c[vi, vj] = T.float16(0)
                c[vi, vj] = c[vi, vj] + a[vi, vk] * b[vk, vj]

    text = with_wide_sums(product).script()
    assert 'T.Cast("float32", a[vi, vk]) * T.Cast("float32", b[vk, vj])' in text
    assert text.count('T.Cast("float16"') == 1
    assert with_wide_sums(with_wide_sums(product)).script() == text
