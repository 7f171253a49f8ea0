"""Reading of straight-line functions."""

from __future__ import annotations

import gc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from heterocc.compiler.lower.straight import array_of, constant
from heterocc.runtime.execute.memory import aligned_bytes


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.uint8, np.bool_, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5), (0, 5), ()])
def test_the_array_of_a_constant_is_what_it_was_made_of(dtype: type, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    found = array_of(constant(array))
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


def test_the_array_of_a_constant_is_its_memory() -> None:
    made = constant(np.ones((4, 4), np.float32))
    assert np.shares_memory(array_of(made), array_of(made))


def test_a_large_constant_takes_the_memory_of_an_aligned_array_also_of_a_read_only_one() -> None:
    array = aligned_bytes(1 << 16)
    array[...] = 3
    assert np.shares_memory(array_of(constant(array)), array)
    array.flags.writeable = False
    made = constant(array.view(np.float16))
    assert np.shares_memory(array_of(made), array)
    assert not array_of(made).flags.writeable


def test_a_constant_keeps_a_mapped_file_open(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(bytes(range(256)) * 1024)
    made = constant(np.memmap(tmp_path / "w", np.uint8, "r"))
    gc.collect()
    assert array_of(made)[:3].tolist() == [0, 1, 2]
