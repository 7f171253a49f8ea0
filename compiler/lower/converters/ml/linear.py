"""Converters of linear models and support vector machines."""

from __future__ import annotations

import numpy as np
from tvm import relax

from heterocc.compiler.lower.converters.ml.coupling import write_coupling
from heterocc.compiler.lower.converters.ml.ensembles import numbers
from heterocc.compiler.lower.converters.ml.scores import first_largest, labels_at, matrix, row, transformed, width
from heterocc.compiler.lower.converters.registry import ML, Context, converter
from heterocc.compiler.lower.converters.values import as_dtype, dims_of, scalar
from heterocc.compiler.lower.straight import constant

op = relax.op

_F32 = "float32"


@converter("LinearRegressor", domain=ML)
def linear_regressor(ctx: Context, data: relax.Expr) -> relax.Expr:
    """LinearRegressor: [rows, targets], float32."""
    targets = int(ctx.attrs.get("targets", 1))
    found = _product(ctx, data, numbers(ctx.attrs, "coefficients"), targets)
    base = numbers(ctx.attrs, "intercepts")
    if len(base):
        found = ctx.bb.emit(op.add(found, row(base, _F32)))
    transform = ctx.text("post_transform", "NONE")
    if targets == 1 and transform != "PROBIT":
        return found  # as ONNX Runtime, which transforms a single target only so
    return transformed(ctx, found, transform)


@converter("LinearClassifier", domain=ML)
def linear_classifier(ctx: Context, data: relax.Expr) -> list[relax.Expr]:
    """LinearClassifier with integer labels: labels [rows], and scores [rows, classes] as float32."""
    labels = _labels(ctx)
    base = numbers(ctx.attrs, "intercepts")
    classes = len(base) or len(labels)
    found = _product(ctx, data, numbers(ctx.attrs, "coefficients"), classes)
    if len(base):
        found = ctx.bb.emit(op.add(found, row(base, _F32)))
    transform = ctx.text("post_transform", "NONE")
    if classes > 1:
        if len(labels) < classes:
            raise NotImplementedError(f"{classes} classes have {len(labels)} labels")
        return [labels_at(ctx, labels, first_largest(ctx, found)), transformed(ctx, found, transform)][: ctx.outputs]
    positive = ctx.bb.emit(op.greater(found, scalar(0, _F32)))
    if len(labels) != 2:
        return [labels_at(ctx, [0, 1], positive), transformed(ctx, found, transform)][: ctx.outputs]
    if transform == "LOGISTIC":
        scores = op.sigmoid(op.multiply(found, row([-1, 1], _F32)))
    elif transform == "PROBIT":
        raise NotImplementedError("PROBIT of one score of two classes is not supported")
    else:
        scores = op.add(row([1, 0], _F32), op.multiply(found, row([-1, 1], _F32)))
    return [labels_at(ctx, labels, positive), ctx.bb.normalize(scores)][: ctx.outputs]


@converter("SVMRegressor", domain=ML)
def svm_regressor(ctx: Context, data: relax.Expr) -> relax.Expr:
    """SVMRegressor: [rows, 1], float32."""
    factors, shift = numbers(ctx.attrs, "coefficients"), numbers(ctx.attrs, "rho")
    count = int(ctx.attrs.get("n_supports", 0))
    if count > 0:
        found = _kernels(ctx, data, numbers(ctx.attrs, "support_vectors"), count, 0.0)
        found = op.add(op.matmul(found, constant(factors.astype(np.float32).reshape(-1, 1))), row(shift[:1], _F32))
    else:
        found = _kernels(ctx, data, factors, 1, float(shift[0]), linear=True)
    if int(ctx.attrs.get("one_class", 0)):
        found = op.where(op.greater(ctx.bb.normalize(found), scalar(0, _F32)), scalar(1, _F32), scalar(-1, _F32))
    return ctx.bb.normalize(found)


