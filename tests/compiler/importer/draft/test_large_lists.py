"""Ensembles of trees whose attributes have thousands of elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import shape_inference

from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.converters.ml import trees
from heterocc.compiler.lower.converters.ml.ensembles import Nodes, nodes_by_ids
from tests.ml_models import assert_equal, classifier, random_trees, regressor, rows

RNG = np.random.default_rng(3)


def many_trees(prefix: str = "target") -> dict[str, Any]:
    made = random_trees(RNG, trees=400, depth=5, prefix=prefix, targets=(0, 1))
    assert len(made["nodes_modes"]) > 4096
    return made


def test_tools_of_types_are_not_given_lists_of_large_trees_and_the_import_keeps_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []

    def infer_shapes(model: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
        sizes.append(model.ByteSize())
        return original(model, **options)

    original = shape_inference.infer_shapes
    monkeypatch.setattr(shape_inference, "infer_shapes", infer_shapes)
    for proto in (regressor(many_trees(), targets=2), classifier(many_trees("class"), (3, 7))):
        found = import_model(proto, keep_dims=True)
        (given,), (kept,) = proto.graph.node, found.proto.graph.node
        assert {a.name: a for a in kept.attribute} == {a.name: a for a in given.attribute}
    assert sizes and max(sizes) < 2000


def test_long_lists_are_read_as_they_are_and_large_trees_have_onnx_runtimes_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds: set[type] = set()

    def nodes_of(attrs: dict[str, Any], weights: str) -> Nodes:
        kinds.update(type(attrs.get(name)) for name in ("nodes_modes", "nodes_values", "nodes_treeids"))
        return nodes_by_ids(attrs, weights)

    monkeypatch.setattr(trees, "nodes_by_ids", nodes_of)
    assert_equal(regressor(many_trees(), targets=2), [{"x": rows(RNG, count, nan=True)} for count in (1, 40)])
    assert kinds.isdisjoint({tuple, list})
