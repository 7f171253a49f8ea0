"""The body of a request while it is received."""

from __future__ import annotations

import mmap

_SMALL = 1 << 20
"""Bytes from which on a body is mapped memory."""


class Received:
    """The bytes of a body, part after part.

    Those of a large one are mapped: such memory grows without a copy, for which a list of bytes may take tens of
    milliseconds and twice the memory.
    """

    def __init__(self) -> None:
        self._data: bytearray | mmap.mmap = bytearray()
        self.size = 0

    def add(self, part: bytes) -> None:
        """Append a part."""
        end = self.size + len(part)
        if end > len(self._data):
            self._grow(end)
        self._data[self.size : end] = part
        self.size = end

    def _grow(self, size: int) -> None:
        if size <= _SMALL:
            return  # an array of bytes grows by what is appended
        room = size + size // 4
        if isinstance(self._data, bytearray):
            mapped = mmap.mmap(-1, room, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            mapped[: self.size] = self._data
            self._data = mapped
        else:
            self._data.resize(room)

    def view(self) -> memoryview:
        """The bytes; nothing is added afterwards."""
        return memoryview(self._data)[: self.size]
