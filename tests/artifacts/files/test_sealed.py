from __future__ import annotations

import ctypes
import errno
import fcntl
import importlib.util
import mmap
import os
import resource
from pathlib import Path

import pytest

from heterocc.artifacts.errors import BundleError
from heterocc.artifacts.files.sealed import SealedFile, sealed_memfd


def test_a_sealed_file_has_the_bytes_and_cannot_be_changed() -> None:
    data = bytes(range(256)) * 100
    with SealedFile(sealed_memfd("code", data), len(data)) as sealed:
        assert Path(sealed.path).read_bytes() == data
        with sealed.map() as view:
            assert view == data
        seals = fcntl.fcntl(sealed.fd, fcntl.F_GET_SEALS)
        assert seals == fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        for change in (
            lambda: os.pwrite(sealed.fd, b"x", 0),
            lambda: os.ftruncate(sealed.fd, 1),
            lambda: os.ftruncate(sealed.fd, 10**6),
            lambda: mmap.mmap(sealed.fd, 10),
        ):
            with pytest.raises(PermissionError):
                change()
        assert not os.get_inheritable(sealed.fd)


def test_an_empty_sealed_file_maps_to_nothing() -> None:
    with SealedFile(sealed_memfd("", b""), 0) as sealed, sealed.map() as view:
        assert view.nbytes == 0


def test_closing_twice_does_not_close_someone_elses_file() -> None:
    sealed = SealedFile(sealed_memfd("a", b"a"), 1)
    number = sealed.fd
    sealed.close()
    other = os.open("/dev/null", os.O_RDONLY)
    assert other == number
    sealed.close()
    os.fstat(other)
    os.close(other)


def test_paths_differ_even_when_descriptors_are_used_again() -> None:
    paths = []
    for i in range(300):
        with SealedFile(sealed_memfd("a", b"%d" % i), len(str(i))) as sealed:
            paths.append(sealed.path)
            assert Path(sealed.path).read_bytes() == b"%d" % i
    assert len(set(paths)) == 300
    assert max(map(len, paths)) < 80


def test_two_libraries_loaded_one_after_the_other_are_two_libraries() -> None:
    names = ("_mt19937", "_pcg64", "_sfc64")
    files = {name: Path(str(importlib.util.find_spec(f"numpy.random.{name}").origin)) for name in names}
    loaded, numbers = [], set()
    for name, path in files.items():
        data = path.read_bytes()
        with SealedFile(sealed_memfd(name, data), len(data)) as sealed:
            numbers.add(sealed.fd)
            loaded.append((name, ctypes.CDLL(sealed.path)))
    assert len(numbers) == 1  # the case that matters: one descriptor number, so one plain path
    for name, library in loaded:
        assert hasattr(library, f"PyInit_{name}")


def test_no_descriptor_left_is_a_bundle_error() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(BundleError, match="Too many open files"):
            sealed_memfd("a", b"a")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS])
def test_a_system_that_denies_memory_files_is_named(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(BundleError, match="allow the system call memfd_create"):
        sealed_memfd("code", b"code")
