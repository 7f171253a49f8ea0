"""SPIR-V modules: opcodes, shared types and constants, and assembly of the final words.

Opcodes are those of the SPIR-V specification 1.3 and of GLSL.std.450. A module contains one compute shader.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from enum import IntEnum

MAGIC = 0x07230203
VERSION = 0x00010300
"""SPIR-V 1.3, which every Vulkan 1.1 driver supports."""

ENTRY_POINT = "main"


class Op(IntEnum):
    """Instructions."""

    NAME = 5
    EXTENSION = 10
    EXT_INST_IMPORT = 11
    EXT_INST = 12
    MEMORY_MODEL = 14
    ENTRY_POINT = 15
    EXECUTION_MODE = 16
    CAPABILITY = 17
    TYPE_VOID = 19
    TYPE_BOOL = 20
    TYPE_INT = 21
    TYPE_FLOAT = 22
    TYPE_VECTOR = 23
    TYPE_ARRAY = 28
    TYPE_RUNTIME_ARRAY = 29
    TYPE_STRUCT = 30
    TYPE_POINTER = 32
    TYPE_FUNCTION = 33
    CONSTANT_TRUE = 41
    CONSTANT_FALSE = 42
    CONSTANT = 43
    FUNCTION = 54
    FUNCTION_END = 56
    VARIABLE = 59
    LOAD = 61
    STORE = 62
    ACCESS_CHAIN = 65
    DECORATE = 71
    MEMBER_DECORATE = 72
    COMPOSITE_EXTRACT = 81
    CONVERT_F_TO_U = 109
    CONVERT_F_TO_S = 110
    CONVERT_S_TO_F = 111
    CONVERT_U_TO_F = 112
    U_CONVERT = 113
    S_CONVERT = 114
    F_CONVERT = 115
    BITCAST = 124
    S_NEGATE = 126
    F_NEGATE = 127
    I_ADD = 128
    F_ADD = 129
    I_SUB = 130
    F_SUB = 131
    I_MUL = 132
    F_MUL = 133
    U_DIV = 134
    S_DIV = 135
    F_DIV = 136
    LOGICAL_EQUAL = 164
    LOGICAL_NOT_EQUAL = 165
    LOGICAL_OR = 166
    LOGICAL_AND = 167
    LOGICAL_NOT = 168
    SELECT = 169
    I_EQUAL = 170
    I_NOT_EQUAL = 171
    U_GREATER = 172
    S_GREATER = 173
    U_GREATER_EQUAL = 174
    S_GREATER_EQUAL = 175
    U_LESS = 176
    S_LESS = 177
    U_LESS_EQUAL = 178
    S_LESS_EQUAL = 179
    F_ORD_EQUAL = 180
    F_UNORD_NOT_EQUAL = 183
    F_ORD_LESS = 184
    F_ORD_GREATER = 186
    F_ORD_LESS_EQUAL = 188
    F_ORD_GREATER_EQUAL = 190
    SHIFT_RIGHT_LOGICAL = 194
    SHIFT_RIGHT_ARITHMETIC = 195
    SHIFT_LEFT_LOGICAL = 196
    BITWISE_OR = 197
    BITWISE_XOR = 198
    BITWISE_AND = 199
    NOT = 200
    BIT_COUNT = 205
    CONTROL_BARRIER = 224
    PHI = 245
    LOOP_MERGE = 246
    SELECTION_MERGE = 247
    LABEL = 248
    BRANCH = 249
    BRANCH_CONDITIONAL = 250
    RETURN = 253
    GROUP_NON_UNIFORM_I_ADD = 349
    GROUP_NON_UNIFORM_F_ADD = 350
    GROUP_NON_UNIFORM_S_MIN = 353
    GROUP_NON_UNIFORM_U_MIN = 354
    GROUP_NON_UNIFORM_F_MIN = 355
    GROUP_NON_UNIFORM_S_MAX = 356
    GROUP_NON_UNIFORM_U_MAX = 357
    GROUP_NON_UNIFORM_F_MAX = 358


class Glsl(IntEnum):
    """Instructions of the extended set GLSL.std.450 whose result the specification defines exactly."""

    ROUND_EVEN = 2
    TRUNC = 3
    F_ABS = 4
    FLOOR = 8
    CEIL = 9
    SQRT = 31
    FIND_U_MSB = 75


class Storage(IntEnum):
    """Storage classes."""

    INPUT = 1
    WORKGROUP = 4
    FUNCTION = 7
    PUSH_CONSTANT = 9
    STORAGE_BUFFER = 12


class Capability(IntEnum):
    """Capabilities that a module declares."""

    SHADER = 1
    FLOAT16 = 9
    FLOAT64 = 10
    INT64 = 11
    INT16 = 22
    INT8 = 39
    GROUP_NON_UNIFORM = 61
    GROUP_NON_UNIFORM_ARITHMETIC = 63
    STORAGE_BUFFER_16BIT = 4433
    STORAGE_BUFFER_8BIT = 4448
    SIGNED_ZERO_INF_NAN_PRESERVE = 4466


class Decoration(IntEnum):
    """Decorations."""

    BLOCK = 2
    ARRAY_STRIDE = 6
    BUILT_IN = 11
    RESTRICT = 19
    ALIASED = 20
    NON_WRITABLE = 24
    BINDING = 33
    DESCRIPTOR_SET = 34
    OFFSET = 35
    FP_ROUNDING_MODE = 39
    NO_CONTRACTION = 42


class BuiltIn(IntEnum):
    """Built-in inputs of a compute shader."""

    WORKGROUP_ID = 26
    LOCAL_INVOCATION_ID = 27


ROUND_TO_NEAREST_EVEN = 0
"""The operand of Decoration.FP_ROUNDING_MODE."""

SCOPE_WORKGROUP = 2
SCOPE_SUBGROUP = 3
REDUCE = 0
"""The group operation that returns the whole result in every invocation."""
SEMANTICS_WORKGROUP = 0x8 | 0x100  # AcquireRelease | WorkgroupMemory

_LOCAL_SIZE = 17
_SIGNED_ZERO_INF_NAN_PRESERVE = 4461
"""Execution modes."""

_EXTENSIONS = {
    Capability.STORAGE_BUFFER_8BIT: "SPV_KHR_8bit_storage",
    Capability.SIGNED_ZERO_INF_NAN_PRESERVE: "SPV_KHR_float_controls",
}


def text_words(text: str) -> tuple[int, ...]:
    """A string as words: UTF-8, terminated by a zero byte and padded with zeros."""
    data = text.encode("utf-8") + b"\0"
    data += b"\0" * (-len(data) % 4)
    return struct.unpack(f"<{len(data) // 4}I", data)


def instruction(op: Op, words: Iterable[int]) -> list[int]:
    """The words of an instruction: length and opcode, then the operands."""
    operands = list(words)
    return [(len(operands) + 1) << 16 | op, *operands]


class Module:
    """A module under construction. Ids are numbers from 1 in order of use, so equal input gives equal words."""

    def __init__(self) -> None:
        self._last = 0
        self._capabilities: dict[Capability, None] = {Capability.SHADER: None}
        self._decorations: list[int] = []
        self._globals: list[int] = []
        self._known: dict[tuple[int, ...], int] = {}
        self._preserved: list[int] = []
        self._glsl = self.new_id()
        self.float_widths: set[int] = set()
        """The widths in bits of the floating-point types that the code computes in or converts."""

    def new_id(self) -> int:
        """A new id."""
        self._last += 1
        return self._last

    @property
    def glsl(self) -> int:
        """The id of the imported instruction set GLSL.std.450."""
        return self._glsl

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities declared so far."""
        return frozenset(self._capabilities)

    def require(self, capability: Capability) -> None:
        """Declare a capability."""
        self._capabilities[capability] = None

    def preserve_nan(self, bits: int) -> None:
        """Make drivers preserve NaN, infinities and the sign of zero in floats of a width, which is optional else."""
        self.require(Capability.SIGNED_ZERO_INF_NAN_PRESERVE)
        self._preserved.append(bits)

    def decorate(self, target: int, decoration: Decoration, *operands: int) -> None:
        """Decorate an id."""
        self._decorations += instruction(Op.DECORATE, (target, decoration, *operands))

    def decorate_member(self, target: int, member: int, decoration: Decoration, *operands: int) -> None:
        """Decorate a member of a structure."""
        self._decorations += instruction(Op.MEMBER_DECORATE, (target, member, decoration, *operands))

    def type(self, op: Op, *operands: int) -> int:
        """A type, declared once."""
        return self._once((op, *operands), lambda result: instruction(op, (result, *operands)))

    def own_type(self, op: Op, *operands: int) -> int:
        """A new type even if an equal one exists, as structures and arrays may differ in their decorations."""
        result = self.new_id()
        self._globals += instruction(op, (result, *operands))
        return result

    def constant(self, op: Op, type_: int, *operands: int) -> int:
        """A constant, declared once."""
        return self._once((op, type_, *operands), lambda result: instruction(op, (type_, result, *operands)))

    def variable(self, pointer: int, storage: Storage) -> int:
        """A variable outside the function."""
        result = self.new_id()
        self._globals += instruction(Op.VARIABLE, (pointer, result, storage))
        return result

    def _once(self, key: tuple[int, ...], write: Callable[[int], list[int]]) -> int:
        if key not in self._known:
            self._known[key] = self.new_id()
            self._globals += write(self._known[key])
        return self._known[key]

    def assemble(
        self, name: str, local_size: tuple[int, int, int], interface: Iterable[int], body: Iterable[int]
    ) -> bytes:
        """The bytes (little endian) of the module with one function of the blocks `body`; `name` is for debuggers."""
        void = self.type(Op.TYPE_VOID)
        signature = self.type(Op.TYPE_FUNCTION, void)
        function = self.new_id()
        words = [MAGIC, VERSION, 0, self._last + 1, 0]
        for capability in sorted(self._capabilities):
            words += instruction(Op.CAPABILITY, (capability,))
        for capability in sorted(self._capabilities):
            if capability in _EXTENSIONS:
                words += instruction(Op.EXTENSION, text_words(_EXTENSIONS[capability]))
        words += instruction(Op.EXT_INST_IMPORT, (self._glsl, *text_words("GLSL.std.450")))
        words += instruction(Op.MEMORY_MODEL, (0, 1))  # logical addressing, GLSL450
        words += instruction(Op.ENTRY_POINT, (5, function, *text_words(ENTRY_POINT), *interface))  # GLCompute
        words += instruction(Op.EXECUTION_MODE, (function, _LOCAL_SIZE, *local_size))
        for bits in self._preserved:
            words += instruction(Op.EXECUTION_MODE, (function, _SIGNED_ZERO_INF_NAN_PRESERVE, bits))
        words += instruction(Op.NAME, (function, *text_words(name)))
        words += self._decorations
        words += self._globals
        words += instruction(Op.FUNCTION, (void, function, 0, signature))
        words += body
        words += instruction(Op.FUNCTION_END, ())
        return struct.pack(f"<{len(words)}I", *words)