@converter("SVMClassifier", domain=ML)
def svm_classifier(ctx: Context, data: relax.Expr) -> list[relax.Expr]:
    """SVMClassifier with integer labels: labels [rows], and scores as ONNX Runtime orders them."""
    labels, transform = _labels(ctx), ctx.text("post_transform", "NONE")
    counts = [int(n) for n in ctx.attrs.get("vectors_per_class", ())]
    factors, shift = numbers(ctx.attrs, "coefficients"), numbers(ctx.attrs, "rho")
    classes = len(labels)
    if classes < 2:
        raise NotImplementedError("a classifier with one class is not supported")
    if not sum(counts):
        found = _kernels(ctx, data, factors, classes, float(shift[0]), linear=True)
        if classes == 2:
            raise NotImplementedError("a linear support vector machine of two classes is not supported")
        return [labels_at(ctx, labels, first_largest(ctx, found)), transformed(ctx, found, transform)][: ctx.outputs]
    if len(counts) != classes:
        raise NotImplementedError(f"{classes} classes have {len(counts)} numbers of vectors")
    similar = _kernels(ctx, data, numbers(ctx.attrs, "support_vectors"), sum(counts), 0.0)
    found = _pairs(ctx, similar, counts, factors, shift)
    winner = _votes(ctx, found, classes)
    if "prob_a" in ctx.attrs and len(ctx.attrs["prob_a"]):
        scores = _probabilities(ctx, found, classes)
        return [labels_at(ctx, labels, winner), transformed(ctx, scores, transform)][: ctx.outputs]
    if classes > 2:
        return [labels_at(ctx, labels, winner), transformed(ctx, found, transform)][: ctx.outputs]
    if transform == "NONE":
        scores = op.multiply(found, row([-1, 1], _F32))
    elif transform == "LOGISTIC":
        scores = op.sigmoid(op.multiply(found, row([-1, 1], _F32)))
    else:
        raise NotImplementedError(f"{transform} of one score of two classes is not supported")
    return [labels_at(ctx, labels, winner), ctx.bb.normalize(scores)][: ctx.outputs]


def _labels(ctx: Context) -> list[int]:
    if len(ctx.attrs.get("classlabels_strings", ())):
        raise NotImplementedError("the labels are strings")
    return [int(n) for n in ctx.attrs.get("classlabels_ints", ())]


def _floats(ctx: Context, data: relax.Expr) -> relax.Expr:
    return ctx.bb.emit(as_dtype(matrix(ctx, data), _F32))


def _product(ctx: Context, data: relax.Expr, factors: np.ndarray, count: int) -> relax.Expr:
    """The data [rows, features] times factors given as [count, features]; further ones are left out."""
    rows = _floats(ctx, data)
    needed = count * width(rows)
    if len(factors) < needed:
        raise NotImplementedError(f"{len(factors)} coefficients are fewer than the {needed} that the features need")
    weights = np.ascontiguousarray(factors[:needed].astype(np.float32).reshape(count, -1).T)
    return ctx.bb.emit(op.matmul(rows, constant(weights)))


