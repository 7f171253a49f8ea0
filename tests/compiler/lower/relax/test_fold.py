"""Values that depend on weights alone are computed by the compile, as far as their bytes and their work are few."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import helper
from tvm import relax

from heterocc.compiler.importer.estimates import work
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.backend import PartitionJob
from heterocc.compiler.lower.cpu.target import cpu_target
from heterocc.compiler.lower.pipeline import import_partition
from heterocc.compiler.lower.relax.fold import fold_weights
from heterocc.compiler.lower.straight import bindings_of
from tests.compiler.lower.lowered import CPU
from tests.symbolic_models import dynamic_model

N = helper.make_node
Value = relax.Expr
SIDE = 64
BYTES = 4 * SIDE * SIDE


def weight() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(np.float32)


def left_and_kept(build: Callable[[relax.BlockBuilder, Value], list[Value]]) -> tuple[list[str], dict[str, np.ndarray]]:
    """The operators of a function of a weight that are left to a run, and its parameters."""
    bb, w = relax.BlockBuilder(), relax.Var("w", relax.TensorType([SIDE, SIDE], "float32"))
    with bb.function("main", [w]):
        bb.emit_func_output(relax.Tuple(build(bb, w)))
    mod, kept = fold_weights(bb.get(), {"w": weight()})
    return [b.value.op.name for b in bindings_of(mod["main"]) if isinstance(b.value, relax.Call)], kept


def joined(times: int) -> Callable[[relax.BlockBuilder, Value], list[Value]]:
    def build(bb: relax.BlockBuilder, value: Value) -> list[Value]:
        for _ in range(times):
            value = bb.emit(relax.op.concat([value, value], 0))
        return [value]

    return build


def summed(times: int) -> Callable[[relax.BlockBuilder, Value], list[Value]]:
    def build(bb: relax.BlockBuilder, value: Value) -> list[Value]:
        total = value
        for _ in range(times):
            total = bb.emit(relax.op.add(total, value))
        return [total]

    return build


def test_a_value_that_is_joined_with_itself_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MAX_GROWTH_BYTES", 0)
    left, kept = left_and_kept(joined(6))
    assert len(left) == 5 and sum(a.nbytes for a in kept.values()) == 2 * BYTES


def test_many_values_of_one_weight_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MAX_GROWTH_BYTES", 0)
    left, kept = left_and_kept(lambda bb, w: [bb.emit(relax.op.concat([w, w], 0)) for _ in range(8)])
    assert len(left) == 7 and sum(a.nbytes for a in kept.values()) == 3 * BYTES


def test_a_long_chain_needs_the_memory_of_its_largest_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MAX_GROWTH_BYTES", 0)
    left, kept = left_and_kept(summed(40))
    assert not left
    (found,) = kept.values()
    np.testing.assert_allclose(found, 41 * weight(), rtol=1e-5)


def test_what_would_take_long_is_left_to_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MAX_WORK", 0)  # as many reads and writes of the weight as 64
    assert len(left_and_kept(summed(40))[0]) == 40 - 64 // 3

    def squared(bb: relax.BlockBuilder, value: Value) -> list[Value]:
        for _ in range(8):
            value = bb.emit(relax.op.matmul(value, value))
        return [value]

    def contracted(bb: relax.BlockBuilder, value: Value) -> list[Value]:
        return [bb.emit(relax.op.einsum(relax.Tuple([value, value, value]), "ij,jk,kl->il"))]

    monkeypatch.setattr(work, "_WORK_PER_WEIGHT", 300)
    assert 1 <= len(left_and_kept(squared)[0]) < 8
    assert left_and_kept(contracted)[0] == ["relax.einsum"]


def test_views_of_a_weight_take_no_memory_and_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MAX_GROWTH_BYTES", 0)

    def build(bb: relax.BlockBuilder, w: Value) -> list[Value]:
        views = [bb.emit(relax.op.reshape(w, [SIDE // 2, 2 * SIDE])) for _ in range(6)]
        rest = bb.emit(relax.op.negative(views[0]))
        return [*views, rest, bb.emit(relax.op.sqrt(rest))]

    left, kept = left_and_kept(build)
    assert not left and all(a.size for a in kept.values())


def test_what_tvm_computes_later_keeps_what_it_reads() -> None:
    def build(bb: relax.BlockBuilder, w: Value) -> list[Value]:
        half = bb.emit(relax.op.negative(w))
        return [bb.emit(relax.op.exp(half)), bb.emit(relax.op.negative(half))]

    left, kept = left_and_kept(build)
    assert not left
    first, second = kept.values()
    np.testing.assert_allclose(first, np.exp(-weight()), rtol=1e-5)
    np.testing.assert_array_equal(second, weight())


def test_a_weight_that_many_products_read_transposed_is_folded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """LSTM cells written out: of 40 transpositions of two weights of 6.5 MB two were left to each run."""
    monkeypatch.setattr(work, "MAX_GROWTH_BYTES", 0)
    steps = range(8)
    nodes = [N("Gemm", [f"x{n}", "w"], [f"y{n}"], transB=1) for n in steps]
    inputs = {f"x{n}": ("float32", (4, SIDE)) for n in steps}
    model = import_model(dynamic_model(nodes, inputs, [f"y{n}" for n in steps], {"w": weight()}))
    graph = model.graph
    job = PartitionJob("p0", model, CPU, tuple(n.name for n in graph.nodes), graph.inputs, graph.outputs)
    found = import_partition(job, cpu_target(CPU))
    operators = {getattr(b.value.op, "name", "") for b in bindings_of(found.mod["main"])}
    assert operators == {"relax.matmul"} and sum(a.nbytes for a in found.arrays.values()) == BYTES
