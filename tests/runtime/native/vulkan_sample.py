"""Vulkan modules written by hand: SPIR-V word by word, in the bytes that the code generator writes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import tvm_ffi

from heterocc.runtime.native.vulkan_api import load_vulkan
from tests import device_run
from tests.runtime.native import device_sample
from tests.runtime.native.device_sample import Tensors

BUFFER, PUSH = 0, 1
INT, FLOAT = 0, 2
INT32 = (PUSH, INT, 32)
FLOAT32 = (PUSH, FLOAT, 32)

_TENSORS = Tensors("vulkan", load_vulkan)
vulkan, empty, to_device, run_scale = _TENSORS.device, _TENSORS.empty, _TENSORS.upload, _TENSORS.run_scale
leave_idle_workspace = _TENSORS.leave_idle_workspace
to_host, copy, pointer = device_run.download, device_run.copy, device_sample.pointer

_OPS = {
    "Capability": 17, "Extension": 10, "MemoryModel": 14, "EntryPoint": 15, "ExecutionMode": 16, "Decorate": 71,
    "MemberDecorate": 72, "TypeVoid": 19, "TypeFunction": 33, "TypeInt": 21, "TypeFloat": 22, "TypeVector": 23,
    "TypePointer": 32, "TypeRuntimeArray": 29, "TypeStruct": 30, "Constant": 43, "Variable": 59, "Function": 54,
    "Label": 248, "AccessChain": 65, "Load": 61, "Store": 62, "FMul": 133, "FAdd": 129, "ConvertSToF": 111,
    "Return": 253, "FunctionEnd": 56,
}  # fmt: skip
_INPUT, _STORAGE, _PUSH_CLASS = 1, 12, 9
_BLOCK, _STRIDE, _BUILTIN, _NON_WRITABLE, _BINDING, _SET, _OFFSET = 2, 6, 11, 24, 33, 34, 35
_GLOBAL_ID = 28
_KEEP_NAN_CAPABILITY, _KEEP_NAN = 4466, 4461


def name_words(text: str) -> list[int]:
    """A literal string of SPIR-V."""
    data = text.encode() + b"\0"
    data += b"\0" * (-len(data) % 4)
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def scale_words(
    group: int = 8, capabilities: Sequence[int] = (), entry: str = "main", keeps_nan: Sequence[int] = ()
) -> list[int]:
    """`y[i] = x[i] * factor + bias` for i below groups × `group`; y is binding 0, x binding 1, then {float, int}.

    `keeps_nan` are the widths of floats that the shader asks to keep NaN in.
    """
    ids: dict[str, int] = {}
    words: list[int] = []

    def of(operand: int | str) -> int:
        return ids.setdefault(operand, len(ids) + 1) if isinstance(operand, str) else operand

    def emit(op: str, *operands: int | str | list[int]) -> None:
        flat = [w for o in operands for w in (o if isinstance(o, list) else [of(o)])]
        words.append(len(flat) + 1 << 16 | _OPS[op])
        words.extend(flat)

    for capability in (1, *capabilities, *([_KEEP_NAN_CAPABILITY] if keeps_nan else [])):
        emit("Capability", capability)
    if keeps_nan:
        emit("Extension", name_words("SPV_KHR_float_controls"))
    emit("MemoryModel", 0, 1)
    emit("EntryPoint", 5, "main", name_words(entry), "id")
    emit("ExecutionMode", "main", 17, group, 1, 1)
    for bits in keeps_nan:
        emit("ExecutionMode", "main", _KEEP_NAN, bits)
    emit("Decorate", "id", _BUILTIN, _GLOBAL_ID)
    emit("Decorate", "array", _STRIDE, 4)
    for name, binding in (("y", 0), ("x", 1)):
        emit("Decorate", name, _SET, 0)
        emit("Decorate", name, _BINDING, binding)
    emit("Decorate", "x", _NON_WRITABLE)
    emit("Decorate", "data", _BLOCK)
    emit("MemberDecorate", "data", 0, _OFFSET, 0)
    emit("Decorate", "scalars", _BLOCK)
    emit("MemberDecorate", "scalars", 0, _OFFSET, 0)
    emit("MemberDecorate", "scalars", 1, _OFFSET, 4)
    emit("TypeVoid", "void")
    emit("TypeFunction", "signature", "void")
    emit("TypeInt", "int", 32, 1)
    emit("TypeInt", "uint", 32, 0)
    emit("TypeFloat", "float", 32)
    emit("TypeVector", "uvec3", "uint", 3)
    emit("TypePointer", "id*", _INPUT, "uvec3")
    emit("TypePointer", "id.x*", _INPUT, "uint")
    emit("TypeRuntimeArray", "array", "float")
    emit("TypeStruct", "data", "array")
    emit("TypePointer", "data*", _STORAGE, "data")
    emit("TypePointer", "element*", _STORAGE, "float")
    emit("TypeStruct", "scalars", "float", "int")
    emit("TypePointer", "scalars*", _PUSH_CLASS, "scalars")
    emit("TypePointer", "factor*", _PUSH_CLASS, "float")
    emit("TypePointer", "bias*", _PUSH_CLASS, "int")
    emit("Constant", "int", "0", 0)
    emit("Constant", "int", "1", 1)
    emit("Variable", "id*", "id", _INPUT)
    emit("Variable", "data*", "y", _STORAGE)
    emit("Variable", "data*", "x", _STORAGE)
    emit("Variable", "scalars*", "push", _PUSH_CLASS)
    emit("Function", "void", "main", 0, "signature")
    emit("Label", "start")
    emit("AccessChain", "id.x*", "place", "id", "0")
    emit("Load", "uint", "i", "place")
    emit("AccessChain", "element*", "from", "x", "0", "i")
    emit("Load", "float", "value", "from")
    emit("AccessChain", "factor*", "factor at", "push", "0")
    emit("Load", "float", "factor", "factor at")
    emit("AccessChain", "bias*", "bias at", "push", "1")
    emit("Load", "int", "bias", "bias at")
    emit("ConvertSToF", "float", "shift", "bias")
    emit("FMul", "float", "product", "value", "factor")
    emit("FAdd", "float", "sum", "product", "shift")
    emit("AccessChain", "element*", "to", "y", "0", "i")
    emit("Store", "to", "sum")
    emit("Return")
    emit("FunctionEnd")
    return [0x07230203, 0x00010300, 0, len(ids) + 1, 0, *words]


def text_bytes(text: str) -> bytes:
    """A length and UTF-8."""
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def kernel_bytes(
    name: str = "scale",
    *,
    buffers: int = 2,
    push: int = 8,
    arguments: Sequence[tuple[int, int, int, int]] = ((0, 0, 0, 0), (0, 0, 0, 1), (*FLOAT32, 0), (*INT32, 4)),
    tags: Sequence[str] = ("blockIdx.x", "threadIdx.x"),
    group: tuple[int, int, int] = (8, 1, 1),
    shared: int = 0,
    features: int = 0,
    words: Sequence[int] | None = None,
) -> bytes:
    """One kernel of a module; arguments are (kind, type code, bits, binding or offset)."""
    code = scale_words(group[0]) if words is None else words
    out = text_bytes(name) + struct.pack("<II", buffers, push)
    out += struct.pack("<I", len(arguments))
    out += b"".join(struct.pack("<BBBBI", kind, dtype, bits, 0, slot) for kind, dtype, bits, slot in arguments)
    out += struct.pack("<I", len(tags)) + b"".join(text_bytes(t) for t in tags)
    out += struct.pack("<5I", *group, shared, features)
    return out + struct.pack(f"<I{len(code)}I", len(code), *code)


def module_bytes(*kernels: bytes, version: int = 1) -> bytes:
    """A module of kernels, of `scale` alone when none are given."""
    inside = kernels or (kernel_bytes(),)
    return b"HCVK" + struct.pack("<II", version, len(inside)) + b"".join(inside)


def load(data: bytes) -> Any:
    """The bytes as a module; raises what the plug-in raises."""
    load_vulkan()
    return tvm_ffi.get_global_func("ffi.Module.load_from_bytes.vulkan")(data)


def header_size() -> int:
    """Bytes of `module_bytes()` before its SPIR-V."""
    return len(module_bytes()) - 4 * len(scale_words())


def synchronize() -> None:
    """Waits for the first Vulkan device."""
    tvm_ffi.get_global_func("runtime.Device_StreamSync")(vulkan(), 0)


def plugin(name: str) -> Any:
    """A function of the plug-in."""
    load_vulkan()
    return tvm_ffi.get_global_func(f"heterocc.vulkan.{name}")
