"""A cache that another user could have filled is not used: its code is linked into bundles that may be signed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heterocc.compiler.files.blobs import DiskBlobs
from heterocc.compiler.files.private import objection_to, read_private, write_private
from heterocc.compiler.files.records import DiskRecords

KEY = "ab" * 32


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def stored(root: Path) -> DiskBlobs:
    blobs = DiskBlobs(root, 2**20)
    blobs.write({KEY: b"code"})
    return blobs


def file_of(root: Path) -> Path:
    return next(p for p in root.rglob(KEY) if p.is_file())


@pytest.mark.usefixtures("no_umask")
def test_folders_and_files_of_the_cache_are_for_its_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    root = tmp_path / "above" / "further" / "cache"
    stored(root)
    DiskRecords(root, "support").write(KEY, {"a": 1})
    for place in (tmp_path / "above").rglob("*"):
        wanted = 0o700 if place.is_dir() else 0o600
        assert stat.S_IMODE(place.stat().st_mode) == wanted, place
    assert stat.S_IMODE((tmp_path / "above").stat().st_mode) == 0o700


def open_to_others(root: Path) -> None:
    root.chmod(0o777)


def open_to_a_group(root: Path) -> None:
    root.chmod(0o770)


def below_an_open_folder(root: Path) -> None:
    root.parent.chmod(0o777)


@pytest.mark.parametrize("damage", [open_to_others, open_to_a_group, below_an_open_folder])
def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    root = tmp_path / "above" / "cache"
    assert stored(root).read(KEY) == b"code"
    DiskRecords(root, "support").write(KEY, {"a": 1})
    damage(root)
    for cache in (DiskBlobs(root, 2**20), DiskRecords(root, "support")):
        assert cache.failure is not None and f"the cache {root} is not used" in cache.failure
        assert cache.read(KEY) is None
    left = file_of(root).read_bytes()
    stored(root)
    assert file_of(root).read_bytes() == left


def test_a_folder_or_file_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "cache"
    stored(root)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert "it belongs to another user" in (objection_to(root) or "")
    assert DiskBlobs(root, 2**20).read(KEY) is None
    assert read_private(file_of(root)) is None


def test_a_file_that_others_can_write_counts_as_missing(tmp_path: Path) -> None:
    blobs = stored(tmp_path / "cache")
    file_of(tmp_path).chmod(0o620)
    assert blobs.read(KEY) is None


@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "device"])
def test_what_is_not_a_regular_file_counts_as_missing_at_once(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "entry"
    write_private(tmp_path / "other", b"code")
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "link":
        place.symlink_to(tmp_path / "other")
    elif kind == "folder":
        place.mkdir()
    else:
        place = Path("/dev/zero")
    assert read_private(place) is None
    assert read_private(tmp_path / "other") == b"code"


def test_a_folder_that_does_not_exist_yet_may_be_used_also_below_a_shared_one(tmp_path: Path) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    assert objection_to(shared / "a" / "b") is None
