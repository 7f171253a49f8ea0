"""Forms of computed shapes in exported networks, whose dimensions the import derives."""

from __future__ import annotations

from onnx import parser

from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.pipeline import import_model


def _imported(text: str) -> ImportedModel:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["":18]> g {text}')
    return import_model(model, keep_dims=True, assume=True)


def _shape(model: ImportedModel) -> tuple[object, ...] | None:
    return model.graph.values[model.graph.outputs[0]].shape


def test_a_dimension_is_never_the_negative_number_that_means_any_size() -> None:
    # TorchScript's exporter compares each size that an Expand asks for with -1.
    model = _imported(
        """(float[n,6] x) => (float[a,b] y)
        <int64[1] first = {1}, int64[1] last = {-1}, int64[1] axis = {0}, int64[2] any = {-1, -1},
         int64[2] ones = {1, 1}, float[1] number = {2}> {
        part = Slice(x, first, last, axis) sizes = Shape(part) is_any = Equal(sizes, any)
        wanted = Where(is_any, ones, sizes) y = Expand(number, wanted) }"""
    )
    assert _shape(model) == ("max(0, n - 2)", 6)


def test_indices_of_a_filled_vector_are_a_range() -> None:
    model = _imported(
        """(float[n,6] x) => (int64[a,b] y) {
        size = Shape<end=1>(x) filled = ConstantOfShape<value = int64[1] {1}>(size) y = NonZero(filled) }"""
    )
    assert _shape(model) == (1, "n")
    assert "Range" in [n.op_type for n in model.graph.nodes]


def test_the_sizes_of_a_reshape_that_are_known_have_names_beside_one_that_is_not() -> None:
    model = _imported(
        """(float[n,6] x, int64[1] k) => (float[a,b,c] y) <int64[1] six = {6}> {
        n = Shape<end=1>(x) sizes = Concat<axis=0>(n, k, six) y = Reshape(x, sizes) }"""
    )
    shape = _shape(model)
    assert shape is not None and (shape[0], shape[2]) == ("n", 6)


def test_pairs_of_which_the_last_may_be_cut_are_as_long_as_their_source() -> None:
    # Funnel transformers pool pairs, repeat them, and cut what an odd length has too many.
    model = _imported(
        """(float[1,n,6] x) => (float[1,b,6] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[2] ends = {0, 2}> {
        s = Shape<start=1,end=2>(x) more = Add(s, one) pairs = Div(more, two) doubled = Mul(pairs, two)
        long = ConstantOfShape(doubled) cut = Slice(long, zero, s, zero)
        wide = Unsqueeze(cut, ends) y = Add(x, wide) }"""
    )
    assert _shape(model) == (1, "n", 6)
