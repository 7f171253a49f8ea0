"""Shapes of the results of `ai.onnx.ml`, for most of which ONNX has no inference."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.sizes import Size, number

ML = "ai.onnx.ml"


def ml_shapes_of(given: Given) -> list[Shape] | None:
    """The shapes of a node's outputs, if there is a rule for its operator."""
    rule = _RULES.get(given.node.op_type)
    return rule(given) if rule is not None and given.shape() is not None else None


def _rows(given: Given) -> Size | None:
    """The number of rows; a vector is one row."""
    shape = given.shape() or ()
    return number(1) if len(shape) == 1 else shape[0] if shape else None


def _labels(given: Given) -> int:
    names = ("classlabels_ints", "classlabels_int64s", "classlabels_strings")
    return max(len(given.attribute(name) or ()) for name in names)


def _same(given: Given) -> list[Shape]:
    return [given.shape()]


def _columns(count: Callable[[Given], int]) -> Callable[[Given], list[Shape]]:
    return lambda given: [(_rows(given), number(count(given)))]


def _classes(count: Callable[[Given], int]) -> Callable[[Given], list[Shape]]:
    return lambda given: [(_rows(given),), (_rows(given), number(count(given)))]


def _linear_scores(given: Given) -> int:
    own = len(given.attribute("intercepts") or ())
    return 2 if own == 1 and _labels(given) == 2 else own or _labels(given)


def _support_scores(given: Given) -> int:
    classes = _labels(given)
    pairs = given.attribute("vectors_per_class") and not given.attribute("prob_a")
    return max(2, classes * (classes - 1) // 2) if pairs else classes


def _extracted(given: Given) -> list[Shape] | None:
    shape, places = given.shape(), given.shape(1)
    if shape is None or places is None or None in places:
        return None
    total = number(1)
    for size in places:
        total = total * size if size is not None else total
    return [(*shape[:-1], total) if len(shape) > 1 else (number(1), total)]


def _one_hot(given: Given) -> list[Shape]:
    count = max(len(given.attribute(name) or ()) for name in ("cats_int64s", "cats_strings"))
    return [(*(given.shape() or ()), number(count))]


_RULES: Mapping[str, Callable[[Given], list[Shape] | None]] = {
    "TreeEnsembleClassifier": _classes(_labels),
    "LinearClassifier": _classes(_linear_scores),
    "SVMClassifier": _classes(_support_scores),
    "TreeEnsembleRegressor": _columns(lambda given: int(given.attribute("n_targets", 0) or 1)),
    "TreeEnsemble": _columns(lambda given: int(given.attribute("n_targets", 0) or 1)),
    "LinearRegressor": _columns(lambda given: int(given.attribute("targets", 1))),
    "SVMRegressor": _columns(lambda given: 1),
    "FeatureVectorizer": _columns(lambda given: sum(given.attribute("inputdimensions") or ())),
    "ArrayFeatureExtractor": _extracted,
    "OneHotEncoder": _one_hot,
    "Binarizer": _same,
    "CategoryMapper": _same,
    "Imputer": _same,
    "LabelEncoder": _same,
    "Normalizer": _same,
    "Scaler": _same,
}

ML_SHAPED = frozenset(_RULES)
"""The operators whose results have known shapes."""
