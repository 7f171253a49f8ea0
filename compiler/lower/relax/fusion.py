"""Kernels that are not fused: those that make expressions too large, and those that read sizes alone.

Fusion inlines elementwise kernels into their readers. A kernel that reads its argument twice (`x * sigmoid(x)`)
contains the expression of the fused argument twice, so a chain of twenty such kernels has a million terms. A sum of a
thousand values is an expression that deep. This pass cuts such chains.

TVM cannot fuse a kernel whose only arguments are sizes with one that has the same sizes as arguments beside tensors.
Sizes that are computed from data make long expressions of their own.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from dataclasses import dataclass
from functools import reduce

import tvm
import tvm_ffi
from tvm import relax, s_tir, sym, tirx
from tvm.ir import Call, TensorLoad

from heterocc.compiler.lower.straight import (
    arguments_of,
    bindings_of,
    is_kernel_call,
    outputs_of,
    with_kernel,
    write_main,
)
from heterocc.compiler.lower.written import BROADCAST, INJECTIVE, OPAQUE, PATTERN, PRODUCT, pattern_of

MOST_TERMS = 512
"""The most terms of a fused expression. Those of real networks have tens."""

MOST_DEPTH = 64
"""The most kernels that are inlined one into the next. Code generation visits expressions recursively."""

MOST_READ = 64
"""The most values that a fused expression reads. Code generation visits the parameters of a kernel recursively."""

_REPEATS = frozenset(f"tirx.{name}" for name in "acosh asinh atanh cosh sinh tan tanh asin acos erf".split())
"""Functions that code generation expands into formulas that repeat their argument."""

_COPIES = 3
"""The approximate number of times that such a formula repeats its argument."""


@dataclass(frozen=True, slots=True)
class _Size:
    """The size of an expression: its terms, the kernels inlined into each other in it, and the values that it reads."""

    terms: int
    depth: int
    read: frozenset[relax.Expr]

    @classmethod
    def of(cls, value: relax.Expr) -> _Size:
        """The size of an expression that reads one value."""
        return cls(1, 0, frozenset((value,)))

    @property
    def is_too_large(self) -> bool:
        return self.terms > MOST_TERMS or self.depth > MOST_DEPTH or len(self.read) > MOST_READ


def without_blowup(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with every kernel that cannot be fused, or would make an expression too long, marked.

    `mod` is annotated with TVM's patterns.
    """
    main = mod["main"]
    named = frozenset(v for p in main.params for dim in _dims(p.ty) for v in tirx.analysis.undefined_vars(dim))
    sizes: dict[relax.Var, _Size] = {}
    alone: set[relax.Var] = set()
    for binding in bindings_of(main):
        value = binding.value
        function = _injective(mod, value)
        if function is not None:
            given = [sizes.get(a) or _Size.of(a) for a in arguments_of(value)]
            size = _Size(
                _terms(function, [g.terms for g in given]),
                1 + max((g.depth for g in given), default=0),
                frozenset().union(*(g.read for g in given)),
            )
            if size.is_too_large or _reads_other_sizes(value, function, named):
                size = _Size.of(binding.var)
                alone.add(binding.var)
            sizes[binding.var] = size
    return not_fused(mod, alone)


def sizes_in_shapes(fused: tvm.IRModule) -> tvm.IRModule:
    """The module after FuseOps with every size that a fused function takes in the shape that it takes last.

    FuseOps gives a function a parameter for a size that kernels read and no type in it shows. TVM then refuses the
    kernel that FuseTIR writes, because it declares this size twice.
    """
    kept, changed = {}, {}
    for name, function in fused.functions_items():
        sizes = _size_parameters(function) if isinstance(function, relax.Function) and name.name_hint != "main" else []
        if sizes:
            changed[name] = sizes
        else:
            kept[name] = function
    if not changed:
        return fused
    builder = relax.BlockBuilder(tvm.IRModule(kept))
    added = {n: builder.add_func(_with_sizes_last(fused[n], s), n.name_hint) for n, s in changed.items()}

    def moved(value: relax.Expr) -> relax.Expr:
        if not isinstance(value, relax.Call) or value.op not in changed:
            return value
        sizes = changed[value.op]
        shapes = [a for a in value.args if isinstance(a, relax.ShapeExpr)]
        shape = relax.ShapeExpr([*(d for s in shapes for d in s.values), *(value.args[i] for i in sizes)])
        rest = [a for i, a in enumerate(value.args) if i not in sizes and not isinstance(a, relax.ShapeExpr)]
        return relax.Call(added[value.op], [*rest, shape], value.attrs, value.ty_args, value.span)

    main = fused["main"]
    bindings = [(b.var, moved(b.value), b.var.name) for b in bindings_of(main)]
    return write_main(builder.get(), main.params, bindings, outputs_of(main))