def _kernels(
    ctx: Context, data: relax.Expr, vectors: np.ndarray, count: int, shift: float, *, linear: bool = False
) -> relax.Expr:
    """The kernel function of each row and each vector, [rows, count]."""
    kind = "LINEAR" if linear else ctx.text("kernel_type", "LINEAR")
    gamma, coefficient, degree = [*(float(n) for n in ctx.attrs.get("kernel_params", ())), 0.0, 0.0, 0.0][:3]
    product = _product(ctx, data, vectors, count)
    if kind == "LINEAR":
        return ctx.bb.emit(op.add(product, scalar(shift, _F32))) if shift else product
    if kind == "RBF":
        # |x - v|² is summed up from differences, as |x|² - 2 x·v + |v|² would lose digits
        rows = _floats(ctx, data)
        wide = op.expand_dims(rows, 1)
        each = constant(vectors[: count * width(rows)].astype(np.float32).reshape(1, count, -1))
        difference = ctx.bb.emit(op.subtract(wide, each))
        squares = ctx.bb.emit(op.sum(op.multiply(difference, difference), 2))
        return ctx.bb.emit(op.exp(op.multiply(scalar(-gamma, _F32), squares)))
    inner = ctx.bb.emit(op.add(op.multiply(scalar(gamma, _F32), product), scalar(coefficient, _F32)))
    if kind == "SIGMOID":
        return ctx.bb.emit(op.tanh(inner))
    if kind == "POLY":
        if degree == int(degree) and 1 <= degree <= 8:
            power = inner
            for _ in range(int(degree) - 1):
                power = op.multiply(power, inner)
            return ctx.bb.emit(power)
        return ctx.bb.emit(op.power(inner, scalar(degree, _F32)))
    raise NotImplementedError(f"the kernel {kind} is not known")


def _pairs(ctx: Context, similar: relax.Expr, counts: list[int], factors: np.ndarray, shift: np.ndarray) -> relax.Expr:
    """The score of each pair of classes, [rows, pairs]: a product with the factors of both classes' vectors."""
    classes, vectors = len(counts), sum(counts)
    starts = np.concatenate([[0], np.cumsum(counts)])
    given = factors.astype(np.float32)[: (classes - 1) * vectors].reshape(classes - 1, vectors)
    columns = []
    for i in range(classes - 1):
        for j in range(i + 1, classes):
            one = np.zeros(vectors, np.float32)
            one[starts[i] : starts[i + 1]] = given[j - 1, starts[i] : starts[i + 1]]
            one[starts[j] : starts[j + 1]] = given[i, starts[j] : starts[j + 1]]
            columns.append(one)
    weights = np.ascontiguousarray(np.stack(columns, 1))
    return ctx.bb.emit(op.add(op.matmul(similar, constant(weights)), row(shift[: len(columns)], _F32)))


def _votes(ctx: Context, pairs: relax.Expr, classes: int) -> relax.Expr:
    """The class that wins most pairs, the first of equal ones: [rows]."""
    wins, losses = [], []
    for i in range(classes - 1):
        for j in range(i + 1, classes):
            wins.append(np.eye(classes, dtype=np.float32)[i])
            losses.append(np.eye(classes, dtype=np.float32)[j])
    first = ctx.bb.emit(op.astype(op.greater(pairs, scalar(0, _F32)), _F32))
    second = ctx.bb.emit(op.subtract(scalar(1, _F32), first))
    for_first = ctx.bb.emit(op.matmul(first, constant(np.stack(wins))))
    for_second = ctx.bb.emit(op.matmul(second, constant(np.stack(losses))))
    return first_largest(ctx, ctx.bb.emit(op.add(for_first, for_second)))


def _probabilities(ctx: Context, pairs: relax.Expr, classes: int) -> relax.Expr:
    """Probabilities of the classes, [rows, classes], from the scores of pairs."""
    a, b = (np.array(ctx.attrs[name], np.float32) for name in ("prob_a", "prob_b"))
    value = ctx.bb.emit(op.add(op.multiply(pairs, row(a, _F32)), row(b, _F32)))
    inside = op.subtract(scalar(1, _F32), op.sigmoid(value))
    least = np.float32(1e-7)
    most = float(np.float32(1) - least)
    chances = ctx.bb.emit(op.minimum(op.maximum(inside, scalar(float(least), _F32)), scalar(most, _F32)))
    if ctx.backend != "cpu":
        raise NotImplementedError("probabilities of support vector machines run on CPUs only")
    kernel = ctx.bb.add_func(write_coupling(classes).without_attr("global_symbol"), "coupling")
    return ctx.bb.emit(relax.call_tir(kernel, [chances], relax.TensorType((dims_of(pairs)[0], classes), _F32)))
