"""Constant folding of computations that depend on weights alone (transposed, reshaped, rescaled weights)."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax

from heterocc.compiler.importer.estimates.work import Budget, Cost
from heterocc.compiler.lower.straight import (
    bindings_of,
    constant,
    is_static,
    outputs_of,
    substitute,
    vars_of,
    write_main,
)

FOLD_BYTES = 4096
"""A folded value may have this many bytes, or twice as many as its operands. So broadcasts are not stored."""

EMBED_BYTES = 64
"""Folded values up to this size become constants of the function, larger ones parameters."""


def _permute(array: np.ndarray, call: relax.Call) -> np.ndarray:
    axes = call.attrs.axes
    return np.transpose(array, None if axes is None else [int(a) for a in axes])


def _reshape(array: np.ndarray, call: relax.Call) -> np.ndarray:
    return array.reshape(_shape(call))


def _astype(array: np.ndarray, call: relax.Call) -> np.ndarray:
    return array.astype(str(call.ty.dtype.dtype))


_UNARY: Mapping[str, Callable[[np.ndarray, relax.Call], np.ndarray]] = {
    "relax.permute_dims": _permute,
    "relax.reshape": _reshape,
    "relax.expand_dims": _reshape,
    "relax.squeeze": _reshape,
    "relax.astype": _astype,
    "relax.sqrt": lambda a, _: np.sqrt(a),
    "relax.negative": lambda a, _: np.negative(a),
    "relax.isnan": lambda a, _: np.isnan(a),
}

_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "relax.add": operator.add,
    "relax.subtract": operator.sub,
    "relax.multiply": operator.mul,
    "relax.divide": operator.truediv,
}
"""Operators on floating-point numbers for which numpy and compiled code give the same bits."""

WORK_PER_PRODUCT = 8
"""Bytes that a core copies in the time in which code of TVM without a schedule adds one product to a sum."""

_VIEWS = frozenset({"relax.reshape", "relax.expand_dims", "relax.squeeze"})
_MATMUL = "relax.matmul"
_STEEP = ("relax.einsum", "relax.nn.conv", "relax.nn.attention", "relax.nn.avg_pool", "relax.nn.max_pool")
"""Operators each of whose elements may be computed from all of what they read."""

_SELECTION = "relax.where"
"""Takes each number from one of two arrays."""


def fold_weights(mod: tvm.IRModule, arrays: Mapping[str, np.ndarray]) -> tuple[tvm.IRModule, dict[str, np.ndarray]]:
    """Fold bindings that depend only on parameters and constants; return the module and its parameters in order.

    The last parameters of `main` are those of `arrays`, by name. Simple operators are computed by numpy (a reshaped
    weight shares memory with the original), others by TVM on this machine, all at once. What the import's budget for
    a model of these weights does not allow is left to the run: a value may be joined with itself, again and again.
    """
    main = mod["main"]
    known: dict[relax.Var, np.ndarray | None] = {p: arrays[p.name] for p in main.params if p.name in arrays}
    folded: list[relax.VarBinding] = []
    parameters = set(known)
    memory = _Memory(main, arrays)
    for binding in bindings_of(main):
        if _foldable(binding, known) and memory.take(binding):
            folded.append(binding)
            with np.errstate(all="ignore"):  # infinities and NaN without warnings, as in compiled code
                known[binding.var] = _evaluate(binding.value, known)
            for var in memory.free(binding, is_computed=known[binding.var] is not None) - parameters:
                del known[var]
    gone = {b.var for b in folded}
    outputs = outputs_of(main)
    kept = [b for b in bindings_of(main) if b.var not in gone]
    reads = [v for b in kept for v in vars_of(b.value)] + [v for o in outputs for v in vars_of(o)]
    frontier = list(dict.fromkeys(v for v in reads if v in gone))
    _compute_rest(main, folded, frontier, known)
    replace: dict[relax.Var, relax.Expr] = {}
    added: dict[str, np.ndarray] = {}
    new_params = []
    for var in frontier:
        array = known[var]
        if array is None:
            raise AssertionError(f"'{var.name}' was not computed")
        if array.nbytes <= EMBED_BYTES:
            replace[var] = constant(array)
        else:
            name = f"w_{var.name}"
            replace[var] = relax.Var(name, var.ty)
            new_params.append(replace[var])
            added[name] = array
    rebuilt = [(b.var, substitute(b.value, replace), b.var.name) for b in kept]
    results = [substitute(o, replace) for o in outputs]
    used = {v for _, value, _ in rebuilt for v in vars_of(value)} | {v for o in results for v in vars_of(o)}
    every = {**arrays, **added}
    params = [p for p in (*main.params, *new_params) if p.name not in every or p in used]
    if folded or len(params) != len(main.params):
        mod = write_main(mod, params, rebuilt, results)
    return mod, {p.name: every[p.name] for p in params if p.name in every}


class _Memory:
    """The bytes of folded values at any one time, and of what they read, within the import's budget."""

    def __init__(self, main: relax.Function, arrays: Mapping[str, np.ndarray]) -> None:
        self._budget = Budget.for_weights(arrays)
        # The limit is not meant for weights converted to a type of twice the size.
        self._budget.free(sum(array.nbytes for array in arrays.values()))
        read = [v for b in bindings_of(main) for v in vars_of(b.value)]
        self._readers = Counter([*read, *(v for o in outputs_of(main) for v in vars_of(o))])
        self._bytes = {p: arrays[p.name].nbytes for p in main.params if p.name in arrays}
        self._base: dict[relax.Var, relax.Var] = {}
        self._held: set[relax.Var] = set()

    def take(self, binding: relax.VarBinding) -> bool:
        """Whether a value may be folded; its bytes are deducted then."""
        call, read = binding.value, dict.fromkeys(vars_of(binding.value))
        source = next(iter(read)) if call.op.name in _VIEWS and read else None
        growth = _nbytes(call) if source is None else 0
        work = 0 if source is not None else growth + sum(map(_nbytes, read)) + WORK_PER_PRODUCT * _multiplications(call)
        if not self._budget.take(Cost(growth, work)):
            return False
        self._bytes[binding.var] = growth
        self._base[binding.var] = binding.var if source is None else self._base.get(source, source)
        if source is not None:
            self._readers[self._base[binding.var]] += self._readers[binding.var]
        return True

    def free(self, binding: relax.VarBinding, *, is_computed: bool) -> set[relax.Var]:
        """Give back the bytes of values that a folded one has read last; return those that nothing needs any more.

        What is computed later, with all others, needs what it reads until then.
        """
        read = vars_of(binding.value)
        bases = [self._base.get(var, var) for var in read]
        self._readers.subtract(bases)
        self._held.update(() if is_computed else (*read, *bases))
        done = {base for base in bases if not self._readers[base]}
        self._budget.free(sum(self._bytes.get(base, 0) for base in done))
        return {v for var, base in zip(read, bases, strict=True) if base in done for v in (var, base)} - self._held


