"""Corrections of TVM's OpenCL C source, and each kernel's text for dumps."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import tvm_ffi
from tvm import runtime, tirx

from heterocc.compiler.lower.tvm_fixes.global_functions import replaced

if TYPE_CHECKING:
    from tvm import IRModule
    from tvm.target import Target


BUILD = "target.build.opencl"
POSTPROCESS = "tvm_callback_opencl_postproc"

WorkGroup = tuple[int, int, int]
"""The work items of a group in x, y and z."""

_FLOAT_FUNCTIONS = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp10 exp2 expm1 fabs floor fma "
    "fmax fmin fmod hypot ldexp lgamma log log10 log1p log2 nextafter pow rint round rsqrt sin sinh sqrt tan tanh "
    "tgamma trunc"
).split()
"""C's mathematical functions. OpenCL C only has their names for double: `tanf` must become `tan`."""

_EXTREME = re.compile(r"\b(max|min)\(\(((?:float|double|half)\d*)\)")
_EXTREME_CODE = """#ifndef {name}
#define {name} {name}
{dtype} {name}({dtype} a, {dtype} b) {{ return a {sign} b ? a : b; }}
#endif
"""  # guarded, as kernels share programs
_SIGNS = {"max": ">", "min": "<"}
_DECLARATION = re.compile(r"^__kernel void \w+\([^)]*\);\n", re.MULTILINE)
_NAME = re.compile(r"__kernel void (\w+)\(")
_ARRAY = re.compile(r"^ *float (\w+)\[\d+\];", re.MULTILINE)
_VECTOR_CALL = re.compile(r"\bv(load|store)(\d+)\(")
_LITERAL_BITS = re.compile(r"\*\((\w+) \*\)\(&\(((?:\(\w+\))?[-+]?[\d.][\w.+-]*)\)\)")
_ITEMS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
_LOCK = threading.Lock()  # TVM's global functions belong to the process


def complete(code: str) -> str:
    """The corrected source.

    C's names of mathematical functions are defined. Declarations of other kernels are removed: TVM repeats those of
    the whole module before each kernel, so the text would have quadratic length. Vectors in private arrays are
    accessed as vectors. The bits of a literal are those of `as_type`, as a literal has no address. Maxima and minima
    are replaced, as OpenCL does not define them for NaN and infinities: the result is the second operand if one is
    NaN, which `tvm_fixes/nan_order.py` relies on.
    """
    code = _LITERAL_BITS.sub(r"as_\1(\2)", _with_extremes(_private_vectors(_DECLARATION.sub("", code))))
    used = set(re.findall(r"\b(\w+)f\(", code))
    lines = [f"#define {name}f {name}" for name in _FLOAT_FUNCTIONS if name in used]
    return "\n".join([*lines, code]) if lines else code


def _with_extremes(code: str) -> str:
    used = sorted(set(_EXTREME.findall(code)))
    head, kernel, body = _EXTREME.sub(r"heterocc_\1_\2((\2)", code).partition("__kernel")
    defined = [
        _EXTREME_CODE.format(name=f"heterocc_{name}_{dtype}", dtype=dtype, sign=_SIGNS[name]) for name, dtype in used
    ]
    return head + "".join(defined) + kernel + body


def with_work_group(code: str, group: WorkGroup) -> str:
    """The source of a kernel with this required work-group size.

    Drivers then allocate registers for this size, and report a kernel that does not fit when they compile it. Without
    it they assume some size (AMD's at most 256), and a launch with larger groups fails.
    """
    x, y, z = group
    return code.replace("__kernel ", f"__kernel __attribute__((reqd_work_group_size({x}, {y}, {z}))) ", 1)


def work_group(function: tirx.PrimFunc) -> WorkGroup | None:
    """The work-group size of a device function; None if it is not constant."""
    extents: dict[str, Any] = {}

    def note(mark: tirx.AttrStmt) -> None:
        if mark.attr_key == "thread_extent":
            extents[str(mark.node.thread_tag)] = getattr(mark.value, "value", None)

    tvm_ffi.structural_walk(function.body, [(tirx.AttrStmt, note)])
    x, y, z = (extents.get(tag, 1) for tag in _ITEMS)
    return None if None in (x, y, z) else (int(x), int(y), int(z))


def _private_vectors(code: str) -> str:
    """Replace vloadN and vstoreN on private arrays by accesses through a vector pointer to an aligned array.

    Drivers that build vloadN from halves (PoCL) would otherwise keep the sums of a tile in parts, and join these for
    every use.
    """
    arrays = {m[1]: m[0] for m in _ARRAY.finditer(code)}
    for declaration in arrays.values():
        code = code.replace(declaration, f"{declaration[:-1]} __attribute__((aligned(64)));")
    return _vectors_in(code, arrays)


def _vectors_in(code: str, arrays: Mapping[str, str]) -> str:
    out: list[str] = []
    place = 0
    for call in _VECTOR_CALL.finditer(code):
        if call.start() < place:
            continue  # inside a store that has been rewritten
        text, end = _rewritten(code, call, arrays)
        out += [code[place : call.start()], text]
        place = end
    return "".join([*out, code[place:]])


def _rewritten(code: str, call: re.Match[str], arrays: Mapping[str, str]) -> tuple[str, int]:
    arguments, end = _arguments(code, call.end())
    if call[1] == "store":
        value = _vectors_in(arguments[0], arrays)
        if _array_of(arguments[2]) in arrays:
            return f"*((float{call[2]}*)({arguments[2]})) = {value}", end
        return f"vstore{call[2]}({value}, {arguments[1]}, {arguments[2]})", end
    if _array_of(arguments[1]) in arrays:
        return f"(*((float{call[2]}*)({arguments[1]})))", end
    return code[call.start() : end], end


def _array_of(pointer: str) -> str:
    """The array at the start of a pointer expression `array + offset`."""
    found = re.match(r"\s*(\w+)", pointer)
    return found[1] if found else ""


def _arguments(code: str, start: int) -> tuple[list[str], int]:
    """The arguments of a call whose opening parenthesis is before `start`, and the index after its closing one."""
    depth, begin, found = 0, start, []
    for place in range(start, len(code)):
        letter = code[place]
        if letter == "(":
            depth += 1
        elif letter == ")" and depth > 0:
            depth -= 1
        elif letter in ",)" and depth == 0:
            found.append(code[begin:place].strip())
            begin = place + 1
            if letter == ")":
                return found, place + 1
    raise ValueError("unbalanced parentheses in generated code")


@contextmanager
def completed_source() -> Iterator[dict[str, str]]:
    """Correct TVM's OpenCL code within the block; yield a mapping that receives each kernel's source by name."""
    sources: dict[str, str] = {}
    groups: dict[str, WorkGroup] = {}

    def postprocess(code: str, _target: Target | None = None) -> str:
        text = complete(str(code))
        found = _NAME.search(text)
        if found is None:
            return text
        name = found[1]
        if name in groups:
            text = with_work_group(text, groups[name])
        sources[name] = text.strip() + "\n"
        return text

    with _LOCK:
        generate = tvm_ffi.get_global_func(BUILD)

        def build(mod: IRModule, target: Target) -> runtime.Module:
            sizes = {gvar.name_hint: work_group(function) for gvar, function in mod.functions_items()}
            groups.update({name: size for name, size in sizes.items() if size is not None})
            return generate(mod, target)

        with replaced(POSTPROCESS, postprocess), replaced(BUILD, build):
            yield sources
