"""Compilation of CUDA C++ to a cubin, or to PTX for a GPU newer than the compiler. It does not need a GPU.

The compiler is NVIDIA's run-time compiler (a Python package) or nvcc. The same source, compiler and architecture give
the same bytes: a cubin does not contain paths or times.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from heterocc.artifacts.errors import CudaCompilerMissingError, DeviceError
from heterocc.compiler.files.programs import run_tool
from heterocc.compiler.files.scratch import scratch_folder
from heterocc.runtime.native.cuda_api import machine_code_runs

TOOLKIT = Path("/usr/local/cuda")
"""The default folder of the CUDA toolkit."""

_log = logging.getLogger("heterocc.compiler")

_SOURCE = "kernels.cu"
_TIMEOUT = 1800
_FLAGS = ("-std=c++17", "--fmad=true")
"""Without --use_fast_math, so that mathematical functions have the error bounds of CUDA's documentation."""

_LEFT_TO_CUDA_12 = range(50, 75)
"""Architectures for which CUDA 12 is the last toolkit."""

_ERROR = re.compile(r"^kernels\.cu\((\d+)\): (?:catastrophic )?error: (.*)$", re.MULTILINE)
_LISTED = re.compile(r"^compute_(\d+)$", re.MULTILINE)
_KERNEL = re.compile(r'^extern "C" __global__ .*?(\w+)\([^)]*\) \{', re.MULTILINE)


class CudaCompiler(Protocol):
    """A compiler of CUDA C++."""

    @property
    def name(self) -> str:
        """The compiler's name for messages."""
        ...

    def cubin(self, source: str, arch: str) -> bytes:
        """The machine code of a source for an architecture such as `sm_90`.

        For an architecture newer than the compiler, it is that of an older one which runs there too, or PTX, which the
        driver compiles when it loads it. This is logged as a warning.

        Raises KernelRefusedError if the source does not compile, CudaCompilerMissingError (HC408) if the architecture
        is not supported, and DeviceError if the compiler does not run.
        """
        ...


def fitting(arch: str, supported: Sequence[int]) -> str | None:
    """The architecture to compile for, of those that a compiler supports (90 for `sm_90`), to run on `arch`.

    It is `arch` itself, else the newest one whose machine code runs there, else the newest older one as PTX, else None.
    Source: CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility".
    """
    digits = arch.removeprefix("sm_")
    base = digits.rstrip("af")
    if base.isdigit() and int(base) in supported:
        return arch
    if not digits.isdigit():  # code for sm_90a may use features that sm_90 lacks, so nothing else is compatible
        return None
    older = sorted(known for known in supported if known < int(digits))
    alike = [known for known in older if machine_code_runs(divmod(known, 10), divmod(int(digits), 10))]
    if alike:
        return f"sm_{alike[-1]}"
    return f"compute_{older[-1]}" if older else None


class KernelRefusedError(Exception):
    """The compiler refuses a source. `kernel` is the name of the kernel at fault, None if unknown."""

    def __init__(self, message: str, kernel: str | None = None) -> None:
        super().__init__(message)
        self.kernel = kernel


@dataclass(frozen=True, slots=True)
class Nvrtc:
    """NVIDIA's run-time compiler: its library and the folders of its headers."""

    library: Path
    include: tuple[Path, ...]
    name: str = "nvrtc"

    def supported(self) -> Sequence[int]:
        """The architectures that it supports, 90 for `sm_90`."""
        library = self._loaded()
        count = ctypes.c_int()
        _call(library, "nvrtcGetNumSupportedArchs", ctypes.byref(count))
        found = (ctypes.c_int * count.value)()
        _call(library, "nvrtcGetSupportedArchs", found)
        return tuple(found)

    def cubin(self, source: str, arch: str) -> bytes:
        """See CudaCompiler."""
        known = _known(arch, self)
        library = self._loaded()
        program = ctypes.c_void_p()
        _call(library, "nvrtcCreateProgram", ctypes.byref(program), source.encode(), _SOURCE.encode(), 0, None, None)
        try:
            flags = [
                f"--gpu-architecture={known}",
                *_FLAGS,
                "--device-int128",
                *(f"-I{folder}" for folder in self.include),
            ]
            options = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
            if library.nvrtcCompileProgram(program, len(flags), options) != 0:
                raise _refusal(self.name, _bytes(library, program, "ProgramLog").rstrip(b"\0").decode(), source, arch)
            return _bytes(library, program, "PTX" if _is_ptx(known) else "CUBIN")
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))

    def _loaded(self) -> ctypes.CDLL:
        try:
            return ctypes.CDLL(str(self.library))
        except OSError as error:
            raise DeviceError(f"{self.library.name} cannot be loaded: {error}", hint=_HINT) from error


