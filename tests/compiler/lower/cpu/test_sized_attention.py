"""Attention whose keys are those of earlier tokens and of new ones, on arrays that end at pages without access."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tvm
from tvm import tirx

from heterocc.compiler.lower.cpu.generate.attention.attention import hidden_sizes, write_attention
from heterocc.compiler.lower.cpu.generate.attention.description import Attention, strided
from heterocc.compiler.lower.cpu.generate.isa import isa_of
from heterocc.compiler.lower.cpu.maths.pipeline import PIPELINE
from heterocc.compiler.lower.cpu.sizes import assuming, size_of
from heterocc.runtime.execute.memory import host_tensor
from tests.compiler.lower.cpu.generate.generated import AVX512, runnable, target_of
from tests.guard_pages import guarded

HEADS, TERMS, COLUMNS = 3, 8, 24


def _form(new: tirx.Expr, every: tirx.Expr) -> Attention:
    """The attention of `new` queries to `every` key."""
    with assuming([new, every]):
        rows, keys = size_of(new), size_of(every)
        assert rows is not None and keys is not None
        shapes = [(HEADS, rows, TERMS), (HEADS, keys, TERMS), (HEADS, keys, COLUMNS), (HEADS, rows, COLUMNS)]
        operands = [strided(s, (s[1] * s[2], s[2], 1), (HEADS,), s) for s in shapes]
        return Attention((HEADS,), rows, keys, TERMS, COLUMNS, *operands, ())


def test_keys_that_are_usually_fewer_than_a_vector_have_no_kernel() -> None:
    side = tirx.Var("d0_side", "int64")
    with assuming([side]):
        few = size_of(tirx.floordiv(side, tirx.const(32, "int64")))
        assert few is not None
        form = dataclasses.replace(_form(side, side), keys=few)
    assert write_attention(form, isa_of(target_of(AVX512))) is None


@pytest.mark.parametrize("mcpu", runnable())
def test_keys_of_earlier_tokens_are_counted_by_a_parameter(mcpu: str) -> None:
    target = target_of(mcpu)
    new, past = tirx.Var("d0_new", "int64"), tirx.Var("e1_past", "int64")
    form = _form(new, past + new)
    assert [var.name for var in hidden_sizes(form)] == ["e1_past"]
    function = write_attention(form, isa_of(target))
    assert function is not None
    with target:
        built = tvm.tirx.build(
            tvm.IRModule({"f": function.with_attr("global_symbol", "f")}), target, pipeline=PIPELINE
        )["f"]
    rng = np.random.default_rng(0)
    for rows, past_keys in [(1, 0), (1, 1), (2, 0), (3, 14), (1, 15), (1, 16), (5, 12), (16, 16), (1, 64), (17, 30)]:
        sizes = [(rows, TERMS), (past_keys + rows, TERMS), (past_keys + rows, COLUMNS)]
        q, k, v = (rng.standard_normal((HEADS, *s)).astype(np.float32) for s in sizes)
        result = guarded(np.full((HEADS, rows, COLUMNS), np.nan, np.float32))
        built(*(host_tensor(guarded(x)) for x in (q, k, v)), past_keys, host_tensor(result))
        scores = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 2, 1)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        wanted = shares @ v / shares.sum(-1, keepdims=True)
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)
