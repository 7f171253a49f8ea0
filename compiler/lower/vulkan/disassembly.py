"""Disassembly of SPIR-V for dumps: one instruction per line, similar to spirv-dis."""

from __future__ import annotations

import struct

from heterocc.compiler.lower.vulkan.spirv import Op

_HEADER = 5
_WITHOUT_RESULT = frozenset(
    [
        *(Op.NAME, Op.EXTENSION, Op.MEMORY_MODEL, Op.ENTRY_POINT, Op.EXECUTION_MODE, Op.CAPABILITY, Op.FUNCTION_END),
        *(Op.STORE, Op.DECORATE, Op.MEMBER_DECORATE, Op.CONTROL_BARRIER, Op.LOOP_MERGE, Op.SELECTION_MERGE),
        *(Op.BRANCH, Op.BRANCH_CONDITIONAL, Op.RETURN),
    ]
)
_WITHOUT_TYPE = frozenset(
    [
        *(Op.EXT_INST_IMPORT, Op.TYPE_VOID, Op.TYPE_BOOL, Op.TYPE_INT, Op.TYPE_FLOAT, Op.TYPE_VECTOR, Op.TYPE_ARRAY),
        *(Op.TYPE_RUNTIME_ARRAY, Op.TYPE_STRUCT, Op.TYPE_POINTER, Op.TYPE_FUNCTION, Op.LABEL),
    ]
)


def disassemble(code: bytes) -> str:
    """The instructions of a module as text. Operands, both ids and literals, are printed as numbers."""
    words = struct.unpack(f"<{len(code) // 4}I", code)
    lines = []
    place = _HEADER
    while place < len(words):
        op, length = Op(words[place] & 0xFFFF), words[place] >> 16
        operands = list(words[place + 1 : place + length])
        place += length
        name = "Op" + "".join(part.capitalize() for part in op.name.split("_"))
        if op in _WITHOUT_RESULT:
            lines.append(" ".join([name, *map(str, operands)]))
        elif op in _WITHOUT_TYPE:
            lines.append(" ".join([f"%{operands[0]} = {name}", *map(str, operands[1:])]))
        else:
            lines.append(" ".join([f"%{operands[1]} = {name} %{operands[0]}", *map(str, operands[2:])]))
    return "\n".join(lines) + "\n"
