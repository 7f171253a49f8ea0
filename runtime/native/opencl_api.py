"""The OpenCL plug-in: finding and loading it, the devices it offers, its errors as typed ones."""

from __future__ import annotations

import ctypes
import json
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import tvm_ffi

from heterocc.artifacts.errors import (
    BundleError,
    DeviceError,
    DeviceMemoryError,
    DriverMissingError,
    HeteroccError,
    NativePluginError,
)
from heterocc.runtime.forks import open_driver
from heterocc.runtime.native.tvm_runtime import check_tvm_version, has_global, load_tvm_runtime

LIBRARY = "libheterocc_opencl.so"
BUILD_NOTE = "native_build.txt"

_LOCK = threading.Lock()
_DRIVER_HINT = "install the OpenCL driver of the device; PoCL runs OpenCL on the CPU (Debian: pocl-opencl-icd)"
_PLUGIN_HINT = "install g++ and the OpenCL headers (Debian: g++ opencl-c-headers), then reinstall heterocc"
_PREFIX = re.compile(r"heterocc\.opencl\[(\w+)\]: (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class OpenCLDevice:
    """An OpenCL device of this machine; its index in `opencl_devices()` is its device index in TVM.

    Sizes are in bytes. `max_alloc` limits one buffer, `local_memory` and `max_group` one work group. `software` marks
    implementations that run on the CPU (PoCL, llvmpipe). `unified`: its memory is the host's own, so that both can see
    a buffer. `shares_host_memory`: its buffers can lie in what the host allocated.
    """

    name: str
    vendor: str
    platform: str
    version: str
    driver: str
    type: Literal["gpu", "cpu", "accelerator"]
    software: bool
    memory: int
    max_alloc: int
    local_memory: int
    max_group: int
    max_group_sizes: tuple[int, int, int]
    compute_units: int
    clock_mhz: int
    alignment: int
    fp16: bool
    fp64: bool
    shares_host_memory: bool
    extensions: tuple[str, ...]
    unified: bool = False


def load_opencl() -> None:
    """Load the plug-in and make sure that there is a device.

    Raises NativePluginError where the plug-in was not built or does not fit the installed TVM, and DriverMissingError
    where there is no driver or no device. Safe to call from any thread, and again.
    """
    _load_plugin()
    open_driver("OpenCL")
    problem = _inventory()["problem"]
    if problem is not None:
        raise DriverMissingError(f"OpenCL cannot be used: {problem}", hint=_DRIVER_HINT)


def opencl_devices() -> tuple[OpenCLDevice, ...]:
    """The OpenCL devices here, hardware GPUs first and software last; raises as `load_opencl` does."""
    load_opencl()
    return tuple(_device(entry) for entry in _inventory()["devices"])


def unavailable_reason() -> str | None:
    """Why no OpenCL device can be used here, in one sentence; None where one can."""
    try:
        load_opencl()
    except HeteroccError as error:
        return error.message
    return None


def register() -> None:
    """Entry point of group `tvm.backends`, called by `import tvm`; leaves it to later calls to say what is wrong."""
    try:
        _load_plugin()
    except HeteroccError:
        return


def trim() -> int:
    """Free workspaces that no kernel uses now; gives the number of bytes."""
    return int(_call("heterocc.opencl.trim"))


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a device has done in this process, all counts but `copied`: bytes of copies. `maps` are of lent memory."""

    copies: int
    copied: int
    maps: int


def statistics(device: int = 0) -> Statistics:
    """The statistics of an OpenCL device."""
    return Statistics(*(int(number) for number in _call("heterocc.opencl.statistics", device)))


@dataclass(frozen=True, slots=True)
class Origins:
    """Where the programs of a library came from, each a count: binaries of the bundle, binaries on disk, source.

    `refused` are binaries, of the bundle or on disk, that the driver did not take.
    """

    bundle: int = 0
    disk: int = 0
    source: int = 0
    refused: int = 0


def build_kernels(library: Any, device: int, binaries: bytes = b"") -> int:
    """Have the driver compile all OpenCL kernels that a loaded library imports; gives their number.

    `binaries` (see `program_binaries`) are used where they are for exactly this device and driver. Without this call
    kernels are compiled when they first run. Raises what the plug-in raises for a kernel that does not compile.
    """
    modules = _modules(library)
    if binaries:
        for module in modules:
            module.get_function("heterocc_offer")(binaries)
    return sum(int(module.get_function("heterocc_build")(device)) for module in modules)


def origins(library: Any, device: int) -> Origins:
    """Where the programs that were built for a device came from."""
    counts = [module.get_function("heterocc_origins")(device) for module in _modules(library)]
    return Origins(*(sum(int(c[i]) for c in counts) for i in range(4)))


def program_binaries(library: Any, device: int) -> bytes:
    """The driver's binaries of what was built for a device, as `build_kernels` takes them; empty without OpenCL code.

    May take as long as building: PoCL compiles each kernel once more. What PoCL has compiled for the sizes of a run is
    in its binaries after that run only.
    """
    return b"".join(bytes(module.get_function("heterocc_binaries")(device)) for module in _modules(library)[:1])


def _modules(library: Any) -> list[Any]:
    """The modules of the plug-in that a library imports, one at most; none where the user's TVM runs OpenCL itself."""
    foreign = tvm_ffi.get_global_func("heterocc.opencl.foreign", allow_missing=True)
    if foreign is None or foreign():
        return []
    found = []
    for module in library.imports:
        found += [module] if module.kind == "opencl" else _modules(module)
    return found


def typed_error(error: BaseException, where: str | None = None) -> HeteroccError | None:
    """The typed error for an exception that the plug-in raised, or None if it came from elsewhere."""
    found = _PREFIX.search(str(error))
    if found is None:
        return None
    kind, message = found[1], found[2].strip().rstrip(".")
    if kind == "memory":
        return DeviceMemoryError(message, where=where, hint="use a smaller batch, or list another device first")
    if kind == "driver":
        return DriverMissingError(message, where=where, hint=_DRIVER_HINT)
    if kind == "module":
        return BundleError(message, where=where, hint="compile the bundle again")
    if kind == "build":
        return DeviceError(
            message, where=where, hint="the driver's compiler refuses the kernel; compile without OPENCL"
        )
    return DeviceError(message, where=where, hint="`heterocc check` says what the bundle needs and what is here")


def _call(name: str, *arguments: Any) -> Any:
    load_opencl()
    function = tvm_ffi.get_global_func(name, allow_missing=True)
    if function is None:
        raise NativePluginError(
            "the installed TVM brings its own OpenCL back end, which lacks what heterocc asks of it",
            hint="use the stock package: pip install 'apache-tvm==0.27.*'",
        )
    return function(*arguments)


def _inventory() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(str(tvm_ffi.get_global_func("heterocc.opencl.devices")()))
    return found


def _device(entry: dict[str, Any]) -> OpenCLDevice:
    values = {field.name: entry[field.name] for field in fields(OpenCLDevice)}
    values["max_group_sizes"] = tuple(values["max_group_sizes"])
    values["extensions"] = tuple(values["extensions"])
    return OpenCLDevice(**values)


def _load_plugin() -> None:
    with _LOCK:
        if not has_global("heterocc.opencl.problem"):
            path = _find_library()  # first: without a plug-in nothing needs TVM
            load_tvm_runtime()
            check_tvm_version()
            try:
                ctypes.CDLL(str(path), ctypes.RTLD_LOCAL)
            except OSError as error:
                raise NativePluginError(f"{LIBRARY} cannot be loaded: {error}", hint=_PLUGIN_HINT) from error
        if not has_global("heterocc.opencl.problem"):
            raise NativePluginError(f"{LIBRARY} was loaded but could not register itself", hint=_PLUGIN_HINT)
        problem = str(tvm_ffi.get_global_func("heterocc.opencl.problem")())
        if problem:
            raise NativePluginError(f"{LIBRARY} does not fit: {problem}", hint=_PLUGIN_HINT)


def _folders() -> Iterator[Path]:
    """Where an installation puts the plug-in: beside this file, or for an editable one in site-packages."""
    yield Path(__file__).parent
    for place in sys.path:
        yield Path(place, "heterocc", "runtime", "native")


def _find_library() -> Path:
    for folder in _folders():
        if (folder / LIBRARY).is_file():
            return folder / LIBRARY
    raise NativePluginError(f"the OpenCL plug-in is not there: {_build_note()}", hint=_PLUGIN_HINT)


def _build_note() -> str:
    for folder in _folders():
        note = folder / BUILD_NOTE
        if note.is_file():
            for line in note.read_text(encoding="utf-8").splitlines():
                if line.startswith("opencl: "):
                    return line.removeprefix("opencl: ")
    return "heterocc was installed without building it"
