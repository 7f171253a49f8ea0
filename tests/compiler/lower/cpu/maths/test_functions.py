"""Functions of real numbers against float64, on each set of instructions that this machine has."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tvm
from onnx import helper

from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.host import runs_here
from heterocc.compiler.lower.cpu.lowering import CpuLowering
from heterocc.compiler.lower.cpu.maths.pipeline import PIPELINE
from heterocc.compiler.lower.cpu.maths.rules import FUNCTIONS
from tests.compiler.lower.cpu.maths.kernels import (
    COUNT,
    STATED,
    TARGETS,
    WITHOUT_FMA,
    arguments,
    built,
    called,
    errors,
    given,
    kernel,
)
from tests.compiler.lower.lowered import assert_same, job, model, run_cpu, run_ort

node = helper.make_node
HERE = [name for name, (target, _) in TARGETS.items() if runs_here({**target, "mattr": tuple(target.get("mattr", ()))})]
LIBRARY = ("expf", "erff", "tanhf", "logf", "sinhf", "coshf", "asinf", "acosf")


def test_this_machine_runs_one_of_the_sets_of_instructions() -> None:
    assert HERE


@pytest.mark.parametrize("isa", HERE)
def test_every_function_keeps_its_stated_error_for_all_kinds_of_numbers(isa: str) -> None:
    target, lanes = TARGETS[isa]
    module = built([kernel(name, lanes) for name in FUNCTIONS], target)
    x = arguments()
    stated = WITHOUT_FMA if isa == "sse2" else STATED
    wrong = {}
    for name in FUNCTIONS:
        numbers = given(name, x)
        error = errors(name, called(module, name, *numbers), *numbers)
        if error.max() > stated[name]:
            at = int(error.argmax())
            wrong[name] = (float(error[at]), [float(a[at]) for a in numbers])
    assert wrong == {}


@pytest.mark.parametrize("isa", HERE)
def test_the_logistic_function_of_large_negative_numbers_is_nearly_zero(isa: str) -> None:
    target, lanes = TARGETS[isa]
    x = np.resize(np.array([-88.1, -88.4, -90, -104, -1e30, -math.inf], np.float32), COUNT)
    found = called(built([kernel("sigmoid", lanes)], target), "sigmoid", x)
    assert found.min() >= 0 and found.max() < 6e-39 and not np.signbit(found).any()


def test_rounding_takes_one_instruction_a_vector_and_even_numbers_between_two() -> None:
    target, lanes = TARGETS[HERE[0]]
    module = built([kernel("nearbyint", lanes)], target)
    x = np.concatenate([arguments()[:-4], np.array([0.5, 1.5, -2.5, 8388607.5], np.float32)])
    with np.errstate(invalid="ignore"):  # a signalling NaN
        right = np.rint(x)
    np.testing.assert_array_equal(called(module, "nearbyint", x), right)
    assert f"@llvm.nearbyint.v{lanes}f32" in module.inspect_source("ll")


@pytest.mark.parametrize(
    "lanes", [1, pytest.param(2, marks=pytest.mark.slow), 32, pytest.param(64, marks=pytest.mark.slow)]
)
def test_other_numbers_of_lanes_give_the_same(lanes: int) -> None:
    target, _ = TARGETS[HERE[0]]
    module = built([kernel(name, lanes) for name in FUNCTIONS], target)
    x = arguments()
    for name in FUNCTIONS:
        numbers = given(name, x)
        assert errors(name, called(module, name, *numbers), *numbers).max() <= STATED[name], name


def test_powers_treat_zeros_infinities_and_nan_as_c_does() -> None:
    special = np.array(
        [0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3, -3, math.inf, -math.inf, math.nan, 1e30, -1e30, 1e-30, 2.5, -2.5, 1e-45],
        np.float32,
    )
    x, y = (np.resize(grid.ravel(), COUNT) for grid in np.meshgrid(special, special))
    for isa in HERE:
        target, lanes = TARGETS[isa]
        error = errors("pow", called(built([kernel("pow", lanes)], target), "pow", x, y), x, y)
        assert [(a, b) for a, b, e in zip(x, y, error, strict=True) if e > 1] == []


@pytest.mark.parametrize("exponent", [-1.0, 0.5, 0.75, 1.0, 2.0, 3.0, 4.0, 1.5])
def test_powers_with_a_constant_exponent_are_right_for_special_numbers_too(exponent: float) -> None:
    x = np.array([0, -0.0, 1, -2, 0.3, 1e-30, 1e30, -1e30, math.inf, -math.inf, math.nan, 7.25] * 2, np.float32)
    made = model([node("Pow", ["x", "e"], ["y"])], {"x": x}, ["y"], {"e": np.array(exponent, np.float32)})
    got = run_cpu(made, {"x": x})["y"]
    assert errors("pow", got, x, np.full_like(x, exponent)).max() <= 2


def test_float64_is_left_to_the_c_library() -> None:
    names = ("exp", "erf", "tanh", "atan", "pow")
    module = built([kernel(name, 2, "float64") for name in names], TARGETS[HERE[0]][0])
    x = np.linspace(-3, 3, COUNT)
    for name in names:
        given = (np.abs(x), x) if name == "pow" else (x,)
        reference = {"erf": np.vectorize(math.erf), "atan": np.arctan, "pow": np.power}.get(name) or getattr(np, name)
        np.testing.assert_allclose(called(module, name, *given), reference(*given), rtol=1e-13, atol=1e-15)


def test_half_precision_is_computed_in_float32_and_rounded_once() -> None:
    x = np.linspace(-8, 8, 2048).astype(np.float16)
    ops = ("Exp", "Erf", "Tanh", "Sigmoid", "Sin", "Cosh")
    found = run_cpu(model([node(op, ["x"], [op]) for op in ops], {"x": x}, ops), {"x": x})
    references = {"Erf": np.vectorize(math.erf), "Sigmoid": lambda v: 1 / (1 + np.exp(-v))}
    for op in ops:
        want = (references.get(op) or getattr(np, op.lower()))(x.astype(np.float64))
        unit = np.ldexp(1.0, np.clip(np.frexp(want)[1] - 11, -24, None))
        assert (np.abs(found[op].astype(np.float64) - want) / unit).max() < 0.501, op


def test_the_default_passes_of_tvm_stay_as_they_are() -> None:
    scalar = kernel("exp", 1)
    target = tvm.target.Target(TARGETS[HERE[0]][0])
    default, own = (
        tvm.tirx.build(tvm.IRModule({"exp": scalar}), target, pipeline=p).inspect_source("asm")
        for p in ("default", PIPELINE)
    )
    assert "expf" in default and "expf" not in own


def _activations() -> Any:
    x = np.random.default_rng(1).standard_normal((6, 200)).astype(np.float32)
    scale = {"half": np.array(0.5, np.float32), "one": np.array(1, np.float32), "root": np.array(2**0.5, np.float32)}
    nodes = [
        node("Sigmoid", ["x"], ["sigmoid"]),
        node("Softmax", ["x"], ["softmax"]),
        node("Div", ["x", "root"], ["scaled"]),
        node("Erf", ["scaled"], ["erf"]),
        node("Add", ["erf", "one"], ["raised"]),
        node("Mul", ["x", "raised"], ["twice"]),
        node("Mul", ["twice", "half"], ["gelu"]),
        node("Tanh", ["x"], ["tanh"]),
        *(node(op, ["x"], [op]) for op in ("Softplus", "Elu", "Sinh", "Atan", "Mish")),
    ]
    outputs = ["sigmoid", "softmax", "gelu", "tanh", "Softplus", "Elu", "Sinh", "Atan", "Mish"]
    return model(nodes, {"x": x}, outputs, scale), x


@pytest.mark.parametrize("isa", [None, "avx512", "avx2", "neon"])
def test_no_kernel_of_an_activation_calls_the_c_library(isa: str | None) -> None:
    target = {} if isa is None else {k: tuple(v) if isinstance(v, list) else v for k, v in TARGETS[isa][0].items()}
    made, _ = _activations()
    code = CpuLowering().lower(job(made, TargetDevice("CPU", "cpu", target=target))).code
    assert [name for name in LIBRARY if f"\0{name}\0".encode() in code] == []


def test_a_function_of_a_function_of_a_function_takes_no_longer_than_three() -> None:
    x = np.linspace(-3, 3, 64).astype(np.float32)
    nodes = [node("Mish", ["x"], ["a"]), node("Mish", ["a"], ["b"]), node("Exp", ["b"], ["y"])]
    y = x.astype(np.float64)
    for _ in range(2):
        y = y * np.tanh(np.log1p(np.exp(y)))
    np.testing.assert_allclose(run_cpu(model(nodes, {"x": x}, ["y"]), {"x": x})["y"], np.exp(y), rtol=1e-6)


@pytest.mark.parametrize("form", ["operator", "product over six", "gate over six"])
def test_hard_swish_is_near_float64_for_special_numbers_too(form: str) -> None:
    x = np.array([*np.linspace(-8, 8, 333), 0.0, -0.0, 3e38, -3e38, 1e-41, np.inf], np.float32)
    three, zero, six = (np.array(n, np.float32) for n in (3, 0, 6))
    gate = [node("Add", ["x", "three"], ["a"]), node("Clip", ["a", "zero", "six"], ["c"])]
    if form == "operator":
        nodes = [node("HardSwish", ["x"], ["y"])]
    elif form == "product over six":
        nodes = [*gate, node("Mul", ["x", "c"], ["m"]), node("Div", ["m", "six"], ["y"])]
        x = x[np.abs(x) < 1e38]  # others overflow in the product
    else:
        nodes = [*gate, node("Div", ["c", "six"], ["s"]), node("Mul", ["s", "x"], ["y"])]
    constants = {"three": three, "zero": zero, "six": six} if form != "operator" else {}
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        want = wide * (np.clip(wide + 3, 0, 6) / 6)
    got = run_cpu(model(nodes, {"x": x}, ["y"], constants), {"x": x})["y"]
    np.testing.assert_allclose(got, want, rtol=3e-7, atol=2e-7)


def test_a_quotient_that_is_rounded_to_an_integer_stays_a_quotient() -> None:
    x = np.arange(1, 400, dtype=np.float32) * 49
    nodes = [node("Div", ["x", "by"], ["q"]), node("Floor", ["q"], ["y"])]
    got = run_cpu(model(nodes, {"x": x}, ["y"], {"by": np.array(49, np.float32)}), {"x": x})["y"]
    np.testing.assert_array_equal(got, np.arange(1, 400))


def test_a_function_of_what_is_read_within_bounds_only_reads_nothing_else() -> None:
    x = np.linspace(-3, 3, 48).astype(np.float32).reshape(1, 3, 4, 4)
    pads = np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64)
    nodes = [node("Exp", ["x"], ["a"]), node("Pad", ["a", "pads"], ["b"]), node("Tanh", ["b"], ["y"])]
    want = np.tanh(np.pad(np.exp(x.astype(np.float64)), ((0, 0), (0, 0), (1, 1), (1, 1))))
    got = run_cpu(model(nodes, {"x": x}, ["y"], {"pads": pads}), {"x": x})["y"]
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_kernel_of_float64_shows_that_calls_would_be_seen() -> None:
    made = model([node("Exp", ["x"], ["y"])], {"x": np.ones(64)}, ["y"])
    assert b"\0exp\0" in CpuLowering().lower(job(made)).code


def test_functions_of_truth_values_agree_with_onnx_runtime() -> None:
    x = np.random.default_rng(4).integers(0, 3, (5, 40)).astype(np.float32)
    nodes = [
        helper.make_node("Equal", ["x", "one"], ["same"]),
        helper.make_node("Cast", ["same"], ["number"], to=1),
        helper.make_node("Exp", ["number"], ["power"]),
        helper.make_node("Hardmax", ["x"], ["best"], axis=0),
        helper.make_node("Tanh", ["best"], ["curve"]),
    ]
    made = model(nodes, {"x": x}, ["power", "curve"], {"one": np.array(1, np.float32)})
    assert_same(run_cpu(made, {"x": x}), run_ort(made, {"x": x}), rtol=1e-6)
