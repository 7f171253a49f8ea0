"""Whether a function computes each item of a batch on its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tvm
import tvm_ffi
from tvm import relax, s_tir, sym, tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.straight import arguments_of, bindings_of, is_kernel_call, outputs_of, types_of
from heterocc.compiler.lower.written import ROWS

_SPATIAL = 0
_NUMBERS = """
    abs acos acosh asin asinh astype atan atanh bitwise_not ceil clip cos cosh erf exp floor isfinite isinf isnan log
    logical_not negative round rsqrt sigmoid sign sin sinh sqrt square tan tanh trunc nn.gelu nn.gelu_tanh nn.leakyrelu
    nn.relu nn.relu6 nn.selu nn.silu nn.softplus
""".split()
_PAIRS = """
    add bitwise_and bitwise_or bitwise_xor divide equal floor_divide floor_mod greater greater_equal left_shift less
    less_equal logical_and logical_or logical_xor maximum minimum mod multiply not_equal power right_shift subtract
    where full broadcast_to zeros ones full_like
""".split()
_BY_ELEMENT = frozenset(f"relax.{name}" for name in (*_NUMBERS, *_PAIRS))
_WINDOWS = frozenset(
    f"relax.nn.{name}"
    for name in (
        *("conv1d conv2d conv3d conv1d_transpose conv2d_transpose max_pool1d max_pool2d max_pool3d avg_pool1d").split(),
        *("avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d").split(),
    )
)
_SAME_ORDER = frozenset({"relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten"})
_ALONG_ONE_AXIS = frozenset(
    {"relax.nn.softmax", "relax.nn.log_softmax", "relax.concat", "relax.split", "relax.cumsum", "relax.cumprod"}
    | {"relax.argmax", "relax.argmin"}
)
_ALONG_AXES = frozenset(
    {*(f"relax.{name}" for name in ("sum", "mean", "max", "min", "prod", "variance", "std")), "relax.nn.layer_norm"}
)


class _Batch:
    """A dimension's variable, and the values whose first dimension is a multiple of it."""

    def __init__(self, variable: str) -> None:
        self.variable = variable
        self.analyzer = sym.Analyzer()

    def count(self, dim: tirx.Expr) -> int | None:
        """k for a dimension of k items for each item of the batch; 0 for one that does not depend on it, else None."""
        used = [v for v in tirx.analysis.undefined_vars(dim) if v.name == self.variable]
        if not used:
            return 0
        one = self.analyzer.simplify(tvm_ffi.structural_map(dim, [(tirx.Var, self._one)], order="post"))
        if not isinstance(one, tirx.IntImm):
            return None
        return int(one) if self.analyzer.can_prove_equal(dim, used[0] * one) else None

    def _one(self, var: tirx.Var) -> tirx.Expr:
        return tirx.const(1, "int64") if var.name == self.variable else var

    def is_used(self, argument: relax.Expr) -> bool:
        """Whether a number or a shape that a call is given depends on the size of the batch."""
        if isinstance(argument, relax.ShapeExpr):
            return any(self.is_used(d) for d in argument.values)
        return tvm.ir.is_prim_expr(argument) and self.count(argument) != 0

    def carries(self, value: relax.Expr) -> bool | None:
        """Whether a tensor holds items one after the other; None for another use of the dimension."""
        if not isinstance(value.ty, relax.TensorType) or not isinstance(value.ty.shape, relax.ShapeExpr):
            return None
        counts = [self.count(d) for d in value.ty.shape.values]
        if not any(c is None or c for c in counts):
            return False
        return True if counts[0] and not any(counts[1:]) else None


def is_separable(mod: tvm.IRModule, variable: str, inputs: int = 0) -> bool:
    """Whether each output is the outputs for single items, one after the other.

    `variable` is the name of the variable of the batch's size. The first `inputs` parameters must hold items; other
    parameters without such a dimension are the same for all items.
    """
    main, batch = mod["main"], _Batch(variable)
    if not all(batch.carries(p) for p in main.params[:inputs]):
        return False
    if any(batch.carries(p) is None for p in main.params) or not all(batch.carries(o) for o in outputs_of(main)):
        return False
    for binding in bindings_of(main):
        value = binding.value
        if isinstance(value, relax.Var):
            continue
        if isinstance(value, relax.TupleGetItem):
            if batch.carries(binding.var) is None:
                return False
            continue
        if not isinstance(value, relax.Call) or not _is_per_item(mod, value, types_of(value.ty), batch):
            return False
    return True


