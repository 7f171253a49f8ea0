"""TVM's legalisation of operators into kernels, once for equal ones, and without warnings about one that it refuses.

TVM writes a kernel for each operator, and then finds that it has it already.

An exception from a legalisation function unwinds one of TVM's builders, which then warns about its open blocks on
standard error. `heterocc query` tries many operators that are refused.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import relax

from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.lower.straight import bindings_of, is_static
from heterocc.compiler.lower.tvm_fixes.regrouped import reshape_kernel
from heterocc.compiler.lower.written import RESHAPES

_RULE = "FLegalize"
_CALL_TIR = tvm.ir.Op.get("relax.call_tir")
_RESHAPE = tvm.ir.Op.get("relax.reshape")


def legalised(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with operators replaced by calls of kernels. Raises the exception of the first refused operator."""
    refusals: list[Exception] = []
    known: dict[_Key, list[tuple[relax.Call, relax.Call]]] = {}

    def guarded(
        rule: Callable[[relax.BlockBuilder, relax.Call], relax.Expr],
    ) -> Callable[[relax.BlockBuilder, relax.Call], relax.Call]:
        def call(builder: relax.BlockBuilder, operator: relax.Call) -> relax.Call:
            alike = known.setdefault(_key(operator), [])
            for other, done in alike:
                if _is_like(operator, other):
                    return _again(done, operator)
            try:
                made = _reshaped(builder, operator, rule) if operator.op == _RESHAPE else rule(builder, operator)
            except Exception as error:  # raised when the pass is done
                pass_foreign(error)
                refusals.append(error)
                return operator
            if _is_plain(made, operator):
                alike.append((operator, made))
            return made

        return call

    operators = {b.value.op for b in bindings_of(mod["main"]) if isinstance(b.value, relax.Call)}
    # `get_attr` is None for an operator without the attribute; `has_attr` is true if any operator has it.
    rules = {o.name: o.get_attr(_RULE) for o in operators if isinstance(o, tvm.ir.Op)}
    guards = {name: guarded(rule) for name, rule in rules.items() if rule is not None}
    done = relax.transform.LegalizeOps(guards, enable_warning=False)(mod)
    if refusals:
        raise refusals[0]
    return done


def _reshaped(
    builder: relax.BlockBuilder, call: relax.Call, rule: Callable[[relax.BlockBuilder, relax.Call], relax.Expr]
) -> relax.Expr:
    """A call of a kernel that reshapes, which has RESHAPES if sizes are dynamic: TVM does not see it in all of them."""
    made = reshape_kernel(builder, call)
    made = rule(builder, call) if made is None else made
    if isinstance(made, relax.Call) and made.op == _CALL_TIR and not is_static(call):
        function = builder.get()[made.args[0]]
        builder.update_func(made.args[0], function.with_attr(RESHAPES, True))
    return made


_Key = tuple[str, int, tuple[int, ...]]


def _key(operator: relax.Call) -> _Key:
    """Equal for operators with equal attributes and types of arguments."""
    attributes = 0 if operator.attrs is None else tvm_ffi.structural_hash(operator.attrs)
    return operator.op.name, attributes, tuple(tvm_ffi.structural_hash(a.ty) for a in operator.args)


def _is_like(operator: relax.Call, other: relax.Call) -> bool:
    """Whether the kernel of another operator computes this one."""
    if not _are_distinct(operator) or not tvm_ffi.structural_equal(operator.attrs, other.attrs):
        return False
    return all(tvm_ffi.structural_equal(a.ty, b.ty) for a, b in zip(operator.args, other.args, strict=True))


def _is_plain(made: relax.Expr, operator: relax.Call) -> bool:
    """Whether `made` calls a kernel with just the arguments of an operator, none of them twice."""
    if not isinstance(made, relax.Call) or made.op != _CALL_TIR or len(made.args) != 2 or not _are_distinct(operator):
        return False
    given = list(made.args[1].fields)
    return len(given) == len(operator.args) and all(a.same_as(b) for a, b in zip(given, operator.args, strict=True))


def _are_distinct(operator: relax.Call) -> bool:
    variables = [a for a in operator.args if isinstance(a, relax.Var)]
    return len(variables) == len(operator.args) == len(set(variables))


def _again(made: relax.Call, operator: relax.Call) -> relax.Call:
    """The call of a kernel with the arguments of another operator."""
    return relax.Call(made.op, [made.args[0], relax.Tuple(list(operator.args))], made.attrs, made.ty_args)
