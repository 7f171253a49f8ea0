from __future__ import annotations

import pytest
from tvm import tirx
from tvm.script import tirx as T  # noqa: N812

from heterocc.compiler.lower.opencl.source import complete, with_work_group, work_group

KERNEL = """__kernel void other(__global float* restrict y);
__kernel void k(__global float* restrict y, __global float* restrict x);
__kernel void k(__global float* restrict y, __global float* restrict x) {
  float acc_ptr[32];
  vstore4((vload4(0, acc_ptr + 4) + vload4(0, x + (2 * 4))), 0, acc_ptr + 4);
  vstore4(vload4(0, acc_ptr + 0), 0, y + 4);
  y[0] = tanf(x[0]) + acc_ptr[1];
}
"""


def test_declarations_of_kernels_are_dropped_and_functions_of_c_defined() -> None:
    text = complete(KERNEL)
    assert text.startswith("#define tanf tan\n")
    assert text.count("__kernel") == 1


def test_vectors_of_private_arrays_are_accessed_through_a_pointer_and_others_are_left() -> None:
    text = complete(KERNEL)
    assert "float acc_ptr[32] __attribute__((aligned(64)));" in text
    assert "*((float4*)(acc_ptr + 4)) = ((*((float4*)(acc_ptr + 4))) + vload4(0, x + (2 * 4)));" in text
    assert "vstore4((*((float4*)(acc_ptr + 0))), 0, y + 4);" in text
    assert "acc_ptr[1]" in text


def test_source_without_anything_to_complete_is_unchanged() -> None:
    text = "__kernel void k(__global int* y) {\n  y[0] = 1;\n}\n"
    assert complete(text) == text


def test_maxima_and_minima_of_floats_are_defined_for_nan_and_those_of_integers_left() -> None:
    text = complete(
        "__kernel void k(__global float* y, __global int* z) {\n"
        "  y[0] = max((float)0.0f, (float)min((float4)(y[1]), (float4)(y[2])).x);\n"
        "  z[0] = max((int)z[1], (int)z[2]) + umax(z[3]);\n}\n"
    )
    head, _, body = text.partition("__kernel")
    assert "float heterocc_max_float(float a, float b) { return a > b ? a : b; }" in head
    assert "float4 heterocc_min_float4(float4 a, float4 b) { return a < b ? a : b; }" in head
    assert (
        "y[0] = heterocc_max_float((float)0.0f, (float)heterocc_min_float4((float4)(y[1]), (float4)(y[2])).x);" in body
    )
    assert "z[0] = max((int)z[1], (int)z[2]) + umax(z[3]);" in body


def test_the_work_group_stands_between_kernel_and_its_type_and_nowhere_else() -> None:
    text = with_work_group(complete(KERNEL), (16, 4, 1))
    assert "\n__kernel __attribute__((reqd_work_group_size(16, 4, 1))) void k(__global float* restrict y" in text
    assert text.replace("__attribute__((reqd_work_group_size(16, 4, 1))) ", "") == complete(KERNEL)


@T.prim_func(s_tir=True)
def _two_axes(y: T.handle("float32", "global")) -> None:
    groups = T.launch_thread("blockIdx.x", 3)
    item = T.launch_thread("threadIdx.x", 16)
    row = T.launch_thread("threadIdx.z", T.int64(4))
    out = T.decl_buffer((192,), data=y)
    out[groups * 64 + T.Cast("int32", row) * 16 + item] = T.float32(0)


@T.prim_func(s_tir=True)
def _no_items(y: T.handle("float32", "global")) -> None:
    groups = T.launch_thread("blockIdx.x", 3)
    out = T.decl_buffer((3,), data=y)
    out[groups] = T.float32(0)


@T.prim_func(s_tir=True)
def _as_many_as_told(y: T.handle("float32", "global"), n: T.int32) -> None:
    item = T.launch_thread("threadIdx.x", n)
    out = T.decl_buffer((64,), data=y)
    out[item] = T.float32(0)


@pytest.mark.parametrize(
    ("function", "group"), [(_two_axes, (16, 1, 4)), (_no_items, (1, 1, 1)), (_as_many_as_told, None)]
)
def test_the_work_group_is_what_the_host_code_launches(
    function: tirx.PrimFunc, group: tuple[int, int, int] | None
) -> None:
    assert work_group(function) == group


def test_the_bits_of_a_literal_are_not_those_behind_an_address() -> None:
    text = complete("  int v_ = *(int *)(&(0.000000e+00f));\n  y[0] = (*(float *)(&(v_)));\n")
    assert text == "  int v_ = as_int(0.000000e+00f);\n  y[0] = (*(float *)(&(v_)));\n"
