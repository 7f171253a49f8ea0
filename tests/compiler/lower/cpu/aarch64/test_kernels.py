"""Every kind of generated kernel as code for 64-bit ARM, emulated, against float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from tvm import s_tir, te, tirx

from heterocc.compiler.lower.cpu.generate.isa import isa_of
from heterocc.compiler.lower.cpu.maths.rules import FUNCTIONS
from heterocc.compiler.lower.cpu.rewrites.attention import fuse_attention
from heterocc.compiler.lower.pipeline import kernel_module
from tests.compiler.lower.cpu.aarch64 import emulated
from tests.compiler.lower.cpu.generate.convolution import test_convolution, test_pooling, test_winograd
from tests.compiler.lower.cpu.generate.generated import ARM, NEON, assert_near
from tests.compiler.lower.cpu.generate.maps import test_maps
from tests.compiler.lower.cpu.generate.products import test_product
from tests.compiler.lower.cpu.generate.rows import test_reductions, test_rows
from tests.compiler.lower.cpu.maths import kernels
from tests.compiler.lower.lowered import job, model
from tests.emulator import unavailable_reason
from tests.few_examples import few

reason = unavailable_reason()
pytestmark = pytest.mark.skipif(reason is not None, reason=f"code for 64-bit ARM cannot be run here: {reason}")


def inner(test: Any) -> Callable[..., None]:
    """A drawn test as a function of what it draws."""
    found: Callable[..., None] = test.hypothesis.inner_test
    return found


def elementwise(name: str, arguments: Sequence[Any]) -> Any:
    """A function of real numbers of each element."""
    function = kernels.COMPOSED.get(name) or getattr(tirx, name)
    return te.compute(arguments[0].shape, lambda i: function(*(t[i] for t in arguments)), name)


@given(test_convolution.cases())
@few(5, deadline=None)
def test_convolutions_agree(case: test_convolution.Case) -> None:
    test_convolution.check(NEON, case)


@given(test_convolution.cases(depthwise=True))
@few(3, deadline=None)
def test_depthwise_convolutions_agree(case: test_convolution.Case) -> None:
    test_convolution.check(NEON, case)


@pytest.mark.parametrize("size", [(23, 29), (7, 7)])
def test_filtered_convolutions_agree(size: tuple[int, int]) -> None:
    test_winograd.check(NEON, test_convolution.Case(1, 1, 9, 17, size, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)))


@given(st.data())
@few(4, deadline=None)
def test_windows_agree(data: st.DataObject) -> None:
    kind, counted = data.draw(st.sampled_from(["MaxPool", "AveragePool"])), data.draw(st.booleans())
    inner(test_pooling.test_windows_of_any_size_stride_padding_and_dilation_agree)(NEON, kind, 2, counted, data)


def test_products_agree() -> None:
    inner(test_product.test_a_product_with_a_weight_and_its_epilogue_agree)(NEON, [2], 13, 33, 65)
    inner(test_product.test_gemm_with_either_form_of_the_weight_agrees)(NEON, True, 1, 97, 50)
    inner(test_product.test_a_batched_product_of_two_inputs_agrees)(NEON, [3], 17, 31, 49)
    inner(test_product.test_a_pointwise_convolution_agrees)(NEON, 2, 9, 17, [7, 13])


@given(st.sampled_from(sorted(test_rows.KINDS)), st.sampled_from([[3, 50], [2, 17, 33], [130]]), st.data())
@few(3, deadline=None)
def test_softmax_agrees(kind: str, shape: list[int], data: st.DataObject) -> None:
    inner(test_rows.test_softmax_along_any_axis_agrees)(NEON, kind, shape, data)


@given(st.just([2, 3, 15, 9]))  # the tests that it calls discard what does not fit
@few(1, deadline=None)
def test_normalisations_agree(shape: list[int]) -> None:
    inner(test_rows.test_root_mean_square_normalisation_agrees)(NEON, [3, 4], 130)
    inner(test_rows.test_instance_normalisation_and_an_activation_agree)(NEON, shape)
    test_rows.test_variance_over_axes_apart_agrees(NEON, (0, 2))


def test_attention_agrees() -> None:
    q, k, v = (
        np.random.default_rng(3).standard_normal(s).astype(np.float32) for s in ((2, 37, 16), (2, 16, 50), (2, 50, 24))
    )
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    made = model(nodes, {"q": q, "k": k, "v": v}, ["y"])
    module = kernel_module(job(made), ARM, rewrite=lambda function: fuse_attention(function, isa_of(ARM)))
    (kernel,) = [f for name, f in module.mod.functions_items() if name.name_hint != "main"]
    (found,) = emulated.run(kernel, ARM, [q, k, v], [np.full((2, 37, 24), np.nan, np.float32)])
    assert_near(found, test_rows.softmax(q.astype(np.float64) @ k, -1) @ v, 50)


def test_reductions_and_maps_agree() -> None:
    test_reductions.test_a_long_row_is_summed_more_precisely_than_term_by_term(NEON)
    inner(test_maps.test_transposition_agrees)(NEON, [2, 0, 1], 15, 33, 17)


OWN = [name for name in FUNCTIONS if name not in ("acosh", "asinh", "atanh", "pow", "tan")]
"""Functions that the C library does not compute, which the emulator has not."""


def test_every_function_keeps_its_stated_error() -> None:
    x = kernels.arguments()
    x = np.concatenate([x[:64], x[64::4]])
    moderate = np.where(np.isfinite(x) & (np.abs(x) >= 2.0**26), np.float32(0.75), x)  # the C library has sin(1e30)
    given = {name: [x] for name in OWN}
    given |= {name: [moderate] for name in ("sin", "cos")} | {
        name: [*kernels.given(name, x)] for name in ("sigmoid", "silu")
    }
    divisors = kernels.divisors(x)
    with np.errstate(all="ignore"):
        far = np.isfinite(x) & (np.abs(x / divisors.astype(np.float64)) >= 2.0**28)  # the C library has these, too
    given |= {"fmod": [x, np.where(far, x, divisors).astype(np.float32)]}
    inputs = {id(a): a for arrays in given.values() for a in arrays}
    places = {key: te.placeholder(a.shape, "float32", f"x{i}") for i, (key, a) in enumerate(inputs.items())}
    results = [elementwise(name, [places[id(a)] for a in given[name]]) for name in OWN]
    schedule = s_tir.Schedule(te.create_prim_func([*places.values(), *results]))
    for name in OWN:
        (loop,) = schedule.get_loops(schedule.get_sblock(name))
        schedule.vectorize(schedule.split(loop, [None, 4])[1])
    found = emulated.run(schedule.mod["main"], ARM, [*inputs.values()], [np.full_like(x, np.nan) for _ in OWN])
    wrong = {}
    for name, result in zip(OWN, found, strict=True):
        error = kernels.errors(name, result, *given[name])
        if error.max() > kernels.STATED[name]:
            wrong[name] = (float(error.max()), [float(a[error.argmax()]) for a in given[name]])
    assert wrong == {}
