"""Kernels for 64-bit ARM, run by an emulator of its instructions (tests/emulator.py).

driver.cc reads the arguments, calls the kernel and writes its output. It needs no C library, so that no other package
for that machine is needed than the linker's.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import tvm

from heterocc.compiler.lower.cpu.maths.pipeline import PIPELINE
from tests.emulator import EMULATOR

DRIVER = Path(__file__).parent / "driver.cc"
KINDS = {"i": 0, "u": 1, "f": 2, "b": 6}
"""DLPack's codes of numpy's kinds."""


def run(
    kernel: tvm.tirx.PrimFunc,
    target: tvm.target.Target,
    arguments: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
) -> list[np.ndarray]:
    """The outputs, the kernel's last arguments, after a call of it; each of its parallel loops is cut into 7 tasks."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        module = tvm.IRModule({"f": kernel.with_attr("global_symbol", "f")})
        tvm.tirx.build(module, target, pipeline=PIPELINE).write_to_file(str(folder / "kernel.o"), "o")
        (folder / "driver.o").write_bytes(_driver())
        _zig("ld.lld", "-static", "-o", str(folder / "program"), str(folder / "driver.o"), str(folder / "kernel.o"))
        given = _packed([*arguments, *outputs], len(outputs))
        done = subprocess.run([EMULATOR, folder / "program"], input=given, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    found, start = [], 0
    for output in outputs:
        found.append(np.frombuffer(done.stdout, output.dtype, output.size, start).reshape(output.shape))
        start += output.nbytes
    return found


@cache
def _driver() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "driver.o"
        flags = ("-c", "-O1", "-std=c++17", "-ffreestanding", "-fno-builtin", "-fno-exceptions", "-fno-sanitize=all")
        _zig("c++", "-target", "aarch64-linux-gnu", *flags, str(DRIVER), "-o", str(path))
        return path.read_bytes()


def _zig(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "ziglang", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _packed(arguments: Sequence[np.ndarray], outputs: int) -> bytes:
    parts = [struct.pack("<qq", len(arguments), outputs)]
    for array in arguments:
        kind, bits = KINDS[array.dtype.kind], 8 * array.dtype.itemsize
        parts.append(struct.pack(f"<BBHi{array.ndim}q", kind, bits, 1, array.ndim, *array.shape))
        parts.append(array.tobytes())
    return b"".join(parts)
