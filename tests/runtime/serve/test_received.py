"""Bodies of requests while they are received."""

from __future__ import annotations

import pytest

from heterocc.runtime.serve.protocols.received import _SMALL, Received
from tests.fresh_process import fresh


@pytest.mark.parametrize("size", [0, 1, _SMALL - 1, _SMALL, _SMALL + 1, 3 * _SMALL + 7])
def test_a_body_is_its_parts(size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    received = Received()
    for start in range(0, size, 60_001):
        received.add(data[start : start + 60_001])
    assert received.size == size and received.view() == data


_GROWTH = """
from heterocc.runtime.serve.protocols.received import Received
from tests.fresh_process import peak
freed = bytearray(31 << 20)  # the C library takes so much from its own heap from now on, and copies it when it grows
del freed
before, part, received = peak(), bytes(1 << 16), Received()
for _ in range(48 << 4):
    received.add(part)
print(peak() - before)
"""


def test_a_large_body_takes_its_size_while_it_is_received() -> None:
    assert int(fresh(_GROWTH)) < 40 << 10, "with copies 57 MiB, beside the freed ones"
