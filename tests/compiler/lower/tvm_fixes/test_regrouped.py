"""Reshape to symbolic sizes, dimension by dimension."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from onnx import helper
from tvm import tirx

from heterocc.compiler.lower.tvm_fixes.regrouped import Group, grouped
from tests.compiler.lower.cpu.test_symbolic import compare, lower
from tests.symbolic_models import dynamic_model

N, M = (tirx.Var(name, "int64") for name in "nm")
Dim = int | tirx.Expr


def _sizes(dims: Sequence[Dim]) -> list[tirx.Expr]:
    return [tirx.const(d, "int64") if isinstance(d, int) else d for d in dims]


@pytest.mark.parametrize(
    ("shape", "wanted", "groups"),
    [
        ((N, 64, M), (N, 2, 32, M), [((0,), (0,)), ((1,), (1, 2)), ((2,), (3,))]),
        ((N, M, 2), (N, M * 2), [((0,), (0,)), ((1, 2), (1,))]),
        ((N, M, 8, 4), (N * M, 2, 16), [((0, 1), (0,)), ((2, 3), (1, 2))]),
        ((N, 1, M), (1, N, M), [((0,), (1,)), ((2,), (2,)), ((1,), ()), ((), (0,))]),
        ((N + 1, 3), ((N + 1) * 3,), [((0, 1), (0,))]),
    ],
)
def test_dimensions_of_as_many_elements_are_a_group(
    shape: Sequence[Dim], wanted: Sequence[Dim], groups: list[tuple[tuple[int, ...], tuple[int, ...]]]
) -> None:
    assert grouped(_sizes(shape), _sizes(wanted)) == [Group(*pair) for pair in groups]


@pytest.mark.parametrize(("shape", "wanted"), [((N, M), (M, N)), ((N, 4), (N * 3,)), ((N * 6,), (N * 4, 2))])
def test_dimensions_that_do_not_divide_each_other_have_no_groups(shape: Sequence[Dim], wanted: Sequence[Dim]) -> None:
    assert grouped(_sizes(shape), _sizes(wanted)) is None


@pytest.mark.parametrize(("operator", "sizes"), [("DepthToSpace", (5, 7)), ("SpaceToDepth", (6, 14))])
def test_pixels_and_channels_change_places_in_one_kernel(
    operator: str, sizes: tuple[int, int], tmp_path: object
) -> None:
    nodes = [helper.make_node(operator, ["x"], ["y"], blocksize=2, name="shuffle")]
    model = dynamic_model(nodes, {"x": ("float32", ("n", 8, "h", "w"))}, ["y"], {})
    assert len(lower(model).kernels) == 1
    rng = np.random.default_rng(0)
    shapes = [(2, 8, *sizes), (1, 8, 2, 2), (1, 8, 4, 66)]
    compare(model, tmp_path, [{"x": rng.standard_normal(shape).astype(np.float32)} for shape in shapes])


def test_heads_that_are_divided_and_moved_are_one_kernel(tmp_path: object) -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "heads"], ["a"], name="divided"),
        helper.make_node("Transpose", ["a"], ["y"], perm=[0, 2, 1, 3], name="moved"),
    ]
    model = dynamic_model(nodes, {"x": ("float32", ("n", "s", 32))}, ["y"], {"heads": np.array([0, 0, 4, 8])})
    assert len(lower(model).kernels) == 1
    rng = np.random.default_rng(0)
    compare(model, tmp_path, [{"x": rng.standard_normal((2, s, 32)).astype(np.float32)} for s in (1, 5, 40)])
