"""Concatenations that are not fused with what they join, so that this is written where the result lies.

Fusion makes a Transpose and the Concat that reads it one kernel. That kernel copies the other parts, too, which kernels
of their own have written. Left alone, the Concat needs no kernel (`in_place.py`). Nor is a Concat of any size fused
with a kernel that puts rows of all its parts together element by element, as a transposed convolution in parts does.
"""

from __future__ import annotations

import tvm
from tvm import relax, tirx

from heterocc.compiler.lower.cpu.concatenations.in_place import joined_of_any_size
from heterocc.compiler.lower.cpu.sizes import has_sizes
from heterocc.compiler.lower.kernels.expressions import parts_of
from heterocc.compiler.lower.relax.fusion import is_inlined, not_fused
from heterocc.compiler.lower.straight import arguments_of, bindings_of, is_kernel_call, outputs_of, vars_of


def joined_apart(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with such concatenations marked, if that saves copies and their readers would not be fused with them.

    `mod` is annotated with TVM's patterns.
    """
    main = mod["main"]
    bindings = bindings_of(main)
    written = {b.var: b.value for b in bindings if is_kernel_call(b.value)}
    readers: dict[relax.Var, list[relax.Expr]] = {}
    for binding in bindings:
        for var in vars_of(binding.value):
            readers.setdefault(var, []).append(binding.value)
    outputs = set(outputs_of(main))

    def is_apart(var: relax.Var, call: relax.Call) -> bool:
        parts = arguments_of(call)
        inside = all(p in written and p not in outputs for p in parts) and var not in outputs
        if not inside or len(set(parts)) < len(parts):
            return False
        reading = readers.get(var, [])
        if any(not is_kernel_call(r) for r in reading) or len(joined_of_any_size(mod[call.args[0]])) != len(parts):
            return False
        fused = [is_inlined(mod, written[p]) for p in parts]
        if any(is_inlined(mod, r) for r in reading):
            return not any(fused) and all(_interleaves(mod[r.args[0]]) for r in reading)
        return not all(fused) and any(f and len(readers[p]) == 1 for f, p in zip(fused, parts, strict=True))

    return not_fused(mod, {var for var, call in written.items() if len(arguments_of(call)) > 1 and is_apart(var, call)})


def _interleaves(function: tirx.PrimFunc) -> bool:
    """Whether a kernel of any size puts rows together element by element.

    It has vectors if it reads one value, not several. Sizes that are known are divided when code is generated.
    """
    return has_sizes(function) and bool(parts_of(function.body, tirx.FloorDiv, tirx.FloorMod))
