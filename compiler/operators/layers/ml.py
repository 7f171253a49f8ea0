"""Operators of `ai.onnx.ml`: trees, linear models, support vectors and encoders of features."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest

from heterocc.compiler.operators.record import ML, Operator, Part, nothing, same_shape
from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import Size, number


def _length(given: Given, *names: str) -> int:
    """The number of elements of the longest of some attributes."""
    return max(len(given.attribute(name) or ()) for name in names)


def _each(needs: Needs) -> None:
    """Scaler and Imputer: one number, or one for each feature."""
    for name in ("offset", "scale", "imputed_value_floats", "imputed_value_int64s"):
        count = _length(needs.given, name)
        if count > 1:
            needs.equal(0, -1, count)


def _as_many(count: Callable[[Given], int]) -> Callable[[Needs], None]:
    """A number of features that is not fixed is that of the coefficients; fewer fixed ones need not all of them."""

    def rule(needs: Needs) -> None:
        size = needs.size(0, 1)
        if size is not None and size.number is None:
            needs.equal(0, 1, count(needs.given))

    return rule


def _per_score(given: Given) -> int:
    """The coefficients of each score of a linear model."""
    classes = _length(given, "intercepts") or _length(given, "classlabels_ints", "classlabels_strings")
    count = int(given.attribute("targets", 1)) if given.node.op_type == "LinearRegressor" else classes
    return _length(given, "coefficients") // max(count, 1)


def _per_vector(given: Given) -> int:
    """The numbers of each support vector, or the coefficients of each score."""
    count = int(given.attribute("n_supports", 0)) or sum(given.attribute("vectors_per_class") or ())
    if count:
        return _length(given, "support_vectors") // count
    labels = 1 if given.node.op_type == "SVMRegressor" else _length(given, "classlabels_ints", "classlabels_strings")
    return _length(given, "coefficients") // max(labels, 1)


def _joined(needs: Needs) -> None:
    """FeatureVectorizer: the numbers of features of the inputs."""
    for place, count in enumerate(needs.given.attribute("inputdimensions") or ()):
        if len(needs.shape(place)) == 2:
            needs.equal(place, 1, int(count))


def _asked(needs: Needs) -> None:
    """Trees: the features that they ask for. Leaves of one may have a number, too, which says nothing."""
    if len(needs.shape(0)) != 2:
        return
    # Attributes of a million nodes are read as they are, without a list of objects.
    given = {attribute.name: attribute for attribute in needs.given.node.attribute}
    features = given["nodes_featureids"].ints if "nodes_featureids" in given else ()
    modes = given["nodes_modes"].strings if "nodes_modes" in given else ()
    asked = (n for n, mode in zip_longest(features, modes) if mode != b"LEAF" and n is not None)
    needs.at_least(0, 1, max(asked, default=0) + 1)


def _rows(given: Given) -> Size | None:
    """The number of rows; a vector is one row."""
    shape = given.shape() or ()
    return number(1) if len(shape) == 1 else shape[0] if shape else None


def _labels(given: Given) -> int:
    names = ("classlabels_ints", "classlabels_int64s", "classlabels_strings")
    return max(len(given.attribute(name) or ()) for name in names)


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


def _extracted_shapes(given: Given) -> list[Shape] | None:
    shape, places = given.shape(), given.shape(1)
    if shape is None or places is None or None in places:
        return None
    total = number(1)
    for size in places:
        total = total * size if size is not None else total
    return [(*shape[:-1], total) if len(shape) > 1 else (number(1), total)]


def _one_hot_shapes(given: Given) -> list[Shape]:
    count = max(len(given.attribute(name) or ()) for name in ("cats_int64s", "cats_strings"))
    return [(*(given.shape() or ()), number(count))]


_TARGETS = _columns(lambda given: int(given.attribute("n_targets", 0) or 1))


_CLASS_NAMES = "classlabels_strings"
_LABELS = "values_strings values_tensor classes_strings default_string default_tensor"
_KEYS = "keys_strings keys_int64s keys_floats keys_tensor classes_strings"
_CATEGORIES = "cats_strings cats_int64s"
_TREES = (
    "nodes_nodeids nodes_treeids nodes_featureids nodes_values nodes_modes nodes_truenodeids nodes_falsenodeids"
    " nodes_hitrates nodes_missing_value_tracks_true"
)
_HITRATES = "nodes_hitrates nodes_hitrates_as_tensor"
_DEFAULTS = "default_float default_int64 default_string default_tensor"

OPERATORS = (
    Operator(
        "TreeEnsembleClassifier",
        ML,
        labels="classlabels_int64s",
        shapes=_classes(_labels),
        needs=_asked,
        unread=_HITRATES,
        texts=_CLASS_NAMES,
        trees=f"{_TREES} class_ids class_nodeids class_treeids class_weights",
    ),
    Operator(
        "TreeEnsembleRegressor",
        ML,
        shapes=_TARGETS,
        needs=_asked,
        unread=_HITRATES,
        trees=f"{_TREES} target_ids target_nodeids target_treeids target_weights",
    ),
    Operator("TreeEnsemble", ML, shapes=_TARGETS, needs=_asked, unread="nodes_hitrates"),
    Operator(
        "LinearClassifier",
        ML,
        labels="classlabels_ints",
        shapes=_classes(_linear_scores),
        needs=_as_many(_per_score),
        unread="multi_class",
        texts=_CLASS_NAMES,
    ),
    Operator(
        "LinearRegressor",
        ML,
        shapes=_columns(lambda given: int(given.attribute("targets", 1))),
        needs=_as_many(_per_score),
    ),
    Operator(
        "SVMClassifier",
        ML,
        labels="classlabels_ints",
        shapes=_classes(_support_scores),
        needs=_as_many(_per_vector),
        unread="kernel_params",
        texts=_CLASS_NAMES,
    ),
    Operator("SVMRegressor", ML, shapes=_columns(lambda given: 1), needs=_as_many(_per_vector), unread="kernel_params"),
    Operator(
        "FeatureVectorizer",
        ML,
        shapes=_columns(lambda given: sum(given.attribute("inputdimensions") or ())),
        needs=_joined,
        filled=((Part(0, slice(1)),),),
    ),
    *(Operator(name, ML, shapes=same_shape, needs=_each) for name in ("Scaler", "Imputer")),
    Operator("LabelEncoder", ML, shapes=same_shape, needs=nothing, unread=_DEFAULTS, texts=_LABELS, keys=_KEYS),
    Operator("Binarizer", ML, shapes=same_shape, needs=nothing),
    Operator("Normalizer", ML, shapes=same_shape, needs=nothing, wrong_in_place=True),  # signs of what it has written
    Operator("CategoryMapper", ML, shapes=same_shape, texts="cats_strings default_string", keys=_CATEGORIES),
    Operator("ZipMap", ML, texts=_CLASS_NAMES),
    Operator("ArrayFeatureExtractor", ML, shapes=_extracted_shapes, needs=nothing),
    Operator("OneHotEncoder", ML, shapes=_one_hot_shapes, needs=nothing, keys=_CATEGORIES),
)
