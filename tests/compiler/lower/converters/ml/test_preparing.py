"""Operators that prepare and encode numbers, compared with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.ml_models import assert_equal, ml_model, ml_node

F32, I64 = TensorProto.FLOAT, TensorProto.INT64
NUMBERS = np.array([[1.0, -2.5, np.nan, 0.0], [0.0, 0.0, 0.0, 0.0], [3.0, 1.0, -1.0, 2.0]], np.float32)
PLAIN = np.nan_to_num(NUMBERS, nan=5.0)


def one(node: onnx.NodeProto, data: np.ndarray, kind: int = F32) -> None:
    given = helper.np_dtype_to_tensor_dtype(data.dtype)
    assert_equal(ml_model([node], {"x": (given, ["n", *data.shape[1:]])}, {"y": kind}), [{"x": data}, {"x": data[:1]}])


@pytest.mark.parametrize("count", [1, 4])
def test_scalers_agree(count: int) -> None:
    one(ml_node("Scaler", "x", "y", offset=[0.5, 1, 2, 3][:count], scale=[2.0, -1, 0.1, 3][:count]), PLAIN)


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizers_agree_also_for_rows_of_zeros(norm: str) -> None:
    one(ml_node("Normalizer", "x", "y", norm=norm), PLAIN)


def test_binarizers_agree() -> None:
    one(ml_node("Binarizer", "x", "y", threshold=0.5), PLAIN)


@pytest.mark.parametrize("replaced", [float("nan"), 0.0])
def test_imputers_of_floats_agree(replaced: float) -> None:
    node = ml_node("Imputer", "x", "y", imputed_value_floats=[1.0, 2, 3, 4], replaced_value_float=replaced)
    one(node, NUMBERS)


def test_an_imputer_of_integers_agrees() -> None:
    one(ml_node("Imputer", "x", "y", imputed_value_int64s=[7], replaced_value_int64=0), PLAIN.astype(np.int64), I64)


def test_features_are_extracted_and_put_side_by_side() -> None:
    nodes = [
        ml_node("ArrayFeatureExtractor", "x i", "a"),
        ml_node("FeatureVectorizer", "a x", "y", inputdimensions=[2, 4]),
    ]
    places = numpy_helper.from_array(np.array([3, 0], np.int64), "i")
    proto = ml_model(nodes, {"x": (F32, ["n", 4])}, {"y": F32}, constants=[places])
    assert_equal(proto, [{"x": PLAIN}])


@pytest.mark.parametrize(
    "data, attributes, kind",
    [
        (
            PLAIN.astype(np.int64),
            {"keys_int64s": [0, 3, 5], "values_floats": [0.5, 1.5, 2.5], "default_float": 9.0},
            F32,
        ),
        (NUMBERS, {"keys_floats": [0.0, float("nan"), 3.0], "values_int64s": [4, 5, 6]}, I64),
        (
            PLAIN.astype(np.int64),
            {"keys_int64s": [0, 3], "values_floats": [0.5, 1.5], "default_float": float("nan")},
            F32,
        ),
    ],
    ids=["integers", "floats", "NaN for unknown ones"],
)
def test_label_encoders_agree(data: np.ndarray, attributes: dict[str, Any], kind: int) -> None:
    one(ml_node("LabelEncoder", "x", "y", **attributes), data, kind)


def test_one_hot_encoders_agree() -> None:
    one(ml_node("OneHotEncoder", "x", "y", cats_int64s=[0, 3, 5]), PLAIN)
