from __future__ import annotations

from heterocc.compiler.lower.opencl.source import complete

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
