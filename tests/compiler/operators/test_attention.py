"""Shapes of the results of attention over a cache follow from the names of the inputs' dimensions."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest

from heterocc.compiler.importer.pipeline import import_model
from tests import decoder_networks


@pytest.mark.parametrize(
    ("build", "keys"),
    [
        (decoder_networks.llama, {"past_sequence + sequence"}),
        (decoder_networks.llama_grouped, {"max(past_sequence, total_sequence)"}),
        (decoder_networks.gpt2, {"past_sequence + sequence"}),
    ],
)
def test_present_keys_have_the_length_of_the_past_and_the_new_ones(
    build: Callable[[], onnx.ModelProto], keys: set[str]
) -> None:
    model = import_model(build(), keep_dims=True)
    assert model.symbols is not None
    found = {}
    for new, name in model.sources.items():
        if name.startswith("present"):
            shape = model.symbols.shape_of(model.graph.values[new])
            assert shape is not None
            found[name] = ["?" if size is None else size.text for size in shape]
    heads = "4" if build is decoder_networks.gpt2 else "2"
    assert len(found) == 4
    assert "past_sequence" in model.may_be_empty
    assert model.bounds["sequence"].min == 1
    for shape_text in found.values():
        assert shape_text[:2] + shape_text[3:] == ["batch", heads, "16"]
        assert shape_text[2] in keys or sorted(shape_text[2].split(" + ")) == ["past_sequence", "sequence"]
