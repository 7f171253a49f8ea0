"""Compiled partitions: a loaded shared object, and Relax VM instances of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from heterocc.artifacts.errors import HeteroccError
from heterocc.artifacts.frozen import frozen
from heterocc.runtime import ffi as tvm_ffi
from heterocc.runtime.execute.cuda_streams import kernel_stream
from heterocc.runtime.execute.faults import device_fault
from heterocc.runtime.execute.tvm_api import POOLED, tvm_api
from heterocc.runtime.native import cpu_api
from heterocc.runtime.plan.schedule import HOST, Space

if TYPE_CHECKING:
    from heterocc.runtime.native.opencl_api import Origins

_BOUND = "heterocc.bound"

Instrument = Callable[..., int]
"""TVM's per-call hook: `(function, symbol, before, result, *arguments) -> 0`; 1 before a call skips it."""


class Executable:
    """A partition's shared object. Shared by all contexts; a VM instance runs on one thread at a time."""

    def __init__(
        self,
        library: Any,
        name: str,
        entry: str,
        space: Space,
        params: Sequence[Any],
        *,
        keeps_denormals: bool = False,
    ) -> None:
        """`library` comes from `load_library`; `params` are the weights, in the order of the entry's tuple.

        Code for a CPU takes denormal numbers for zeros unless it `keeps_denormals`.
        """
        self.name = name
        self.space = space
        self._entry = entry
        self.params = tvm_ffi.Array(list(params))
        self._module = library
        self._flushes_denormals = space == HOST and not keeps_denormals

    def function(self, instrument: Instrument | None = None) -> tuple[Callable[..., Any], frozenset[int]]:
        """The entry, for calls with arguments that are known only then, of which the last are `params`.

        Code for host memory needs no VM. The numbers are those of arguments that it lengthens
        where they are: see `cpu_api.straight`.
        """
        found: Callable[..., Any] = self._new_machine(instrument)[self._entry]
        if instrument is not None or self.space != HOST:
            return self._in_its_mode(found), frozenset()
        function, lengthened = cpu_api.straight(self._module, self._entry, self.params, found)
        return self._in_its_mode(function), lengthened

    def function_without_machine(self) -> tuple[Callable[..., Any], frozenset[int]] | None:
        """What `function` returns, for a caller of its own; None if the entry needs a VM."""
        machine = self._new_machine(None)[self._entry]
        found, lengthened = cpu_api.straight(self._module, self._entry, self.params, machine)
        return None if found is machine else (self._in_its_mode(found), lengthened)

    def bind(self, arguments: Sequence[Any], instrument: Instrument | None = None) -> Callable[[], Any]:
        """A function without arguments that runs the partition with the arguments bound, in a VM if it needs one."""
        try:
            vm = self._new_machine(instrument)
            if instrument is None and self.space == HOST:
                machine = vm[self._entry]
                found, lengthened = cpu_api.straight(self._module, self._entry, self.params, machine)
                if found is not machine and not lengthened:
                    return self._in_its_mode(cpu_api.bound(found, [*arguments, self.params]))
            vm["save_function"](self._entry, _BOUND, 0, *arguments, self.params)
            return self._in_its_mode(vm[_BOUND])
        except HeteroccError:
            raise
        except Exception as error:
            raise device_fault(error, f"preparing partition '{self.name}'", str(self.space)) from error

    def _new_machine(self, instrument: Instrument | None) -> Any:
        vm = self._module["vm_load_executable"]()
        devices = (1, 0, cpu_api.allocator() or POOLED)
        if self.space != HOST:
            kind = tvm_ffi.device(self.space.backend, self.space.index).dlpack_device_type()
            devices = (kind, self.space.index, POOLED, *devices)  # type: ignore[assignment]
        vm["vm_initialization"](*devices)
        if instrument is not None:
            # Converted again, a native observer would be called by way of Python.
            observer = instrument if isinstance(instrument, tvm_ffi.Function) else tvm_ffi.convert(instrument)
            vm["set_instrument"](cpu_api.with_denormals(observer, kept=True) if self._flushes_denormals else observer)
        return vm

    def _in_its_mode(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return cpu_api.with_denormals(function, kept=False) if self._flushes_denormals else function

    def binaries(self) -> bytes:
        """The driver's binaries of its kernels, as a bundle holds them beside the code; empty if they are of no use.

        May take as long as building them. Raises DeviceError.
        """
        if self.space.backend != "opencl":
            return b""
        try:
            from heterocc.runtime.native import opencl_api

            return opencl_api.program_binaries(self._module, self.space.index)
        except Exception as error:
            raise device_fault(error, f"reading the binaries of '{self.name}'", str(self.space)) from error


@frozen
class Library:
    """The loaded shared object of partition `name`.

    `origin` is the origin of its kernels' machine code, as the end of a sentence; None if the driver does not compile.
    """

    module: Any
    name: str
    origin: str | None = None


def origin_notes(libraries: Iterable[Library]) -> tuple[str, ...]:
    """The origin of the machine code of libraries, one sentence for all of the same origin."""
    names: dict[str, list[str]] = {}
    for library in libraries:
        if library.origin is not None:
            names.setdefault(library.origin, []).append(library.name)
    label = {origin: f"'{of[0]}'" if len(of) == 1 else f"{len(of)} partitions" for origin, of in names.items()}
    return tuple(f"{_ORIGIN}{name} {origin}" for origin, name in label.items())


_ORIGIN = "the OpenCL code of "


def is_detail(note: str) -> bool:
    """Whether a note needs no action of the user (the origin of code, without a problem): shown by `--json` alone."""
    return note.startswith(_ORIGIN) and ": " not in note


def load_library(path: str, name: str, space: Space, binaries: bytes = b"", threads: int = 1) -> Library:
    """Load the shared object at `path` for partition `name`; the path must stay valid as long as it is loaded.

    A parallel loop of CPU code uses up to `threads` threads. `binaries` are the bundle's binaries of its kernels, for
    any device and driver; those that fit are used. Raises DeviceError.

    Kernels of OpenCL and Vulkan are built here, so that a kernel that the device cannot run is an error of the load
    and not of the first run.
    """
    api = tvm_api()
    try:
        if space.backend == "vulkan":
            from heterocc.runtime.native import vulkan_api

            vulkan_api.load_vulkan()
        library = api.load_module(path, "so")
        cpu_api.launch_on(path, threads)
        if space.backend == "vulkan":
            vulkan_api.build_kernels(library, space.index)
        elif space.backend == "opencl":
            from heterocc.runtime.native import opencl_api

            opencl_api.build_kernels(library, space.index, binaries)
            return Library(library, name, _origin_text(opencl_api.origins(library, space.index), bool(binaries)))
        return Library(library, name)
    except Exception as error:
        raise device_fault(error, f"loading partition '{name}'", str(space)) from error


def _origin_text(found: Origins, offered: bool) -> str | None:
    """The origin of OpenCL code, as the end of a sentence; None if it was loaded by TVM's own OpenCL runtime."""
    places = ((found.bundle, "the bundle's binaries"), (found.disk, "binaries kept on disk"), (found.source, "source"))
    used = [place for count, place in places if count]
    if not used:
        return None
    text = f"comes from {' and '.join(used)}"
    if found.refused:
        return f"{text}: the driver refused {found.refused} binaries; compile the bundle again with this driver"
    if offered and found.bundle == 0:
        return (
            f"{text}: the bundle's binaries are for another device or driver; compile it again here for ones that fit"
        )
    return text


def synchronizer(space: Space) -> Callable[[], None] | None:
    """A function that waits until a device has finished all its work; None for host memory."""
    if space == HOST:
        return None
    device = tvm_ffi.device(space.backend, space.index)
    wait = tvm_api().synchronize
    if space.backend == "cuda":
        kernels = kernel_stream(space.index)

        def both() -> None:
            wait(device, 0)  # TVM's copies are in the default stream
            kernels.wait()

        return both
    return lambda: wait(device, 0)
