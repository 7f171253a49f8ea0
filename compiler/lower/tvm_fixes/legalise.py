"""TVM's legalisation of operators into kernels, without warnings about an operator that it refuses.

An exception from a legalisation function unwinds one of TVM's builders, which then warns about its open blocks on
standard error. `heterocc query` tries many operators that are refused.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax

from heterocc.compiler.lower.straight import bindings_of

_RULE = "FLegalize"


def legalised(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with operators replaced by calls of kernels. Raises the exception of the first refused operator."""
    refusals: list[Exception] = []

    def guarded(
        rule: Callable[[relax.BlockBuilder, relax.Call], relax.Expr],
    ) -> Callable[[relax.BlockBuilder, relax.Call], relax.Call]:
        def call(builder: relax.BlockBuilder, operator: relax.Call) -> relax.Call:
            try:
                return rule(builder, operator)
            except Exception as error:  # raised when the pass is done
                refusals.append(error)
                return operator

        return call

    operators = {b.value.op for b in bindings_of(mod["main"]) if isinstance(b.value, relax.Call)}
    # `get_attr` is None for an operator without the attribute; `has_attr` is true if any operator has it.
    rules = {o.name: o.get_attr(_RULE) for o in operators if isinstance(o, tvm.ir.Op)}
    guards = {name: guarded(rule) for name, rule in rules.items() if rule is not None}
    done = relax.transform.LegalizeOps(guards, enable_warning=False)(mod)
    if refusals:
        raise refusals[0]
    return done
