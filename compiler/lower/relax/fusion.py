"""Keeps fusion from writing a value out over and over: elementwise kernels are computed where they are read.

A kernel that reads its argument twice (`x * sigmoid(x)`) doubles the expression of what is fused into it, so a chain of
them grows without bound: twenty make a million terms. Here such a chain is cut wherever the terms would be too many.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.ir import Call, TensorLoad

from heterocc.compiler.lower.straight import (
    arguments_of,
    bindings_of,
    is_kernel_call,
    outputs_of,
    with_kernel,
    write_main,
)

MOST_TERMS = 512
"""Terms that a fused expression may have. Fusing what real networks hold gives tens."""

_INJECTIVE = 2
"""TVM's last pattern of kernels (elementwise, broadcasting, injective) that are computed where they are read."""

_OPAQUE = 8
"""TVM's pattern of kernels that are not fused."""

_PATTERN = "op_pattern"

_REPEATS = frozenset(f"tirx.{name}" for name in "acosh asinh atanh cosh sinh tan tanh asin acos erf".split())
"""Functions that code generation expands into formulas which repeat their argument."""

_COPIES = 3
"""How often they do, about."""


def without_blowup(mod: tvm.IRModule) -> tvm.IRModule:
    """The module, annotated with patterns, where a kernel that would make a fused expression too long stays alone."""
    main = mod["main"]
    builder = relax.BlockBuilder(mod)
    terms: dict[relax.Var, int] = {}
    alone: dict[str, relax.GlobalVar] = {}
    bindings = []
    for binding in bindings_of(main):
        value = binding.value
        function = _injective(mod, value)
        if function is not None:
            terms[binding.var] = _terms(function, [terms.get(a, 1) for a in arguments_of(value)])
            if terms[binding.var] > MOST_TERMS:
                terms[binding.var] = 1
                name = value.args[0].name_hint
                if name not in alone:
                    alone[name] = builder.add_func(function.with_attr(_PATTERN, _OPAQUE), f"{name}_alone")
                value = with_kernel(value, alone[name])
        bindings.append((binding.var, value, binding.var.name))
    return write_main(builder.get(), main.params, bindings, outputs_of(main)) if alone else mod


def _injective(mod: tvm.IRModule, value: relax.Expr) -> tirx.PrimFunc | None:
    """The kernel that an expression calls, where it is one that fusion computes in its reader; else None."""
    if not is_kernel_call(value):
        return None
    function = mod[value.args[0]]
    return function if int(function.attrs.get(_PATTERN, _OPAQUE)) <= _INJECTIVE else None


def _terms(function: tirx.PrimFunc, given: list[int]) -> int:
    """Reads and functions in what the kernel computes, all written out; its arguments have `given` terms."""
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
