"""Legalisation that writes the kernel of equal operators once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import op

from heterocc.compiler.lower.tvm_fixes.legalise import legalised


def program() -> tvm.IRModule:
    """Operators that are equal, and others that differ in attributes, types, sizes, and the number of arguments."""
    builder, size = relax.BlockBuilder(), tirx.Var("n", "int64")
    x, y = (relax.Var(name, relax.TensorType((4, 8), "float32")) for name in "xy")
    z, half = (
        relax.Var("z", relax.TensorType((size, 8), "float32")),
        relax.Var("h", relax.TensorType((4, 8), "float16")),
    )
    with builder.function("main", [x, y, z, half]):
        emitted = [
            op.add(x, y),
            op.add(y, x),
            op.add(x, x),
            op.add(x, relax.const(np.float32(2))),
            op.add(y, relax.const(np.float32(3))),
            op.add(z, z),
            op.exp(z),
            op.exp(half),
            op.exp(x),
            op.exp(y),
            op.nn.softmax(x, 0),
            op.nn.softmax(y, 0),
            op.nn.softmax(x, 1),
            op.sum(x, [0], keepdims=True),
            op.sum(y, [0], keepdims=False),
            op.sum(y, [0], keepdims=True),
            op.concat([x, y], 0),
            op.concat([y, x], 0),
            op.reshape(x, (8, 4)),
            op.reshape(y, (2, 16)),
            op.reshape(y, (8, 4)),
        ]
        with builder.dataflow():
            outputs = [builder.emit_output(call) for call in emitted]
        builder.emit_func_output(relax.Tuple(outputs))
    return builder.get()


def test_the_result_is_that_of_tvm() -> None:
    with tvm.target.Target("llvm"):
        assert tvm_ffi.structural_equal(legalised(program()), relax.transform.LegalizeOps()(program()))


def test_equal_operators_are_legalised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    get_attr = tvm.ir.Op.get_attr

    def counted(operator: tvm.ir.Op, name: str) -> object:
        rule: Callable[..., object] | None = get_attr(operator, name)
        if name != "FLegalize" or rule is None:
            return rule
        return lambda *given: calls.append(operator.name) or rule(*given)

    monkeypatch.setattr(tvm.ir.Op, "get_attr", counted)
    with tvm.target.Target("llvm"):
        legalised(program())
    once = {name: calls.count(f"relax.{name}") for name in ("add", "exp", "nn.softmax", "sum")}
    assert once == {"add": 5, "exp": 3, "nn.softmax": 2, "sum": 2}
