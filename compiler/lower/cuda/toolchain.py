"""From CUDA C++ to a cubin, or to PTX for a GPU newer than the compiler; needs no GPU.

The compiler is NVIDIA's run-time compiler (a Python package) or nvcc. The same source, compiler and architecture give
the same bytes: no path and no time gets into a cubin.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from heterocc.artifacts.errors import CudaCompilerMissingError, DeviceError

TOOLKIT = Path("/usr/local/cuda")
"""Where the toolkit lies if nothing says so."""

_log = logging.getLogger("heterocc.compiler")

_SOURCE = "kernels.cu"
_TIMEOUT = 1800
_FLAGS = ("-std=c++17", "--fmad=true")
"""No --use_fast_math: functions of real numbers keep the errors that CUDA's documentation states."""

_ERROR = re.compile(r"^kernels\.cu\((\d+)\): (?:catastrophic )?error: (.*)$", re.MULTILINE)
_KERNEL = re.compile(r'^extern "C" __global__ .*?(\w+)\([^)]*\) \{', re.MULTILINE)


class CudaCompiler(Protocol):
    """A compiler of CUDA C++; `name` is for messages."""

    @property
    def name(self) -> str:
        """What the compiler is called."""
        ...

    def cubin(self, source: str, arch: str) -> bytes:
        """The machine code of a source for an architecture such as `sm_90`.

        For one that is newer than the compiler it is that of an older one which runs there too, or PTX, from which the
        driver makes machine code when it is loaded; the log says so.

        Raises KernelRefusedError for a source that does not compile, DeviceError where the compiler does not run.
        """
        ...


def fitting(arch: str, supported: Sequence[int]) -> str:
    """What to compile for, of the architectures that a compiler supports (90 for `sm_90`), to run on `arch`.

    Machine code runs on a newer minor version of the same major one, PTX on all that is newer; anything else is left
    for the compiler to refuse. Source: CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility".
    """
    digits = arch.removeprefix("sm_")
    if not digits.isdigit() or int(digits) in supported:
        return arch
    older = [known for known in supported if known < int(digits)]
    same = [known for known in older if known // 10 == int(digits) // 10]
    if same:
        return f"sm_{max(same)}"
    return f"compute_{max(older)}" if older and max(older) == max(supported) else arch


class KernelRefusedError(Exception):
    """The compiler does not take a source; `kernel` is the kernel at fault, where it can be told."""

    def __init__(self, message: str, kernel: str | None = None) -> None:
        super().__init__(message)
        self.kernel = kernel


@dataclass(frozen=True, slots=True)
class Nvrtc:
    """NVIDIA's run-time compiler: its library and the folders of its headers."""

    library: Path
    include: tuple[Path, ...]
    name: str = "nvrtc"

    def cubin(self, source: str, arch: str) -> bytes:
        """See CudaCompiler."""
        try:
            library = ctypes.CDLL(str(self.library))
        except OSError as error:
            raise DeviceError(f"{self.library.name} cannot be loaded: {error}", hint=_HINT) from error
        program = ctypes.c_void_p()
        _call(library, "nvrtcCreateProgram", ctypes.byref(program), source.encode(), _SOURCE.encode(), 0, None, None)
        try:
            known = fitting(arch, _supported(library))
            if known != arch:
                _log.warning("%s does not know %s: its kernels are compiled for %s", self.name, arch, known)
            flags = [
                f"--gpu-architecture={known}",
                *_FLAGS,
                "--device-int128",
                *(f"-I{folder}" for folder in self.include),
            ]
            options = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
            if library.nvrtcCompileProgram(program, len(flags), options) != 0:
                raise _refusal(self.name, _bytes(library, program, "ProgramLog").rstrip(b"\0").decode(), source, arch)
            return _bytes(library, program, "PTX" if known.startswith("compute_") else "CUBIN")
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))


