"""OpenCL C source: what TVM's code generator leaves out, and each kernel's text for dumps."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tvm_ffi

CALLBACK = "tvm_callback_opencl_postproc"

_FLOAT_FUNCTIONS = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp10 exp2 expm1 fabs floor fma "
    "fmax fmin fmod hypot ldexp lgamma log log10 log1p log2 nextafter pow rint round rsqrt sin sinh sqrt tan tanh "
    "tgamma trunc"
).split()
"""C's math functions, which OpenCL C has under the name for double alone: `tanf` must become `tan`."""

_DECLARATION = re.compile(r"^__kernel void \w+\([^)]*\);\n", re.MULTILINE)
_NAME = re.compile(r"__kernel void (\w+)\(")
_LOCK = threading.Lock()


def complete(code: str) -> str:
    """The source with C's names of math functions made known, and without declarations of other kernels.

    TVM declares every kernel of a module before each one, which makes the text quadratic.
    """
    code = _DECLARATION.sub("", code)
    used = set(re.findall(r"\b(\w+)f\(", code))
    lines = [f"#define {name}f {name}" for name in _FLOAT_FUNCTIONS if name in used]
    return "\n".join([*lines, code]) if lines else code


@contextmanager
def completed_source() -> Iterator[dict[str, str]]:
    """While open, TVM's OpenCL code is completed; gives the source of each kernel by name, as it is generated."""
    sources: dict[str, str] = {}

    def postprocess(code: str, _target: Any = None) -> str:
        text = complete(str(code))
        found = _NAME.search(text)
        if found is not None:
            sources[found[1]] = text.strip() + "\n"
        return text

    with _LOCK:  # the callback is the process's
        previous = tvm_ffi.get_global_func(CALLBACK, allow_missing=True)
        tvm_ffi.register_global_func(CALLBACK, postprocess, override=True)
        try:
            yield sources
        finally:
            tvm_ffi.remove_global_func(CALLBACK)
            if previous is not None:
                tvm_ffi.register_global_func(CALLBACK, previous)
