"""Requests whose sizes do not fit: an error before the run, or ONNX Runtime's result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from heterocc.artifacts.errors import FeedError, InputValueError
from heterocc.compiler import compile_model
from heterocc.runtime import load

Shapes = Mapping[str, Sequence[int]]

CASES: dict[str, tuple[str, Shapes, Shapes, str]] = {
    "a reflection longer than the data": (
        '(float[b, n] x) => (float[b, m] y) { p = Constant<value_ints=[0, 4, 0, 4]>() y = Pad<mode="reflect">(x, p) }',
        {"x": (1, 6)},
        {"x": (1, 3)},
        r"dimension 'n' of input 'x' is 3: Pad .* needs dimension 1 of 'data' to be 5 or more, not 3",
    ),
    "an edge of nothing": (
        '(float[b, n] x) => (float[b, m] y) { p = Constant<value_ints=[0, 4, 0, 4]>() y = Pad<mode="edge">(x, p) }',
        {"x": (1, 2)},
        {"x": (1, 0)},
        "dimension 'n'",
    ),
    "a padding that cuts off more than there is": (
        "(float[n, b] x) => (float[m, b] y) { p = Constant<value_ints=[-3, 0, -1, 0]>() y = Pad(x, p) }",
        {"x": (6, 2)},
        {"x": (3, 2)},
        "dimension 'n' of input 'x' must be 5 or more, got 3",
    ),
    "more indices than data along another axis": (
        "(float[a, b] x, int64[c, d] i) => (float[c, d] y) { y = GatherElements<axis=1>(x, i) }",
        {"x": (3, 4), "i": (2, 6)},
        {"x": (3, 4), "i": (5, 4)},
        "dimension 'a' of input 'x' is 3 and dimension 'c' of input 'i' is 5: GatherElements .* 5 or more, not 3",
    ),
    "another batch of index tuples": (
        "(float[a, b] x, int64[c, d, 1] i) => (float[c, d] y) { y = GatherND<batch_dims=1>(x, i) }",
        {"x": (3, 4), "i": (3, 2, 1)},
        {"x": (3, 4), "i": (5, 2, 1)},
        "dimension 'a' is 3 in 'x' and 5 in 'i'",
    ),
    "an axis of two names": (
        '(float[a, b] x, float[c, d] z) => (float[a, d] y) { y = Einsum<equation="ij,jk->ik">(x, z) }',
        {"x": (3, 4), "z": (4, 5)},
        {"x": (3, 4), "z": (6, 5)},
        "dimension 'b' is 4 in 'x' and 6 in 'z'",
    ),
    "a diagonal of what is not square": (
        '(float[a, b] x) => (float[c] y) { y = Einsum<equation="ii->i">(x) }',
        {"x": (3, 3)},
        {"x": (1, 4)},
        "must be equal|dimension 'a'",
    ),
    "an odd side": (
        "(float[b, 3, h, w] x) => (float[b, 12, i, j] y) { y = SpaceToDepth<blocksize=2>(x) }",
        {"x": (1, 3, 4, 6)},
        {"x": (1, 3, 5, 6)},
        r"SpaceToDepth .* needs dimension 2 of 'input' to be a multiple of 2, not 5",
    ),
    "channels of no whole block": (
        "(float[b, c, h, w] x) => (float[b, d, i, j] y) { y = DepthToSpace<blocksize=2>(x) }",
        {"x": (1, 8, 2, 3)},
        {"x": (1, 6, 2, 3)},
        "multiple of 4, not 6",
    ),
    "lengths of another batch": (
        "(float[t, b] x, int64[c] n) => (float[t, b] y) { y = ReverseSequence(x, n) }",
        {"x": (3, 4), "n": (4,)},
        {"x": (3, 4), "n": (3,)},
        "dimension 'b' is 4 in 'x' and 3 in 'n'",
    ),
    "a table shorter than two sizes together": (
        "(float[a, 2] x, float[b, 2] z) => (float[c, 2] y) { all = Concat<axis=0>(x, z) n = Shape<end=1>(all) "
        "zero = Constant<value_ints=[0]>() whole = Constant<value_ints=[20, 2]>() table = ConstantOfShape(whole) "
        "part = Slice(table, zero, n) y = Add(all, part) }",
        {"x": (3, 2), "z": (5, 2)},
        {"x": (12, 2), "z": (9, 2)},
        r"needs the length of a table, which a \+ b may not exceed, to be 21 or more, not 20",
    ),
    "more patches of an image than positions": (
        "(float[1, 1, h, w] x) => (float[1, n, 4] y) { of_kernel = Constant<value_ints=[4, 1, 8, 8]>() "
        "k = ConstantOfShape<value=float[1] {0.1}>(of_kernel) p = Conv<kernel_shape=[8, 8], strides=[8, 8]>(x, k) "
        "flat = Constant<value_ints=[0, 4, -1]>() f = Reshape(p, flat) t = Transpose<perm=[0, 2, 1]>(f) "
        "one = Constant<value_ints=[1, 1, 4]>() token = ConstantOfShape(one) all = Concat<axis=1>(token, t) "
        "of_table = Constant<value_ints=[1, 9, 4]>() table = ConstantOfShape<value=float[1] {2.0}>(of_table) "
        "y = Add(all, table) }",
        {"x": (1, 1, 16, 32)},
        {"x": (1, 1, 24, 32)},
        "dimension 'h' of input 'x' is 24 and dimension 'w' .* is 32: Add .* to be 9, not 13",
    ),
    "sizes that are not broadcast": (
        "(float[n, 4] x, float[m, 4] z) => (float[k, 4] y) { y = Add(x, z) }",
        {"x": (1, 4), "z": (3, 4)},
        {"x": (2, 4), "z": (3, 4)},
        "Add .* to be 2 or 1, not 3",
    ),
    "an expansion of neither one nor as many": (
        "(float[n, k] x) => (float[2, n, 6] y) { s = Constant<value_ints=[2, 1, 6]>() y = Expand(x, s) }",
        {"x": (3, 1)},
        {"x": (3, 2)},
        "Expand .* dimension 1 of 'input' to be 6 or 1, not 2",
    ),
    "a bias of another length": (
        "(float[a, b] x, float[b, d] w, float[e] c) => (float[a, d] y) { y = Gemm(x, w, c) }",
        {"x": (3, 4), "w": (4, 5), "c": (5,)},
        {"x": (3, 4), "w": (4, 5), "c": (4,)},
        "dimension 'd' of input 'w' is 5 and dimension 'e' .* dimension 0 of 'C' to be 5 or 1, not 4",
    ),
    "a bias of more rows than the result": (
        "(float[a, b] x, float[b, d] w, float[e, f] c) => (float[a, d] y) { y = Gemm(x, w, c) }",
        {"x": (1, 4), "w": (4, 5), "c": (1, 1)},
        {"x": (1, 4), "w": (4, 5), "c": (3, 5)},
        "the size to which dimension 0 of 'C' is broadcast to be 3 or more, not 1",
    ),
}


def drawn(model: onnx.ModelProto, shapes: Shapes) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    whole = {i.name for i in model.graph.input if i.type.tensor_type.elem_type == onnx.TensorProto.INT64}
    return {n: rng.integers(0, 2, s) if n in whole else rng.standard_normal(s, np.float32) for n, s in shapes.items()}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_sizes_that_do_not_fit_are_an_error_before_the_run(
    tmp_path: Path, case: tuple[str, Shapes, Shapes, str]
) -> None:
    text, good, bad, message = case
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> net {text}')
    compile_model(model, tmp_path / "m.hcb", devices="CPU")
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    with load(tmp_path / "m.hcb") as session:
        for _ in range(2):  # the second time by native code, if the first one was not
            feed = drawn(model, good)
            np.testing.assert_allclose(session.run(feed)["y"], reference.run(None, feed)[0], rtol=1e-5, atol=1e-6)
            with pytest.raises(FeedError, match=message):
                session.run(drawn(model, bad))


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (
            "(float[a, 4] x, float[4, b] w, float[c, d] z) => (float[e, f] y) { p = Gemm(x, w, z) y = Relu(p) }",
            [{"x": (3, 4), "w": (4, 5), "z": size} for size in ((3, 5), (1, 5), (3, 1), (1, 1))],
        ),
        (
            "(float[a, b] x, float[c, d] z) => (float[e, f] y) { y = PRelu(x, z) }",
            [{"x": (3, 4), "z": (1, 4)}, {"x": (1, 4), "z": (3, 1)}, {"x": (3, 4), "z": (3, 4)}],
        ),
        (
            "(float[a, b] x, float[c] s, float[d] z) => (float[a, b] y) { y = LayerNormalization(x, s, z) }",
            [{"x": (3, 5), "s": (s,), "z": (z,)} for s, z in ((5, 5), (1, 5), (5, 1))],
        ),
        (
            "(float[a, b] x, float[c] s) => (float[a, b] y) { y = RMSNormalization(x, s) }",
            [{"x": (3, 5), "s": (5,)}, {"x": (3, 5), "s": (1,)}],
        ),
    ],
    ids=["Gemm", "PRelu", "LayerNormalization", "RMSNormalization"],
)
def test_a_parameter_of_symbolic_sizes_is_broadcast_where_a_run_has_sizes_of_one(
    tmp_path: Path, text: str, sizes: list[Shapes]
) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 23]> net {text}')
    compile_model(model, tmp_path / "m.hcb", devices="CPU")
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    with load(tmp_path / "m.hcb") as session:
        for shapes in sizes:
            feed = drawn(model, shapes)
            np.testing.assert_allclose(session.run(feed)["y"], reference.run(None, feed)[0], rtol=1e-5, atol=1e-6)


def test_data_beside_a_constant_parameter_has_its_size(tmp_path: Path) -> None:
    text = "(float[a, b] x) => (float[c, d] y) { w = Constant<value_floats=[1.0, 2.0, 3.0]>() "
    text += "y = LayerNormalization(x, w) }"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 17]> net {text}')
    compile_model(model, tmp_path / "m.hcb", devices="CPU")
    with load(tmp_path / "m.hcb") as session:
        assert session.run({"x": np.ones((2, 3), np.float32)})["y"].shape == (2, 3)
        with pytest.raises(FeedError):
            session.run({"x": np.ones((2, 1), np.float32)})


def test_sizes_that_only_the_run_knows_are_checked_by_code(tmp_path: Path) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[a, b] x, bool[n] flags) => (float[c, d] y)
    {
      places = NonZero(flags)
      y = GatherElements<axis=0>(x, places)
    }
    """
    compile_model(onnx.parser.parse_model(text), tmp_path / "m.hcb", devices="CPU")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with load(tmp_path / "m.hcb") as session:
        flags = np.array([True, True, False, False, False])
        np.testing.assert_array_equal(session.run({"x": x, "flags": flags})["y"], [[0, 4]])
        with pytest.raises(InputValueError, match=r"GatherElements .*dimension 1 of 'data' must be"):
            session.run({"x": x[:, :1], "flags": flags})


def test_sizes_that_a_branch_needs_are_checked_in_the_branch(tmp_path: Path) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    net (bool c, float[b, 2, n] x) => (float[b, 2, m] y)
    {
      y = If (c) <
        then_branch = inside () => (float[b, 2, k] t) {
          pads = Constant<value_ints=[0, 0, 4, 0, 0, 4]>()
          t = Pad<mode="reflect">(x, pads)
        },
        else_branch = plain () => (float[b, 2, l] e) { e = Neg(x) }
      >
    }
    """
    compile_model(onnx.parser.parse_model(text), tmp_path / "m.hcb", devices="CPU")
    short, long = np.ones((1, 2, 3), np.float32), np.ones((1, 2, 6), np.float32)
    yes, no = np.array(True), np.array(False)
    with load(tmp_path / "m.hcb") as session:
        assert session.run({"c": yes, "x": long})["y"].shape == (1, 2, 14)
        assert session.run({"c": no, "x": short})["y"].shape == (1, 2, 3)
        with pytest.raises(InputValueError, match=r"Pad .*dimension 2 of 'data' must be 5 or more"):
            session.run({"c": yes, "x": short})
