"""Linear models and support vector machines, compared with ONNX Runtime: labels exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from tests.ml_models import assert_equal, ml_model, ml_node

X = (TensorProto.FLOAT, ["n", 4])
DATA = [{"x": np.random.default_rng(1).standard_normal((n, 4)).astype(np.float32)} for n in (1, 7)]


def numbers(count: int, seed: int = 0) -> list[float]:
    return [float(n) for n in np.random.default_rng(seed).standard_normal(count).astype(np.float32)]


def classifier(op_type: str, **attributes: Any) -> None:
    node = ml_node(op_type, "x", "y z", **attributes)
    assert_equal(ml_model([node], {"x": X}, {"y": TensorProto.INT64, "z": TensorProto.FLOAT}), DATA, rtol=1e-4)


def regressor(op_type: str, **attributes: Any) -> None:
    assert_equal(ml_model([ml_node(op_type, "x", "y", **attributes)], {"x": X}, {"y": TensorProto.FLOAT}), DATA, 1e-4)


@pytest.mark.parametrize("targets, transform", [(1, "NONE"), (3, "SOFTMAX")])
def test_linear_regressors_agree(targets: int, transform: str) -> None:
    regressor(
        "LinearRegressor",
        coefficients=numbers(4 * targets),
        intercepts=numbers(targets, 1),
        targets=targets,
        post_transform=transform,
    )


@pytest.mark.parametrize(
    "scores, labels, transform",
    [(3, [7, 8, 9], "SOFTMAX"), (1, [4, 6], "LOGISTIC"), (1, [4, 6], "NONE"), (2, [0, 1], "LOGISTIC")],
)
def test_linear_classifiers_agree(scores: int, labels: list[int], transform: str) -> None:
    classifier(
        "LinearClassifier",
        coefficients=numbers(4 * scores),
        intercepts=numbers(scores, 1),
        classlabels_ints=labels,
        post_transform=transform,
    )


@pytest.mark.parametrize("kernel", ["LINEAR", "RBF", "POLY", "SIGMOID"])
def test_support_vector_regressors_agree(kernel: str) -> None:
    regressor(
        "SVMRegressor",
        kernel_type=kernel,
        kernel_params=[0.3, 0.1, 3.0],
        support_vectors=numbers(20),
        coefficients=numbers(5, 1),
        rho=[0.2],
        n_supports=5,
        one_class=int(kernel == "LINEAR"),
    )


@pytest.mark.parametrize("classes, chances", [(3, True), (3, False), (2, True), (2, False)])
def test_support_vector_classifiers_agree(classes: int, chances: bool) -> None:
    pairs = classes * (classes - 1) // 2
    more = {"prob_a": numbers(pairs, 3), "prob_b": numbers(pairs, 4)} if chances else {}
    classifier(
        "SVMClassifier",
        kernel_type="RBF",
        kernel_params=[0.3, 0.1, 3.0],
        support_vectors=numbers(4 * 3 * classes),
        vectors_per_class=[3] * classes,
        coefficients=numbers(3 * classes * (classes - 1), 1),
        rho=numbers(pairs, 2),
        classlabels_ints=list(range(5, 5 + classes)),
        **more,
    )
