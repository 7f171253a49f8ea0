"""Models that ONNX Runtime refuses have a reference that computes the same."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

from heterocc.runtime.execute.ort_session import open_session, session_options
from tests.hostile.cases import hostile_models
from tests.hostile.references import references
from tests.hostile.search import Search


def results(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list[np.ndarray] | None:
    try:
        return list(open_session(model.SerializeToString(), session_options(threads=1)).run(None, feed))
    except Exception:
        return None


@pytest.mark.parametrize("operator", ["GRU", "LSTM", "RNN"])
def test_a_layer_with_the_batch_first_has_its_transposed_layer_as_reference(operator: str) -> None:
    batched = [m for m in hostile_models(9, [operator], ["apart"]) if "batchwise" in m.name]
    assert batched, "onnx's node tests have one"
    for model in batched:
        given = onnx.load_from_string(model.model)
        _, written, *_ = references(given)
        found = results(written, dict(model.valid.feed))
        wanted = onnx.reference.ReferenceEvaluator(given).run(None, dict(model.valid.feed))
        assert found is not None
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("operator", ["QuantizeLinear", "SwiGLU", "CausalConvWithState", "ConvInteger", "RoiAlign"])
def test_each_request_of_a_model_that_onnx_runtime_refuses_has_a_reference(operator: str) -> None:
    with Search("CPU", 0) as search:
        for model in hostile_models(1, [operator], ["apart"]):
            search.reference.open(opened := search.opened(model))
            assert opened.model == model.model
            assert search.reference.receive().kind == "numbers"


@pytest.mark.slow
def test_nearly_all_models_have_a_reference() -> None:
    missing: Counter[str] = Counter()
    with Search("CPU", 0) as search:
        for model in hostile_models(1, (), ["apart", "weights"]):
            search.reference.open(search.opened(model))
            if search.reference.receive().kind != "numbers":
                missing[model.operator] += 1
    embedding = "com.microsoft::EmbedLayerNormalization"  # ONNX Runtime requires fixed sizes of its tables
    assert set(missing) <= {embedding, "OptionalGetElement", "OptionalHasElement", "ai.onnx.preview.training::Adagrad"}
