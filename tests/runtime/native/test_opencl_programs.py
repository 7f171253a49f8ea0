from __future__ import annotations

import hashlib
import itertools
import os
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterocc.artifacts.errors import BundleError
from heterocc.runtime.native import typed_error
from heterocc.runtime.native.opencl_api import Origins
from tests.runtime.native.opencl_sample import (
    SCALE,
    empty,
    load,
    module_bytes,
    modules_bytes,
    pointer,
    to_device,
    to_host,
)

pytestmark = pytest.mark.opencl

N = 64
_unique = itertools.count()


def unique_source() -> str:
    """A different source for each call, which is in no cache."""
    return f"// {os.getpid()}.{next(_unique)}" + SCALE


def origins(module: Any) -> Origins:
    return Origins(*(int(count) for count in module.get_function("heterocc_origins")(0)))


def build(data: bytes, binaries: bytes = b"") -> Any:
    module = load(data)
    if binaries:
        module.get_function("heterocc_offer")(binaries)
    module.get_function("heterocc_build")(0)
    return module


def binaries_of(module: Any) -> bytes:
    return bytes(module.get_function("heterocc_binaries")(0))


def scales(module: Any, name: str = "scale", factor: float = 3.0, bias: int = -2) -> bool:
    """Whether a kernel like SCALE computes the expected results."""
    x = np.arange(N, dtype="float32")
    source, target = to_device(x), empty(x.shape)
    module.get_function(name)(pointer(target), pointer(source), factor, bias, N // 8, 8)
    return np.array_equal(to_host(target), x * np.float32(factor) + bias)


def many(count: int, extra: str = "") -> Mapping[str, str]:
    return {f"k{i:03}": extra + SCALE.replace("void scale(", f"void k{i:03}(") for i in range(count)}


def with_payload(binaries: bytes, payload: bytes) -> bytes:
    """The package of one program with its key kept and its binary replaced."""
    return binaries[:44] + struct.pack("<Q", len(payload)) + payload


# ---- programs of several kernels


@pytest.mark.parametrize(("kernels", "programs"), [(1, 1), (24, 1), (25, 2), (200, 4)])
def test_kernels_are_compiled_in_a_few_programs(kernels: int, programs: int) -> None:
    module = load(modules_bytes(many(kernels)))
    assert origins(module) == Origins()
    assert module.get_function("heterocc_build")(0) == kernels
    assert origins(module) == Origins(source=programs)
    assert scales(module, f"k{kernels - 1:03}")


def test_a_kernel_launched_before_the_build_builds_its_program_alone() -> None:
    module = load(modules_bytes(many(30)))
    assert scales(module, "k000")
    assert origins(module) == Origins(source=1)


def test_kernels_that_define_the_same_helper_compile_one_by_one() -> None:
    module = build(modules_bytes(many(3, "float same(float x) { return x; }\n")))
    assert all(scales(module, name) for name in many(3))


def test_the_kernel_at_fault_is_named_among_many() -> None:
    sources = dict(many(5)) | {"k003": "__kernel void k003(__global float* y) { y[0] = no_such_thing; }"}
    with pytest.raises(RuntimeError, match=r"kernel 'k003' does not build[\s\S]*no_such_thing"):
        build(modules_bytes(sources))


# ---- binaries that a bundle brings


def test_a_binary_of_the_same_source_and_device_is_used() -> None:
    data = module_bytes(unique_source())
    binaries = binaries_of(build(data))
    module = build(data, binaries)
    assert origins(module) == Origins(bundle=1)
    assert scales(module)


def test_a_binary_of_another_source_is_not_used() -> None:
    binaries = binaries_of(build(module_bytes(unique_source())))
    module = build(module_bytes(unique_source()), binaries)
    assert origins(module) == Origins(source=1)


def test_a_binary_that_the_driver_refuses_is_replaced_by_the_source() -> None:
    data = module_bytes(unique_source())
    binaries = binaries_of(build(data))
    module = build(data, with_payload(binaries, b"no binary of any driver"))
    assert origins(module) == Origins(source=1, refused=1)
    assert scales(module)


def test_nothing_built_has_no_binaries() -> None:
    assert binaries_of(load(module_bytes())) == b"HCLB" + struct.pack("<II", 1, 0)


def test_binaries_cut_short_anywhere_are_refused() -> None:
    package = with_payload(binaries_of(build(module_bytes())), b"payload")
    for size in range(len(package)):
        with pytest.raises(ValueError) as caught:
            load(module_bytes()).get_function("heterocc_offer")(package[:size])
        assert isinstance(typed_error(caught.value), BundleError)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda p: p + b"\0", "bytes after the end"),
        (lambda p: b"XXXX" + p[4:], "does not begin with 'HCLB'"),
        (lambda p: p[:4] + struct.pack("<I", 2) + p[8:], "of version 2, and this heterocc reads 1"),
        (lambda p: p[:8] + struct.pack("<I", 2) + p[12:] + p[12:], "two for one program"),
        (lambda p: p[:44] + struct.pack("<Q", 1 << 63) + p[52:], "cut short"),
    ],
)
def test_binaries_that_contradict_themselves_are_refused(damage: Any, words: str) -> None:
    package = with_payload(binaries_of(build(module_bytes())), b"payload")
    with pytest.raises(ValueError, match=words):
        load(module_bytes()).get_function("heterocc_offer")(damage(package))