def _size_parameters(function: relax.Function) -> list[int]:
    """The places of the parameters that are sizes."""
    return [index for index, param in enumerate(function.params) if isinstance(param.ty, tvm.ir.PrimType)]


def _with_sizes_last(function: relax.Function, sizes: Collection[int]) -> relax.Function:
    """A fused function whose parameters `sizes`, by place, are elements of its last one."""
    shapes = [p for p in function.params if isinstance(p.ty, relax.ShapeType)]
    values = [*(d for s in shapes for d in s.ty.values), *(function.params[i] for i in sizes)]
    rest = [p for i, p in enumerate(function.params) if i not in sizes and not isinstance(p.ty, relax.ShapeType)]
    shape = relax.Var("tir_vars", relax.ShapeType(values))
    return relax.Function([*rest, shape], function.body, function.ret_ty, function.is_pure, function.attrs)


def is_inlined(mod: tvm.IRModule, value: relax.Expr) -> bool:
    """Whether an expression calls a kernel that fusion inlines into its reader."""
    return _injective(mod, value) is not None


def not_fused(mod: tvm.IRModule, results: Collection[relax.Var]) -> tvm.IRModule:
    """The module with the kernels that compute `results` marked as kernels that are not fused."""
    return _with_pattern(mod, results, OPAQUE, "alone")


