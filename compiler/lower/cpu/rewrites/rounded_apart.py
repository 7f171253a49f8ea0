"""Results of 16 bits behind products of float32: a kernel of their own rounds them.

Code for sizes that are known only at run time stores float32 by masks, and vectors of 16 bits one by one without them.
"""

from __future__ import annotations

import tvm
from tvm import relax

from heterocc.compiler.lower.relax.fusion import is_inlined, not_fused
from heterocc.compiler.lower.straight import arguments_of, bindings_of, is_kernel_call
from heterocc.compiler.lower.written import PRODUCT, REDUCTION, pattern_of

_SIXTEEN_BITS = ("float16", "uint16")


def rounded_apart(mod: tvm.IRModule) -> tvm.IRModule:
    """The module, annotated with TVM's patterns, with the kernels marked that round what sums give to 16 bits."""
    behind: set[relax.Var] = set()
    apart: set[relax.Var] = set()
    for var, call in [(b.var, b.value) for b in bindings_of(mod["main"]) if is_kernel_call(b.value)]:
        inlined = is_inlined(mod, call) and not behind.isdisjoint(arguments_of(call))
        if inlined or pattern_of(mod[call.args[0]]) in (REDUCTION, PRODUCT):
            behind.add(var)
        if inlined and str(getattr(var.ty, "dtype", "")) in _SIXTEEN_BITS:
            apart.add(var)
    return not_fused(mod, apart)
