"""Converters of TreeEnsembleClassifier, TreeEnsembleRegressor and TreeEnsemble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from tvm import relax

from heterocc.compiler.lower.converters.ml.ensembles import LEAF, Nodes, forest, nodes_by_ids, nodes_by_place, numbers
from heterocc.compiler.lower.converters.ml.scores import (
    TRANSFORMS,
    as_rows,
    column,
    first_largest,
    labels_at,
    matrix,
    row,
    transformed,
    width,
)
from heterocc.compiler.lower.converters.ml.tree_kernel import NOTHING, Aggregate, padded, tables, write_trees
from heterocc.compiler.lower.converters.registry import ML, Context, converter
from heterocc.compiler.lower.converters.values import as_dtype, dims_of, dtype_of, scalar
from heterocc.compiler.lower.straight import constant

op = relax.op

_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


@converter("TreeEnsembleRegressor", domain=ML)
def tree_ensemble_regressor(ctx: Context, data: relax.Expr) -> relax.Expr:
    """TreeEnsembleRegressor: [rows, targets], float32."""
    found = _regression(
        ctx,
        data,
        nodes_by_ids(ctx.attrs, "target"),
        ctx.text("aggregate_function", "SUM"),
        ctx.text("post_transform", "NONE"),
        numbers(ctx.attrs, "base_values"),
    )
    return as_dtype(found, "float32")


@converter("TreeEnsemble", domain=ML)
def tree_ensemble(ctx: Context, data: relax.Expr) -> relax.Expr:
    """TreeEnsemble: [rows, targets], of the data's type."""
    aggregate = _AGGREGATES[int(ctx.attrs.get("aggregate_function", 1))]
    transform = TRANSFORMS[int(ctx.attrs.get("post_transform", 0))]
    found = _regression(ctx, data, nodes_by_place(ctx.attrs), aggregate, transform, np.array([], np.float32))
    return as_dtype(found, dtype_of(data))


def _regression(
    ctx: Context, data: relax.Expr, nodes: Nodes, aggregate: str, transform: str, base: np.ndarray
) -> relax.Expr:
    targets = int(ctx.attrs.get("n_targets", 0)) or int(nodes.leaves[1].max(initial=0)) + 1
    kind: Aggregate = "min" if aggregate == "MIN" else "max" if aggregate == "MAX" else "sum"
    counted = sorted(set(range(targets)) - _always(nodes)) if targets > 1 and kind == "sum" else []
    sums = _aggregated(ctx, data, _with_counts(nodes, targets, counted), targets + len(counted), kind)
    dtype = dtype_of(sums)
    nothing = scalar(0, dtype)
    found, some = sums, None
    if kind != "sum":
        some = ctx.bb.emit(op.not_equal(sums, scalar(NOTHING[kind], dtype)))
        found = op.where(some, sums, nothing)
    elif counted:
        found = ctx.bb.emit(op.strided_slice(sums, [1], [0], [targets], assume_inbound=True))
        some = _reached(ctx, sums, targets, counted)
    if aggregate == "AVERAGE":
        found = op.divide(found, scalar(len(nodes.roots), dtype))
    if len(base) == targets:
        found = op.add(found, row(base, dtype))
    if targets == 1:
        # ONNX Runtime transforms a single target only so
        return ctx.bb.normalize(transformed(ctx, found, "PROBIT") if transform == "PROBIT" else found)
    if some is not None:
        found = op.where(some, found, nothing)  # ONNX Runtime adds no base value to a target that a row does not reach
    return ctx.bb.normalize(transformed(ctx, found, transform))


@converter("TreeEnsembleClassifier", domain=ML)
def tree_ensemble_classifier(ctx: Context, data: relax.Expr) -> list[relax.Expr]:
    """TreeEnsembleClassifier with integer labels: labels [rows], and scores [rows, classes] as float32.

    Labels and scores of two classes follow ONNX Runtime, because ONNX does not define them for all ensembles.
    """
    labels = [int(n) for n in ctx.attrs.get("classlabels_int64s", ())]
    if not labels:
        raise NotImplementedError("the labels are strings")
    if len(labels) < 2:
        raise NotImplementedError("an ensemble with one class is not supported")
    nodes, base = nodes_by_ids(ctx.attrs, "class"), numbers(ctx.attrs, "base_values")
    transform = ctx.text("post_transform", "NONE")
    scores = _Scores(ctx, data, nodes, len(labels))
    if len(labels) > 2:
        label, found = _of_many(ctx, scores, base, transform)
        label = labels_at(ctx, labels, label)
    else:
        positive, found = _of_two(ctx, scores, base, transform, bool(np.all(nodes.leaves[2] >= 0)))
        label = labels_at(ctx, labels if len(scores.used) == 1 else (0, 1), positive)
    return [label, as_dtype(ctx.bb.normalize(found), "float32")][: ctx.outputs]


