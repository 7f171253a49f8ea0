"""Constants in kernels are the model's to the last bit."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule

from heterocc.compiler.lower.cuda.codegen import captured_sources
from heterocc.compiler.lower.cuda.lowering import cuda_target
from heterocc.compiler.lower.cuda.toolchain import find_compiler
from heterocc.compiler.lower.gpu.constants import CUDA, OPENCL
from tests.compiler.lower.cuda_sample import HOPPER, needs_compiler
from tests.compiler.lower.gpu_places import APIS, runner
from tests.compiler.lower.gpu_run import Graph, node

VALUES = (1 / 3, 1e-20, 16777217.0, math.pi, 1.00000012, -2e-31, 123456.789, math.inf, -math.inf, math.nan, -0.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("place", APIS)
def test_constants_are_exact(place: str, dtype: str, tmp_path: Path) -> None:
    constants = {f"c{i}": np.array(value, dtype) for i, value in enumerate(VALUES)}
    graph = Graph({"x": np.ones(5, dtype)}, [node("Mul", "x", c, outputs=[f"y{c}"]) for c in constants], constants)
    model, lowered = runner(place).lower(graph, tmp_path)
    found = runner(place).run(model, lowered, graph.inputs)
    wanted = [np.full(5, value, dtype) for value in VALUES]
    wrong = [
        (value, got.tolist())
        for value, got, want in zip(VALUES, found, wanted, strict=True)
        if got.tobytes() != want.tobytes() and not (np.isnan(want).all() and np.isnan(got).all())
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("value", "dtype"), [(0.5, "float32"), (0.001, "float32"), (-3.0, "float64"), (0.0, "float64")]
)
def test_short_decimals_stay_readable(value: float, dtype: str) -> None:
    assert all(printed[dtype].exact(value, dtype) for printed in (OPENCL, CUDA) if dtype in printed)


@pytest.mark.parametrize(
    ("value", "dtype"), [(1 / 3, "float32"), (1 / 3, "float64"), (math.pi, "float64"), (math.inf, "float64")]
)
def test_what_seven_digits_do_not_hold_is_made_of_bits_in_opencl(value: float, dtype: str) -> None:
    assert not OPENCL[dtype].exact(value, dtype)


def source(number: tirx.Expr) -> str:
    """The CUDA source of a kernel that stores a number, without the steps of the back end before it."""
    made = te.compute((4,), lambda i: number, "y")
    schedule = Schedule(te.create_prim_func([made]))
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    schedule.bind(loop, "threadIdx.x")
    with captured_sources() as sources:
        tvm.compile(tvm.IRModule({"main": schedule.mod["main"]}), cuda_target(HOPPER))
    return sources[0]


@needs_compiler
@pytest.mark.parametrize("dtype", [*(pytest.param(d, marks=pytest.mark.slow) for d in ("int32", "uint32")), "int64"])
def test_the_cuda_compiler_takes_the_bits_of_every_constant_that_steps_of_tvm_make(dtype: str) -> None:
    width = dtype[-2:]
    for value in VALUES:
        text = source(tirx.reinterpret(dtype, tirx.FloatImm(f"float{width}", value)))
        assert "*)(&(" not in text.split("__global__")[-1]
        find_compiler("sm_90").cubin(text, "sm_90")
