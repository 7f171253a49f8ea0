"""Bundles beyond 4 GiB: real zip64 offsets and sizes."""

from __future__ import annotations

import mmap
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.artifacts.test_round_trip import bundle_of

SIZE = 2**32 + 2**20


@pytest.mark.slow
def test_a_tensor_of_more_than_4_gib_comes_back(tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).free < 2 * SIZE:
        pytest.skip("needs 10 GB of disk")
    big = np.frombuffer(mmap.mmap(-1, SIZE), np.uint8)
    big[[0, 2**31, 2**32, SIZE - 1]] = (1, 2, 3, 4)
    try:
        bundle = bundle_of(tmp_path / "m.hcb", [big, np.arange(3.0)])
        bundle.verify_weights()
        assert bundle.weights_view(0)[[0, 2**31, 2**32, SIZE - 1]].tolist() == [1, 2, 3, 4]
        np.testing.assert_array_equal(bundle.weights_view(1), np.arange(3.0))
        with zipfile.ZipFile(tmp_path / "m.hcb") as archive:
            info = archive.getinfo("weights.bin")
            assert info.file_size == SIZE + 24 and archive.getinfo("code/p0.so").header_offset > 2**32
            assert archive.read("plan/cpu.txt") == bytes(bundle.member("plan/cpu.txt"))
    finally:
        (tmp_path / "m.hcb").unlink(missing_ok=True)
