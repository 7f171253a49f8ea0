"""Corrections of TVM's CUDA C++ source, so that functions have the same results as on other devices."""

from __future__ import annotations

import re

_FIRST_KERNEL = 'extern "C" __global__'

# `max` of integers, and of halves, which TVM defines as `a > b ? a : b`, needs no correction.
_EXTREMES = "".join(
    f"""template <typename A, typename B>
static __device__ __forceinline__ auto heterocc_{name}(A a, B b) {{ return {name}(a, b); }}
static __device__ __forceinline__ float heterocc_{name}(float a, float b) {{ return a {sign} b ? a : b; }}
static __device__ __forceinline__ double heterocc_{name}(double a, double b) {{ return a {sign} b ? a : b; }}
"""
    for name, sign in (("max", ">"), ("min", "<"))
)


_LITERAL = r"(?:\(\w+\))?[-+]?(?:CUDART_\w+|[\d.][\w.+-]*)(?:/\*[^*]*\*/)?"
"""A number as TVM prints it: hexadecimal ones of float32 have their decimals in a comment."""
_LITERAL_BITS = re.compile(rf"\*\((int|uint|int64_t|float) \*\)\(&\(({_LITERAL})\)\)")
_OF_BITS = {
    "int": "__float_as_int",
    "uint": "__float_as_uint",
    "int64_t": "__double_as_longlong",
    "float": "__int_as_float",
}


def complete(code: str) -> str:
    """The source with halves rounded by `hrint`, and with maxima and minima that treat NaN as on other devices.

    The bits of a literal are taken by a function, as a literal has no address. CUDA's maxima and minima return the
    operand that is not NaN, which would defeat the order of operands of `tvm_fixes/nan_order.py`.
    """
    code = _LITERAL_BITS.sub(lambda m: f"{_OF_BITS[m[1]]}({m[2]})", code)
    code = re.sub(r"\bhnearbyint\(", "hrint(", code)
    head, start, kernels = code.partition(_FIRST_KERNEL)
    called, count = re.subn(r"\b(max|min)\(", r"heterocc_\1(", kernels)
    return head + _EXTREMES + start + called if count else code