@dataclass(frozen=True, slots=True)
class Nvcc:
    """The toolkit's compiler driver, which also needs a C++ compiler for the host."""

    program: Path
    name: str = "nvcc"

    def supported(self) -> Sequence[int]:
        """The architectures that it supports, 90 for `sm_90`."""
        done = _run([str(self.program), "--list-gpu-arch"])
        found = tuple(int(number) for number in _LISTED.findall(done.stdout))
        if done.returncode != 0 or not found:
            raise DeviceError(f"{self.program} does not list the architectures it supports", hint=_HINT)
        return found

    def cubin(self, source: str, arch: str) -> bytes:
        """See CudaCompiler."""
        known = _known(arch, self)
        ptx = _is_ptx(known)
        with scratch_folder("cuda") as folder:
            Path(folder, _SOURCE).write_text(source, encoding="utf-8")
            kind = "--ptx" if ptx else "--cubin"
            done = _run([str(self.program), kind, f"-arch={known}", "-O3", *_FLAGS, "-o", "kernels", _SOURCE], folder)
            if done.returncode != 0:
                raise _refusal(self.name, f"{done.stdout}\n{done.stderr}", source, arch)
            code = Path(folder, "kernels").read_bytes()
        return code + b"\0" if ptx else code  # the driver takes PTX as a C string


_HINT = "pip install 'nvidia-cuda-nvrtc==13.*' 'nvidia-cuda-cccl==13.*', or install NVIDIA's CUDA toolkit (nvcc)"


def find_compiler(arch: str, env: Mapping[str, str] | None = None) -> CudaCompiler:
    """The first compiler that supports `arch`: that of the installed package nvidia-cuda-nvrtc, then nvcc.

    nvcc is searched in $CUDA_HOME, $CUDA_PATH, $PATH and /usr/local/cuda. Raises CudaCompilerMissingError (HC408).
    """
    found = _compilers(os.environ if env is None else env)
    if not found:
        raise CudaCompilerMissingError("no compiler for CUDA kernels was found, neither nvrtc nor nvcc", hint=_HINT)
    known: dict[Nvrtc | Nvcc, Sequence[int]] = {}
    for compiler in found:
        known[compiler] = compiler.supported()
        if fitting(arch, known[compiler]) is not None:
            return compiler
    raise _unsupported(arch, known)


def _compilers(env: Mapping[str, str]) -> list[Nvrtc | Nvcc]:
    """The installed compilers, by priority."""
    found: list[Nvrtc | Nvcc] = []
    for home in nvidia_folders():
        library = home / "lib" / "libnvrtc.so.13"
        include = (home / "include", home / "include" / "cccl")
        if library.is_file() and (include[0] / "cuda_fp16.h").is_file() and (include[1] / "cuda").is_dir():
            found.append(Nvrtc(library, include))
    homes = [Path(env[name], "bin") for name in ("CUDA_HOME", "CUDA_PATH") if env.get(name)]
    places = [*map(str, homes), env.get("PATH", os.defpath), str(TOOLKIT / "bin")]
    programs = [program for place in places if (program := shutil.which("nvcc", path=place)) is not None]
    return [*found, *(Nvcc(Path(program)) for program in dict.fromkeys(programs))]


def nvidia_folders() -> tuple[Path, ...]:
    """The folders of libraries and headers of NVIDIA's Python packages for CUDA 13 that are installed."""
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations if spec is not None else None
    return tuple(folder for place in places or () if (folder := Path(place, "cu13")).is_dir())


def _known(arch: str, compiler: Nvrtc | Nvcc) -> str:
    """The architecture to pass to a compiler. A warning is logged if it is not `arch` itself."""
    supported = compiler.supported()
    known = fitting(arch, supported)
    if known is None:
        raise _unsupported(arch, {compiler: supported})
    if known != arch:
        _log.warning("%s does not support %s: its kernels are compiled for %s", compiler.name, arch, known)
    return known


def _is_ptx(known: str) -> bool:
    return known.startswith("compute_")


def _unsupported(arch: str, known: Mapping[Nvrtc | Nvcc, Sequence[int]]) -> CudaCompilerMissingError:
    """The error for an architecture that no compiler supports; `known` are the architectures that each supports."""
    lists = [f"{c.name} supports {', '.join(f'sm_{n}' for n in sorted(numbers))}" for c, numbers in known.items()]
    supported = "; ".join(dict.fromkeys(lists))  # one toolkit may be found in two ways
    base = arch.removeprefix("sm_").rstrip("af")
    if base.isdigit() and int(base) in _LEFT_TO_CUDA_12:
        hint = f"install the CUDA 12 toolkit, the last that compiles for {arch}, and set CUDA_HOME to its folder"
    else:
        hint = "check target.arch of the device file, or install a CUDA toolkit that supports it and set CUDA_HOME"
    return CudaCompilerMissingError(f"no installed CUDA compiler supports {arch}: {supported}", hint=hint)


def _run(command: Sequence[str], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run nvcc. Raises DeviceError if it does not run."""
    try:
        return run_tool(command, folder, timeout=_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeviceError(f"nvcc did not run: {error}", hint=_HINT) from error


def _refusal(compiler: str, log: str, source: str, arch: str) -> Exception:
    """The error for a compiler's log: about the kernel at the first error's line, or about the compiler itself."""
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


def _call(library: ctypes.CDLL, function: str, *arguments: Any) -> None:
    status = getattr(library, function)(*arguments)
    if status != 0:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise DeviceError(f"{function} failed: {library.nvrtcGetErrorString(status).decode()}", hint=_HINT)


def _bytes(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _call(library, f"nvrtcGet{what}Size", program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    _call(library, f"nvrtcGet{what}", program, buffer)
    return buffer.raw
