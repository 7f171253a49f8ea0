"""TVM's legalisation of operators into kernels, where an operator that it refuses is an error and nothing else.

An exception that leaves one of its functions unwinds a builder of TVM's that then warns, on the standard error of
whoever compiles, of blocks it still has: `heterocc query` asks for many operators that are refused.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax

from heterocc.compiler.lower.straight import bindings_of

_RULE = "FLegalize"


def legalised(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with operators made kernels; raises what TVM's function for the first that is refused raised."""
    refusals: list[Exception] = []

    def guarded(
        rule: Callable[[relax.BlockBuilder, relax.Call], relax.Expr],
    ) -> Callable[[relax.BlockBuilder, relax.Call], relax.Call]:
        def call(builder: relax.BlockBuilder, operator: relax.Call) -> relax.Call:
            try:
                return rule(builder, operator)
            except Exception as error:  # kept until the pass is through
                refusals.append(error)
                return operator

        return call

    operators = {b.value.op for b in bindings_of(mod["main"]) if isinstance(b.value, relax.Call)}
    # An operator without the attribute answers None: `has_attr` is true wherever another operator has it.
    rules = {o.name: o.get_attr(_RULE) for o in operators if isinstance(o, tvm.ir.Op)}
    guards = {name: guarded(rule) for name, rule in rules.items() if rule is not None}
    done = relax.transform.LegalizeOps(guards, enable_warning=False)(mod)
    if refusals:
        raise refusals[0]
    return done
