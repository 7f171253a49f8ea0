"""Attention whose keys are those of earlier tokens and of new ones, on arrays that end at pages without access."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from tvm import tirx

from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
from heterocc.compiler.lower.cpu.generate.attention.attention import hidden_sizes, write_attention
from heterocc.compiler.lower.cpu.generate.attention.description import Attention, ScoreStep, strided
from heterocc.compiler.lower.cpu.generate.isa import isa_of
from heterocc.compiler.lower.cpu.maths.pipeline import PIPELINE
from heterocc.compiler.lower.cpu.sizes import assuming, size_of
from heterocc.compiler.lower.variables import size_variable
from heterocc.runtime import load
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


def _sizes(rows: int, keys: int) -> list[tuple[int, int]]:
    return [(rows, TERMS), (keys, TERMS), (keys, COLUMNS)]


def _attended(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | float = 0.0) -> np.ndarray:
    """Attention in float64; zeros without keys."""
    scores = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 2, 1) + mask
    shares = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
    return np.asarray(shares @ v / np.maximum(shares.sum(-1, keepdims=True), np.finfo(float).tiny))


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
        q, k, v = (rng.standard_normal((HEADS, *s)).astype(np.float32) for s in _sizes(rows, past_keys + rows))
        result = guarded(np.full((HEADS, rows, COLUMNS), np.nan, np.float32))
        built(*(host_tensor(guarded(x)) for x in (q, k, v)), past_keys, host_tensor(result))
        np.testing.assert_allclose(result, _attended(q, k, v), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mcpu", runnable())
def test_a_number_of_keys_that_may_be_0_has_a_kernel(mcpu: str) -> None:
    """Those of an encoder, which the first step of a merged decoder gives as an array without elements."""
    target = target_of(mcpu)
    form = _form(tirx.Var("d0_new", "int64"), size_variable("d1_encoder", "int64", empty=True))
    function = write_attention(form, isa_of(target))
    assert function is not None
    with target:
        built = tvm.tirx.build(
            tvm.IRModule({"f": function.with_attr("global_symbol", "f")}), target, pipeline=PIPELINE
        )["f"]
    rng = np.random.default_rng(0)
    for rows, keys in [(1, 0), (5, 0), (1, 1), (2, 3), (1, 15), (3, 16), (1, 61), (17, 40)]:
        q, k, v = (rng.standard_normal((HEADS, *s)).astype(np.float32) for s in _sizes(rows, keys))
        result = guarded(np.full((HEADS, rows, COLUMNS), np.nan, np.float32))
        built(*(host_tensor(guarded(x)) for x in (q, k, v)), host_tensor(result))
        np.testing.assert_allclose(result, _attended(q, k, v), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mcpu", runnable())
def test_rows_with_as_many_keys_have_code_for_few_and_for_many_and_none_for_one_row(mcpu: str) -> None:
    target, length, terms = target_of(mcpu), tirx.Var("d0_length", "int64"), 16
    with assuming([length]):
        rows = size_of(length)
        assert rows is not None
        shapes = [(HEADS, rows, n) for n in (terms, terms, COLUMNS, rows, COLUMNS)]
        q, k, v, mask, out = (strided(s, (s[1] * s[2], s[2], 1), (HEADS,), s) for s in shapes)
        form = Attention((HEADS,), rows, rows, terms, COLUMNS, q, k, v, out, (ScoreStep("add", operand=mask),))
    function = write_attention(form, isa_of(target))
    assert function is not None
    assert function.script().count("if assumed") == 1
    with target:
        built = tvm.tirx.build(
            tvm.IRModule({"f": function.with_attr("global_symbol", "f")}), target, pipeline=PIPELINE
        )["f"]
    rng = np.random.default_rng(0)
    for n in (1, 2, 5, 13, 15, 16, 17, 40):
        given = [rng.standard_normal((HEADS, n, last)).astype(np.float32) for last in (terms, terms, COLUMNS, n)]
        given[3][:, :, n // 2 + 1 :] = -np.inf
        result = guarded(np.full((HEADS, n, COLUMNS), np.nan, np.float32))
        built(*(host_tensor(guarded(x)) for x in given), host_tensor(result))
        few = (given[0], *(x[:, : n // 2 + 1] for x in given[1:3]), given[3][:, :, : n // 2 + 1])
        np.testing.assert_allclose(result, _attended(*few), rtol=1e-4, atol=1e-5)


def test_attention_in_a_branch_that_may_have_no_keys_is_one_kernel(tmp_path: Path) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    net (bool later, float[b, 2, n, 8] q, float[b, 2, e, 8] k, float[b, 2, e, 8] v) => (float[b, 2, n, 8] y)
    {
      y = If (later) <
        then_branch = inside () => (float[b, 2, n, 8] t) {
          turned = Transpose<perm=[0, 1, 3, 2]>(k)
          scores = MatMul(q, turned)
          shares = Softmax<axis=-1>(scores)
          t = MatMul(shares, v)
        },
        else_branch = outside () => (float[b, 2, n, 8] o) { o = Neg(q) }
      >
    }
    """
    model = onnx.parser.parse_model(text)
    compile_model(model, tmp_path / "m.hcb", devices="CPU")
    with open_bundle(tmp_path / "m.hcb") as bundle:
        (part,) = bundle.manifest.variants[0].partitions
        names = [kernel.symbol for kernel in part.kernels]
    assert len(names) == 2, names  # one of each branch
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(0)
    with load(tmp_path / "m.hcb") as session:
        for later, new, keys in [(True, 3, 0), (False, 3, 0), (True, 1, 5), (False, 1, 5), (True, 2, 40), (True, 1, 1)]:
            q, k, v = (rng.standard_normal((1, 2, length, 8)).astype(np.float32) for length in (new, keys, keys))
            feed = {"later": np.array(later), "q": q, "k": k, "v": v}
            (wanted,) = reference.run(None, feed)
            np.testing.assert_allclose(session.run(feed)["y"], wanted, rtol=1e-4, atol=1e-5)
