"""Files of inputs that do not fit are refused before they are read."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from heterocc.artifacts.errors import FeedError
from heterocc.runtime.feeds import TensorInfo
from heterocc.runtime.files.inputs import npz_shapes, read_files

INFO = TensorInfo("x", "float32", (2, "n"))
FIXED = TensorInfo("x", "float32", (2, 3))


def sparse_npy(path: Path, shape: tuple[int, ...], size: int) -> Path:
    """An .npy file with holes in place of its numbers."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        file.truncate(file.tell() + size)
    return path


@pytest.fixture(autouse=True)
def _no_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise AssertionError("the numbers were read")

    monkeypatch.setattr(np.lib.format, "read_array", refuse)


def test_a_large_npy_of_another_shape_is_refused_by_its_header(tmp_path: Path) -> None:
    path = sparse_npy(tmp_path / "x.npy", (3, 2**28), 3 * 2**30)
    with pytest.raises(FeedError, match=r"got \[3, 268435456\]"):
        read_files({"x": INFO}, [f"x={path}"])


def test_a_large_member_of_an_npz_is_refused_by_its_header(tmp_path: Path) -> None:
    sparse_npy(tmp_path / "x.npy", (3, 2**23), 3 * 2**25)
    with zipfile.ZipFile(tmp_path / "in.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.write(tmp_path / "x.npy", "x.npy")
    with pytest.raises(FeedError, match=r"got \[3, 8388608\]"):
        read_files({"x": INFO}, [str(tmp_path / "in.npz")])


@pytest.mark.parametrize(("size", "fits"), [(24, True), (23, False), (3 * 2**30, False)])
def test_raw_bytes_are_read_as_far_as_they_fit(tmp_path: Path, size: int, fits: bool) -> None:
    path = tmp_path / "x.bin"
    with path.open("wb") as file:
        file.truncate(size)
    if fits:
        assert read_files({"x": FIXED}, [f"x={path}"])["x"].shape == (2, 3)
    else:
        with pytest.raises(FeedError, match=f"^error.HC110.: {size} bytes for input 'x'"):
            read_files({"x": FIXED}, [f"x={path}"])


def test_raw_bytes_of_an_input_without_a_fixed_shape_are_not_read(tmp_path: Path) -> None:
    with (tmp_path / "x.bin").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(FeedError, match="input 'x' has dynamic dimensions, and raw bytes have no shape"):
        read_files({"x": INFO}, [f"x={tmp_path / 'x.bin'}"])


def test_a_large_array_in_a_folder_is_refused_by_its_header(tmp_path: Path) -> None:
    sparse_npy(tmp_path / "x.npy", (3, 2**28), 3 * 2**30)
    with pytest.raises(FeedError, match=r"got \[3, 268435456\]"):
        read_files({"x": INFO}, [str(tmp_path)])


def test_the_shapes_of_an_npz_are_those_of_its_headers(tmp_path: Path) -> None:
    sparse_npy(tmp_path / "x.npy", (3, 2**23), 3 * 2**25)
    with zipfile.ZipFile(tmp_path / "in.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.write(tmp_path / "x.npy", "x.npy")
        archive.write(sparse_npy(tmp_path / "y.npy", (), 4), "y.npy")
    assert npz_shapes(tmp_path / "in.npz") == {"x": (3, 2**23), "y": ()}