def _is_per_item(mod: tvm.IRModule, call: relax.Call, results: list[relax.Type], batch: _Batch) -> bool:
    tensors = _tensors(call)
    marks = [batch.carries(t) for t in tensors]
    made = [batch.carries(relax.Var("result", ty)) for ty in results]
    if None in marks or None in made:
        return False
    if is_kernel_call(call) and any(batch.is_used(a) for a in arguments_of(call)):
        return False  # the kernel computes with the size itself
    if not any(marks) and not any(made):
        return not any(batch.is_used(a) for a in call.args)
    if not all(made):
        return False
    if is_kernel_call(call):
        return _kernel_is_per_item(mod[call.args[0]], batch, arguments_of(call))
    name = getattr(call.op, "name", "")
    rule = _RULES.get(name)
    return rule is not None and rule(call, tensors, [bool(m) for m in marks])


def _tensors(call: relax.Call) -> list[relax.Expr]:
    if is_kernel_call(call):
        return [a for a in arguments_of(call) if isinstance(a.ty, relax.TensorType)]
    found: list[relax.Expr] = []
    for argument in call.args:
        fields = argument.fields if isinstance(argument, relax.Tuple) else [argument]
        found += [f for f in fields if isinstance(f.ty, relax.TensorType)]
    return found


def _rank(value: relax.Expr | relax.Type) -> int:
    ty = value if isinstance(value, relax.TensorType) else value.ty
    return len(ty.shape.values)


def _is_one(dim: tirx.Expr) -> bool:
    return isinstance(dim, tirx.IntImm) and int(dim) == 1


Rule = Callable[[relax.Call, list[relax.Expr], list[bool]], bool]


def _by_element(call: relax.Call, tensors: list[relax.Expr], marks: list[bool]) -> bool:
    rank = _rank(call.ty)
    return all(
        _rank(t) == rank if mark else _rank(t) < rank or _is_one(t.ty.shape.values[0])
        for t, mark in zip(tensors, marks, strict=True)
    )


def _window(call: relax.Call, tensors: list[relax.Expr], marks: list[bool]) -> bool:
    layout = str(getattr(call.attrs, "data_layout", None) or getattr(call.attrs, "layout", ""))
    return marks[0] and not any(marks[1:]) and layout.startswith("N")


def _along_one_axis(call: relax.Call, tensors: list[relax.Expr], marks: list[bool]) -> bool:
    axis = call.attrs.axis
    return axis is not None and all(marks) and int(axis) % _rank(tensors[0]) != 0


def _prelu(call: relax.Call, tensors: list[relax.Expr], marks: list[bool]) -> bool:
    return marks == [True, False] and int(call.attrs.axis) % _rank(tensors[0]) != 0


def _along_axes(call: relax.Call, tensors: list[relax.Expr], marks: list[bool]) -> bool:
    axes = getattr(call.attrs, "axis", None)
    axes = getattr(call.attrs, "axes", None) if axes is None else axes
    if axes is None or not marks[0] or any(marks[1:]):
        return False
    return all(int(a) % _rank(tensors[0]) != 0 for a in axes)


def _permuted(call: relax.Call, _: list[relax.Expr], marks: list[bool]) -> bool:
    axes = call.attrs.axes
    return marks[0] and axes is not None and int(axes[0]) == 0


def _matmul(call: relax.Call, tensors: list[relax.Expr], marks: list[bool]) -> bool:
    rank = _rank(call.ty)
    ranks = [_rank(t) for t in tensors]
    if marks[0] and not marks[1]:
        one = ranks[1] < rank or _is_one(tensors[1].ty.shape.values[0])
        return ranks[0] == rank and rank >= 2 and (one or rank == 2)
    if rank < 3:
        return False
    return all(
        r == rank if m else r < rank or _is_one(t.ty.shape.values[0])
        for t, m, r in zip(tensors, marks, ranks, strict=True)
    )


def _slice(call: relax.Call, tensors: list[relax.Expr], marks: list[bool]) -> bool:
    axes = call.args[1]
    fields = axes.fields if isinstance(axes, relax.Tuple) else None
    numbers = [getattr(f, "value", None) for f in fields] if fields is not None else [None]
    if any(n is None for n in numbers):
        return False
    return marks[0] and all(int(n) % _rank(tensors[0]) != 0 for n in numbers if n is not None)