class _Scores:
    """The sums of the classes, and whether a row reaches a leaf with a weight of a class.

    `used` are the classes with a column: those that have weights of two, all of more. Of those that some rows have no
    weight of, a further column counts.
    """

    def __init__(self, ctx: Context, data: relax.Expr, nodes: Nodes, classes: int) -> None:
        self.ctx, self.classes = ctx, classes
        used = sorted({int(n) for n in nodes.leaves[1]}) or [0]
        self.used = used if classes == 2 else list(range(classes))
        if used[0] < 0 or used[-1] >= classes:
            raise NotImplementedError("a weight belongs to a class without a label")
        always = _always(nodes)
        self.counted = [n for n in self.used if n not in always]
        owners, ids, weights = nodes.leaves
        places = replace(nodes, leaves=(owners, np.searchsorted(self.used, ids), weights))
        counted = [self.used.index(n) for n in self.counted]
        columns = len(self.used) + len(counted)
        self.sums = _aggregated(ctx, data, _with_counts(places, len(self.used), counted), columns, "sum")
        self.dtype, self.rows = dtype_of(self.sums), dims_of(self.sums)[0]

    def score(self, number: int) -> relax.Expr:
        """The sum of a class, [rows, 1]; zeros if it has no weights."""
        if number not in self.used:
            return self.ctx.bb.emit(op.full((self.rows, 1), scalar(0, self.dtype), self.dtype))
        return column(self.ctx, self.sums, self.used.index(number))

    def has(self, number: int) -> relax.Expr | bool:
        """Whether rows have a weight of a class: a constant, or [rows, 1]."""
        if number not in self.counted:
            return number in self.used
        count = column(self.ctx, self.sums, len(self.used) + self.counted.index(number))
        return self.ctx.bb.emit(op.greater(count, scalar(0, self.dtype)))

    def chosen(self, number: int, yes: relax.Expr, no: relax.Expr) -> relax.Expr:
        """`yes` for the rows that have a weight of a class, `no` for the others."""
        has = self.has(number)
        if isinstance(has, bool):
            return yes if has else no
        return op.where(has, yes, no)

    def written(self, number: int, score: relax.Expr) -> relax.Expr:
        """A class's score, 0 for rows without a weight of it, as [rows, 1]."""
        found = self.ctx.bb.normalize(self.chosen(number, score, scalar(0, self.dtype)))
        return as_rows(found, self.rows, 1)


def _of_many(ctx: Context, scores: _Scores, base: np.ndarray, transform: str) -> tuple[relax.Expr, relax.Expr]:
    """The number of the class, and the scores, of more than two classes."""
    classes = scores.classes
    if len(base) not in (0, classes):
        raise NotImplementedError(f"{len(base)} base values for {classes} classes are not supported")
    found = scores.sums
    if scores.counted:
        found = ctx.bb.emit(op.strided_slice(found, [1], [0], [classes], assume_inbound=True))
    if len(base):
        found = ctx.bb.emit(op.add(found, row(base, scores.dtype)))
    ranked = found
    if not len(base) and scores.counted:
        some = _reached(ctx, scores.sums, classes, scores.counted)
        ranked = ctx.bb.emit(op.where(some, found, scalar(-np.inf, scores.dtype)))
    return first_largest(ctx, ranked), transformed(ctx, found, transform)


