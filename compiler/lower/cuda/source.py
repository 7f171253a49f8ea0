"""CUDA C++ source, where what TVM's code generator calls is not what it means on the other devices."""

from __future__ import annotations

import re

_FIRST_KERNEL = 'extern "C" __global__'

# Of integers, and of halves, for which TVM brings `a > b ? a : b` along, `max` is what it is elsewhere.
_EXTREMES = "".join(
    f"""template <typename A, typename B>
static __device__ __forceinline__ auto heterocc_{name}(A a, B b) {{ return {name}(a, b); }}
static __device__ __forceinline__ float heterocc_{name}(float a, float b) {{ return a {sign} b ? a : b; }}
static __device__ __forceinline__ double heterocc_{name}(double a, double b) {{ return a {sign} b ? a : b; }}
"""
    for name, sign in (("max", ">"), ("min", "<"))
)


def complete(code: str) -> str:
    """The source with halves rounded by `hrint`, and with maxima and minima that give NaN where other devices do.

    CUDA's own give the operand that is no NaN, which undoes the order of operands of `lower/nan_order.py`.
    """
    code = re.sub(r"\bhnearbyint\(", "hrint(", code)
    head, start, kernels = code.partition(_FIRST_KERNEL)
    called, count = re.subn(r"\b(max|min)\(", r"heterocc_\1(", kernels)
    return head + _EXTREMES + start + called if count else code