def _take(call: relax.Call, tensors: list[relax.Expr], marks: list[bool]) -> bool:
    axis = int(call.attrs.axis or 0) % _rank(tensors[0])
    if marks == [False, True]:
        return axis == 0
    return marks == [True, False] and axis != 0


_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_BY_ELEMENT, _by_element),
    **dict.fromkeys(_WINDOWS, _window),
    **dict.fromkeys(_SAME_ORDER, lambda _call, _tensors, marks: all(marks)),
    **dict.fromkeys(_ALONG_ONE_AXIS, _along_one_axis),
    **dict.fromkeys(_ALONG_AXES, _along_axes),
    "relax.permute_dims": _permuted,
    "relax.nn.prelu": _prelu,
    "relax.matmul": _matmul,
    "relax.strided_slice": _slice,
    "relax.take": _take,
}


def _kernel_is_per_item(kernel: tirx.PrimFunc, batch: _Batch, arguments: list[relax.Expr]) -> bool:
    """Whether every block of a kernel has one loop over the batch, which is the first index of all that it carries.

    The kernel's variables are its own: the first dimension of an argument that carries the batch shows its variable.
    """
    if kernel.attrs and ROWS in kernel.attrs:
        return [batch.carries(a) for a in arguments] == [True] + [False] * (len(arguments) - 1)
    size: tirx.Expr | None = None
    for param, given in zip(kernel.params, arguments, strict=False):
        if isinstance(param.ty, tirx.BufferType) and isinstance(given.ty, relax.TensorType) and batch.carries(given):
            if batch.count(given.ty.shape.values[0]) != 1 or not isinstance(param.shape[0], tirx.Var):
                return False
            size = param.shape[0]
    if size is None:
        return False
    carried = [p for p in kernel.params if isinstance(p.ty, tirx.BufferType) and _begins_with(p, size)]
    verdicts: list[bool] = []

    def visit(block: s_tir.SBlock) -> None:
        carried.extend(b for b in block.alloc_buffers if _begins_with(b, size))
        if block.name_hint != "root":
            over = [i.var for i in block.iter_vars if i.dom.extent.same_as(size) and int(i.iter_type) == _SPATIAL]
            verdicts.append(len(over) == 1 and _indexes_items(block, over[0], size, carried))

    tvm_ffi.structural_walk(kernel.body, [(s_tir.SBlock, visit)], order="pre")
    return bool(verdicts) and all(verdicts)


def _begins_with(buffer: tirx.Buffer, size: tirx.Var) -> bool:
    return len(buffer.shape) > 0 and bool(buffer.shape[0].same_as(size))


def _indexes_items(block: s_tir.SBlock, item: tirx.Var, size: tirx.Var, carried: list[tirx.Buffer]) -> bool:
    """Whether a block uses the loop over the batch only as the first index of buffers that carry it, and all do."""
    analyzer = sym.Analyzer()
    analyzer.bind(item, tvm.ir.Range(tirx.const(0, "int64"), size))
    verdicts: list[bool] = []

    def uses(expressions: Sequence[tirx.Expr]) -> bool:
        return any(v.same_as(item) or v.same_as(size) for e in expressions for v in tirx.analysis.undefined_vars(e))

    def is_item(index: tirx.Expr) -> bool:
        return index.same_as(item) or bool(analyzer.can_prove_equal(index, item))

    def access(buffer: tirx.Buffer, indices: Sequence[tirx.Expr]) -> Sequence[tirx.Expr]:
        if not any(buffer.same_as(c) for c in carried):
            return indices
        verdicts.append(is_item(indices[0]))
        return indices[1:]

    def load(found: TensorLoad) -> tirx.Expr:
        verdicts.append(not uses(access(found.source, found.indices)))
        return tirx.Var("element", found.ty.dtype)

    def store(found: tirx.BufferStore) -> tirx.Stmt:
        verdicts.append(any(found.buffer.same_as(c) for c in carried))
        verdicts.append(not uses([*access(found.buffer, found.indices), found.value]))
        return tirx.Evaluate(tirx.const(0, "int32"))

    rules = [(TensorLoad, load), (tirx.BufferStore, store)]
    for part in (block.body, block.init):
        if part is not None:
            # What is left when each load is an element and each store is checked may use neither of the two.
            rest = tvm_ffi.structural_map(part, rules, order="post")
            tvm_ffi.structural_walk(rest, [(tirx.Var, lambda var: verdicts.append(not uses([var])))], order="post")
    return all(verdicts)
