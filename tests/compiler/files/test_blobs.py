"""The bounded cache of compiled code."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from heterocc.compiler.files.blobs import DEFAULT_MB, DiskBlobs, cache_limit, open_blobs


def key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def files(root: Path) -> list[Path]:
    """The stored files, without the one that measures growth."""
    return [path for path in root.glob("*/*/*") if path.is_file()]


def test_what_is_stored_is_read_back(tmp_path: Path) -> None:
    blobs = DiskBlobs(tmp_path, 1 << 20)
    blobs.write({key("a"): b"first", key("b"): b""})
    assert blobs.read(key("a")) == b"first"
    assert blobs.read(key("b")) == b""
    assert blobs.read(key("c")) is None


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "swap"])
def test_a_damaged_file_counts_as_missing_and_is_replaced(tmp_path: Path, damage: str) -> None:
    blobs = DiskBlobs(tmp_path, 1 << 20)
    blobs.write({key("a"): b"content of a"})
    (path,) = files(tmp_path)
    data = path.read_bytes()
    if damage == "swap":  # another key's file, whole
        blobs.write({key("b"): b"content of b"})
        data = next(p for p in files(tmp_path) if p != path).read_bytes()
    changed = {"flip": data[:-1] + bytes([data[-1] ^ 1]), "cut": data[:-3], "empty": b"", "swap": data}
    path.write_bytes(changed[damage])
    assert blobs.read(key("a")) is None
    blobs.write({key("a"): b"content of a"})
    assert blobs.read(key("a")) == b"content of a"


def test_the_least_recently_used_files_are_removed_first(tmp_path: Path) -> None:
    blobs = DiskBlobs(tmp_path, 3000)
    for age, name in enumerate("abc"):
        blobs.write({key(name): bytes(900)})
        path = next(p for p in files(tmp_path) if p.name == key(name))
        os.utime(path, (time.time() - 100 + age, time.time() - 100 + age))
    assert blobs.read(key("a")) is not None  # a use
    blobs.write({key("d"): bytes(900)})
    assert [blobs.read(key(name)) is not None for name in "abcd"] == [True, False, True, True]
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 3000


def test_the_files_are_counted_only_after_a_part_of_the_limit_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = DiskBlobs(tmp_path, 1 << 20)
    counted: list[int] = []
    shrink = DiskBlobs._shrink
    monkeypatch.setattr(DiskBlobs, "_shrink", lambda self: (counted.append(1), shrink(self)))
    for number in range(400):
        blobs.write({key(str(number)): bytes(2000)})
    assert 2 <= len(counted) <= 15
    for number in range(400, 800):
        blobs.write({key(str(number)): bytes(4000)})
        if number % 40 == 0:
            assert sum(path.stat().st_size for path in files(tmp_path)) <= 1 << 20
    assert blobs.read(key("799")) is not None and blobs.read(key("0")) is None


def test_a_pipe_in_place_of_the_measure_of_growth_is_replaced(tmp_path: Path) -> None:
    """Opening it waited for a reader for ever."""
    blobs = DiskBlobs(tmp_path, 1 << 20)
    blobs.write({key("a"): b"code"})
    (measure,) = tmp_path.glob("*.growth")
    measure.unlink()
    os.mkfifo(measure)
    blobs.write({key("b"): b"code"})
    assert measure.is_file()
    assert blobs.read(key("b")) == b"code"


def test_a_content_larger_than_the_limit_is_not_stored(tmp_path: Path) -> None:
    blobs = DiskBlobs(tmp_path, 1000)
    blobs.write({key("a"): bytes(500), key("b"): bytes(1000)})
    assert blobs.read(key("a")) is not None
    assert blobs.read(key("b")) is None


def test_a_temporary_file_stays_while_it_may_be_in_use(tmp_path: Path) -> None:
    blobs = DiskBlobs(tmp_path, 1000)
    blobs.write({key("a"): bytes(500)})
    folder = files(tmp_path)[0].parent
    for name, age in (("young.tmp", 0), ("old.tmp", 86400)):
        (folder / name).write_bytes(bytes(5000))
        os.utime(folder / name, (time.time() - age, time.time() - age))
    blobs.write({key("b"): bytes(100)})
    assert (folder / "young.tmp").exists()
    assert not (folder / "old.tmp").exists()


def test_a_cache_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("no folder")
    blobs = DiskBlobs(place, 1000)
    blobs.write({key("a"): b"a"})
    assert blobs.failure is not None and str(place) in blobs.failure
    assert blobs.read(key("a")) is None


def test_the_environment_sets_the_limit_or_switches_the_cache_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HETEROCC_CACHE", str(tmp_path))
    for text, limit in (("", DEFAULT_MB), ("7", 7), ("0", 0), ("many", DEFAULT_MB), ("-3", DEFAULT_MB)):
        monkeypatch.setenv("HETEROCC_CACHE_MB", text)
        assert cache_limit() == limit * 2**20
        assert (open_blobs() is None) == (limit == 0)
    monkeypatch.setenv("HETEROCC_CACHE_MB", "7")
    monkeypatch.setenv("HETEROCC_CACHE", "off")
    assert open_blobs() is None
