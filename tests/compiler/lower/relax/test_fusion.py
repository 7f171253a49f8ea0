"""A chain of kernels that read their argument more than once is cut before it is written out without end."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx import helper

from heterocc.compiler.lower.cpu.target import cpu_target
from heterocc.compiler.lower.pipeline import kernel_module
from tests.compiler.lower.lowered import CPU, Model, assert_same, job, model, run_cpu, run_ort

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
