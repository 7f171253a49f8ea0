"""A chain of kernels that read their argument more than once is cut before it is written out without end."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx import helper

from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.cpu.target import cpu_target
from heterocc.compiler.lower.pipeline import kernel_module
from tests.compiler.lower.lowered import CPU, Model, assert_same, job, model, run_cpu, run_ort
from tests.compiler.onnx_build import I64, node, value
from tests.compiler.onnx_build import model as onnx_model

X = np.linspace(-2, 2, 66, dtype=np.float32).reshape(2, 33)


def chain(op_type: str, length: int) -> Model:
    names = ["x", *(f"v{i}" for i in range(length))]
    nodes = [helper.make_node(op_type, [a], [b]) for a, b in itertools.pairwise(names)]
    return model(nodes, {"x": X}, names[-1:])


def kernels(made: Model) -> int:
    return len(kernel_module(job(made), cpu_target(CPU)).kernels)


@pytest.mark.parametrize("op_type", ["HardSwish", "Tanh", "Softplus"])
def test_a_short_chain_is_one_kernel(op_type: str) -> None:
    assert kernels(chain(op_type, 3)) == 1


@pytest.mark.parametrize("op_type", ["HardSwish", "Tanh"])
def test_a_long_chain_is_cut_into_kernels_and_right(op_type: str) -> None:
    """HardSwish reads its argument twice in its kernel, Tanh in the formula that code generation makes of it.

    Forty of them in one expression would have 2 or 3 to the power of 40 terms, and compiling never ended.
    """
    made = chain(op_type, 40)
    assert 1 < kernels(made) < 20
    assert_same(run_cpu(made, {"x": X}), run_ort(made, {"x": X}))


def test_a_value_that_two_kernels_read_counts_for_both() -> None:
    """Each step doubles the terms: v = relu(v) + sigmoid(v)."""
    nodes = []
    for i in range(24):
        v = f"v{i - 1}" if i else "x"
        nodes += [helper.make_node("Relu", [v], [f"r{i}"]), helper.make_node("Sigmoid", [v], [f"s{i}"])]
        nodes += [helper.make_node("Sub", [f"r{i}", f"s{i}"], [f"v{i}"])]
    made = model(nodes, {"x": X}, ["v23"])
    assert 1 < kernels(made) < 16
    assert_same(run_cpu(made, {"x": X}), run_ort(made, {"x": X}))


def test_a_kernel_of_sizes_alone_is_not_fused_with_one_that_has_sizes_beside_tensors() -> None:
    """As in masks that PyTorch exports: TVM's fusion failed on them."""
    axes = {"zero": 0, "one": 1, "rows": [1], "columns": [0]}
    nodes = [
        node("Shape", "x", "xs"),
        node("Shape", "past", "ps"),
        node("Shape", "mask", "ms"),
        node("Gather", "xs zero", "batch"),
        node("Gather", "xs one", "steps"),
        node("Gather", "ps one", "old"),
        node("Gather", "ms one", "total"),
        node("Range", "zero batch one", "numbers"),
        node("Unsqueeze", "numbers rows", "down"),
        node("Mul", "down total", "starts"),
        node("Add", "old steps", "keys"),
        node("Range", "zero keys one", "places"),
        node("Unsqueeze", "places columns", "across"),
        node("Add", "across starts", "y"),
    ]
    inputs = [value("x", ["b", "s"]), value("past", ["b", "p"]), value("mask", ["b", "t"])]
    constants = {name: np.array(number, np.int64) for name, number in axes.items()}
    imported = import_model(onnx_model(nodes, inputs, [value("y", None, I64)], constants), keep_dims=True)
    assert kernel_module(job(imported), cpu_target(CPU)).kernels


@pytest.mark.parametrize("sized", [True, False])
def test_sums_of_pairs_of_rows_of_two_products_are_a_kernel_of_their_own(sized: bool) -> None:
    """The additive attention of an LSTM: a product fused with them is computed in plain loops."""
    nodes = [
        node("MatMul", "x v", "left"),
        node("MatMul", "x w", "right"),
        node("Add", "right bias", "biased"),
        node("Unsqueeze", "left two", "rows"),
        node("Unsqueeze", "biased one", "columns"),
        node("Add", "rows columns", "pairs"),
        node("Tanh", "pairs", "y"),
    ]
    rng = np.random.default_rng(0)
    constants = {n: rng.standard_normal((8, 8), np.float32) for n in "vw"}
    constants |= {"bias": np.ones(8, np.float32), "one": np.array([1]), "two": np.array([2])}
    dims = (3, 5, 8) if sized else ("n", "t", 8)
    proto = onnx_model(nodes, [value("x", dims)], [value("y")], constants)
    imported = import_model(proto, keep_dims=True)
    graph = imported.graph
    made = kernel_module(job(imported), cpu_target(CPU))
    fused = [{graph.node_by_name[n].op_type for n in kernel.nodes} for kernel in made.kernels]
    assert [f for f in fused if "MatMul" in f and "Tanh" in f] == []
    assert [f for f in fused if {"MatMul", "Add"} <= f] != []  # the bias is still added with the product


@pytest.mark.parametrize("computed", [True, False], ids=["a product", "an input"])
def test_a_product_of_few_rows_is_computed_before_it_is_added_to_many(computed: bool) -> None:
    """As in additive attention: each row of the first product is added to all steps of the second operand."""
    rng = np.random.default_rng(0)
    x, z = rng.standard_normal((3, 1, 8)).astype(np.float32), rng.standard_normal((3, 5, 8)).astype(np.float32)
    weights = {name: rng.standard_normal((8, 8)).astype(np.float32) for name in ("w", "w2")} | {"b": np.ones(8, "f")}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="small"),
        helper.make_node("Add", ["m", "b"], ["biased"]),
        *([helper.make_node("MatMul", ["z", "w2"], ["large"], name="large")] if computed else []),
        helper.make_node("Add", ["biased", "large" if computed else "z"], ["sum"], name="sum"),
        helper.make_node("Tanh", ["sum"], ["y"]),
    ]
    made = model(nodes, {"x": x, "z": z}, ["y"], weights)
    together = [k.nodes for k in kernel_module(job(made), cpu_target(CPU)).kernels if "sum" in k.nodes]
    assert len(together) == 1 and "small" not in together[0] and ("large" in together[0]) == computed
    assert_same(run_cpu(made, {"x": x, "z": z}), run_ort(made, {"x": x, "z": z}))
