"""Attention as one kernel against numpy in float64 and ONNX Runtime."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import NodeProto, helper

from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.arranged import strides_of
from heterocc.compiler.lower.backend import LoweredPartition
from heterocc.compiler.lower.cpu.generate.attention.attention import write_attention
from heterocc.compiler.lower.cpu.generate.attention.description import Attention, Operand
from heterocc.compiler.lower.cpu.generate.isa import isa_of
from heterocc.compiler.lower.cpu.lowering import CpuLowering
from tests.compiler.lower.cpu.generate.generated import runnable, target_of
from tests.compiler.lower.lowered import CPU, Model, assert_same, execute, job, model, run_ort
from tests.few_examples import few

node = helper.make_node
RNG = np.random.default_rng(7)
SIZES = st.one_of(st.integers(1, 9), st.sampled_from([13, 15, 16, 17, 31, 32, 33, 49, 63, 65, 97, 130]))
CPUS = st.sampled_from(runnable())
INFINITE = np.array(-np.inf, np.float32)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def lower(made: Model, cpu: str | None = None) -> LoweredPartition:
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": cpu} if cpu else {}
    if cpu == "x86-64-v4":
        target["mattr"] = ("-prefer-256-bit",)
    return CpuLowering().lower(job(made, dataclasses.replace(CPU, target=target)))


def check(
    nodes: Sequence[NodeProto],
    feeds: Mapping[str, np.ndarray],
    constants: Mapping[str, np.ndarray],
    wanted: np.ndarray,
    atol: float,
    cpu: str | None = None,
) -> None:
    """The model is one kernel that computes all nodes, and its output is near the one wanted."""
    made = model(nodes, feeds, ["y"], constants)
    lowered = lower(made, cpu)
    (kernel,) = lowered.kernels
    assert set(kernel.nodes) == {n.name for n in made.graph.nodes}
    assert kernel.outputs == ("y",)
    found = execute(job(made), lowered, feeds)["y"]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=atol)


def attended(scores: np.ndarray, v: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.asarray(shares / shares.sum(axis=-1, keepdims=True) @ v.astype(np.float64))


@given(
    CPUS,
    st.lists(st.integers(1, 3), max_size=2),
    st.tuples(SIZES, SIZES, SIZES, SIZES),
    st.booleans(),
    st.sampled_from(["plain", "scaled", "divided", "masked", "rows masked", "where", "later", "scaled later"]),
    st.sampled_from([1.0, 50.0]),
    st.sampled_from(["", "kv", "k"]),
)
@few(12, deadline=None)
def test_attention_is_one_kernel_that_agrees_with_float64(
    cpu: str, outer: list[int], sizes: tuple[int, int, int, int], turned: bool, kind: str, size: float, halves: str
) -> None:
    rows, keys, terms, columns = sizes
    q, k, v = floats(*outer, rows, terms), floats(*outer, keys, terms), floats(*outer, keys, columns)
    q *= np.float32(size / terms**0.5)
    nodes = [node("Cast", [f"{name}_half"], [name], to=1) for name in halves]
    k, v = (a.astype(np.float16).astype(np.float32) if name in halves else a for name, a in (("k", k), ("v", v)))
    feeds = {"q": q, "k": k if turned else np.ascontiguousarray(np.swapaxes(k, -1, -2)), "v": v}
    feeds = {f"{n}_half" if n in halves else n: a.astype(np.float16) if n in halves else a for n, a in feeds.items()}
    axes = [*range(len(outer)), len(outer) + 1, len(outer)]
    nodes += [node("Transpose", ["k"], ["kt"], perm=axes)] if turned else []
    nodes.append(node("MatMul", ["q", "kt" if turned else "k"], ["s"]))
    scores = q.astype(np.float64) @ np.swapaxes(k, -1, -2).astype(np.float64)
    factor, last = np.array(0.3, np.float32), "s"

    def then(*steps: tuple[str, list[str]]) -> None:
        nonlocal last
        for op, inputs in steps:
            nodes.append(node(op, [last if i == "." else i for i in inputs], [f"{last}_"]))
            last += "_"

    if kind in ("scaled", "masked"):
        then(("Mul", [".", "c"]))
        scores = scores * float(factor)
    if kind == "divided":
        then(("Div", [".", "c"]))
        scores = scores / float(factor)
    if kind in ("masked", "rows masked"):
        feeds["m"] = floats(*outer, 1, keys) if kind == "masked" else floats(rows, keys)
        then(("Add", ["m", "."]))
        scores = scores + feeds["m"]
    if kind in ("where", "later"):
        feeds["m"] = RNG.random((rows, keys)) < 0.6 if kind == "where" else np.tri(rows, keys, keys // 3, dtype=bool)
        feeds["m"][:, 0] = True
        then(("Where", ["m", ".", "never"]))
        scores = np.where(feeds["m"], scores, -np.inf)
    if kind == "scaled later":
        feeds["m"] = floats(rows, 1)
        then(("Add", [".", "m"]), ("Mul", ["c", "."]))
        scores = (scores + feeds["m"]) * float(factor)
    nodes += [node("Softmax", [last], ["p"], axis=-1), node("MatMul", ["p", "v"], ["y"])]
    largest = float(np.abs(scores[np.isfinite(scores)]).max())
    atol = 1e-6 * max(4.0, terms**0.5) * max(1.0, largest) * float(np.abs(v).max())
    check(nodes, feeds, {"c": factor, "never": INFINITE}, attended(scores, v), atol, cpu)


@given(CPUS, st.tuples(st.integers(1, 3), st.integers(1, 4)), st.tuples(SIZES, SIZES, SIZES))
@few(6, deadline=None)
def test_transposes_of_heads_are_part_of_the_kernel(
    cpu: str, heads: tuple[int, int], sizes: tuple[int, int, int]
) -> None:
    rows, keys, terms = sizes
    q, k, v = (floats(heads[0], n, heads[1], terms) for n in (rows, keys, keys))
    nodes = [
        node("Transpose", ["q"], ["qt"], perm=[0, 2, 1, 3]),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 3, 1]),
        node("Transpose", ["v"], ["vt"], perm=[0, 2, 1, 3]),
        node("MatMul", ["qt", "kt"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "vt"], ["o"]),
        node("Transpose", ["o"], ["y"], perm=[0, 2, 1, 3]),
    ]
    scores = np.einsum("bqhd,bkhd->bhqk", q.astype(np.float64), k.astype(np.float64))
    wanted = attended(scores, v.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    atol = 1e-6 * max(4.0, terms**0.5) * max(1.0, float(np.abs(scores).max())) * float(np.abs(v).max())
    check(nodes, {"q": q, "k": k, "v": v}, {}, wanted, atol, cpu)


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(("keys", "columns"), [(32, 784), (19, 131), (9, 17), (3, 40), (40, 5)])
def test_values_whose_rows_are_columns_agree(cpu: str, keys: int, columns: int) -> None:
    # As channels attend to channels: the tokens are the terms of the scores, and the columns of the values.
    q, k, v = floats(2, columns, keys), floats(2, columns, keys), floats(2, columns, keys)
    nodes = [
        node("Transpose", ["q"], ["qt"], perm=[0, 2, 1]),
        node("MatMul", ["qt", "k"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("Transpose", ["v"], ["vt"], perm=[0, 2, 1]),
        node("MatMul", ["p", "vt"], ["y"]),
    ]
    q *= np.float32(columns**-0.5)
    scores = np.swapaxes(q, 1, 2).astype(np.float64) @ k
    atol = 1e-6 * max(4.0, columns**0.5) * max(1.0, float(np.abs(scores).max())) * float(np.abs(v).max())
    check(nodes, {"q": q, "k": k, "v": v}, {}, attended(scores, np.swapaxes(v, 1, 2)), atol, cpu)


def test_the_code_of_attention_does_not_grow_with_the_columns() -> None:
    # Unrolled, the copy of values of 3136 columns took LLVM 17 seconds.
    sizes = []
    for columns in (1024, 4096):
        stored = strides_of((32, columns))
        turned = Operand((columns, 32), "float32", (), 1, 32)
        form = Attention(
            (), 32, 32, 16, columns,
            Operand((32, 16), "float32", (), 16, 1), Operand((32, 16), "float32", (), 16, 1),
            turned, Operand((32, columns), "float32", (), *stored), (),
        )  # fmt: skip
        made = write_attention(form, isa_of(target_of("x86-64-v4")))
        assert made is not None
        sizes.append(len(made.script().splitlines()))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize("kept", [True, False])
def test_keys_that_no_row_of_a_tile_takes_part_in_are_left_out(cpu: str, kept: bool) -> None:
    q, k, v = floats(2, 40, 8), floats(2, 8, 100), floats(2, 100, 8)
    v[:, 99] = np.nan  # the last row alone takes part in it
    taken = np.tri(40, 100, 60, dtype=bool)
    taken[2] = False
    names = ["m", "s", "never"] if kept else ["m", "never", "s"]
    nodes = [SIMPLE[0], node("Where", names, ["a"]), *SIMPLE[2:]]
    feeds = {"q": q, "k": k, "v": v, "m": taken if kept else ~taken}
    made = model(nodes, feeds, ["y"], {"never": INFINITE})
    found = execute(job(made), lower(made, cpu), feeds)["y"]
    wanted = attended(np.where(taken, q.astype(np.float64) @ k, -np.inf)[:, :, :99], v[:, :99])
    np.testing.assert_allclose(found[:, :20], wanted[:, :20], atol=1e-4)
    assert np.isnan(wanted[:, 2]).all() and not np.isnan(found[:, 3:20]).any() and np.isnan(found[:, 39]).all()


SIMPLE = [
    node("MatMul", ["q", "k"], ["s"]),
    node("Add", ["s", "m"], ["a"]),
    node("Softmax", ["a"], ["p"], axis=-1),
    node("MatMul", ["p", "v"], ["y"]),
]


@pytest.mark.parametrize("keys", [5, 16, 37])
@pytest.mark.parametrize("number", [-np.inf, float(np.finfo(np.float32).min), np.inf, np.nan])
def test_rows_that_are_masked_throughout_are_those_of_onnx_runtime(keys: int, number: float) -> None:
    feeds = {"q": floats(2, 20, 8), "k": floats(2, 8, keys), "v": floats(2, keys, 8)}
    mask = np.zeros((20, keys), np.float32)
    mask[3], mask[7, :4], mask[19, -1] = number, number, number
    made = model(SIMPLE, {**feeds, "m": mask}, ["y"])
    lowered = lower(made)
    assert len(lowered.kernels) == 1
    found = execute(job(made), lowered, {**feeds, "m": mask})
    assert_same(found, run_ort(made, {**feeds, "m": mask}), rtol=1e-5)


@pytest.mark.parametrize("seen", ["s", "a", "p"])
def test_a_value_in_between_that_is_an_output_is_still_given(seen: str) -> None:
    feeds = {"q": floats(2, 9, 8), "k": floats(2, 8, 11), "v": floats(2, 11, 8), "m": floats(9, 11)}
    made = model(SIMPLE, feeds, [seen, "y"])
    lowered = lower(made)
    assert len(lowered.kernels) > 1
    assert_same(execute(job(made), lowered, feeds), run_ort(made, feeds))


def test_a_transpose_that_others_read_keeps_its_own_kernel() -> None:
    feeds = {"q": floats(2, 9, 8), "k": floats(2, 11, 8), "v": floats(2, 11, 8), "m": floats(9, 11)}
    nodes = [node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]), node("MatMul", ["q", "kt"], ["s"]), *SIMPLE[1:]]
    made = model([*nodes, node("Relu", ["kt"], ["z"])], feeds, ["y", "z"])
    lowered = lower(made)
    attention = next(k for k in lowered.kernels if k.outputs == ("y",))
    assert attention.nodes == ("n1", "n2", "n3", "n4")
    assert_same(execute(job(made), lowered, feeds), run_ort(made, feeds))


def test_a_mask_of_zeros_is_left_out_and_equal_kernels_are_shared() -> None:
    feeds = {"q": floats(2, 9, 8), "k": floats(2, 8, 11), "v": floats(2, 11, 8)}
    again = [
        node(n.op_type, ["y" if i == "q" else i for i in n.input], [f"{o}2" for o in n.output]) for n in SIMPLE[:1]
    ]
    again += [
        node("Add", ["s2", "m"], ["a2"]),
        node("Softmax", ["a2"], ["p2"], axis=-1),
        node("MatMul", ["p2", "v"], ["y2"]),
    ]
    made = model([*SIMPLE, *again], feeds, ["y2"], {"m": np.zeros((9, 11), np.float32)})
    lowered = lower(made)
    assert [k.nodes for k in lowered.kernels] == [("n0", "n1", "n2", "n3"), ("n4", "n5", "n6", "n7")]
    assert len(lowered.params) == 0
    assert_same(execute(job(made), lowered, feeds), run_ort(made, feeds))


def test_queries_of_long_sequences_share_the_keys_of_a_head_in_parts() -> None:
    feeds = {"q": floats(1, 203, 24), "k": floats(1, 24, 301), "v": floats(1, 301, 20), "m": floats(1, 301)}
    scores = feeds["q"].astype(np.float64) @ feeds["k"].astype(np.float64) + feeds["m"]
    check(SIMPLE, feeds, {}, attended(scores, feeds["v"]), 1e-4)


def test_factors_of_both_sides_and_heads_that_share_keys_are_part_of_the_kernel() -> None:
    feeds = {"q": floats(2, 3, 21, 8), "k": floats(3, 8, 19), "v": floats(1, 1, 19, 5)}
    nodes = [
        node("Mul", ["q", "c"], ["a"]),
        node("Mul", ["k", "c"], ["b"]),
        node("MatMul", ["a", "b"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["y"]),
    ]
    scores = 0.25 * (feeds["q"].astype(np.float64) @ feeds["k"].astype(np.float64))
    check(nodes, feeds, {"c": np.array(0.5, np.float32)}, attended(scores, feeds["v"]), 1e-5)


@pytest.mark.parametrize("empty", ["IsNaN", "rows"])
@pytest.mark.parametrize("keys", [3, 16, 35])
def test_rows_that_are_made_zero_afterwards_are_part_of_the_kernel(empty: str, keys: int) -> None:
    feeds = {"q": floats(2, 20, 8), "k": floats(2, 8, keys), "v": floats(2, keys, 8)}
    feeds["m"] = np.zeros((20, keys), np.float32)
    feeds["m"][3], feeds["m"][19], feeds["m"][7, 0] = -np.inf, np.nan, np.inf
    nodes = SIMPLE[:3]
    if empty == "IsNaN":
        nodes = [*nodes, node("IsNaN", ["p"], ["e"])]
    else:
        feeds["e"] = np.zeros((20, 1), bool)
        feeds["e"][[3, 5]] = True
    nodes = [*nodes, node("Where", ["e", "zero", "p"], ["w"]), node("MatMul", ["w", "v"], ["y"])]
    made = model(nodes, feeds, ["y"], {"zero": np.array(0, np.float32)})
    lowered = lower(made)
    (kernel,) = lowered.kernels
    assert kernel.nodes == tuple(n.name for n in made.graph.nodes)
    assert_same(execute(job(made), lowered, feeds), run_ort(made, feeds), rtol=1e-5)


def test_repeated_heads_that_were_columns_in_between_are_read_where_they_are() -> None:
    """onnxruntime-genai repeats keys and values like this before a MultiHeadAttention."""
    feeds = {"q": floats(1, 6, 5, 8), "k": floats(1, 2, 11, 8), "v": floats(1, 2, 11, 8)}
    nodes = []
    for name in "kv":
        nodes += [
            node("Unsqueeze", [name, "two"], [f"{name}1"]),
            node("Expand", [f"{name}1", "wide"], [f"{name}2"]),
            node("Reshape", [f"{name}2", "merged"], [f"{name}3"]),
            node("Transpose", [f"{name}3"], [f"{name}4"], perm=[0, 2, 1, 3]),
            node("Reshape", [f"{name}4", "columns"], [f"{name}5"]),
            node("Reshape", [f"{name}5", "heads"], [f"{name}6"]),
            node("Transpose", [f"{name}6"], [f"{name}7"], perm=[0, 2, 1, 3]),
        ]
    nodes += [
        node("Transpose", ["k7"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "v7"], ["y"]),
    ]
    sizes = {
        "two": [2],
        "wide": [1, 2, 3, 11, 8],
        "merged": [1, 6, 11, 8],
        "columns": [1, 11, 48],
        "heads": [1, 11, 6, 8],
    }
    made = model(nodes, feeds, ["y"], {name: np.array(shape) for name, shape in sizes.items()})
    lowered = lower(made)
    assert len(lowered.kernels) == 1
    assert_same(execute(job(made), lowered, feeds), run_ort(made, feeds), rtol=1e-5)


def test_the_attention_operator_becomes_one_kernel(tmp_path: Path) -> None:
    shapes = {"q": (2, 3, 20, 16), "k": (2, 3, 30, 16), "v": (2, 3, 30, 16)}
    inputs = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in shapes.items()]
    output = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shapes["q"])
    graph = helper.make_graph([node("Attention", ["q", "k", "v"], ["y"], is_causal=1)], "g", inputs, [output])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10), tmp_path / "m.onnx")
    made = import_model(tmp_path / "m.onnx")
    lowered = CpuLowering().lower(job(made))
    assert [k.symbol.startswith("Attention") for k in lowered.kernels] == [True]
    feeds = {n: floats(*s) for n, s in shapes.items()}
    scores = feeds["q"].astype(np.float64) @ np.swapaxes(feeds["k"], -1, -2).astype(np.float64) / 4
    scores = np.where(np.tri(20, 30), scores, -np.inf)
    found = execute(job(made), lowered, feeds)
    np.testing.assert_allclose(next(iter(found.values())), attended(scores, feeds["v"]), rtol=0, atol=1e-5)
