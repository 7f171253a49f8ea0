"""Operators of `ai.onnx.ml`: trees, linear models, support vectors and encoders of features."""

from __future__ import annotations

from collections.abc import Callable

from heterocc.compiler.operators.record import ML, Operator, nothing
from heterocc.compiler.symbolic.given import Given
from heterocc.compiler.symbolic.requirement import Needs


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
    features = needs.given.attribute("nodes_featureids") or ()
    modes = () if needs.given.node.op_type == "TreeEnsemble" else needs.given.attribute("nodes_modes") or ()
    asked = [int(n) for place, n in enumerate(features) if modes[place : place + 1] != [b"LEAF"]]
    if len(needs.shape(0)) == 2:
        needs.at_least(0, 1, max(asked, default=0) + 1)


_HITRATES = "nodes_hitrates nodes_hitrates_as_tensor"
_DEFAULTS = "default_float default_int64 default_string default_tensor"

OPERATORS = (
    Operator("TreeEnsembleClassifier", ML, needs=_asked, unread=_HITRATES),
    Operator("TreeEnsembleRegressor", ML, needs=_asked, unread=_HITRATES),
    Operator("TreeEnsemble", ML, needs=_asked, unread="nodes_hitrates"),
    Operator("LinearClassifier", ML, needs=_as_many(_per_score), unread="multi_class"),
    Operator("LinearRegressor", ML, needs=_as_many(_per_score)),
    Operator("SVMClassifier", ML, needs=_as_many(_per_vector), unread="kernel_params"),
    Operator("SVMRegressor", ML, needs=_as_many(_per_vector), unread="kernel_params"),
    Operator("FeatureVectorizer", ML, needs=_joined),
    *(Operator(name, ML, needs=_each) for name in ("Scaler", "Imputer")),
    Operator("LabelEncoder", ML, needs=nothing, unread=_DEFAULTS),
    *(Operator(n, ML, needs=nothing) for n in ("ArrayFeatureExtractor", "Binarizer", "Normalizer", "OneHotEncoder")),
)
