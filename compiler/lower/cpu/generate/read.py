"""Analysis of a fused kernel: its contraction, the stages before it, and its epilogue."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tvm import tirx
from tvm.ir import Call, TensorLoad

from heterocc.compiler.lower.cpu.blocks import BlockView, of_windows, read_blocks
from heterocc.compiler.lower.cpu.generate.places import Axis, Linear, shape_of
from heterocc.compiler.lower.cpu.sizes import Size, all_equal, size_of
from heterocc.compiler.lower.kernels.expressions import dtype_of, is_iters, is_rounding, loads, nodes, substituted

_KEPT = ("float32", "int32")
"""Types of values that are kept in a vector register; others are computed again for each use."""


@dataclass(frozen=True)
class Stage:
    """A block that writes `value`, an expression of `iters`, to each place of `buffer`."""

    buffer: tirx.Buffer
    iters: tuple[tirx.Var, ...]
    value: tirx.Expr


@dataclass(frozen=True, kw_only=True)
class Nest:
    """The stages of a kernel, which compute one element of each output for each place.

    `loops` are iteration variables, `kinds` "S" or "R" and `extents` one per loop. `places` are the numbers of the
    spatial ones, in the order of the outputs' dimensions. `before` are stages that others read anywhere, `after` those
    that read each other at the same place, in order. `weights` are the numbers of the arguments that are parameters.
    `sum_` is the buffer of the contraction's results.
    """

    function: tirx.PrimFunc
    weights: frozenset[int] = frozenset()
    loops: tuple[tirx.Var, ...]
    kinds: str
    extents: tuple[Size, ...]
    before: tuple[Stage, ...] = ()
    after: tuple[Stage, ...]
    sum_: tirx.Buffer | None = None

    @property
    def places(self) -> tuple[int, ...]:
        """Numbers of the loops over the output's dimensions."""
        return tuple(i for i, kind in enumerate(self.kinds) if kind == "S")

    @property
    def terms(self) -> tuple[int, ...]:
        """Numbers of the loops of the reduction."""
        return tuple(i for i, kind in enumerate(self.kinds) if kind == "R")

    def axis(self, loops: Sequence[int]) -> Axis:
        """The loops with these numbers as one axis."""
        return Axis(tuple(loops), tuple(self.extents[n] for n in loops))

    def loop_of(self, expr: tirx.Expr) -> int | None:
        """The number of the loop that an index is, None if it is not one."""
        return next((n for n, loop in enumerate(self.loops) if loop.same_as(expr)), None)

    def place(self, values: Iterable[tuple[int | None, tirx.Expr]]) -> list[tuple[Axis, tirx.Expr]]:
        """The place at which loops have these values, by their numbers; those that are None do not exist."""
        return [(self.axis([loop]), value) for loop, value in values if loop is not None]

    def last_run(self, loops: Sequence[int], forms: Sequence[Linear]) -> Axis:
        """The longest sequence of the last of `loops` that is one axis in all `forms`."""
        first = max(len(loops) - 1, 0)
        while first and all(self.axis(loops[first - 1 :]).step(f) is not None for f in forms):
            first -= 1
        return self.axis(loops[first:])

    def inlined(self, expr: tirx.Expr) -> tirx.Expr:
        """The expression with loads of preceding stages replaced by their values."""

        def inline(load: TensorLoad) -> tirx.Expr:
            stage = self.stage(load.source)
            if stage is None:
                return load
            return self.inlined(substituted(stage.value, list(zip(stage.iters, load.indices, strict=True))))

        return substituted(expr, [], inline)

    def argument(self, buffer: tirx.Buffer) -> int | None:
        """The number of a buffer among the arguments; None if it is internal."""
        return next((n for n, p in enumerate(self._params) if p.same_as(buffer)), None)

    @cached_property
    def is_heavy(self) -> bool:
        """Whether stages call functions, whose code for each vector of a tile would be long and spill registers."""
        return any(isinstance(n, Call) and not is_rounding(n) for stage in self.after for n in nodes(stage.value))

    @cached_property
    def kept(self) -> list[int]:
        """Numbers of the stages whose values are used several times: others are computed where they are read."""
        kept = []
        for number, stage in enumerate(self.after):
            later = [load for s in self.after[number + 1 :] for load in loads(s.value)]
            uses = sum(load.source.same_as(stage.buffer) for load in later)
            given = self.argument(stage.buffer) is not None
            if dtype_of(stage.value) in _KEPT and uses and (uses > 1 or given):
                kept.append(number)
        return kept

    @cached_property
    def _params(self) -> tuple[tirx.Var, ...]:
        return tuple(self.function.params)

    def stage(self, buffer: tirx.Buffer) -> Stage | None:
        """The stage before the contraction that writes a buffer."""
        return next((s for s in self.before if s.buffer.same_as(buffer)), None)