# ---- binaries kept on disk


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh folder in which binaries are kept, even PoCL's."""
    monkeypatch.setenv("HETEROCC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HETEROCC_OPENCL_CACHE", "all")
    return tmp_path / "cache" / "opencl"


def kept(cache: Path) -> list[Path]:
    return sorted(cache.iterdir()) if cache.exists() else []


def test_a_program_is_compiled_once_and_then_read_from_disk(cache: Path) -> None:
    data = module_bytes(unique_source())
    assert origins(build(data)) == Origins(source=1)
    (file,) = kept(cache)
    module = build(data)
    assert origins(module) == Origins(disk=1)
    assert scales(module)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_a_kept_file_holds_the_hash_of_its_content(cache: Path) -> None:
    build(module_bytes(unique_source()))
    content = kept(cache)[0].read_bytes()
    assert content[:8] == b"HCCLBIN1"
    assert content[8:40] == hashlib.sha256(content[40:]).digest()


@pytest.mark.parametrize("size", [1, 54, 55, 56, 63, 64, 65, 119, 120, 128, 1000])
def test_the_hash_is_sha_256_for_content_of_any_length(cache: Path, size: int) -> None:
    """A file whose hash agrees reaches the driver, which refuses it; another one does not."""
    data = module_bytes(unique_source())
    build(data)
    (file,) = kept(cache)
    payload = bytes(i % 251 for i in range(size))
    file.write_bytes(b"HCCLBIN1" + hashlib.sha256(payload).digest() + payload)
    assert origins(build(data)) == Origins(source=1, refused=1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b[:-1],
        lambda b: b[:60] + bytes([b[60] ^ 1]) + b[61:],
        lambda b: b"XXXXXXXX" + b[8:],
        lambda b: b"",
        lambda b: b[:40],
    ],
)
def test_a_damaged_file_is_ignored_and_written_anew(cache: Path, damage: Any) -> None:
    data = module_bytes(unique_source())
    build(data)
    (file,) = kept(cache)
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    module = build(data)
    assert origins(module) == Origins(source=1)
    assert scales(module)
    content = file.read_bytes()
    assert content[8:40] == hashlib.sha256(content[40:]).digest()
    assert origins(build(data)) == Origins(disk=1)


def test_a_whole_file_that_the_driver_refuses_is_written_anew(cache: Path) -> None:
    data = module_bytes(unique_source())
    build(data)
    (file,) = kept(cache)
    file.write_bytes(b"HCCLBIN1" + hashlib.sha256(b"nonsense").digest() + b"nonsense")
    assert origins(build(data)) == Origins(source=1, refused=1)
    assert origins(build(data)) == Origins(disk=1)


def test_a_file_that_others_could_have_written_is_ignored(cache: Path) -> None:
    data = module_bytes(unique_source())
    build(data)
    (file,) = kept(cache)
    file.chmod(0o666)
    assert origins(build(data)) == Origins(source=1)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_link_in_the_place_of_a_file_is_not_followed(cache: Path, tmp_path: Path) -> None:
    data = module_bytes(unique_source())
    build(data)
    (file,) = kept(cache)
    target = file.rename(tmp_path / "elsewhere")
    file.symlink_to(target)
    assert origins(build(data)) == Origins(source=1)
    assert not file.is_symlink()


def test_files_used_longest_ago_go_when_the_folder_is_full(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = module_bytes(unique_source()), module_bytes(unique_source())
    build(first)
    (file,) = kept(cache)
    os.utime(file, (1, 1))
    build(second)
    (other,) = (f for f in kept(cache) if f != file)
    os.utime(other, (2, 2))
    assert origins(build(first)) == Origins(disk=1)  # used now: the other is the older one
    filler = cache / f"{'0' * 64}.bin"
    filler.write_bytes(bytes((1 << 20) - file.stat().st_size - other.stat().st_size))
    monkeypatch.setenv("HETEROCC_OPENCL_CACHE_MB", "1")
    build(module_bytes(unique_source()))
    left = kept(cache)
    assert other not in left
    assert {file, filler} <= set(left)
    assert sum(f.stat().st_size for f in left) <= 1 << 20


def test_what_interrupted_writers_left_goes_after_a_while(cache: Path) -> None:
    cache.mkdir(parents=True)
    old, new = cache / "a.bin.aaaaaa", cache / "b.bin.bbbbbb"
    for file in (old, new):
        file.write_bytes(b"half")
    os.utime(old, (1, 1))
    build(module_bytes(unique_source()))
    assert not old.exists()
    assert new.exists()


def test_nothing_is_kept_when_the_cache_is_off(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETEROCC_CACHE", "OFF")
    data = module_bytes(unique_source())
    for _ in range(2):
        assert origins(build(data)) == Origins(source=1)
    assert kept(cache) == []


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(cache: Path, tmp_path: Path) -> None:
    cache.parent.write_bytes(b"a file where the folder should be")
    data = module_bytes(unique_source())
    for _ in range(2):
        module = build(data)
        assert origins(module) == Origins(source=1)
    assert scales(module)


def test_binaries_of_a_driver_that_keeps_them_itself_are_left_to_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HETEROCC_OPENCL_CACHE")
    build(module_bytes(unique_source()))
    assert kept(cache) == []
