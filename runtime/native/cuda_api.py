"""CUDA: the devices that NVIDIA's driver offers, and loading TVM's own CUDA runtime, which the stock package brings.

The driver is called through its C interface (libcuda.so.1), so that finding devices needs no other library. TVM's
runtime (libtvm_runtime_cuda.so) is linked against libcudart.so.13, which comes from the package nvidia-cuda-runtime or
from the toolkit: it must be in the process before, else the library cannot be loaded.
"""

from __future__ import annotations

import ctypes
import importlib.util
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterocc.artifacts.errors import DriverMissingError, HeteroccError, NativePluginError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.runtime.forks import open_driver
from heterocc.runtime.native.tvm_libraries import REINSTALL, tvm_libraries
from heterocc.runtime.native.tvm_runtime import has_global, load_tvm_runtime

DRIVER = "libcuda.so.1"
CUDART = "libcudart.so.13"
SIDECAR = "libtvm_runtime_cuda.so"
OLDEST_DRIVER = 13000
"""The first CUDA version (1000 · major + 10 · minor) whose drivers serve libcudart.so.13."""

TEGRA = frozenset([(5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0)])
"""Compute capabilities of Tegra's GPUs, Jetson and DRIVE. CUDA 13 calls (11, 0) what CUDA 12 called (10, 1).

Source: NVIDIA's lists "CUDA GPU Compute Capability" and "Legacy CUDA GPU Compute Capability"."""

_LOCK = threading.Lock()
_DRIVER_HINT = "install NVIDIA's driver, release 580 or later, and see that `nvidia-smi` lists the GPU"
_CUDART_HINT = "pip install 'nvidia-cuda-runtime==13.*', or install the CUDA 13 toolkit"

# CUdevice_attribute of cuda.h.
_THREADS_PER_BLOCK, _SHARED_PER_BLOCK, _CLOCK_KHZ, _MULTIPROCESSORS, _INTEGRATED = 1, 8, 13, 16, 18
_MEMORY_CLOCK_KHZ, _MEMORY_BUS_BITS, _MAJOR, _MINOR = 36, 37, 75, 76


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """A CUDA device of this machine; its index in `cuda_devices()` is its device index in TVM.

    `capability` is the compute capability, (9, 0) for sm_90. Sizes are in bytes; `driver` is the newest CUDA version
    that the driver serves, as text. `memory_clock_khz` and `memory_bus_bits` are 0 if the driver does not report them.
    """

    name: str
    capability: tuple[int, int]
    memory: int
    multiprocessors: int
    clock_khz: int
    memory_clock_khz: int
    memory_bus_bits: int
    max_group: int
    shared_memory: int
    integrated: bool
    driver: str

    @property
    def arch(self) -> str:
        """The architecture that code for it is compiled for: `sm_90`."""
        return f"sm_{self.capability[0]}{self.capability[1]}"

    def runs(self, arch: str) -> bool:
        """Whether code compiled for an architecture runs: see `machine_code_runs`.

        Code for `sm_90a` runs on that one alone, for `sm_100f` on its family, which is the same major number. Source:
        CUDA C++ Programming Guide, "Feature Set Compiler Targets".
        """
        digits = arch.removeprefix("sm_").rstrip("af")
        # The text is from a manifest: int() refuses long numbers, and digits such as "²" that isdigit() accepts.
        if not (digits.isascii() and digits.isdigit()) or not 2 <= len(digits) <= 4:
            return False
        made_for = divmod(int(digits), 10)
        return made_for == self.capability if arch.endswith("a") else machine_code_runs(made_for, self.capability)


def machine_code_runs(made_for: tuple[int, int], on: tuple[int, int]) -> bool:
    """Whether machine code for one compute capability runs on a GPU of another: same major number, no newer minor one.

    Tegra's GPUs run code for exactly their own number, and no other GPU runs that. Source: CUDA C++ Programming Guide,
    "Binary Compatibility".
    """
    if made_for in TEGRA or on in TEGRA:
        return made_for == on
    return made_for[0] == on[0] and made_for[1] <= on[1]


