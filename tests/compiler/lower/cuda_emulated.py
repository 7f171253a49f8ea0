"""Runs bundles for CUDA without a GPU: kernels compiled for the host, under TVM's own CUDA runtime.

Everything but the machine code itself is the real thing: the module in the shared object, how it is loaded, launches
with their arguments, copies. The kernels' source is what the machine code was made of. The stand-in does what it is
given as late as CUDA allows: when somebody waits for it.
"""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

SOURCES = Path(__file__).parent / "cuda_emulator"

_KERNEL = re.compile(r'^extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(([^)]*)\) \{', re.MULTILINE)


def build_driver(folder: Path) -> None:
    """Put stand-ins for libcuda.so.1 and libcudart.so.13 into a folder."""
    driver = folder / "libcuda.so.1"
    for name, sources, flags in (
        (driver.name, ("driver.cc", "streams.cc"), ["-ldl"]),
        ("libcudart.so.13", ("cudart.cc",), [str(driver), f"-Wl,--version-script={SOURCES / 'cudart.map'}"]),
    ):
        command = ["c++", "-std=c++17", "-O1", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(folder / name)]
        subprocess.run([*command, *(str(SOURCES / source) for source in sources), *flags], check=True)


def build_kernels(source: str, folder: Path, driver: Path | None = None) -> Path:
    """A library with a function `call_<kernel>(void** arguments)` for each kernel of a CUDA source.

    `driver` is the folder with the stand-in driver if it is not `folder`.
    """
    for header in ("cuda.h", "cuda_fp16.h", "math_constants.h"):
        (folder / header).write_text("")
    calls = []
    for kernel in _KERNEL.finditer(source):
        types = [p.replace("__restrict__", "").rsplit(maxsplit=1)[0] for p in kernel[2].split(",") if p.strip()]
        given = ", ".join(f"*static_cast<{t}*>(a[{i}])" for i, t in enumerate(types))
        sizes = ", ".join([str(len(types)), *(f"sizeof({t})" for t in types)])
        calls.append(f'extern "C" void call_{kernel[1]}(void** a) {{ {kernel[1]}({given}); }}\n')
        calls.append(f'extern "C" const size_t sizes_{kernel[1]}[] = {{{sizes}}};\n')
    path = folder / "kernels.cc"
    path.write_text('#include "kernels.h"\n' + source + "".join(calls))
    library = folder / "kernels.so"
    # A GPU fails at a misaligned address; x86 does not.
    aligned = ["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]
    command = ["c++", "-std=c++17", "-O1", "-w", *aligned, "-shared", "-fPIC", "-o", str(library), str(path)]
    subprocess.run([*command, f"-I{SOURCES}", f"-I{folder}", str((driver or folder) / "libcuda.so.1")], check=True)
    return library


@dataclass
class HostCompiler:
    """A replacement of nvcc: its output for the stand-in driver names a library with the kernels for the host.

    `driver` is the folder that `build_driver` filled.
    """

    driver: Path
    name: str = "a compiler for the host"

    def cubin(self, source: str, arch: str) -> bytes:
        folder = self.driver / sha256(source.encode()).hexdigest()[:16]
        folder.mkdir(exist_ok=True)
        library = build_kernels(source, folder, self.driver)
        return machine_code(arch) + bytes(library) + b"\0"


def machine_code(arch: str) -> bytes:
    """The head of a cubin, which is all that the stand-in driver reads of one."""
    return b"\x7fELF" + bytes(44) + struct.pack("<I", int(arch[3:]) << 8) + bytes(12)


def environment(folder: Path, kernels: Path | None = None, **settings: object) -> dict[str, str]:
    """The variables under which a new process finds the stand-ins; `settings` are those of driver.cc."""
    found = {"LD_LIBRARY_PATH": str(folder), "EMULATED_LOG": str(folder / "log.txt")}
    if kernels is not None:
        found["EMULATED_KERNELS"] = str(kernels)
    return found | {f"EMULATED_{name.upper()}": str(value) for name, value in settings.items()}


def log(folder: Path) -> Sequence[str]:
    """The calls of the driver, in order."""
    path = folder / "log.txt"
    return path.read_text().splitlines() if path.is_file() else []
