"""A native plug-in of TVM's runtime: its library, its devices, its modules, its errors as typed ones."""

from __future__ import annotations

import ctypes
import json
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from heterocc.artifacts.errors import (
    BundleError,
    DeviceError,
    DeviceMemoryError,
    DriverMissingError,
    HeteroccError,
    NativePluginError,
)
from heterocc.artifacts.foreign import pass_foreign
from heterocc.artifacts.frozen import frozen
from heterocc.runtime import ffi as tvm_ffi
from heterocc.runtime.fault_variables import honour, native_variable
from heterocc.runtime.forks import open_driver
from heterocc.runtime.native.tvm_libraries import check_tvm_version
from heterocc.runtime.native.tvm_runtime import has_global, load_tvm_runtime

BUILD_NOTE = "native_build.txt"

Record = TypeVar("Record")

_loading = threading.Lock()


@frozen
class Plugin:
    """A plug-in that registers `heterocc.<name>.*` with TVM when it is loaded.

    `label` is the API's name in messages. The hints say what to install for the driver and for the plug-in, and what to
    do about a kernel that the device refuses.
    """

    name: str
    label: str
    library: str
    driver_hint: str
    plugin_hint: str
    build_hint: str

    def load(self) -> None:
        """Load the library, unless this process has it; safe to call from any thread.

        Raises NativePluginError if it was not built or does not fit the installed TVM.
        """
        with _loading:
            if not has_global(f"heterocc.{self.name}.problem"):
                path = self.find_library()  # first: without a plug-in nothing needs TVM
                load_tvm_runtime()
                check_tvm_version()
                try:
                    ctypes.CDLL(str(path), ctypes.RTLD_LOCAL)
                except OSError as error:
                    pass_foreign(error)
                    raise NativePluginError(
                        f"{self.library} cannot be loaded: {error}", hint=self.plugin_hint
                    ) from error
            if not has_global(f"heterocc.{self.name}.problem"):
                raise NativePluginError(
                    f"{self.library} was loaded but could not register itself", hint=self.plugin_hint
                )
            problem = str(tvm_ffi.get_global_func(f"heterocc.{self.name}.problem")())
            if problem:
                raise NativePluginError(f"{self.library} does not fit: {problem}", hint=self.plugin_hint)

    def require_device(self) -> list[dict[str, Any]]:
        """Load the plug-in and describe its devices, at least one.

        Raises as `load` does, DriverMissingError without a driver or a device, and DeviceError in a child of a process
        that had used them.
        """
        self.load()
        open_driver(self.label)
        honour(native_variable(self.name), reported=True)  # the plug-in writes to stderr itself
        found: dict[str, Any] = json.loads(str(tvm_ffi.get_global_func(f"heterocc.{self.name}.devices")()))
        if found["problem"] is not None:
            raise DriverMissingError(f"{self.label} cannot be used: {found['problem']}", hint=self.driver_hint)
        return list(found["devices"])

    def devices(self, record: type[Record]) -> tuple[Record, ...]:
        """The devices as instances of a dataclass with a field for each property; raises as `require_device` does."""
        from dataclasses import fields  # not at the top: a program on the CPU needs it nowhere

        names = [field.name for field in fields(record)]  # type: ignore[arg-type]
        return tuple(record(**{name: _frozen(entry[name]) for name in names}) for entry in self.require_device())

    def unavailable_reason(self) -> str | None:
        """The reason why no device can be used here, in one sentence; None if one can."""
        try:
            self.require_device()
        except HeteroccError as error:
            return error.message
        return None

    def call(self, function: str, *arguments: Any) -> Any:
        """Call `heterocc.<name>.<function>`. Raises as `require_device` does, and if the user's TVM lacks it."""
        self.require_device()
        found = tvm_ffi.get_global_func(f"heterocc.{self.name}.{function}", allow_missing=True)
        if found is None:
            raise NativePluginError(
                f"the installed TVM brings its own {self.label} back end, which lacks what heterocc asks of it",
                hint="use the stock package: pip install 'apache-tvm==0.27.*'",
            )
        return found(*arguments)

    def modules(self, library: Any) -> list[Any]:
        """The plug-in's modules that a loaded library imports; empty if the user's TVM has its own back end."""
        foreign = tvm_ffi.get_global_func(f"heterocc.{self.name}.foreign", allow_missing=True)
        return [] if foreign is None or foreign() else list(_imported(library, self.name))

    def build_kernels(self, library: Any, device: int) -> int:
        """Have the driver compile all kernels of the plug-in that a loaded library imports; gives their number.

        Without this call kernels are compiled when they first run. Raises the plug-in's error for a kernel that
        does not compile or that the device cannot run.
        """
        return sum(int(module.get_function("heterocc_build")(device)) for module in self.modules(library))

    def typed_error(self, error: BaseException, where: str | None = None) -> HeteroccError | None:
        """The typed error for an exception that the plug-in raised, or None if it came from elsewhere."""
        found = re.search(rf"heterocc\.{self.name}\[(\w+)\]: (.*)", str(error), re.DOTALL)
        if found is None:
            return None
        kind, message = found[1], found[2].strip().rstrip(".")
        if kind == "memory":
            return DeviceMemoryError(message, where=where, hint="use a smaller batch, or list another device first")
        if kind == "driver":
            return DriverMissingError(message, where=where, hint=self.driver_hint)
        if kind == "module":
            return BundleError(message, where=where, hint="compile the bundle again")
        if kind == "build":
            return DeviceError(message, where=where, hint=self.build_hint)
        return DeviceError(message, where=where, hint="`heterocc check` says what the bundle needs and what is here")

    def folders(self) -> Iterator[Path]:
        """Folders in which an installation puts the library: this file's, or that in site-packages if editable."""
        yield Path(__file__).parent
        for place in sys.path:
            yield Path(place, "heterocc", "runtime", "native")

    def find_library(self) -> Path:
        """The path of the library. Raises NativePluginError, with the reason, if it was not built."""
        for folder in self.folders():
            if (folder / self.library).is_file():
                return folder / self.library
        raise NativePluginError(f"the {self.label} plug-in is not there: {self._build_note()}", hint=self.plugin_hint)

    def _build_note(self) -> str:
        for folder in self.folders():
            note = folder / BUILD_NOTE
            if note.is_file():
                for line in note.read_text(encoding="utf-8").splitlines():
                    if line.startswith(f"{self.name}: "):
                        return line.removeprefix(f"{self.name}: ")
        return "heterocc was installed without building it"


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _imported(library: Any, kind: str) -> Iterator[Any]:
    for module in library.imports:
        if module.kind == kind:
            yield module
        else:
            yield from _imported(module, kind)
