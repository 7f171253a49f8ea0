"""Nodes and models with many inputs or outputs, and long chains of nodes.

Kernels with hundreds of parameters, or expressions hundreds of operations deep, ended the process: TVM visits both
recursively.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable

import numpy as np
import pytest
from onnx import helper

from heterocc.artifacts.errors import LoweringError
from heterocc.compiler.lower.converters.values import MOST_ENDS
from heterocc.compiler.lower.cpu.lowering import CpuLowering
from heterocc.compiler.lower.cpu.target import cpu_target
from heterocc.compiler.lower.pipeline import kernel_module
from heterocc.compiler.lower.relax.fusion import MOST_READ
from tests.compiler.lower.lowered import CPU, Model, assert_same, execute, job, model, run_ort

WIDTH = 300
RNG = np.random.default_rng(0)


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{i}" for i in range(count)]


def split(count: int, axis: int, sizes: list[int] | None = None) -> Model:
    total = sum(sizes) if sizes else count
    x = RNG.standard_normal((total, 3) if axis == 0 else (3, total)).astype(np.float32)
    inputs = ["x"] if sizes is None else ["x", "sizes"]
    made = helper.make_node("Split", inputs, names("y", count), axis=axis)
    return model([made], {"x": x}, names("y", count), {"sizes": np.array(sizes)} if sizes else None, opset=13)


def gathered(op_type: str, count: int, **attributes: int) -> Model:
    given = {name: RNG.standard_normal((2, 3)).astype(np.float32) for name in names("x", count)}
    return model([helper.make_node(op_type, list(given), ["y"], **attributes)], given, ["y"])


def chain(op_type: str, count: int, *more: str, **attributes: list[int]) -> Model:
    values = ["x", *names("v", count)]
    nodes = [helper.make_node(op_type, [a, *more], [b], **attributes) for a, b in itertools.pairwise(values)]
    return model(nodes, {"x": RNG.standard_normal((3, 3)).astype(np.float32)}, values[-1:])


def apart(count: int) -> Model:
    given = {name: RNG.standard_normal((2, 3)).astype(np.float32) for name in names("x", count)}
    nodes = [helper.make_node("Relu", [a], [b]) for a, b in zip(given, names("y", count), strict=True)]
    return model(nodes, given, names("y", count))


MODELS: dict[str, Callable[[], Model]] = {
    "Split of rows": lambda: split(WIDTH, 0),
    "Split of columns of several sizes": lambda: split(WIDTH, 1, [1, 2, 3, 0] * (WIDTH // 4)),
    "Concat of columns": lambda: gathered("Concat", WIDTH, axis=1),
    "Sum": lambda: gathered("Sum", WIDTH),
    "Max": lambda: gathered("Max", WIDTH),
    "a chain that reads one value": lambda: chain("Max", WIDTH, "x"),
    "a chain of transpositions": lambda: chain("Transpose", WIDTH, perm=[1, 0]),
    "inputs and outputs": lambda: apart(WIDTH),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_wide_or_deep_model_compiles_and_is_right(name: str) -> None:
    made = MODELS[name]()
    feeds = {i: RNG.standard_normal(made.graph.values[i].shape).astype(np.float32) for i in made.graph.inputs}
    work = job(made)
    assert_same(execute(work, CpuLowering().lower(work), feeds), run_ort(made, feeds))


@pytest.mark.parametrize("build", [lambda n: split(n, 1), lambda n: gathered("Concat", n, axis=1), apart])
def test_four_times_the_width_takes_four_times_the_calls(build: Callable[[int], Model]) -> None:
    few, many = (job(build(count)) for count in (100, 400))
    target = cpu_target(CPU)
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    made = []
    for work in (few, few, many):  # modules and caches at first
        calls = 0
        sys.setprofile(count)
        try:
            kernel_module(work, target)
        finally:
            sys.setprofile(None)
        made.append(calls)
    assert made[2] < 5 * made[1]


@pytest.mark.parametrize("name", ["Split of rows", "Concat of columns", "Sum"])
def test_no_kernel_of_a_wide_node_has_many_parameters(name: str) -> None:
    module = kernel_module(job(MODELS[name]()), cpu_target(CPU))
    parameters = [len(f.params) for gvar, f in module.mod.functions_items() if gvar.name_hint != "main"]
    assert max(parameters) <= max(MOST_ENDS, MOST_READ) + 1


def test_a_wide_node_of_another_kind_is_refused_by_name() -> None:
    count = 300
    equation = ",".join(["ij"] * count) + "->ij"
    given = {name: np.ones((2, 3), np.float32) for name in names("x", count)}
    made = model([helper.make_node("Einsum", list(given), ["y"], equation=equation)], given, ["y"])
    with pytest.raises(LoweringError, match=r"301 inputs and outputs of one Einsum are more than 256"):
        CpuLowering().lower(job(made))