def padding_after_sums_apart(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with padding of any size marked as what it is, so that it is not fused with a sum before it.

    TVM takes padding behind the data alone for arithmetic by element, as it reads each element at its own place. No
    generator writes a convolution with another size than that of its output, and such a kernel ran in plain loops.
    """
    pads = {b.var for b in bindings_of(mod["main"]) if is_kernel_call(b.value) and _is_enlarged(mod[b.value.args[0]])}
    return _with_pattern(mod, pads, INJECTIVE, "moved")


def _is_enlarged(function: tirx.PrimFunc) -> bool:
    """Whether a kernel by element has a result of another size than an argument, and not by broadcasting it."""
    if pattern_of(function) >= INJECTIVE:
        return False
    *given, result = [param.shape for param in function.params if hasattr(param, "shape")]
    sized = [(a, b) for dims in given if len(dims) == len(result) for a, b in zip(dims, result, strict=True)]
    return any(
        not (isinstance(a, tirx.IntImm) and (int(a) == 1 or isinstance(b, tirx.IntImm)))
        and not sym.Analyzer().can_prove_equal(a, b)
        for a, b in sized
    )


def expansions_after_products_apart(mod: tvm.IRModule, *, of_channels: bool = False) -> tvm.IRModule:
    """The module with what makes a product's results larger marked, so that it is not fused with it.

    TVM takes the broadcasting of a product's results, such as the sums of all pairs of rows of two products, for
    arithmetic on each of them. No generator writes a product with an epilogue of another size. Where another operand is
    as large as the result, that one's product may have the arithmetic as its epilogue, and the smaller one is computed
    before: else each of its rows would be computed for every row that it is added to. Products that are factors of
    whole channels, alike along the last dimension, are so only with `of_channels`. Statistics of rows, which are sums
    of one tensor's elements, have generators of their own.
    """
    computed: dict[relax.Var, bool] = {}  # whether it is of two tensors, not a sum of one's elements
    larger: set[relax.Var] = set()
    before: set[relax.Var] = set()
    for binding in bindings_of(mod["main"]):
        value = binding.value
        pattern = pattern_of(mod[value.args[0]]) if is_kernel_call(value) else OPAQUE
        if pattern == PRODUCT:
            computed[binding.var] = len(arguments_of(value)) > 1
        elif pattern <= BROADCAST:
            given = [a for a in arguments_of(value) if a in computed]
            if given and not any(_has_as_many(a.ty, binding.var.ty) for a in arguments_of(value)):
                larger.add(binding.var)
            elif given:
                computed[binding.var] = any(computed[a] for a in given)
                smaller = [a for a in given if computed[a] and not _has_as_many(a.ty, binding.var.ty)]
                before.update(a for a in smaller if of_channels or _repeats_rows(a.ty, binding.var.ty))
    return not_fused(_with_pattern(mod, larger, INJECTIVE, "spread"), before)


def _repeats_rows(one: relax.TensorType, other: relax.TensorType) -> bool:
    """Whether a tensor with more elements repeats whole rows of one, of more than one element each."""
    one_element, analyzer = tirx.const(1, "int64"), sym.Analyzer()
    last = [dims[-1] if (dims := _dims(ty)) else one_element for ty in (one, other)]
    return bool(analyzer.can_prove_equal(*last) and not analyzer.can_prove_equal(last[0], one_element))


def _has_as_many(one: relax.TensorType, other: relax.TensorType) -> bool:
    """Whether two tensors have as many elements."""
    counts = [reduce(operator.mul, _dims(ty), tirx.const(1, "int64")) for ty in (one, other)]
    return bool(sym.Analyzer().can_prove_equal(*counts))


def _with_pattern(mod: tvm.IRModule, results: Collection[relax.Var], pattern: int, suffix: str) -> tvm.IRModule:
    """The module with a pattern for the kernels that compute `results`; their names get a suffix."""
    main = mod["main"]
    builder = relax.BlockBuilder(mod)
    alone: dict[str, relax.GlobalVar] = {}
    bindings = []
    for binding in bindings_of(main):
        value = binding.value
        if binding.var in results:
            name = value.args[0].name_hint
            if name not in alone:
                alone[name] = builder.add_func(mod[name].with_attr(PATTERN, pattern), f"{name}_{suffix}")
            value = with_kernel(value, alone[name])
        bindings.append((binding.var, value, binding.var.name))
    return write_main(builder.get(), main.params, bindings, outputs_of(main)) if alone else mod


def _reads_other_sizes(value: relax.Call, function: tirx.PrimFunc, named: frozenset[tirx.Var]) -> bool:
    """Whether a kernel has arguments that are sizes, and no tensor, or sizes that are not dimensions of an input.

    TVM leaves the other sizes out of a fused kernel, which finds them in the shapes of its tensors.
    """
    sizes = [a for a in arguments_of(value) if isinstance(a.ty, tvm.ir.PrimType)]
    if not sizes:
        return False
    return not hasattr(function.params[0], "shape") or not named.issuperset(
        v for size in sizes for v in tirx.analysis.undefined_vars(size)
    )


def _dims(ty: relax.TensorType | relax.ShapeType) -> list[tirx.Expr]:
    """The dimensions of a parameter, none of one that is itself a shape: sizes that were computed from data."""
    shape = ty.shape if isinstance(ty, relax.TensorType) else None
    return list(shape.values) if isinstance(shape, relax.ShapeExpr) else []


def _injective(mod: tvm.IRModule, value: relax.Expr) -> tirx.PrimFunc | None:
    """The kernel that an expression calls if fusion inlines it into its reader, else None."""
    if not is_kernel_call(value):
        return None
    function = mod[value.args[0]]
    return function if pattern_of(function) <= INJECTIVE else None


def _terms(function: tirx.PrimFunc, given: list[int]) -> int:
    """The number of reads and functions in the kernel's inlined expression; its arguments have `given` terms."""
    terms = dict(zip(function.params, [*given, *[1] * (len(function.params) - len(given))], strict=True))
    most = 1

    def visit(block: s_tir.SBlock) -> None:
        nonlocal most
        if block.name_hint == "root":
            return
        reads: list[tirx.Buffer] = []
        calls: list[str] = []
        walks = [
            (TensorLoad, lambda node: reads.append(node.source)),
            (Call, lambda node: calls.append(getattr(node.op, "name", ""))),
        ]
        tvm_ffi.structural_walk(block.body, walks, order="post")
        copies = _COPIES ** sum(name in _REPEATS for name in calls)
        most = copies * sum(terms.get(r, 1) for r in reads) + len(calls) + 1
        for written in block.writes:
            terms[written.source] = most

    tvm_ffi.structural_walk(function.body, [(s_tir.SBlock, visit)], order="post")
    return most
