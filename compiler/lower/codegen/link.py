"""Linking of object files into a shared object, with any installed C++ compiler, for this machine or another.

The result depends only on its inputs: it contains no build ID, symbol table or path. TVM's runtime functions stay
undefined; the process that loads the code provides them.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from heterocc.artifacts.errors import InternalError, LinkerMissingError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.files.programs import run_tool
from heterocc.compiler.files.scratch import scratch_folder

_HINT = "install g++ or clang, or `pip install ziglang`"
_FLAGS = ("-shared", "-nostdlib", "-Wl,--build-id=none", "-Wl,-s", "-Wl,-z,noexecstack")


_JUMPS = {"x86_64": "jmp {}@PLT", "aarch64": "b {}", "arm": "b {}(PLT)", "riscv64": "tail {}@plt"}
"""Jumps to another function, by the first part of a triple."""


@dataclass(frozen=True, slots=True)
class Linker:
    """A command that links shared objects for one architecture. `name` is used in messages."""

    name: str
    command: tuple[str, ...]
    libraries: tuple[str, ...]


def find_linker(triple: str | None = None, env: Mapping[str, str] | None = None) -> Linker:
    """The linker for a target triple such as `aarch64-linux-gnu`, or for this machine if None.

    For this machine: $CXX, c++, g++, clang++, then the `ziglang` package. For another: `<triple>-g++`, `ziglang`, and
    `clang++ --target` if lld is installed. Raises LinkerMissingError (HC406).
    """
    env = os.environ if env is None else env
    path = env.get("PATH", os.defpath)
    plain = _plain_triple(triple)
    if triple is None or plain.split("-")[0] == _machine():
        wanted = shlex.split(env.get("CXX", ""))
        for command in ([wanted] if wanted else []) + [["c++"], ["g++"], ["clang++"]]:
            found = shutil.which(command[0], path=path)
            if found is not None:
                return Linker(command[0], (found, *command[1:]), ("-lm", "-lc", "-lgcc"))
        zig = _zig(plain)
        if zig is not None:
            return zig
        raise LinkerMissingError("no C++ compiler was found to link the compiled code", hint=_HINT)
    cross = shutil.which(f"{plain}-g++", path=path)
    if cross is not None:
        return Linker(f"{plain}-g++", (cross,), ("-lm", "-lc", "-lgcc"))
    zig = _zig(plain)
    if zig is not None:
        return zig
    clang, lld = shutil.which("clang++", path=path), shutil.which("ld.lld", path=path)
    if clang is not None and lld is not None:
        return Linker("clang++", (clang, f"--target={plain}", "-fuse-ld=lld"), ())
    raise LinkerMissingError(
        f"no linker for {plain} was found", hint=f"install g++ for it ({plain}-g++), or `pip install ziglang`"
    )


def link(
    objects: Mapping[str, bytes],
    triple: str | None = None,
    *,
    aliases: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
) -> bytes:
    """Link object files, given as name → content in link order, and return the bytes of the shared object.

    `aliases` are further names of exported symbols: name → symbol of the objects.

    Raises LinkerMissingError (HC406), and InternalError (HC902) with the linker's last message if it fails.
    """
    linker, aliases = find_linker(triple, env), aliases or {}
    with scratch_folder("link") as folder:
        for name, content in objects.items():
            (folder / name).write_bytes(content)
        names, files = [f"-Wl,--defsym={alias}={symbol}" for alias, symbol in aliases.items()], [*objects]
        jump = _JUMPS.get(_plain_triple(triple).split("-")[0])
        if linker.name == "ziglang" and names and jump is not None:  # it refuses --defsym
            text = "".join(f".globl {a}\n.type {a},%function\n{a}: {jump.format(s)}\n" for a, s in aliases.items())
            (folder / "aliases.s").write_text(f".text\n{text}")
            names, files = [], [*files, "aliases.s"]
        command = [*linker.command, *_FLAGS, *names, "-o", "code.so", *files, *linker.libraries]
        _run(linker, command, folder, env)
        return (folder / "code.so").read_bytes()


def _run(linker: Linker, command: Sequence[str], folder: Path, env: Mapping[str, str] | None) -> None:
    try:
        done = run_tool(command, folder, env)
    except (OSError, subprocess.TimeoutExpired) as error:
        pass_foreign(error)
        raise InternalError(f"the linker '{linker.name}' did not run: {error}", hint=_HINT) from error
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise InternalError(
            f"the linker '{linker.name}' failed: {said[-1] if said else f'exit code {done.returncode}'}", hint=_HINT
        )


def _zig(triple: str) -> Linker | None:
    if importlib.util.find_spec("ziglang") is None:
        return None
    command = (sys.executable, "-m", "ziglang", "cc", "-target", triple)
    return Linker("ziglang", command, ("-lm", "-lc"))


def _machine() -> str:
    machine = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


def _plain_triple(triple: str | None) -> str:
    """The triple without its vendor (`arch-linux-abi`), as in the names of cross compilers and zig's targets."""
    parts = (triple or f"{_machine()}-linux-gnu").split("-")
    if len(parts) == 4:
        parts.pop(1)
    if len(parts) == 3 and parts[1] in ("unknown", "pc"):
        parts = [parts[0], parts[2], "gnu"]
    return "-".join(parts)
