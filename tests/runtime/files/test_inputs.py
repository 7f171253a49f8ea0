"""Files of inputs that do not fit are refused before they are read."""

from __future__ import annotations

import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from heterocc.artifacts.errors import FeedError
from heterocc.runtime.feeds import TensorInfo
from heterocc.runtime.files.inputs import read_files
from heterocc.runtime.files.npz import npz_shapes, read_npz

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


def archive_of(path: Path, members: dict[str, Path | bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in members.items():
            if isinstance(content, Path):
                archive.write(content, name)
            else:
                archive.writestr(name, content)
    return path


def header(shape: str, descr: str = "'<f4'", version: int = 1) -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode() + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 * version, "little") + text


def test_the_arrays_of_an_npz_are_read_only_if_all_of_them_fit(tmp_path: Path) -> None:
    small = archive_of(tmp_path / "in.npz", {"x.npy": header("(2, 1)") + bytes(8), "z.npy": header("(3,)") + bytes(12)})
    for kind, size in (("float32", 2), ("int32", 3), ("string", 3), ("bfloat16", 2)):
        with pytest.raises(FeedError, match="input 'z' must "):
            read_npz(small, {"x": INFO, "z": TensorInfo("z", kind, (size,))})
    with pytest.raises(FeedError, match="the model has no input 'z'"):
        read_files({"x": INFO}, [str(small)])


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (header("(2, 1000000000000)"), "where the header says 8000000000082"),
        (header("(2, -1)") + bytes(8), r"its shape is \[2, -1\]"),
        (header("(2, 1)", "'|O'") + bytes(100), "Python objects"),
        (header("(2, 1)", "'|V0'"), "of no bytes"),
        (b"\x93NUMPY\x02\x00" + (1 << 24).to_bytes(4, "little") + bytes(1 << 24), "EOF: reading array header"),
        (b"PK\x05\x06" + bytes(18), "magic string is not correct"),
    ],
    ids=["shorter", "negative", "objects", "nothing", "header", "archive"],
)
def test_members_that_are_not_what_their_headers_say_are_refused_unread(
    content: bytes, found: str, tmp_path: Path
) -> None:
    path = archive_of(tmp_path / "in.npz", {"x.npy": content})
    tracemalloc.start()
    try:
        with pytest.raises(FeedError, match=found):
            read_files({"x": TensorInfo("x", "float32", None)}, [str(path)])
        assert tracemalloc.get_traced_memory()[1] < 1 << 21
    finally:
        tracemalloc.stop()


def test_arrays_that_nobody_asks_for_are_not_read(tmp_path: Path) -> None:
    sparse_npy(tmp_path / "x.npy", (3, 2**23), 3 * 2**25)
    path = archive_of(tmp_path / "in.npz", {"label.npy": tmp_path / "x.npy"})
    assert read_npz(path, {"x": INFO}) == read_files({"x": INFO}, [str(path)], None) == {}
    with pytest.raises(FeedError, match="the numbers were read"):
        read_files({"x": INFO}, [str(path)], ["label"])