def cuda_devices() -> tuple[CudaDevice, ...]:
    """The CUDA devices here, in the driver's order; needs the driver alone.

    Raises DriverMissingError without a driver or a device, and for a driver too old for libcudart.so.13.
    """
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError as error:
        pass_foreign(error)
        missing = "No such file" in str(error)
        why = f"{DRIVER} was not found" if missing else f"{DRIVER} cannot be loaded: {error}"
        raise DriverMissingError(f"CUDA cannot be used: {why}", hint=_DRIVER_HINT) from None
    open_driver("CUDA")
    _check(driver, "cuInit", 0)
    version = _number(driver, "cuDriverGetVersion")
    count = _number(driver, "cuDeviceGetCount")
    if count == 0:
        raise DriverMissingError("CUDA cannot be used: the driver has no device", hint=_DRIVER_HINT)
    served = f"{version // 1000}.{version % 1000 // 10}"
    if version < OLDEST_DRIVER:
        raise DriverMissingError(
            f"CUDA cannot be used: the driver serves CUDA {served}, TVM's runtime needs 13.0", hint=_DRIVER_HINT
        )
    return tuple(_device(driver, index, served) for index in range(count))


def load_cuda() -> None:
    """Load TVM's CUDA runtime and make sure that there is a device; safe to call from any thread, and again.

    Raises DriverMissingError as `cuda_devices` does, and NativePluginError if libcudart.so.13 or TVM's library is
    missing or cannot be loaded.
    """
    cuda_devices()
    load_tvm_runtime()
    with _LOCK:
        if has_global("device_api.cuda"):
            return
        _load_cudart()
        libraries = tvm_libraries()
        path = libraries.find(SIDECAR)
        try:
            ctypes.CDLL(str(path), ctypes.RTLD_LOCAL)
        except OSError as error:
            pass_foreign(error)
            raise NativePluginError(
                f"{SIDECAR} of {libraries.owner} cannot be loaded: {error}", hint=_CUDART_HINT
            ) from error
        if not has_global("device_api.cuda"):
            raise NativePluginError(f"{SIDECAR} was loaded but brought no CUDA device", hint=REINSTALL)


def cuda_unavailable_reason() -> str | None:
    """The reason why no CUDA device can be used here, in one sentence; None if one can."""
    try:
        load_cuda()
    except HeteroccError as error:
        return error.message
    return None


def cudart_candidates() -> Iterator[str]:
    """Places of libcudart.so.13: NVIDIA's Python package, then wherever the loader finds it."""
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations if spec is not None else None) or ():
        path = Path(place, "cu13", "lib", CUDART)
        if path.is_file():
            yield str(path)
    yield CUDART
    yield f"/usr/local/cuda/lib64/{CUDART}"


def _load_cudart() -> None:
    problems = []
    for place in cudart_candidates():
        try:
            ctypes.CDLL(place, ctypes.RTLD_GLOBAL)
        except OSError as error:
            problems.append(str(error))
        else:
            return
    raise NativePluginError(f"{CUDART} cannot be loaded: {problems[0]}", hint=_CUDART_HINT)


def _device(driver: Any, index: int, served: str) -> CudaDevice:
    handle = ctypes.c_int()
    _check(driver, "cuDeviceGet", ctypes.byref(handle), index)
    name = ctypes.create_string_buffer(256)
    _check(driver, "cuDeviceGetName", name, len(name), handle)
    memory = ctypes.c_size_t()
    _check(driver, "cuDeviceTotalMem_v2", ctypes.byref(memory), handle)

    def attribute(number: int) -> int:
        return _number(driver, "cuDeviceGetAttribute", number, handle)

    return CudaDevice(
        name=name.value.decode("utf-8", "replace"),
        capability=(attribute(_MAJOR), attribute(_MINOR)),
        memory=memory.value,
        multiprocessors=attribute(_MULTIPROCESSORS),
        clock_khz=attribute(_CLOCK_KHZ),
        memory_clock_khz=attribute(_MEMORY_CLOCK_KHZ),
        memory_bus_bits=attribute(_MEMORY_BUS_BITS),
        max_group=attribute(_THREADS_PER_BLOCK),
        shared_memory=attribute(_SHARED_PER_BLOCK),
        integrated=bool(attribute(_INTEGRATED)),
        driver=served,
    )


def _number(driver: Any, function: str, *arguments: Any) -> int:
    """The integer that a function of the driver writes to its first argument."""
    value = ctypes.c_int()
    _check(driver, function, ctypes.byref(value), *arguments)
    return value.value


def _check(driver: Any, function: str, *arguments: Any) -> None:
    status = getattr(driver, function)(*arguments)
    if status == 0:
        return
    text = ctypes.c_char_p()
    known = driver.cuGetErrorString(status, ctypes.byref(text)) == 0 and text.value is not None
    what = text.value.decode() if known and text.value is not None else f"error {status}"
    raise DriverMissingError(f"CUDA cannot be used: {function} says '{what}'", hint=_DRIVER_HINT)
