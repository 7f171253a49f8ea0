"""The kernel that makes probabilities of classes from those of pairs of classes.

The second method of Wu, Lin and Weng, "Probability estimates for multi-class classification by pairwise coupling"
(2004), with the start and the end of libsvm's and ONNX Runtime's iteration, which ends far from convergence.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.written import OPAQUE, PATTERN, ROWS, WRITTEN

_ROUNDS = 100


def write_coupling(classes: int) -> tirx.PrimFunc:
    """The kernel `(chances[rows, pairs], result[rows, classes])`; a chance is that of the first class of a pair."""
    with IRBuilder() as builder, build.prim_func(s_tir=True):
        build.func_name("coupling")
        build.func_attr({"tirx.noalias": True, WRITTEN: True, ROWS: True, PATTERN: OPAQUE})
        rows = tirx.Var("rows", "int64")
        chances = build.arg("chances", build.Buffer((rows, _index(classes * (classes - 1) // 2)), "float32"))
        result = build.arg("result", build.Buffer((rows, _index(classes)), "float32"))
        with build.serial(_index(0), rows) as row:
            _Row(classes, chances, result, row).write()
    return builder.get()


class _Row:
    """The iteration for one row."""

    def __init__(self, classes: int, chances: tirx.Buffer, result: tirx.Buffer, row: tirx.Expr) -> None:
        self.classes, self.chances, self.result, self.row = classes, chances, result, row
        self.q = build.alloc_buffer((_index(classes * classes),), "float32", scope="global")
        self.products = build.alloc_buffer((_index(classes),), "float32", scope="global")
        # the sum, the largest error, and whether the iteration goes on
        self.numbers = build.alloc_buffer((_index(3),), "float32", scope="global")
        self.round = build.alloc_buffer((_index(1),), "int32", scope="global")

    def write(self) -> None:
        self._matrix()
        self._each(lambda i: build.buffer_store(self.result, _f32(1 / self.classes), [self.row, i]))
        build.buffer_store(self.numbers, _f32(1), [_index(2)])
        build.buffer_store(self.round, tirx.const(0, "int32"), [_index(0)])
        goes = self.numbers[_index(2)] > _f32(0)
        with build.While(tirx.all(self.round[_index(0)] < tirx.const(_ROUNDS, "int32"), goes)):
            self._errors()
            with build.If(self.numbers[_index(1)] < _f32(0.005 / self.classes)):
                with build.Then():
                    build.buffer_store(self.numbers, _f32(0), [_index(2)])
                with build.Else():
                    self._each(self._update)
            build.buffer_store(self.round, self.round[_index(0)] + tirx.const(1, "int32"), [_index(0)])

    def _each(self, body: Callable[[tirx.Expr], None]) -> None:
        with build.serial(_index(0), _index(self.classes)) as number:
            body(number)

    def _p(self, i: tirx.Expr) -> tirx.Expr:
        return self.result[self.row, i]

    def _matrix(self) -> None:
        pair: dict[tuple[int, int], tirx.Expr] = {}
        for i in range(self.classes):
            for j in range(i + 1, self.classes):
                pair[i, j] = self.chances[self.row, _index(len(pair) // 2)]
                pair[j, i] = _f32(1) - pair[i, j]
        for i in range(self.classes):
            total = _f32(0)
            for j in range(self.classes):
                if i != j:
                    total = total + pair[j, i] * pair[j, i]
                    self._set(i, j, -(pair[j, i] * pair[i, j]))
            self._set(i, i, total)

    def _set(self, i: int, j: int, value: tirx.Expr) -> None:
        build.buffer_store(self.q, value, [_index(i * self.classes + j)])

    def _at(self, i: tirx.Expr, j: tirx.Expr) -> tirx.Expr:
        return self.q[i * _index(self.classes) + j]

    def _errors(self) -> None:
        """The products Q p, their sum weighted by p, and the largest difference from it."""
        total, error = [_index(0)], [_index(1)]
        build.buffer_store(self.numbers, _f32(0), total)

        def product(i: tirx.Expr) -> None:
            build.buffer_store(self.products, _f32(0), [i])
            self._each(lambda j: build.buffer_store(self.products, self.products[i] + self._at(i, j) * self._p(j), [i]))
            build.buffer_store(self.numbers, self.numbers[_index(0)] + self._p(i) * self.products[i], total)

        self._each(product)
        build.buffer_store(self.numbers, _f32(0), error)
        self._each(
            lambda i: build.buffer_store(
                self.numbers,
                tirx.max(self.numbers[_index(1)], tirx.abs(self.products[i] - self.numbers[_index(0)])),
                error,
            )
        )

    def _update(self, i: tirx.Expr) -> None:
        total = self.numbers[_index(0)]
        step = build.bind((total - self.products[i]) / self._at(i, i))
        scale = build.bind(_f32(1) + step)
        build.buffer_store(self.result, self._p(i) + step, [self.row, i])
        moved = total + step * (step * self._at(i, i) + _f32(2) * self.products[i])
        build.buffer_store(self.numbers, moved / scale / scale, [_index(0)])

        def scaled(j: tirx.Expr) -> None:
            build.buffer_store(self.products, (self.products[j] + step * self._at(i, j)) / scale, [j])
            build.buffer_store(self.result, self._p(j) / scale, [self.row, j])

        self._each(scaled)


def _index(value: int) -> tirx.Expr:
    return tirx.const(value, "int64")


def _f32(value: float) -> tirx.Expr:
    return tirx.const(value, "float32")
