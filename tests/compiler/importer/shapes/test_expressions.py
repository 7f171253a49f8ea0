"""Dimensions whose names are expressions of others, as exporters of decoders write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from heterocc.compiler import compile_model
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.importer.shapes.expressions import size_of, word_for
from heterocc.runtime import load
from tests.reference import reference_session
from tests.symbolic_models import dynamic_model

N = helper.make_node
TOTAL = "past_length + length"


def decoder() -> onnx.ModelProto:
    """Attention of new tokens to those of the past and themselves, with a mask for both."""
    inputs = {
        "past": ("float32", ("batch", 2, "past_length", 8)),
        "new": ("float32", ("batch", 2, "length", 8)),
        "mask": ("float32", ("batch", TOTAL)),
    }
    nodes = [
        N("Concat", ["past", "new"], ["k"], axis=2),
        N("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
        N("MatMul", ["new", "t"], ["s"]),
        N("Unsqueeze", ["mask", "axes"], ["m"]),
        N("Add", ["s", "m"], ["a"]),
        N("Softmax", ["a"], ["p"], axis=-1),
        N("MatMul", ["p", "k"], ["y"]),
    ]
    return dynamic_model(nodes, inputs, ["y", "k"], {"axes": np.array([1, 2])})


def test_a_decoder_whose_mask_has_the_sum_of_two_lengths_compiles_for_the_cpu(tmp_path: Path) -> None:
    model, numbers = decoder(), np.random.default_rng(0)
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False, measure=False)
    with load(tmp_path / "m.hcb") as session:
        for past, length in ((5, 3), (16, 1)):
            shapes = {"past": (1, 2, past, 8), "new": (1, 2, length, 8), "mask": (1, past + length)}
            feed = {name: numbers.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
            (wanted, _) = reference_session(model).run(None, feed)
            np.testing.assert_allclose(session.run(feed)["y"], wanted, rtol=1e-4, atol=1e-5)


def test_drawn_sizes_and_given_ones_follow_the_expression() -> None:
    samples = import_model(decoder(), keep_dims=True).samples
    assert samples["mask"][1] == samples["past"][2] + samples["new"][2]
    fixed = import_model(decoder(), dims={"batch": 1, "past_length": 7, "length": 2})
    assert fixed.graph.values["mask"].shape == (1, 9)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a + b", "a_plus_b"),
        ("2*a - 1", "2_times_a_minus_1"),
        ("a", None),
        ("a + c", None),
        ("a.b", None),
        ("max(a, b)", None),
        ("?", None),
        ("a b", None),
        ("1 + 1", None),
        ("(" * 150 + "a", None),
        ("a+" * 150 + "b", None),
    ],
)
def test_expressions_of_known_names_have_words(text: str, word: str | None) -> None:
    assert word_for(text, {"a", "b"}) == word


def test_expressions_have_sizes() -> None:
    assert size_of("(a + 2) * b // 3", {"a": 4, "b": 2}) == 4
    assert size_of("a // b", {"a": 4, "b": 0}) is None
    assert size_of("a", {"a": 4}) is None