def _foldable(binding: relax.VarBinding, known: Mapping[relax.Var, np.ndarray | None]) -> bool:
    call = binding.value
    if not isinstance(call, relax.Call) or not isinstance(call.op, tvm.ir.Op):
        return False
    if not isinstance(call.ty, relax.TensorType) or not is_static(call) or any(v not in known for v in vars_of(call)):
        return False
    if any(isinstance(a, relax.GlobalVar | relax.ExternFunc) for a in call.args):
        return False
    return _nbytes(call) <= max(FOLD_BYTES, 2 * sum(map(_nbytes, _tensors(call))))


def _multiplications(call: relax.Call) -> int:
    """The most multiplications of a call beside those that its bytes bound."""
    read, terms = _tensors(call), 0
    if call.op.name == _MATMUL:
        terms = _shape(read[0])[-1]
    elif call.op.name.startswith(_STEEP):
        terms = max((math.prod(_shape(a)) for a in read), default=0)
    return terms * math.prod(_shape(call))


def _tensors(call: relax.Call) -> list[relax.Expr]:
    """The tensors that a call reads, also those that it takes as a tuple."""
    given = [f for a in call.args for f in (a.fields if isinstance(a, relax.Tuple) else [a])]
    return [a for a in given if isinstance(a.ty, relax.TensorType)]


def _evaluate(call: relax.Call, known: Mapping[relax.Var, np.ndarray | None]) -> np.ndarray | None:
    """The call's value computed by numpy; None if numpy's result may differ or an argument is not computed yet."""
    values = [_value(a, known) for a in call.args if isinstance(a.ty, relax.TensorType)]
    if any(v is None for v in values):
        return None
    if call.op.name in _UNARY and len(values) == 1:
        return _UNARY[call.op.name](values[0], call)  # type: ignore[arg-type]  # None was excluded above
    if call.op.name in _BINARY and values[0].dtype.kind == "f":  # type: ignore[union-attr]
        return np.asarray(_BINARY[call.op.name](*values))
    if call.op.name == _SELECTION:
        condition, yes, no = (np.asarray(v) for v in values)
        return np.where(condition, yes, no)
    return None


def _value(expr: relax.Expr, known: Mapping[relax.Var, np.ndarray | None]) -> np.ndarray | None:
    if isinstance(expr, tvm.ir.GenericConst):
        return np.asarray(expr.value.numpy())
    return known.get(expr)


def _compute_rest(
    main: relax.Function,
    folded: list[relax.VarBinding],
    frontier: list[relax.Var],
    known: dict[relax.Var, np.ndarray | None],
) -> None:
    """Compute the needed values that numpy did not, by compiling and running them on this machine."""
    wanted = [v for v in frontier if known[v] is None]
    if not wanted:
        return
    by_var = {b.var: b for b in folded}
    needed: dict[relax.Var, None] = {}
    leaves: dict[relax.Var, None] = {}

    def need(var: relax.Var) -> None:
        if var in needed or var in leaves:
            return
        if known[var] is not None:
            leaves[var] = None
            return
        for read in vars_of(by_var[var].value):
            need(read)
        needed[var] = None

    for var in wanted:
        need(var)
    params = [relax.Var(v.name, v.ty) for v in leaves]
    replace = dict(zip(leaves, params, strict=True))
    bindings = [(v, substitute(by_var[v].value, replace), v.name) for v in needed]
    mod = write_main(tvm.IRModule(), params, bindings, wanted)
    vm = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    results = vm["main"](*(tvm.runtime.tensor(np.ascontiguousarray(known[v])) for v in leaves))
    for var, result in zip(wanted, results, strict=True):
        known[var] = result.numpy()


def _nbytes(expr: relax.Expr) -> int:
    shape = _shape(expr)
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(str(expr.ty.dtype.dtype)).itemsize


def _shape(expr: relax.Expr) -> tuple[int, ...]:
    return tuple(int(d) for d in expr.ty.shape.values)
