"""Computations that a function has several times."""

from __future__ import annotations

import tvm
from tvm import relax

from heterocc.compiler.lower.relax.repeated import without_repeated
from heterocc.compiler.lower.straight import bindings_of, outputs_of


def built(codes: bool = False) -> tvm.IRModule:
    """Two chains from the same input to sums with it, and a repeated output."""
    builder = relax.BlockBuilder()
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 4), "int8" if codes else "float32"))
    y = relax.Var("y", relax.TensorType((n, 4), "float32"))
    with builder.function("main", params=[x, y]):
        with builder.dataflow():
            chains = [builder.emit(relax.op.astype(x, "float32") if codes else relax.op.exp(x)) for _ in range(2)]
            chains = [builder.emit(relax.op.reshape(chain, (n, 2, 2))) for chain in chains]
            sums = [builder.emit(relax.op.sum(chain, axis=[axis])) for axis, chain in enumerate(chains, 1)]
            same = [builder.emit(relax.op.negative(y)) for _ in range(2)]
            result = builder.emit_output(relax.Tuple([*sums, *same]))
        builder.emit_func_output(result)
    return builder.finalize()


def operators(mod: tvm.IRModule) -> list[str]:
    return [b.value.op.name.removeprefix("relax.") for b in bindings_of(mod["main"])]


def test_chains_are_computed_once_but_outputs_keep_their_own_values() -> None:
    found = without_repeated(built())
    assert operators(found) == ["exp", "reshape", "sum", "sum", "negative", "negative"]
    assert len({output.name for output in outputs_of(found["main"])}) == 4


def test_a_dequantisation_stays_with_each_reader() -> None:
    assert operators(without_repeated(built(codes=True))).count("astype") == 2


def test_another_name_of_a_value_is_replaced_by_its_own() -> None:
    """TVM fuses no kernels through it: the sums of an integer product were written before they were scaled."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", params=[x]):
        with builder.dataflow():
            value = builder.emit(relax.op.exp(builder.emit(x)))
            result = builder.emit_output(relax.Tuple([builder.emit(relax.op.negative(builder.emit(value)))]))
        builder.emit_func_output(result)
    assert operators(without_repeated(builder.finalize())) == ["exp", "negative"]
