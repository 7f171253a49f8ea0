"""Floating-point constants that the source of a kernel holds exactly.

TVM prints constants of OpenCL C with seven digits, which is too few for float32 and float64, and those of float64 in
CUDA C++ with fifteen decimals, so that 1e-20 becomes 0. Neither language has a literal for the bits of a number, but
both have functions that compilers evaluate.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, tirx

from heterocc.compiler.lower.pipeline import KernelModule

_INTEGERS: Mapping[str, type[np.signedinteger]] = {"float32": np.int32, "float64": np.int64}
_BITS = {"int32": "float32", "uint32": "float32", "int64": "float64", "uint64": "float64"}


@dataclass(frozen=True, slots=True)
class Printing:
    """How TVM prints a dtype's constants: a format of Python's, and whether infinities and NaN are of that dtype.

    `of_bits` is the language's function from an integer to the number with these bits.
    """

    digits: str
    specials: bool
    of_bits: str

    def exact(self, value: float, dtype: str) -> bool:
        """Whether a compiler reads the constant as it is."""
        if not math.isfinite(value):
            return self.specials
        kind = np.dtype(dtype).type
        with np.errstate(over="ignore"):
            return bool(kind(format(value, self.digits)) == kind(value))


OPENCL: Mapping[str, Printing] = {
    "float32": Printing(".6e", True, "as_float"),
    "float64": Printing(".6e", False, "as_double"),
}
CUDA: Mapping[str, Printing] = {"float64": Printing(".15f", True, "__longlong_as_double")}


def with_exact_constants(module: KernelModule, printed: Mapping[str, Printing]) -> KernelModule:
    """The module with each constant that would not be printed exactly made of its bits.

    The bits of a constant, `reinterpret(int32, 1.5)`, become an integer: TVM prints the address of a literal for them.
    """

    def converted(number: tirx.Expr) -> tirx.Expr:
        dtype, value = str(number.ty.dtype), float(number.value)
        if dtype not in printed or printed[dtype].exact(value, dtype):
            return number
        integer = _INTEGERS[dtype]
        bits = int(np.array(value, dtype).view(integer))
        # An external call, as TVM would fold a reinterpretation.
        return tirx.call_pure_extern(dtype, printed[dtype].of_bits, tirx.IntImm(np.dtype(integer).name, bits))

    functions = {
        gvar: tvm_ffi.structural_map(
            tvm_ffi.structural_map(function, [(ir.Call, _folded)], order="post"),
            [(tirx.FloatImm, converted)],
            order="post",
        )
        if isinstance(function, tirx.PrimFunc)
        else function
        for gvar, function in module.mod.functions_items()
    }
    return dataclasses.replace(module, mod=tvm.IRModule(functions, attrs=module.mod.attrs))


def _folded(call: tirx.Expr) -> tirx.Expr:
    """The integer for the bits of a constant, or the call as it is."""
    dtype = str(call.ty.dtype)
    if getattr(call.op, "name", "") != "tirx.reinterpret" or dtype not in _BITS:
        return call
    number = call.args[0]
    if not isinstance(number, tirx.FloatImm) or str(number.ty.dtype) != _BITS[dtype]:
        return call
    return tirx.IntImm(dtype, int(np.array(float(number.value), _BITS[dtype]).view(dtype)))
