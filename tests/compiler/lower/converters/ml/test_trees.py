"""Tree ensembles, compared with ONNX Runtime: labels exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from heterocc.compiler import compile_model
from heterocc.compiler.lower.converters.ml.ensembles import Forest, forest, nodes_by_ids
from heterocc.runtime import load
from tests.few_examples import few
from tests.ml_models import (
    MODES,
    assert_equal,
    classifier,
    ml_model,
    ml_node,
    on_cpu,
    random_trees,
    reference,
    regressor,
    rows,
)


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def walked(trees: Forest, data: np.ndarray) -> np.ndarray:
    """The sums of the leaves, by walks over the tables in numpy."""
    total = np.zeros((len(data), trees.columns), np.float32)
    for root, levels in zip(trees.roots, trees.levels, strict=True):
        at = np.full(len(data), root)
        for _ in range(levels):
            feature, bits, yes, no = trees.nodes[at].T
            x, split = data[np.arange(len(data)), feature], bits.view(np.float32)
            goes = x <= split
            if trees.tracks is not None:
                goes |= np.isnan(x) & (trees.tracks[at] != 0)
            at = np.where(goes, yes, no)
        total += trees.weights[trees.nodes[at, 1]]
    return total


@few(40)
@given(st.integers(0, 2**32 - 1), st.sampled_from([*((m,) for m in MODES), MODES]))
def test_all_comparisons_are_one_comparison_with_the_same_paths(seed: int, modes: tuple[str, ...]) -> None:
    rng = np.random.default_rng(seed)
    proto = regressor(random_trees(rng, modes=modes))
    x = rows(rng, 50, nan=True)
    found = walked(forest(nodes_by_ids(attributes_of(proto.graph.node[0]), "target"), 3, 1, "float32"), x)
    np.testing.assert_array_equal(found, reference(proto)({"x": x})[0])


@pytest.mark.parametrize("trees, depth, chain", [(20, 7, False), (2, 45, True)])
def test_blocks_and_single_rows_agree_with_and_without_nan(trees: int, depth: int, chain: bool) -> None:
    rng = np.random.default_rng(depth)
    proto = regressor(random_trees(rng, trees=trees, depth=depth, chain=chain))
    feeds = [{"x": rows(rng, n, nan=nan)} for n in (1, 16, 45, 3000) for nan in (False, True)]
    assert_equal(proto, feeds, rtol=0)


@pytest.mark.parametrize(
    "aggregate", ["AVERAGE", "MIN", *(pytest.param(a, marks=pytest.mark.slow) for a in ("SUM", "MAX"))]
)
def test_aggregates_of_targets_that_some_rows_do_not_reach_agree(aggregate: str) -> None:
    rng = np.random.default_rng(3)
    attributes = random_trees(rng, trees=3, targets=(0, 1, 2), each=2)
    proto = regressor(attributes, 4, aggregate_function=aggregate, base_values=[1.0, 2.0, 3.0, 4.0])
    assert_equal(proto, [{"x": rows(rng, 40)}])


def test_targets_are_those_of_the_node_not_of_the_declared_output() -> None:
    """skl2onnx declares one column."""
    rng = np.random.default_rng(5)
    proto = regressor(random_trees(rng, trees=2, targets=(0, 1), each=2), 2)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1]))
    assert_equal(proto, [{"x": rows(rng, 7)}])


@pytest.mark.parametrize(
    "transform", ["SOFTMAX_ZERO", "PROBIT", *(pytest.param(t, marks=pytest.mark.slow) for t in ("SOFTMAX", "LOGISTIC"))]
)
def test_transforms_of_scores_agree(transform: str) -> None:
    rng = np.random.default_rng(4)
    low = 0.0 if transform == "PROBIT" else -1.0
    attributes = random_trees(rng, trees=1, targets=(0, 1, 2), each=3, prefix="class", low=low)
    rtol = 2e-3 if transform == "PROBIT" else 1e-5  # differences of numbers near each other
    assert_equal(classifier(attributes, [5, 6, 7], post_transform=transform), [{"x": rows(rng, 40)}], rtol=rtol)


def test_many_classes_with_one_weight_a_leaf_agree() -> None:
    rng = np.random.default_rng(5)
    attributes = random_trees(rng, trees=10, depth=3, targets=range(30), prefix="class")
    assert_equal(classifier(attributes, range(100, 130)), [{"x": rows(rng, 40)}])


BASES: list[list[float]] = [[], [0.1], [0.25, -0.5]]
CLASSES = [((0,), 0.0), ((1,), 0.0), ((0,), -1.0), ((1,), -1.0), ((0, 1), -1.0)]
QUICK = [(((0,), 0.0), []), (((1,), -1.0), [0.25, -0.5]), (((0, 1), -1.0), []), (((0, 1), -1.0), [0.25, -0.5])]


@pytest.mark.parametrize(
    "classes, low, base",
    [
        pytest.param(*kind, base, marks=[] if (kind, base) in QUICK else pytest.mark.slow)
        for kind in CLASSES
        for base in BASES
    ],
)
def test_two_classes_follow_onnx_runtime(classes: tuple[int, ...], low: float, base: list[float]) -> None:
    rng = np.random.default_rng(len(classes))
    more: dict[str, Any] = {"base_values": base} if base else {}
    attributes = random_trees(rng, trees=2, targets=classes, each=1, prefix="class", low=low)
    proto = classifier(attributes, [10, 20], post_transform="LOGISTIC", **more)
    x = {"x": rows(rng, 40)}
    (label, scores), (right, wanted) = on_cpu(proto)(x), reference(proto)(x)
    np.testing.assert_array_equal(label, right)
    # with one base value, ONNX Runtime leaves the second score of rows without one undefined
    columns = slice(0, 1) if len(base) == 1 and len(classes) == 2 else slice(0, 2)
    np.testing.assert_allclose(scores[:, columns], wanted[:, columns], rtol=1e-5, atol=1e-6)


def test_an_ensemble_of_float64_compares_in_float64() -> None:
    rng = np.random.default_rng(6)
    attributes = random_trees(rng, trees=4, modes=("BRANCH_LEQ", "BRANCH_LT"))
    splits = np.array(attributes.pop("nodes_values")) + 1e-12
    weights = np.array(attributes.pop("target_weights"), np.float64)
    node = ml_node(
        "TreeEnsembleRegressor",
        "x",
        "y",
        n_targets=1,
        nodes_values_as_tensor=numpy_helper.from_array(splits),
        target_weights_as_tensor=numpy_helper.from_array(weights),
        **attributes,
    )
    proto = ml_model([node], {"x": (TensorProto.DOUBLE, ["n", 3])}, {"y": TensorProto.FLOAT})
    assert_equal(proto, [{"x": rows(rng, 50, nan=True).astype(np.float64)}])


def test_a_classifier_runs_as_it_comes_on_the_cpu_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    proto = classifier(random_trees(rng, targets=(0, 1, 2), each=3, prefix="class"), [3, 5, 9])
    compile_model(proto, tmp_path / "m.hcb", devices="CPU")
    with load(tmp_path / "m.hcb") as session:
        assert [str(o) for o in session.outputs] == ["y: int64 [n]", "z: float32 [n, 3]"]
        for count in (1, 33):
            x = rows(rng, count)
            label, scores = session.run(None, {"x": x})
            right, wanted = reference(proto)({"x": x})
            np.testing.assert_array_equal(label, right)
            np.testing.assert_allclose(scores, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"nodes_truenodeids": [7, 0, 0]}, "node 7 of tree 0 does not exist"),
        (
            {
                "nodes_modes": ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF"],
                "nodes_truenodeids": [1, 1, 0],
                "nodes_falsenodeids": [2, 2, 0],
            },
            "levels",
        ),
        ({"nodes_featureids": [5, 0, 0]}, "feature of the ensemble"),
        ({"target_nodeids": [1, 5]}, "does not exist"),
    ],
)
def test_trees_that_contradict_themselves_are_refused(change: dict[str, Any], reason: str) -> None:
    attributes = {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_values": [0.0, 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0, 0],
        "target_nodeids": [1, 2],
        "target_ids": [0, 0],
        "target_weights": [1.0, 2.0],
        **change,
    }
    node = regressor(attributes).graph.node[0]
    with pytest.raises(NotImplementedError, match=reason):
        forest(nodes_by_ids(attributes_of(node), "target"), 3, 1, "float32")
