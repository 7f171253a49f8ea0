"""The kernel of a tree ensemble: sums, minima or maxima of the leaves that each row of the data reaches.

A walk takes one comparison for each level of a tree, without branches: leaves are their own children. Several walks are
interleaved, because each waits for memory at every step: of many rows in one tree, or of one row in many trees. Leaves
are added in the order of the trees, as ONNX Runtime adds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Literal

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.converters.ml.ensembles import Forest
from heterocc.compiler.lower.written import OPAQUE, PATTERN, ROWS, WRITTEN

Aggregate = Literal["sum", "min", "max"]

WALKS = 16
"""The walks that are interleaved."""

_MOST_FIXED_LEVELS = 32
"""The most levels of a tree that are walked without a check of whether all walks have ended."""

_LEVELS_A_CHECK = 8

NOTHING = {"sum": 0.0, "min": np.inf, "max": -np.inf}
"""The result of an aggregation of no leaves."""


def padded(forest: Forest, aggregate: Aggregate) -> Forest:
    """The forest with trees of one leaf that adds nothing, so that the number of trees is a multiple of WALKS."""
    missing = -len(forest.roots) % WALKS
    if not missing:
        return forest
    place = len(forest.nodes)
    number = len(forest.weights) if forest.starts is None else len(forest.starts) - 1
    leaf = np.array([[0, number, place, place]], np.int32)
    weights, starts = forest.weights, forest.starts
    if starts is None:
        weights = np.concatenate([weights, np.full((1, forest.columns), NOTHING[aggregate], weights.dtype)])
    else:
        starts = np.concatenate([starts, starts[-1:]])
    return Forest(
        forest.features,
        forest.columns,
        np.concatenate([forest.roots, np.full(missing, place, np.int32)]),
        np.concatenate([forest.levels, np.zeros(missing, np.int32)]),
        np.concatenate([forest.nodes, leaf]),
        None if forest.splits is None else np.concatenate([forest.splits, [0.0]]),
        weights,
        starts,
        forest.targets,
        None if forest.tracks is None else np.concatenate([forest.tracks, np.zeros(1, np.int8)]),
    )


def tables(forest: Forest) -> list[np.ndarray]:
    """The constant arguments of the kernel, in its order."""
    groups = forest.levels.reshape(-1, WALKS).max(axis=1).astype(np.int32)
    found = [forest.roots, forest.levels, groups, forest.nodes.ravel(), forest.weights.ravel()]
    found += [] if forest.splits is None else [forest.splits]
    found += [] if forest.tracks is None else [forest.tracks]
    return found + ([] if forest.starts is None or forest.targets is None else [forest.starts, forest.targets])


def write_trees(forest: Forest, aggregate: Aggregate) -> tirx.PrimFunc:
    """The kernel `(data[rows, features], *tables, result[rows, columns])` for any number of rows."""
    with IRBuilder() as builder, build.prim_func(s_tir=True):
        build.func_name("trees")
        build.func_attr({"tirx.noalias": True, WRITTEN: True, ROWS: True, PATTERN: OPAQUE})
        dtype = str(forest.weights.dtype)
        rows = tirx.Var("rows", "int64")
        data = build.arg("data", build.Buffer((rows, _index(forest.features)), dtype))
        given = [
            build.arg(f"table{number}", build.Buffer((_index(array.size),), str(array.dtype)))
            for number, array in enumerate(tables(forest))
        ]
        result = build.arg("result", build.Buffer((rows, _index(forest.columns)), dtype))
        _Writer(forest, aggregate, dtype, data, given, result).write(rows)
    return builder.get()


class _Writer:
    def __init__(
        self,
        forest: Forest,
        aggregate: Aggregate,
        dtype: str,
        data: tirx.Buffer,
        given: Sequence[tirx.Buffer],
        result: tirx.Buffer,
    ) -> None:
        self.forest, self.aggregate, self.dtype = forest, aggregate, dtype
        self.data, self.result = data, result
        self.roots, self.levels, self.groups, self.nodes, self.weights, *rest = given
        self.splits = rest.pop(0) if forest.splits is not None else None
        self.tracks = rest.pop(0) if forest.tracks is not None else None
        self.starts: tirx.Buffer | None = rest[0] if rest else None
        self.targets: tirx.Buffer | None = rest[1] if rest else None

    def write(self, rows: tirx.Expr) -> None:
        """A loop over few rows, or a parallel one over blocks of rows; the last block overlaps the one before."""
        blocks = tirx.floordiv(rows + _index(WALKS - 1), _index(WALKS))
        with build.If(rows < _index(WALKS)):
            with build.Then(), build.serial(_index(0), rows) as row:
                sums = self._sums(1)
                self._either(row, 1, lambda tracks: self._single(row, sums, tracks))
            with build.Else(), build.parallel(_index(0), blocks) as block:
                whole = self._sums(WALKS)
                start = build.bind(block * _index(WALKS))
                first = build.bind(tirx.min(start, rows - _index(WALKS)))
                self._either(first, WALKS, lambda tracks: self._block(first, start, whole, tracks))

    def _sums(self, rows: int) -> tirx.Buffer:
        return build.alloc_buffer((_index(rows * self.forest.columns),), self.dtype, scope="global")

    def _either(self, first: tirx.Expr, count: int, body: Callable[[bool], None]) -> None:
        """Write `body(tracks)`; walks look at where NaN goes only if one of the rows has a NaN."""
        if self.tracks is None:
            body(False)
            return
        seen = build.alloc_buffer((1,), "int32", scope="global")
        build.buffer_store(seen, tirx.const(0, "int32"), [_index(0)])
        with build.serial(_index(0), _index(count)) as row, build.serial(_index(0), _index(self.forest.features)) as f:
            x = self.data[first + row, f]
            build.buffer_store(seen, seen[_index(0)] | tirx.isnan(x).astype("int32"), [_index(0)])
        with build.If(seen[_index(0)] == tirx.const(0, "int32")):
            with build.Then():
                body(False)
            with build.Else():
                body(True)

    def _block(self, first: tirx.Expr, start: tirx.Expr, sums: tirx.Buffer, tracks: bool) -> None:
        """WALKS rows, one tree after the other; those before `start` belong to another block and are not stored."""
        columns = self.forest.columns
        self._clear(sums, WALKS)
        with build.serial(_index(0), _index(len(self.forest.roots))) as tree:
            at = build.alloc_buffer((WALKS,), "int32", scope="global")
            for walk in range(WALKS):
                build.buffer_store(at, self.roots[tree], [_index(walk)])
            self._walk(at, self.levels[tree], lambda walk: first + walk, tracks)
            for walk in range(WALKS):
                self._add(sums, walk * columns, at[_index(walk)])
        with build.serial(start - first, _index(WALKS)) as row, build.serial(_index(0), _index(columns)) as column:
            build.buffer_store(self.result, sums[row * _index(columns) + column], [first + row, column])

    def _single(self, row: tirx.Expr, sums: tirx.Buffer, tracks: bool) -> None:
        """One row, WALKS trees at a time."""
        self._clear(sums, 1)
        with build.serial(_index(0), _index(len(self.forest.roots) // WALKS)) as group:
            at = build.alloc_buffer((WALKS,), "int32", scope="global")
            for walk in range(WALKS):
                build.buffer_store(at, self.roots[group * _index(WALKS) + _index(walk)], [_index(walk)])
            self._walk(at, self.groups[group], lambda walk: row, tracks)
            for walk in range(WALKS):
                self._add(sums, 0, at[_index(walk)])
        with build.serial(_index(0), _index(self.forest.columns)) as column:
            build.buffer_store(self.result, sums[column], [row, column])

    def _clear(self, sums: tirx.Buffer, rows: int) -> None:
        with build.serial(_index(0), _index(rows * self.forest.columns)) as place:
            build.buffer_store(sums, tirx.const(NOTHING[self.aggregate], self.dtype), [place])

    def _walk(self, at: tirx.Buffer, levels: tirx.Expr, row: Callable[[tirx.Expr], tirx.Expr], tracks: bool) -> None:
        """Move all walks from roots to leaves; `at` has their nodes."""
        most = int(self.forest.levels.max())
        if most <= _MOST_FIXED_LEVELS:
            same = bool(np.all(self.forest.levels == most))
            with _loop(_index(most) if same else levels.astype("int64")):
                self._steps(at, row, tracks)
            return
        moved = build.alloc_buffer((1,), "int32", scope="global")
        build.buffer_store(moved, tirx.const(1, "int32"), [_index(0)])
        with build.While(moved[_index(0)] != tirx.const(0, "int32")):
            with _loop(_index(_LEVELS_A_CHECK)):
                self._steps(at, row, tracks)
            changes = build.alloc_buffer((1,), "int32", scope="global")
            build.buffer_store(changes, tirx.const(0, "int32"), [_index(0)])
            for walk in range(WALKS):
                here = at[_index(walk)]
                build.buffer_store(changes, changes[_index(0)] | (self._child(here, 0) ^ here), [_index(0)])
            build.buffer_store(moved, changes[_index(0)], [_index(0)])

    def _child(self, node: tirx.Expr, number: int) -> tirx.Expr:
        return self.nodes[node.astype("int64") * _index(4) + _index(2 + number)]

    def _steps(self, at: tirx.Buffer, row: Callable[[tirx.Expr], tirx.Expr], tracks: bool) -> None:
        """A step of every walk, unrolled unless a NaN is among the data, which is rare and need not be fast."""
        if tracks:
            with build.serial(_index(0), _index(WALKS)) as walk:
                self._step(at, walk, row(walk), tracks)
            return
        for number in range(WALKS):
            self._step(at, _index(number), row(_index(number)), tracks)

    def _step(self, at: tirx.Buffer, walk: tirx.Expr, row: tirx.Expr, tracks: bool) -> None:
        node = build.bind(at[walk].astype("int64"))
        feature = self.nodes[node * _index(4)]
        x = build.bind(self.data[row, feature.astype("int64")])
        if self.splits is not None:
            split = self.splits[node]
        else:
            split = tirx.reinterpret("float32", self.nodes[node * _index(4) + _index(1)])
        goes = x <= split
        if tracks:
            assert self.tracks is not None
            goes = goes | (tirx.isnan(x) & (self.tracks[node] != tirx.const(0, "int8")))
        other = tirx.Select(goes, _index(2), _index(3))
        build.buffer_store(at, self.nodes[node * _index(4) + other], [walk])

    def _add(self, sums: tirx.Buffer, base: int, node: tirx.Expr) -> None:
        """Add the leaf to the columns of one row."""
        leaf = build.bind(self.nodes[node.astype("int64") * _index(4) + _index(1)].astype("int64"))
        columns = self.forest.columns
        if self.starts is None:
            for column in range(columns):
                weight = self.weights[leaf * _index(columns) + _index(column)]
                self._combine(sums, _index(base + column), weight)
            return
        assert self.targets is not None
        first, last = (self.starts[leaf + _index(n)].astype("int64") for n in range(2))
        with build.serial(first, last) as entry:
            self._combine(sums, _index(base) + self.targets[entry].astype("int64"), self.weights[entry])

    def _combine(self, sums: tirx.Buffer, place: tirx.Expr, value: tirx.Expr) -> None:
        old = sums[place]
        combined = {"sum": old + value, "min": tirx.min(old, value), "max": tirx.max(old, value)}[self.aggregate]
        build.buffer_store(sums, combined, [place])


def _index(value: int) -> tirx.Expr:
    return tirx.const(value, "int64")


def _loop(extent: tirx.Expr) -> AbstractContextManager[tirx.Expr]:
    found: AbstractContextManager[tirx.Expr] = build.serial(_index(0), extent)
    return found