Combine = Callable[[tirx.Expr, tirx.Expr], tirx.Expr]
"""What two numbers, or vectors, are combined to."""


@dataclass(frozen=True, kw_only=True)
class Combination:
    """`value` combined over the terms of a reduction, in float32.

    `combine(so far, value)` is a sum, product, maximum or minimum, and `start` its neutral element.

    A maximum or minimum `combine` gives `so far` if the value is NaN, and if `so far` is. If it `takes_first`, it
    begins with its first term in place of `start`: it is NaN if this term is, and no other NaN hides a number.
    """

    value: tirx.Expr
    combine: Combine
    start: float
    takes_first: bool


@dataclass(frozen=True, kw_only=True)
class Fold(Nest, Combination):
    """out[places] = after(value combined over all terms).

    `loops` are the reduction's. Stages `before` do not depend on the result, those `after` do.
    """

    sum_: tirx.Buffer


@dataclass(frozen=True, kw_only=True)
class Kernel(Nest):
    """out[places] = after(Σ over terms of left · right).

    `loops` are the contraction's. Stages `before` do not depend on the sum (padding, for instance), those `after` do.
    """

    sum_: tirx.Buffer
    left: TensorLoad
    right: TensorLoad

    @property
    def dtype(self) -> str:
        """The type of the sums."""
        return dtype_of(self.sum_)

    def through_copies(self, load: TensorLoad) -> TensorLoad:
        """The load at the source of a load, through preceding stages that only copy."""
        while (stage := self.stage(load.source)) is not None and isinstance(stage.value, TensorLoad):
            load = substituted(stage.value, list(zip(stage.iters, load.indices, strict=True)))
        return load


FLOATS = {"float32": ("float32",)}
BYTES = {"int32": ("int8", "uint8")}
OTHERS = {name: (name,) for name in ("float64", "int32", "uint32", "int64", "uint64")}
"""Types of sums of products, each with those of the factors."""


def read_kernel(
    function: tirx.PrimFunc, weights: Collection[int], types: Mapping[str, Sequence[str]] = FLOATS
) -> Kernel | None:
    """Read a kernel; None unless it is one product of such types with padding before and an elementwise epilogue."""
    block, nest = _parts(function, weights)
    factors = None if block is None else _factors(block, types)
    return None if factors is None else Kernel(**nest, left=factors[0], right=factors[1])


def read_fold(function: tirx.PrimFunc) -> Fold | None:
    """Read a kernel; None unless it is one combination of all terms with padding before, elementwise epilogue after."""
    block, nest = _parts(function, ())
    combined = None if block is None else combination(block)
    if combined is None or any(dtype_of(e) != "float32" for e in (combined.value, *loads(combined.value))):
        return None
    return Fold(**nest, **vars(combined))


def combination(block: BlockView) -> Combination | None:
    """Read a block as a sum, product, maximum or minimum of float32; None if it is none of these."""
    total, start = block.store.value, getattr(block.block.init, "value", None)
    combine = next((c for kind, (c, _) in _COMBINE.items() if isinstance(total, kind)), None)
    if combine is None or not isinstance(start, tirx.FloatImm) or dtype_of(total) != "float32":
        return None
    if float(start.value) != _COMBINE[type(total)][1] or not _accumulates(block, total.a):
        return None
    reads = loads(total.b)
    if any(load.source.same_as(block.store.buffer) for load in reads):
        return None
    takes_first = isinstance(total, tirx.Max | tirx.Min) and not of_windows(block.block)
    return Combination(value=total.b, combine=combine, start=float(start.value), takes_first=takes_first)


