"""Tree ensembles as flat arrays: every comparison is `x <= split`, and leaves are their own children."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

LEQ, LT, GTE, GT, EQ, NEQ, MEMBER, LEAF = range(8)

_MODES = {b"BRANCH_LEQ": LEQ, b"BRANCH_LT": LT, b"BRANCH_GTE": GTE, b"BRANCH_GT": GT, b"BRANCH_EQ": EQ}
_MODES |= {b"BRANCH_NEQ": NEQ, b"LEAF": LEAF}

_MOST_LEVELS = 4096
MOST_DENSE = 16
"""The most columns for which each leaf has a number for every column."""


@dataclass(frozen=True)
class Nodes:
    """The nodes of all trees as they are written in a model, with numbers of nodes as children.

    `members` has the values of each node with the mode MEMBER, by the node's number. `leaves` are the weights of
    leaves: the leaf's node, a column, and the number added there, in the order of addition.
    """

    roots: np.ndarray
    features: np.ndarray
    splits: np.ndarray
    modes: np.ndarray
    tracks: np.ndarray
    true: np.ndarray
    false: np.ndarray
    members: dict[int, np.ndarray]
    leaves: tuple[np.ndarray, np.ndarray, np.ndarray]

    def is_leaf(self, place: int) -> bool:
        """Whether a node is a leaf."""
        return bool(self.modes[place] == LEAF)


@dataclass(frozen=True)
class Forest:
    """An ensemble as a kernel reads it.

    `nodes` has a row (feature, split, child, other child) for each node: an element goes on to the first child if it is
    at most the split, else to the other one. The split is given by its bits if it is float32; `splits` has those of
    float64. `tracks` marks the nodes where NaN goes to the first child. Leaves are their own children, and have their
    number among the leaves in place of the split. `levels` is the depth of each tree.
    Leaf i adds the numbers `weights[starts[i] : starts[i + 1]]` to the columns `targets[…]`; without `starts`, it adds
    row i of `weights` to all columns.
    """

    features: int
    columns: int
    roots: np.ndarray
    levels: np.ndarray
    nodes: np.ndarray
    splits: np.ndarray | None
    weights: np.ndarray
    starts: np.ndarray | None
    targets: np.ndarray | None
    tracks: np.ndarray | None


def nodes_by_ids(attrs: Mapping[str, Any], weights: str) -> Nodes:
    """The nodes of a TreeEnsembleClassifier or TreeEnsembleRegressor; `weights` is the prefix of leaves' attributes.

    Raises NotImplementedError for attributes that contradict each other.
    """
    trees, ids = _array(attrs, "nodes_treeids"), _array(attrs, "nodes_nodeids")
    given = attrs.get("nodes_modes") or ()
    modes = np.fromiter((_MODES.get(m, NEQ) for m in given), np.int64, len(given))
    true, false = (_array(attrs, f"nodes_{side}nodeids") for side in ("true", "false"))
    if not len(trees) == len(ids) == len(modes) == len(true) == len(false):
        raise NotImplementedError("attributes of the nodes have different lengths")

    place, inner = _Places(trees, ids), modes != LEAF
    own = np.arange(len(ids))
    true, false = (place.of(trees, np.where(inner, side, ids)) for side in (true, false))
    true, false = np.where(inner, true, own), np.where(inner, false, own)
    is_child = np.zeros(len(ids), bool)
    is_child[true[inner]] = is_child[false[inner]] = True
    roots = np.flatnonzero(~is_child)
    if not np.array_equal(np.sort(trees[roots]), np.unique(trees)):
        raise NotImplementedError("a tree has no root, or several")
    tracks = _array(attrs, "nodes_missing_value_tracks_true")
    owners = place.of(_array(attrs, f"{weights}_treeids"), _array(attrs, f"{weights}_nodeids"))
    return Nodes(
        roots=roots,
        features=_array(attrs, "nodes_featureids"),
        splits=numbers(attrs, "nodes_values"),
        modes=modes,
        tracks=tracks if len(tracks) else np.zeros(len(ids), np.int64),
        true=true,
        false=false,
        members={},
        leaves=(owners, _array(attrs, f"{weights}_ids"), numbers(attrs, f"{weights}_weights")),
    )


class _Places:
    """The places of nodes by the numbers of their trees, and their own in these."""

    def __init__(self, trees: np.ndarray, ids: np.ndarray) -> None:
        self.trees, self.ids, self.known = trees, ids, (np.unique(trees), np.unique(ids))
        keys = self._keys(trees, ids)
        self.order = np.argsort(keys, kind="stable")
        self.keys = keys[self.order]
        if np.any(self.keys[1:] == self.keys[:-1]):
            raise NotImplementedError("two nodes of a tree have the same number")

    def _keys(self, trees: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """One number for both; those that do not occur have that of others."""
        return np.searchsorted(self.known[0], trees) * (len(self.ids) + 1) + np.searchsorted(self.known[1], ids)

    def of(self, trees: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """The places of these nodes. Raises NotImplementedError for one that does not exist."""
        if len(trees) != len(ids):
            raise NotImplementedError("attributes of the weights have different lengths")
        if not len(self.order) and len(ids):
            raise NotImplementedError("a weight belongs to no node")
        found = self.order[np.minimum(np.searchsorted(self.keys, self._keys(trees, ids)), len(self.keys) - 1)]
        wrong = np.flatnonzero((self.trees[found] != trees) | (self.ids[found] != ids))
        if len(wrong):
            raise NotImplementedError(f"node {ids[wrong[0]]} of tree {trees[wrong[0]]} does not exist")
        return found


def nodes_by_place(attrs: Mapping[str, Any]) -> Nodes:
    """The nodes of a TreeEnsemble, whose leaves are separate: they get numbers after those of the nodes."""
    modes = numpy_helper.to_array(attrs.get("nodes_modes")).astype(np.int64)
    count = len(modes)
    targets, weights = _array(attrs, "leaf_targetids"), numbers(attrs, "leaf_weights")
    true, false = (
        _array(attrs, f"nodes_{side}nodeids") + count * _array(attrs, f"nodes_{side}leafs")
        for side in ("true", "false")
    )
    own, more = np.arange(count, count + len(weights)), np.zeros(len(weights), np.int64)
    tracks = _array(attrs, "nodes_missing_value_tracks_true")
    members: dict[int, np.ndarray] = {}
    if np.any(modes == MEMBER):
        values = numbers(attrs, "membership_values")
        ends = np.flatnonzero(np.isnan(values))
        for number, end in zip(np.flatnonzero(modes == MEMBER), ends, strict=False):
            members[int(number)] = values[:end][ends[ends < end].max(initial=-1) + 1 :]
    splits = numbers(attrs, "nodes_splits")
    return Nodes(
        roots=_array(attrs, "tree_roots"),
        features=np.concatenate([_array(attrs, "nodes_featureids"), more]),
        splits=np.concatenate([splits, more.astype(splits.dtype)]),
        modes=np.concatenate([modes, more + LEAF]),
        tracks=np.concatenate([tracks if len(tracks) else np.zeros(count, np.int64), more]),
        true=np.concatenate([true, own]),
        false=np.concatenate([false, own]),
        members=members,
        leaves=(own, targets, weights),
    )


def forest(found: Nodes, features: int, columns: int, dtype: str, nothing: float = 0.0) -> Forest:
    """The arrays for `features` columns of data and `columns` of results.

    `nothing` is the number that a leaf without a weight adds.
    Raises NotImplementedError for nodes that are not trees, and for features and columns that do not exist.
    """
    _require_inside(found, features, columns)
    plain = _with_one_comparison(found, dtype)
    leaf_nodes = np.flatnonzero(plain.modes == LEAF)
    number_of = np.zeros(len(plain.modes), np.int64)
    number_of[leaf_nodes] = np.arange(len(leaf_nodes))
    levels = _levels(plain)
    is_leaf = plain.modes == LEAF
    tracked = (plain.tracks != 0) & ~is_leaf
    nodes = np.zeros((len(plain.modes), 4), np.int32)
    nodes[:, 0] = np.where(is_leaf, 0, plain.features)
    if dtype == "float32":
        nodes[:, 1] = plain.splits.astype(np.float32).view(np.int32)
    nodes[:, 1] = np.where(is_leaf, number_of, nodes[:, 1])
    nodes[:, 2], nodes[:, 3] = plain.true, plain.false
    owners, targets, weights = plain.leaves
    numbers = number_of[owners]
    if not np.all(is_leaf[owners]):
        keep = is_leaf[owners]
        numbers, targets, weights = numbers[keep], targets[keep], weights[keep]
    starts: np.ndarray | None = None
    if columns <= MOST_DENSE:
        dense = np.full((len(leaf_nodes), columns), nothing, dtype)
        if np.bincount(numbers * columns + targets).max(initial=0) > 1:
            raise NotImplementedError("a leaf has two weights of one class")
        dense[numbers, targets] = weights.astype(dtype)
        weights, ordered = dense, None
    else:
        order = np.argsort(numbers, kind="stable")
        counts = np.bincount(numbers, minlength=len(leaf_nodes))
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        weights, ordered = weights[order].astype(dtype), targets[order].astype(np.int32)
    return Forest(
        features,
        columns,
        plain.roots.astype(np.int32),
        levels.astype(np.int32),
        nodes,
        plain.splits.astype(np.float64) if dtype == "float64" else None,
        weights,
        starts,
        ordered,
        tracked.astype(np.int8) if tracked.any() else None,
    )


def _require_inside(found: Nodes, features: int, columns: int) -> None:
    count = len(found.modes)
    if not len(found.roots):
        raise NotImplementedError("the ensemble has no root")
    for name, numbers, limit in (
        ("child", found.true, count),
        ("child", found.false, count),
        ("root", found.roots, count),
        ("feature", found.features[found.modes != LEAF], features),
        ("class or target", found.leaves[1], columns),
    ):
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < limit):
            raise NotImplementedError(f"a {name} of the ensemble has a number that is not below {limit}")


def _with_one_comparison(found: Nodes, dtype: str) -> Nodes:
    """The same trees with all comparisons as `x <= split`, which is false for NaN."""
    modes, splits = found.modes.copy(), found.splits.astype(dtype)
    true, false, tracks = found.true.copy(), found.false.copy(), (found.tracks != 0) & (found.modes != LEAF)
    for old, new in (GTE, LT), (GT, LEQ), (NEQ, EQ):
        inverted = modes == old
        true[inverted], false[inverted] = false[inverted], true[inverted]
        # NaN is not >= and not >, so it takes the branch that is now the first; it is always != a number
        tracks[inverted] = False if old == NEQ else ~tracks[inverted]
        modes[inverted] = new
    more: list[tuple[int, float, int, int, int, bool]] = []  # feature, split, mode, true, false, tracks
    count = len(modes)
    for number in np.flatnonzero((modes == EQ) | (modes == MEMBER)).tolist():
        values = found.members.get(number, splits[number : number + 1]).astype(dtype)
        feature, yes, no, track = int(found.features[number]), int(true[number]), int(false[number]), tracks[number]
        if not len(values):
            values = np.array([np.nan], dtype)  # an empty set has no member
        # x == v is x <= v and not x < v; each further value is tried where the one before differs
        place = number
        for index, value in enumerate(values):
            last = index == len(values) - 1
            other = no if last else count + len(more) + 1
            entry = (feature, float(value), LEQ, count + len(more), other, bool(track and index == 0))
            more.append((feature, float(value), LT, other, yes, False))
            if place == number:
                _, splits[number], modes[number], true[number], false[number], tracks[number] = entry
            else:
                more[place - count] = entry
            if not last:
                place = count + len(more)
                more.append(entry)
    extra = [np.array(column) for column in zip(*more, strict=True)] or [np.array([])] * 6
    features, values, kinds, trues, falses, marks = extra
    joined = Nodes(
        found.roots,
        np.concatenate([found.features, features]).astype(np.int64),
        np.concatenate([splits, values.astype(dtype)]),
        np.concatenate([modes, kinds]).astype(np.int64),
        np.concatenate([tracks, marks]).astype(bool),
        np.concatenate([true, trues]).astype(np.int64),
        np.concatenate([false, falses]).astype(np.int64),
        {},
        found.leaves,
    )
    below = joined.modes == LT
    # x < v is x <= the number before v; nothing is below -inf
    lower = np.nextafter(joined.splits[below], np.array(-np.inf, dtype))
    # A denormal number is zero to compiled code: what is below 0 is at most the largest normal number below it.
    tiny = np.finfo(dtype).tiny
    lower = np.where(np.abs(lower) < tiny, np.where(lower < 0, -tiny, np.zeros_like(lower)), lower)
    joined.splits[below] = np.where(joined.splits[below] == -np.inf, np.array(np.nan, dtype), lower)
    joined.modes[below] = LEQ
    return joined


def _levels(found: Nodes) -> np.ndarray:
    """The depth of each tree: the most comparisons from its root to a leaf."""
    depth = np.zeros(len(found.roots), np.int64)
    front, owner, count = found.roots, np.arange(len(found.roots)), len(found.modes)
    for level in range(_MOST_LEVELS):
        inner = found.modes[front] != LEAF
        if not inner.any():
            return depth
        front, owner = front[inner], owner[inner]
        depth[owner] = level + 1
        both = np.concatenate([found.true[front], found.false[front]])
        # Each child once for each tree: nodes that share children would be as many as paths to them.
        owner, front = np.divmod(np.unique(np.concatenate([owner, owner]) * count + both), count)
    raise NotImplementedError(f"a tree has more than {_MOST_LEVELS} levels")


def _array(attrs: Mapping[str, Any], name: str) -> np.ndarray:
    found = attrs.get(name) or ()
    return np.fromiter(found, np.int64, len(found))


def numbers(attrs: Mapping[str, Any], name: str) -> np.ndarray:
    """An attribute of floats, also as a tensor: float32, or the tensor's type."""
    for key in (name, f"{name}_as_tensor"):
        found = attrs.get(key)
        if isinstance(found, onnx.TensorProto):
            return np.asarray(numpy_helper.to_array(found))
        if isinstance(found, Sequence) and len(found):
            return np.fromiter(found, np.float32, len(found))
    return np.array([], np.float32)
