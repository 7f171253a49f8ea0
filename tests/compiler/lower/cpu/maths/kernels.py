"""Kernels that compute functions of real numbers element by element, and the errors of their results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, te, tirx

from heterocc.compiler.lower.cpu.maths.pipeline import PIPELINE
from heterocc.compiler.lower.cpu.maths.rules import FUNCTIONS

COUNT = 1 << 16
TARGETS: Mapping[str, tuple[dict[str, Any], int]] = {
    "avx512": ({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v4", "mattr": ["-prefer-256-bit"]}, 16),
    "avx2": ({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"}, 8),
    "sse2": ({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"}, 4),
    "neon": ({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"}, 4),
}
"""Attributes of the target and lanes of its vectors."""

_TWO = ("acosh", "asin", "asinh", "atanh", "tan", "tanh", "sigmoid", "sinh", "cosh", "erf")
STATED = dict.fromkeys(FUNCTIONS, 1.0) | {**dict.fromkeys(_TWO, 2.0), "silu": 3.0}
STATED |= {"fmod": 0.0}
WITHOUT_FMA = STATED | {"exp": 1.2}
"""The largest errors in units in the last place, with fused multiply-adds and without."""

BORDERS = np.array(
    [
        *(0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 0.25, 2.0, -2.0, 3.0, 2.0**-10, math.inf, -math.inf, math.nan),
        *(1e-45, -1e-45, 1.1754942e-38, 1.17549435e-38, 3.4028235e38, -3.4028235e38, 2.0**26, 2.0**25, 1e30),
        *(88.72283, 88.72284, -87.33654, -87.33655, -103.97207, -103.97208, -104.0, 89.41598, 89.416, 9.2, 4.0, 0.9),
    ],
    np.float32,
)


def arguments() -> np.ndarray:
    """Borders, numbers with every exponent and sign, and numbers as they occur."""
    rng = np.random.default_rng(5)
    patterns = np.arange(0, 1 << 32, (1 << 32) // 30_000 + 1, dtype=np.uint64).astype(np.uint32).view(np.float32)
    usual = [rng.uniform(-105, 90, 12_000), rng.uniform(-1.1, 1.1, 12_000), rng.uniform(-10, 10, 8_000)]
    x = np.concatenate([BORDERS, patterns, *(numbers.astype(np.float32) for numbers in usual)])
    return np.concatenate([x, np.full(COUNT - x.size, 0.75, np.float32)])


def exponents(x: np.ndarray) -> np.ndarray:
    """Exponents for powers of x that are mostly finite; a third are integers."""
    rng = np.random.default_rng(6)
    with np.errstate(all="ignore"):
        steps = np.clip(np.abs(np.log2(np.abs(x.astype(np.float64)))), 1e-3, 200)
    y = np.nan_to_num(rng.uniform(-160, 160, x.size) / np.nan_to_num(steps, nan=1.0)).astype(np.float32)
    y[::3] = np.round(y[::3])
    return y


def divisors(x: np.ndarray) -> np.ndarray:
    """Divisors of x: other numbers of all kinds, parts of x that divide it or nearly do, and numbers of its size."""
    rng = np.random.default_rng(7)
    y = rng.permutation(x)
    with np.errstate(all="ignore"):
        part = (x / rng.integers(1, 1 << 20, x.size)).astype(np.float32)
        y[1::3] = np.where(rng.random(x.size) < 0.5, part, np.nextafter(part, np.float32(math.inf)))[1::3]
        y[2::3] = (x * rng.uniform(-2, 2, x.size)).astype(np.float32)[2::3]
    return y


def given(name: str, x: np.ndarray) -> tuple[np.ndarray, ...]:
    """The arguments of a function for numbers of all kinds: some are exact from -88 only."""
    if name in ("sigmoid", "silu"):
        return (np.where(x < -88, -x, x),)
    if name == "fmod":
        return x, divisors(x)
    return (x, exponents(x)) if name == "pow" else (x,)


def kernel(name: str, lanes: int, dtype: str = "float32") -> tirx.PrimFunc:
    """A kernel called `name` that computes the function in vectors, from one tensor or two."""
    count = 2 if name in ("fmod", "pow") else 1
    tensors = [te.placeholder((COUNT,), dtype, f"x{i}") for i in range(count)]
    function = COMPOSED.get(name) or getattr(tirx, name)
    result = te.compute((COUNT,), lambda i: function(*(t[i] for t in tensors)), "y")
    sch = s_tir.Schedule(te.create_prim_func([*tensors, result]))
    (loop,) = sch.get_loops(sch.get_sblock("y"))
    _, inner = sch.split(loop, [None, lanes])
    if lanes > 1:
        sch.vectorize(inner)
    return sch.mod["main"].with_attr("global_symbol", name)


COMPOSED: Mapping[str, Callable[[tirx.Expr], tirx.Expr]] = {"silu": lambda x: x * tirx.sigmoid(x)}
"""Functions of ours that TVM has no operators for."""


def built(kernels: Sequence[tirx.PrimFunc], target: dict[str, Any]) -> Any:
    """Code for kernels by the passes of the CPU back end."""
    functions = {str(k.attrs["global_symbol"]): k for k in kernels}
    return tvm.tirx.build(tvm.IRModule(functions), tvm.target.Target(target), pipeline=PIPELINE)


def called(module: Any, name: str, *x: np.ndarray) -> np.ndarray:
    """The result of a kernel."""
    y = tvm.runtime.tensor(np.zeros_like(x[0]))
    module[name](*(tvm.runtime.tensor(a) for a in x), y)
    result: np.ndarray = y.numpy()
    return result


REFERENCE: Mapping[str, Callable[..., np.ndarray]] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "erf": np.vectorize(math.erf),
    "pow": np.power,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def errors(name: str, got: np.ndarray, *x: np.ndarray) -> np.ndarray:
    """Errors in units of the exact results' last place; infinite for a wrong infinity, NaN or sign of zero."""
    with np.errstate(all="ignore"):
        want = (REFERENCE.get(name) or getattr(np, name))(*(a.astype(np.float64) for a in x))
        rounded = want.astype(np.float32)
        unit = np.ldexp(1.0, np.clip(np.frexp(want)[1] - 24, -149, None))
        error = np.abs(got.astype(np.float64) - want) / unit
    special = ~np.isfinite(rounded) | ~np.isfinite(got)
    same = (rounded == got) | (np.isnan(rounded) & np.isnan(got))
    zero_sign = (want == 0) & (got == 0) & (np.signbit(want) != np.signbit(got))
    return np.where(special, np.where(same, 0, np.inf), np.where(zero_sign, np.inf, error))