def _of_two(
    ctx: Context, scores: _Scores, base: np.ndarray, transform: str, all_positive: bool
) -> tuple[relax.Expr, relax.Expr]:
    """Whether a row is of the second of two classes, [rows, 1], and the scores."""
    if len(base) > 2:
        raise NotImplementedError(f"{len(base)} base values for 2 classes are not supported")
    dtype, one_score = scores.dtype, len(scores.used) == 1
    first, second = scores.score(0), scores.score(1)
    if len(base) == 2:
        both = op.add(first, scalar(base[1], dtype))
        alone = op.add(first, scalar(base[0], dtype))
        first = scores.chosen(1, op.negative(both), alone)
        second = both
    elif len(base) == 1:
        first = op.add(first, scalar(base[0], dtype))
    first, second = (as_rows(ctx.bb.normalize(s), scores.rows, 1) for s in (first, second))
    first, second = ctx.bb.emit(first), ctx.bb.emit(second)
    alone = first if len(base) == 2 else scores.written(0, first)
    positive = ctx.bb.emit(scores.chosen(1, second, alone))
    limit = scalar(0.5 if one_score and all_positive else 0, dtype)
    pair = op.concat([scores.written(0, first), scores.written(1, second)], 1)
    found = transformed(ctx, ctx.bb.emit(pair), transform)
    if scores.has(1) is not True and len(base) < 2 and not (len(base) == 1 and not one_score):
        single = ctx.bb.emit(op.multiply(alone, row([-1, 1], dtype)))
        if transform == "LOGISTIC":
            single = op.sigmoid(single)
        elif transform == "PROBIT":
            single = transformed(ctx, ctx.bb.emit(op.broadcast_to(alone, (scores.rows, 2))), "PROBIT")
        elif one_score and all_positive:
            single = op.add(row([1, 0], dtype), single)
        found = scores.chosen(1, found, single)
    return ctx.bb.emit(op.greater(positive, limit)), ctx.bb.normalize(found)


def _with_counts(nodes: Nodes, columns: int, counted: Sequence[int]) -> Nodes:
    """The nodes with further columns, from number `columns` on, that count the weights of `counted` columns."""
    owners, ids, weights = nodes.leaves
    marks = np.isin(ids, counted)
    leaves = (
        np.concatenate([owners, owners[marks]]),
        np.concatenate([ids, columns + np.searchsorted(counted, ids[marks])]).astype(np.int64),
        np.concatenate([weights, np.ones(int(marks.sum()), weights.dtype)]),
    )
    return replace(nodes, leaves=leaves)


def _reached(ctx: Context, sums: relax.Expr, columns: int, counted: Sequence[int]) -> relax.Expr:
    """Whether rows have a weight of each column, by the counts that follow `columns` columns of the sums."""
    dtype = dtype_of(sums)
    counts = ctx.bb.emit(op.strided_slice(sums, [1], [columns], [columns + len(counted)], assume_inbound=True))
    if len(counted) < columns:
        spread = constant(np.eye(columns, dtype=dtype)[list(counted)])
        always = row([float(n not in counted) for n in range(columns)], dtype)
        counts = ctx.bb.emit(op.add(ctx.bb.emit(op.matmul(counts, spread)), always))
    return ctx.bb.emit(op.greater(counts, scalar(0, dtype)))


def _always(nodes: Nodes) -> set[int]:
    """The classes of which each row has a weight: those of which all leaves of one tree have one."""
    owners, ids, _ = nodes.leaves
    classes_of: dict[int, set[int]] = {}
    for owner, number in zip(owners.tolist(), ids.tolist(), strict=True):
        classes_of.setdefault(owner, set()).add(number)
    found: set[int] = set()
    for root in nodes.roots.tolist():
        inside, open_ = {root}, [root]
        common: set[int] | None = None
        while open_ and common != set():
            place = open_.pop()
            if nodes.is_leaf(place):
                here = classes_of.get(place, set())
                common = set(here) if common is None else common & here
                continue
            for child in (int(nodes.true[place]), int(nodes.false[place])):
                if child not in inside:
                    inside.add(child)
                    open_.append(child)
        found |= common or set()
    return found


def _aggregated(ctx: Context, data: relax.Expr, nodes: Nodes, columns: int, kind: Aggregate) -> relax.Expr:
    """The sums, minima or maxima of the leaves: [rows, columns]; NOTHING[kind] where a row has none."""
    if ctx.backend != "cpu":
        raise NotImplementedError("tree ensembles run on CPUs only")
    dtype = "float64" if dtype_of(data) == "float64" else "float32"
    data = ctx.bb.emit(as_dtype(matrix(ctx, data), dtype))
    if not isinstance(dims_of(data)[1], int):  # a run has checked that there are as many
        asked = int(nodes.features[nodes.modes != LEAF].max(initial=0)) + 1
        data = ctx.bb.emit(op.strided_slice(data, [1], [0], [asked], assume_inbound=True))
    made = padded(forest(nodes, width(data), columns, dtype, NOTHING[kind]), kind)
    kernel = ctx.bb.add_func(write_trees(made, kind).without_attr("global_symbol"), "trees")
    arguments: Sequence[relax.Expr] = [data, *(constant(array) for array in tables(made))]
    return ctx.bb.emit(relax.call_tir(kernel, list(arguments), relax.TensorType((dims_of(data)[0], columns), dtype)))
