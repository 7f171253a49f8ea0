"""Kernels of several sizes as exporters of PyTorch write them: one bundle for the CPU alone equals ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler import compile_model
from heterocc.runtime import load

Feed = dict[str, np.ndarray]


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _equal(text: str, folder: Path, *feeds: Feed) -> None:
    """The model's results for each feed are those of ONNX Runtime; one that it refuses is refused."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {text}')
    compile_model(model, folder / "m.hcb", devices="CPU", cpu_variant=False, check=False, measure=False)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    reference = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    with load(folder / "m.hcb") as session:
        for feed in feeds:
            try:
                wanted = reference.run(None, feed)
            except Exception:  # its classes have no common base
                with pytest.raises(HeteroccError):
                    session.run(feed)
                continue
            for (output, got), expected in zip(session.run(feed).items(), wanted, strict=True):
                assert got.dtype == expected.dtype and got.shape == expected.shape, output
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5, err_msg=output)


def test_indices_are_computed_in_the_kernel_that_limits_them_to_another_size(tmp_path: Path) -> None:
    """Longformer: a fused kernel reads the size of the data, which no tensor in it shows."""
    _equal(
        """
        agraph (float[n,4] x, int64[k,4] i, float[m,4] u) => (float[n,4] y)
            <int64[2] rows = {-1, 1}, int64[1] two = {2}>
        {
            j = Add(i, i)
            column = Reshape(j, rows)
            places = Mul(column, two)
            y = ScatterND(x, places, u)
        }
        """,
        tmp_path,
        {"x": _numbers(9, 4), "i": np.array([[0, 2, 1, -1]]), "u": _numbers(4, 4)},
    )


def test_a_map_of_computed_length_is_transposed_twice(tmp_path: Path) -> None:
    """The vocoder of VITS: the length is a number of true elements, times 4 and plus 1."""
    weights = ", ".join(f"{v:.2f}" for v in _numbers(2 * 2 * 8).flat)
    _equal(
        f"""
        agraph (float[1,2,n] x, bool[n] keep) => (float[1,2,m] y)
            <int64[1] first = {{0}}, float[2,2,8] w = {{{weights}}}>
        {{
            found = NonZero(keep)
            places = Squeeze(found, first)
            part = Gather<axis = 2>(x, places)
            a = ConvTranspose<strides = [4], pads = [2, 2]>(part, w)
            b = LeakyRelu(a)
            y = ConvTranspose<strides = [4], pads = [2, 2]>(b, w)
        }}
        """,
        tmp_path,
        {"x": _numbers(1, 2, 5), "keep": np.array([True, False, True, True, False])},
        {"x": _numbers(1, 2, 3), "keep": np.array([True, True, True])},
    )


ROWS = """
    <int64[1] one = {1}, int64[1] two = {2}, int64[2] pairs = {-1, 2}>
{
    length = Shape<start = 1, end = 2>(x)
    shape = Concat<axis = 0>(pairs, length)
    split = Reshape(x, shape)
    sums = ReduceSum<keepdims = 0>(split, one)
"""


@pytest.mark.parametrize(
    ("rest", "shape"),
    [
        ("columns = Unsqueeze(sums, two) y = MatMul(columns, z)", (1, 4)),
        ("part = Unsqueeze(sums, two) y = Add(part, z)", (3, 1)),
    ],
    ids=["matrices", "elements"],
)
def test_a_batch_of_half_the_rows_is_broadcast_to_another_one(
    rest: str, shape: tuple[int, int], tmp_path: Path
) -> None:
    """MusicGen's decoder reads as many rows for each item as it has codebooks."""
    dims = "float[batch,1,4]" if shape == (1, 4) else "float[batch,3,1]"
    _equal(
        f"agraph (float[rows,3] x, {dims} z) => (float[a,b,c] y) {ROWS} {rest} }}",
        tmp_path,
        *({"x": _numbers(rows, 3), "z": _numbers(batch, *shape)} for rows, batch in ((4, 2), (6, 1), (2, 3), (6, 2))),
    )


@pytest.mark.parametrize("op_type", ["MatMul", "Add"])
def test_two_named_sizes_of_which_one_may_be_1_are_compared_in_each_run(op_type: str, tmp_path: Path) -> None:
    _equal(
        f"agraph (float[n,2,2] x, float[m,2,2] z) => (float[k,2,2] y) {{ y = {op_type}(x, z) }}",
        tmp_path,
        *({"x": _numbers(n, 2, 2), "z": _numbers(m, 2, 2)} for n, m in ((3, 3), (1, 4), (4, 1), (3, 2))),
    )


def test_lengths_of_parts_that_an_exporter_wrote_as_numbers_fix_a_dimension(tmp_path: Path) -> None:
    """ZoeDepth: the batch with which it was exported."""
    _equal(
        """
        agraph (float[batch,3] x) => (float[2,3] y) <int64[2] parts = {2, 2}>
        { both = Concat<axis = 0>(x, x)  a, b = Split<axis = 0>(both, parts)  y = Add(a, b) }
        """,
        tmp_path,
        {"x": _numbers(2, 3)},
        {"x": _numbers(3, 3)},
    )


@pytest.mark.parametrize(
    "rest",
    [
        "size = Shape(a) flat = Mul(size, four) y = Reshape(b, flat)",
        "y = Concat<axis = 1>(a, b)",
        "c = Transpose<perm = [1, 0]>(a) y = MatMul(c, b)",
        "c = Transpose<perm = [1, 0]>(b) y = MatMul(c, w)",
        "one, other = Split<axis = 0>(b, four) y = Concat<axis = 1>(one, other)",
        "y = ScatterND(v, places, b)",
    ],
    ids=["Reshape", "Concat", "MatMul", "number", "Split", "ScatterND"],
)
def test_two_computed_sizes_that_a_node_needs_to_be_equal_are_compared_in_each_run(rest: str, tmp_path: Path) -> None:
    """FastSpeech2: a part of one tensor is given the shape of a part of another."""
    _equal(
        f"""
        agraph (float[n,2] x, bool[n] p, bool[n] q) => (float y)
            <int64[2] four = {{1, 1}}, float[2,1] w = {{2.0, 3.0}}, float[2,2] v = {{0.0, 0.0, 0.0, 0.0}},
            int64[2,1] places = {{1, 0}}>
        {{ a = Compress<axis = 0>(x, p) b = Compress<axis = 0>(x, q) {rest} }}
        """,
        tmp_path,
        *(
            {"x": _numbers(4, 2), "p": np.array([True, False, True, False]), "q": np.array(q)}
            for q in ([False, True, True, False], [True, True, True, False])
        ),
    )


def test_the_smaller_of_a_length_and_that_of_a_table_is_the_length(tmp_path: Path) -> None:
    """GPT-Neo, as dynamo exports it: a table of 8 positions is sliced, so that no run has more."""
    _equal(
        """
        agraph (float[batch,length,4] x) => (float[a,b,2,2] y)
            <float[1,8,1] table = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0}, int64[1] none = {0}, int64[1] one = {1},
             int64[1] most = {8}, int64[2] pairs = {2, 2}>
        {
            batch_size = Shape<end = 1>(x)
            count = Shape<start = 1, end = 2>(x)
            fewest = Min(most, count)
            part = Slice(table, none, count, one)
            sum = Add(x, part)
            shape = Concat<axis = 0>(batch_size, fewest, pairs)
            y = Reshape(sum, shape)
        }
        """,
        tmp_path,
        {"x": _numbers(2, 3, 4)},
        {"x": _numbers(1, 8, 4)},
        {"x": _numbers(1, 9, 4)},
    )
