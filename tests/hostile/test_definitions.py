"""Results by definition are those of ONNX Runtime where its are right, and others where they are not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from heterocc.runtime.execute.ort_session import open_session, session_options
from tests.hostile.cases import HostileModel, hostile_models
from tests.hostile.definitions import defined
from tests.hostile.known import ON_PURPOSE
from tests.reference import reference_session

Array = np.ndarray
QUANTISED = ("MatMulInteger", "QLinearMatMul", "com.microsoft::QGemm", "com.microsoft::MatMulIntegerToFloat")
WHOLE = (*QUANTISED, "MeanVarianceNormalization", "ReduceSum", "DFT")


def models(operator: str, naming: str = "apart") -> list[HostileModel]:
    return hostile_models(4, [operator], [naming])  # type: ignore[list-item]


@pytest.mark.parametrize("operator", WHOLE)
def test_definitions_of_all_requests_are_as_in_onnx_runtime(operator: str) -> None:
    found = 0
    for model in models(operator):
        feed = dict(model.valid.feed)
        wanted = defined(model.model, feed)
        try:
            options = session_options(threads=1, optimise="none", exact=True)
            results = open_session(model.model, options).run(None, feed)
        except Exception:
            continue
        if wanted is not None:
            found += 1
            for one, other in zip(wanted, results, strict=True):
                assert one.dtype == other.dtype
                largest = np.abs(one).max(initial=1)
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * largest if operator == "DFT" else 1e-5)
    assert found


@pytest.mark.parametrize("operator", ["GRU", *(pytest.param(o, marks=pytest.mark.slow) for o in ("LSTM", "RNN"))])
def test_a_sequence_without_steps_ends_in_its_initial_states(operator: str) -> None:
    for model in models(operator):
        (node,) = onnx.load_from_string(model.model).graph.node
        feed = dict(model.valid.feed)
        assert defined(model.model, feed) is None, "it has steps"
        first = any(a.name == "layout" and a.i for a in node.attribute)
        shape = feed[node.input[0]].shape
        feed[node.input[0]] = np.zeros((shape[0], 0, shape[2]) if first else (0, *shape[1:]), np.float32)
        found = defined(model.model, feed)
        assert found is not None
        names = [end.name for end in onnx.load_from_string(model.model).graph.output]
        for place, name in enumerate(node.output):
            if name in names and place:
                given = node.input[4 + place] if len(node.input) > 4 + place else ""
                end = found[names.index(name)]
                np.testing.assert_array_equal(end, feed[given] if given else np.zeros_like(end))


@pytest.mark.parametrize("operator", ["GRU", "LSTM", "RNN"])
def test_steps_without_features_are_as_with_zeros(operator: str) -> None:
    nodes = ((m, onnx.load_from_string(m.model).graph.node[0]) for m in models(operator))
    model, node = next((m, n) for m, n in nodes if not any(a.name == "layout" and a.i for a in n.attribute))
    feed = dict(model.valid.feed)
    zeros = feed | {name: np.zeros_like(feed[name]) for name in node.input[:2]}
    wanted = reference_session(onnx.load_from_string(model.model)).run(None, zeros)
    found = defined(model.model, feed | {name: feed[name][..., :0] for name in node.input[:2]})
    assert found is not None
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_sums_without_terms_are_zeros_with_the_bias() -> None:
    model = models("com.microsoft::DynamicQuantizeMatMul")[0]
    (node,) = onnx.load_from_string(model.model).graph.node
    feed = dict(model.valid.feed)
    feed[node.input[0]] = np.zeros((3, 0), np.float32)
    feed[node.input[1]] = np.zeros((0, feed[node.input[1]].shape[1]), feed[node.input[1]].dtype)
    found = defined(model.model, feed)
    bias = feed.get(node.input[4]) if len(node.input) > 4 else None
    assert found is not None
    np.testing.assert_array_equal(found[0], np.zeros_like(found[0]) + (0 if bias is None else bias))


def test_differences_are_explained_by_definitions_and_not_by_names_alone() -> None:
    assert {known.operator for known in ON_PURPOSE if known.verdict == "different" and not known.what} == set()
