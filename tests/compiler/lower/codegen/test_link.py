from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from heterocc.artifacts.errors import LinkerMissingError
from heterocc.compiler.lower.codegen import link
from heterocc.compiler.lower.codegen.link import find_linker


def test_cxx_from_the_environment_is_used_first(tmp_path: Path) -> None:
    compiler = tmp_path / "my-cxx"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    linker = find_linker(env={"PATH": str(tmp_path), "CXX": "my-cxx -m64"})
    assert linker.command == (str(compiler), "-m64")


def test_without_a_compiler_ziglang_links(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(link, "_zig", lambda triple: link.Linker("ziglang", ("zig", triple), ()))
    assert find_linker(env={"PATH": str(tmp_path)}).name == "ziglang"
    assert find_linker("aarch64-unknown-linux-gnu", env={"PATH": str(tmp_path)}).command[-1] == "aarch64-linux-gnu"


@pytest.mark.parametrize("triple", [None, "aarch64-linux-gnu"])
def test_without_any_linker_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, triple: str | None
) -> None:
    monkeypatch.setattr(link, "_zig", lambda triple: None)
    with pytest.raises(LinkerMissingError, match="HC406") as caught:
        find_linker(triple, env={"PATH": str(tmp_path)})
    assert caught.value.hint is not None and "ziglang" in caught.value.hint


def test_a_host_compiler_is_not_taken_for_another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(link, "_zig", lambda triple: None)
    (tmp_path / "g++").write_text("#!/bin/sh\n")
    (tmp_path / "g++").chmod(0o755)
    with pytest.raises(LinkerMissingError):
        find_linker("riscv64-linux-gnu", env={"PATH": str(tmp_path), "CXX": "g++"})


def test_a_failing_linker_is_reported_in_its_own_words(tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'cannot find -lm' >&2\nexit 1\n")
    compiler.chmod(0o755)
    path = f"{tmp_path}:{Path(shutil.which('sh') or '/bin/sh').parent}"
    with pytest.raises(Exception, match="cannot find -lm"):
        link.link({"a.o": b""}, env={"PATH": path})


def machine_of(code: bytes) -> int:
    """The machine field of an ELF header."""
    assert code[:4] == b"\x7fELF"
    return int(struct.unpack_from("<H", code, 18)[0])
