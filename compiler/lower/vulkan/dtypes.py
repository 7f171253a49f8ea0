"""Element types and their representation in SPIR-V, in registers and in buffers."""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from heterocc.compiler.lower.vulkan.spirv import Capability, Module, Op

Kind = Literal["float", "int", "uint", "bool"]
Number = int | float | bool

_ARITHMETIC: dict[tuple[bool, int], Capability] = {
    (True, 16): Capability.FLOAT16,
    (True, 64): Capability.FLOAT64,
    (False, 8): Capability.INT8,
    (False, 16): Capability.INT16,
    (False, 64): Capability.INT64,
}
_STORAGE = {1: Capability.STORAGE_BUFFER_8BIT, 2: Capability.STORAGE_BUFFER_16BIT}


class UnsupportedError(Exception):
    """A kernel contains something that Vulkan code cannot express; the message is a noun phrase that names it."""


@dataclass(frozen=True, slots=True)
class DType:
    """A scalar type; `bool` has 1 bit in registers and a byte of 0 or 1 in buffers."""

    kind: Kind
    bits: int

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point type."""
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """Whether it is a signed or unsigned integer type."""
        return self.kind in ("int", "uint")

    @property
    def bytes(self) -> int:
        """The size of an element in a buffer, in bytes."""
        return max(1, self.bits // 8)

    @property
    def name(self) -> str:
        """The type's name in TVM and NumPy."""
        return "bool" if self.kind == "bool" else f"{self.kind}{self.bits}"

    @property
    def stored(self) -> DType:
        """The type that represents it in a buffer."""
        return UINT8 if self.kind == "bool" else self

    def declare(self, module: Module) -> int:
        """The SPIR-V type for loads, stores and conversions, which need only the capability of the buffer."""
        if self.kind == "bool":
            return module.type(Op.TYPE_BOOL)
        if self.bits == 64:
            module.require(_ARITHMETIC[self.is_float, 64])
        if self.is_float:
            return module.type(Op.TYPE_FLOAT, self.bits)
        return module.type(Op.TYPE_INT, self.bits, int(self.kind == "int"))

    def compute(self, module: Module) -> int:
        """The SPIR-V type for arithmetic; declares the capability for it."""
        capability = _ARITHMETIC.get((self.is_float, self.bits))
        if capability is not None:
            module.require(capability)
        self.computed(module)
        return self.declare(module)

    def computed(self, module: Module) -> None:
        """Record that the code computes in this type, if it is a floating-point one."""
        if self.is_float:
            module.float_widths.add(self.bits)

    def in_buffer(self, module: Module) -> int:
        """The SPIR-V type of an element in a buffer."""
        capability = _STORAGE.get(self.stored.bytes)
        if capability is not None:
            module.require(capability)
        return self.stored.declare(module)

    def constant(self, module: Module, value: Number) -> int:
        """A constant of this type."""
        if self.kind == "bool":
            return module.constant(Op.CONSTANT_TRUE if value else Op.CONSTANT_FALSE, self.declare(module))
        return module.constant(Op.CONSTANT, self.compute(module), *self._words(value))

    def _words(self, value: Number) -> tuple[int, ...]:
        """The words of a constant. As specified, narrow integers are sign-extended, and narrow floats zero-extended."""
        if self.is_float:
            with np.errstate(over="ignore"):
                data = np.array(value, f"<f{self.bits // 8}").tobytes()
        else:
            wide = int(value) & ((1 << self.bits) - 1)
            if self.kind == "int" and self.bits < 32 and wide >> (self.bits - 1):
                wide |= 0xFFFFFFFF ^ ((1 << self.bits) - 1)
            data = wide.to_bytes(max(4, self.bytes), "little")
        data += b"\0" * (-len(data) % 4)
        return struct.unpack(f"<{len(data) // 4}I", data)


BOOL = DType("bool", 1)
UINT8 = DType("uint", 8)
UINT32 = DType("uint", 32)
INT32 = DType("int", 32)
FLOAT16 = DType("float", 16)
FLOAT32 = DType("float", 32)
FLOAT64 = DType("float", 64)

_ALL = {t.name: t for t in (BOOL, FLOAT16, FLOAT32, FLOAT64)}
_ALL |= {f"{kind}{bits}": DType(kind, bits) for kind in ("int", "uint") for bits in (8, 16, 32, 64)}


def parse(dtype: Any) -> tuple[DType, int]:
    """A TVM dtype as scalar type and number of lanes. Raises UnsupportedError for an unsupported one."""
    return _parsed(str(getattr(dtype, "dtype", dtype)))


@functools.cache
def _parsed(text: str) -> tuple[DType, int]:
    scalar, _, lanes = text.partition("x")
    found = _ALL.get(scalar)
    if found is None or (lanes and not lanes.isdecimal()):
        raise UnsupportedError(f"dtype {text}")
    return found, int(lanes or 1)