_COMBINE: dict[type, tuple[Combine, float]] = {
    tirx.Add: (lambda a, b: a + b, 0.0),
    tirx.Mul: (lambda a, b: a * b, 1.0),
    tirx.Max: (lambda a, b: tirx.max(b, a), -math.inf),
    tirx.Min: (lambda a, b: tirx.min(b, a), math.inf),
}
"""Of a maximum of a number and NaN, the second operand is the result: a NaN among the terms is left out."""


def _parts(function: tirx.PrimFunc, weights: Collection[int]) -> tuple[BlockView | None, dict[str, Any]]:
    """A kernel's only reduction, and the fields of a Nest of it and the stages around it; None for other kernels."""
    blocks = read_blocks(function)
    sums = [b for b in blocks or () if b.is_reduction]
    if blocks is None or len(sums) != 1 or not all(is_constant(p) for p in function.params):
        return None, {}
    block = sums[0]
    buffer = block.store.buffer
    extents = tuple(e for e, kind in zip(block.extents, block.kinds, strict=True) if kind == "S")
    before: list[Stage] = []
    after: list[Stage] = []
    for other in blocks:
        if other is block:
            continue
        is_scalar = not other.store.indices
        stage = Stage(other.store.buffer, () if is_scalar else tuple(other.iters), other.store.value)
        if not is_scalar and not is_iters(other.store.indices, other.iters):
            return None, {}
        tiled = [buffer, *(s.buffer for s in after)]
        reads = [r for r in loads(stage.value) if any(r.source.same_as(t) for t in tiled)]
        if not reads:
            before.append(stage)
            continue
        # Only here, as a comparison of sizes that are known only at run time is an assumption of the kernel.
        if not all_equal(other.extents, extents) or not all(is_iters(r.indices, other.iters) for r in reads):
            return None, {}
        after.append(stage)
    if any(p.same_as(stage.buffer) for stage in before for p in function.params):
        return None, {}  # outputs are the sum or stages after it
    return block, {
        "function": function,
        "weights": frozenset(weights),
        "loops": tuple(block.iters),
        "kinds": block.kinds,
        "extents": block.extents,
        "before": tuple(before),
        "after": tuple(after),
        "sum_": buffer,
    }


def _accumulates(block: BlockView, expr: tirx.Expr) -> bool:
    """Whether an expression is the block's accumulated value."""
    spatial = [v for v, kind in zip(block.iters, block.kinds, strict=True) if kind == "S"]
    if not is_iters(block.store.indices, spatial) or not isinstance(expr, TensorLoad):
        return False
    return bool(expr.source.same_as(block.store.buffer)) and is_iters(expr.indices, spatial)


def _factors(block: BlockView, types: Mapping[str, Sequence[str]]) -> tuple[TensorLoad, TensorLoad] | None:
    """The two loads whose product the block sums from zero."""
    value, init = block.store.value, block.block.init
    factors = types.get(dtype_of(value))
    if init is None or factors is None or not isinstance(value, tirx.Add) or not isinstance(value.b, tirx.Mul):
        return None
    start = init.value
    if not (isinstance(start, tirx.FloatImm | tirx.IntImm) and float(start.value) == 0.0):
        return None
    left, right = (_load_of(side, factors) for side in (value.b.a, value.b.b))
    return (left, right) if left is not None and right is not None and _accumulates(block, value.a) else None


def _load_of(side: tirx.Expr, types: Sequence[str]) -> TensorLoad | None:
    """A factor of one of some types, or what it is cast from."""
    if dtype_of(side) not in types and isinstance(side, tirx.Cast):
        side = side.value
    return side if isinstance(side, TensorLoad) and dtype_of(side) in types else None


def is_constant(param: tirx.Var) -> bool:
    """Whether a parameter is a buffer of known shape, or a size."""
    if isinstance(getattr(param, "ty", None), tirx.BufferType):
        return shape_of(param) is not None
    return size_of(param) is not None
