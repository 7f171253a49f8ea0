"""Kernels at several scales of an image have variables for the sizes of their maps, and one code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm_ffi
from onnx import TensorProto, helper, numpy_helper
from tvm import sym, te, tirx

from heterocc.compiler.lower.codegen.kernel_objects import KernelObjects
from heterocc.compiler.lower.cpu.assumptions import Assumptions
from heterocc.compiler.lower.cpu.dynamic.own_sizes import with_numbered_sizes, with_own_sizes, with_typical_batch
from heterocc.compiler.lower.cpu.sizes import dims_of
from heterocc.compiler.lower.cpu.sources import source
from heterocc.compiler.lower.variables import size_variable
from tests.compiler.lower.cpu.test_symbolic import compiled
from tests.reference import reference_session

RNG = np.random.default_rng(5)


def added(first: tirx.Expr, second: tirx.Expr) -> tirx.PrimFunc:
    """The first value of a row of one length, added to a row of the other."""
    x = te.placeholder((first,), "float32", name="x")
    y = te.placeholder((second,), "float32", name="y")
    z = te.compute((second,), lambda i: y[i] + x[0], name="z")
    return te.create_prim_func([x, y, z]).with_attr("global_symbol", "added")


def plain_dims(function: tirx.PrimFunc) -> bool:
    return all(isinstance(dim, tirx.Var | tirx.IntImm) for dim in dims_of(function))


def test_dimensions_of_different_names_become_variables_with_their_typical_values() -> None:
    n, m = tirx.Var("d0_n", "int64"), tirx.Var("d1_m", "int64")
    before = added(tirx.floordiv(n, 32), tirx.floordiv(m, 32) * 4)
    after = with_own_sizes(before)
    assert plain_dims(after)

    def typicals(function: tirx.PrimFunc) -> list[int]:
        assumed = Assumptions(dims_of(function))
        sizes = [dim for param in function.params for dim in getattr(param, "shape", [])]
        return [value for dim in sizes if (value := assumed.typical(dim)) is not None]

    assert typicals(after) == typicals(before)


def test_a_batch_is_typically_one_and_rows_of_a_matrix_are_more() -> None:
    n, rows = tirx.Var("d0_n", "int64"), tirx.Var("d1_rows", "int64")

    def typical(shape: tuple[tirx.Expr | int, ...]) -> list[int]:
        x = te.placeholder(shape, "float32", name="x")
        function = te.create_prim_func([x, te.compute(shape, lambda *at: x[at] + 1.0, name="y")])
        made = with_typical_batch(function.with_attr("global_symbol", "kernel"))
        assumed, dims = Assumptions(dims_of(made)), made.params[0].shape
        return [value for dim in dims if (value := assumed.typical(dim)) is not None]

    assert typical((n, 3, 5)) == [1, 3, 5]
    assert typical((n, rows, 5))[0] == 1 < typical((n, rows, 5))[1]
    assert typical((n, 5))[0] > 1
    assert typical((n, n, 5))[0] > 1


@pytest.mark.parametrize("name", ["padded", "less one", "the same in other words", "after a layer without padding"])
def test_rows_of_a_strided_and_padded_kernel_follow_from_those_of_its_input(name: str) -> None:
    n, own = tirx.Var("d0_n", "int64"), tirx.Var("d0", "int64")
    rows, of_strided, of_own = {
        "padded": (tirx.floordiv(n - 1, 16) + 1, tirx.floordiv(n - 1, 32) + 3, tirx.floordiv(own - 1, 2) + 3),
        "less one": (tirx.floordiv(n + 64, 128) + -1, tirx.floordiv(n + 64, 256), tirx.floordiv(own - 1, 2) + 1),
        "the same in other words": (tirx.floordiv(n, 8) + -1, tirx.floordiv(n, 8) - 1, own),
        "after a layer without padding": (
            tirx.floordiv(n - 10, 5) + 1,
            tirx.floordiv(n - 20, 10) + 1,
            tirx.floordiv(own - 1, 2),
        ),
    }[name]
    (x, y, _) = with_own_sizes(added(rows, of_strided)).params
    assert isinstance(x.shape[0], tirx.Var)
    expected = tvm_ffi.structural_map(of_own, [(tirx.Var, lambda _: x.shape[0])], order="post")
    assert tvm_ffi.structural_equal(y.shape[0], expected, map_free_vars=False)
    for size in range(300, 340):
        assert at(of_own, at(rows, size)) == at(of_strided, size)


def at(expr: tirx.Expr, size: int) -> int:
    """An expression of one variable at a size."""
    number = tvm_ffi.structural_map(expr, [(tirx.Var, lambda _: tirx.const(size, "int64"))], order="post")
    return int(sym.Analyzer().simplify(number))


def test_the_end_of_a_padded_row_is_written_in_one_way() -> None:
    n = tirx.Var("d0_n", "int64")

    def padded(rows: tirx.Expr) -> tirx.PrimFunc:
        x = te.placeholder((rows,), "float32", name="x")

        def at_place(i: tirx.Var) -> tirx.Expr:
            inside = tirx.all(i >= 1, i < rows + 1)
            return tirx.if_then_else(inside, x[i - 1], tirx.const(0, "float32"))

        return with_own_sizes(te.create_prim_func([x, te.compute((rows + 2,), at_place, name="y")]))

    quotient = padded(tirx.floordiv(n, 4))
    for rows in (tirx.floordiv(n + 64, 128) - 1, tirx.max(tirx.floordiv(n, 256), tirx.const(1, "int64"))):
        assert tvm_ffi.structural_equal(padded(rows), quotient)


@pytest.mark.parametrize("name", ["the dimension itself", "another quotient", "a size that may be 0", "limited by 0"])
def test_a_dimension_that_says_more_than_a_variable_stays(name: str) -> None:
    n, empty = size_variable("0_n", "int64"), size_variable("0_n", "int64", empty=True)
    dims = {
        "the dimension itself": (n, tirx.floordiv(n, 2)),
        "another quotient": (tirx.floordiv(n, 2), tirx.floordiv(n, 3)),
        "a size that may be 0": (tirx.floordiv(empty, 2), tirx.floordiv(empty, 2)),
        "limited by 0": (tirx.max(n - 4, tirx.const(0, "int64")),) * 2,
    }[name]
    function = added(*dims)
    assert with_own_sizes(function).same_as(function)


@pytest.mark.parametrize("stride", [1, 2])
def test_layers_at_three_scales_of_an_image_share_code(
    stride: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the stride 2, each convolution by channel has another number of channels, by which planes are divided."""
    nodes, weights, last, wide = [], [], "x", 16
    for n in range(3):
        if stride == 1:
            nodes.append(helper.make_node("MaxPool", [last], [f"p{n}"], kernel_shape=[2, 2], strides=[2, 2]))
            weights.append(numpy_helper.from_array(RNG.standard_normal((16, 16, 1, 1), np.float32), f"w{n}"))
            nodes.append(helper.make_node("Conv", [f"p{n}", f"w{n}"], [f"c{n}"], name=f"conv{n}"))
        else:
            wide += 8
            weights += [
                numpy_helper.from_array(RNG.standard_normal((wide, wide - 8, 1, 1), np.float32), f"v{n}"),
                numpy_helper.from_array(RNG.standard_normal((wide, 1, 3, 3), np.float32), f"w{n}"),
            ]
            options = {"group": wide, "pads": [1] * 4, "strides": [2, 2]}
            nodes.append(helper.make_node("Conv", [last, f"v{n}"], [f"p{n}"], name=f"point{n}"))
            nodes.append(helper.make_node("Conv", [f"p{n}", f"w{n}"], [f"c{n}"], name=f"conv{n}", **options))
        last = f"c{n}"
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, channels, *dims])
        for name, channels, dims in (("x", 16, ["height", "width"]), (last, wide, ["h", "w"]))
    )
    proto = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], weights), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    begin, names = KernelObjects.begin, []

    def begun(objects: KernelObjects, function: tirx.PrimFunc) -> str:
        name = begin(objects, function)
        if "conv" in str(function.attrs["global_symbol"]):
            names.append(name)
        return name

    monkeypatch.setattr(KernelObjects, "begin", begun)
    run, reference = compiled(proto, tmp_path), reference_session(proto)
    assert names and len(set(names)) < 3
    for size in ((64, 96), (40, 24), (8, 8)):
        feed = {"x": RNG.standard_normal((1, 16, *size), np.float32)}
        np.testing.assert_allclose(run(feed)[0], reference.run(None, feed)[0], rtol=1e-4, atol=1e-5)


def test_kernels_that_differ_in_the_names_of_sizes_are_equal() -> None:
    def source_of(first: str, second: str) -> str:
        return source(with_numbered_sizes(added(tirx.Var(first, "int64"), tirx.Var(second, "int64") * 2)))

    assert source_of("d0_n", "d1_m") == source_of("d3_rows", "d2_columns")
    assert source_of("d0_n", "d1_m") != source_of("e0_n", "d1_m")  # may be empty
