"""Pipelines of scikit-learn, LightGBM and XGBoost on the CPU alone, compared with ONNX Runtime: labels exactly.

The libraries are in the extra `pipelines`, which the quick suite does not need.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.ml_models import reference

pytestmark = pytest.mark.slow

FEATURES = 12


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, FEATURES)).astype(np.float32)
    return x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).astype(int) + (x[:, 3] > 0.5)


def sklearn(module: str, name: str, *, scaled: bool = False, names: bool = False, **options: Any) -> onnx.ModelProto:
    skl2onnx = pytest.importorskip("skl2onnx", reason="the extra `pipelines` is not installed")
    estimator = getattr(importlib.import_module(f"sklearn.{module}"), name)(**options)
    if scaled:
        preprocessing = importlib.import_module("sklearn.preprocessing")
        estimator = importlib.import_module("sklearn.pipeline").make_pipeline(preprocessing.StandardScaler(), estimator)
    x, y = data()
    estimator.fit(x, np.array(["ant", "bee", "cat"])[y] if names else y)
    made: onnx.ModelProto = skl2onnx.to_onnx(estimator, x[:1], target_opset={"": 18, "ai.onnx.ml": 3})
    return made


def boosted(library: str, name: str, converter: str) -> onnx.ModelProto:
    tools = pytest.importorskip("onnxmltools", reason="the extra `pipelines` is not installed")
    x, y = data()
    estimator = getattr(pytest.importorskip(library), name)(n_estimators=20, n_jobs=1).fit(x, y)
    kinds = importlib.import_module("onnxmltools.convert.common.data_types")
    given = [("x", kinds.FloatTensorType([None, FEATURES]))]
    made: onnx.ModelProto = getattr(tools, converter)(estimator, initial_types=given, target_opset=15)
    return made


CASES: dict[str, Callable[[], onnx.ModelProto]] = {
    "forest": lambda: sklearn("ensemble", "RandomForestClassifier", n_estimators=30, random_state=0),
    "forest with names": lambda: sklearn("ensemble", "RandomForestClassifier", n_estimators=9, names=True),
    "regression forest": lambda: sklearn("ensemble", "RandomForestRegressor", n_estimators=20, random_state=0),
    "boosting": lambda: sklearn("ensemble", "GradientBoostingClassifier", n_estimators=20, random_state=0),
    "histogram boosting": lambda: sklearn("ensemble", "HistGradientBoostingRegressor", max_iter=20),
    "logistic regression": lambda: sklearn("linear_model", "LogisticRegression", scaled=True, names=True),
    "support vectors": lambda: sklearn("svm", "SVC", probability=True),
    "support vector regression": lambda: sklearn("svm", "SVR", scaled=True),
    "lightgbm": lambda: boosted("lightgbm", "LGBMClassifier", "convert_lightgbm"),
    "lightgbm regression": lambda: boosted("lightgbm", "LGBMRegressor", "convert_lightgbm"),
    "xgboost": lambda: boosted("xgboost", "XGBClassifier", "convert_xgboost"),
    "xgboost regression": lambda: boosted("xgboost", "XGBRegressor", "convert_xgboost"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_pipelines_run_as_they_come_on_the_cpu_alone(name: str, tmp_path: Path) -> None:
    model = CASES[name]()
    compile_model(model, tmp_path / "m.hcb", devices="CPU")
    wanted = reference(model)
    with load(tmp_path / "m.hcb") as session:
        given = session.inputs[0].name
        for rows in (1, 17, 200):
            feed = {given: data()[0][:rows]}
            for output, right in zip(session.outputs, wanted(feed), strict=True):
                found = session.run(feed)[output.name]
                names = session.classes.get(output.name)
                if isinstance(right, list):
                    assert names is not None
                    right = np.array([[row[n] for n in names] for row in right])
                if right.dtype.kind == "f":
                    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)
                else:
                    labels = found if names is None else np.array(names)[found]
                    np.testing.assert_array_equal(labels, right)