@dataclass(frozen=True, slots=True)
class Nvcc:
    """The toolkit's compiler driver, which also needs a C++ compiler for the host."""

    program: Path
    name: str = "nvcc"

    def cubin(self, source: str, arch: str) -> bytes:
        """See CudaCompiler."""
        with tempfile.TemporaryDirectory(prefix="heterocc-cuda-") as folder:
            Path(folder, _SOURCE).write_text(source, encoding="utf-8")
            command = [str(self.program), "--cubin", f"-arch={arch}", "-O3", *_FLAGS, "-o", "kernels.cubin", _SOURCE]
            try:
                done = subprocess.run(
                    command,
                    cwd=folder,
                    env={**os.environ, "LC_ALL": "C"},
                    capture_output=True,
                    text=True,
                    timeout=_TIMEOUT,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise DeviceError(f"nvcc did not run: {error}", hint=_HINT) from error
            if done.returncode != 0:
                raise _refusal(self.name, f"{done.stdout}\n{done.stderr}", source, arch)
            return Path(folder, "kernels.cubin").read_bytes()


_HINT = "pip install 'heterocc[cuda]', or install NVIDIA's CUDA toolkit (nvcc)"


def find_compiler(env: Mapping[str, str] | None = None) -> CudaCompiler:
    """The compiler to use: that of the installed package nvidia-cuda-nvrtc, else nvcc.

    nvcc is looked for in $CUDA_HOME, $CUDA_PATH, $PATH and /usr/local/cuda. Raises CudaCompilerMissingError (HC408).
    """
    env = os.environ if env is None else env
    for home in nvidia_folders():
        library = home / "lib" / "libnvrtc.so.13"
        include = (home / "include", home / "include" / "cccl")
        if library.is_file() and (include[0] / "cuda_fp16.h").is_file() and (include[1] / "cuda").is_dir():
            return Nvrtc(library, include)
    homes = [env[name] for name in ("CUDA_HOME", "CUDA_PATH") if env.get(name)]
    found = [shutil.which("nvcc", path=str(Path(home, "bin"))) for home in homes]
    found.append(shutil.which("nvcc", path=env.get("PATH", os.defpath)))
    found.append(shutil.which("nvcc", path=str(TOOLKIT / "bin")))
    program = next((path for path in found if path is not None), None)
    if program is None:
        raise CudaCompilerMissingError("no compiler for CUDA kernels was found, neither nvrtc nor nvcc", hint=_HINT)
    return Nvcc(Path(program))


def nvidia_folders() -> tuple[Path, ...]:
    """Where NVIDIA's Python packages of CUDA 13 put libraries and headers, as far as they are installed."""
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations if spec is not None else None
    return tuple(folder for place in places or () if (folder := Path(place, "cu13")).is_dir())


def _refusal(compiler: str, log: str, source: str, arch: str) -> Exception:
    """The error for a log: about the kernel at the first error's line, or about the compiler as a whole."""
    found = _ERROR.search(log)
    if found is None:
        lines = [line for line in log.splitlines() if line.strip()]
        said = next((line for line in lines if "error" in line.lower() or "fatal" in line.lower()), "it failed")
        return DeviceError(
            f"{compiler} cannot compile for {arch}: {said.strip()}", hint="check target.arch of the device file"
        )
    start = sum(len(line) for line in source.splitlines(keepends=True)[: int(found[1])])
    before = [kernel[1] for kernel in _KERNEL.finditer(source) if kernel.start() < start]
    return KernelRefusedError(f"{compiler} refuses its code: {found[2]}", before[-1] if before else None)


def _supported(library: Any) -> list[int]:
    count = ctypes.c_int()
    _call(library, "nvrtcGetNumSupportedArchs", ctypes.byref(count))
    found = (ctypes.c_int * count.value)()
    _call(library, "nvrtcGetSupportedArchs", found)
    return list(found)


def _call(library: Any, function: str, *arguments: Any) -> None:
    status = getattr(library, function)(*arguments)
    if status != 0:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise DeviceError(f"{function} failed: {library.nvrtcGetErrorString(status).decode()}", hint=_HINT)


def _bytes(library: Any, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _call(library, f"nvrtcGet{what}Size", program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    _call(library, f"nvrtcGet{what}", program, buffer)
    return buffer.raw
