"""The code generator that TVM calls for Vulkan, `target.build.vulkan`, and device code without host code."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import tvm
import tvm_ffi
from tvm import runtime, tirx
from tvm.tirx.build import split_host_device_mods

from heterocc.artifacts.errors import LoweringError, NativePluginError
from heterocc.compiler.lower.progress import counted
from heterocc.compiler.lower.vulkan.dtypes import UnsupportedError
from heterocc.compiler.lower.vulkan.kernel import Kernel, compile_kernel
from heterocc.compiler.lower.vulkan.package import package
from heterocc.compiler.lower.vulkan.target import VulkanLimits

if TYPE_CHECKING:
    from tvm import IRModule
    from tvm.target import Target


BUILD = "target.build.vulkan"
CREATE = "heterocc.vulkan.create_module"

_LOCK = threading.RLock()


@dataclass
class Generation:
    """One run of TVM's build: what it may use, what it made, and why it failed."""

    limits: VulkanLimits
    kernels: list[Kernel] = field(default_factory=list)
    problem: LoweringError | None = None

    def build(self, mod: IRModule, _target: Target) -> runtime.Module:
        """The runtime module of the device functions of a TVM module."""
        try:
            self.kernels = _kernels(mod, self.limits)
        except LoweringError as error:
            self.problem = error  # on its way through TVM it becomes another one
            raise
        create = tvm_ffi.get_global_func(CREATE, allow_missing=True)
        if create is None:
            raise NativePluginError(
                "code for Vulkan needs the Vulkan plug-in, which is not loaded",
                hint="`heterocc devices` says why; reinstall heterocc where g++ and the Vulkan headers are",
            )
        return create(package(self.kernels))


@contextmanager
def generating(limits: VulkanLimits) -> Iterator[Generation]:
    """While open, TVM's builds for Vulkan keep to the limits; gives what they make.

    A code generator that the user's TVM has is left alone; then nothing is recorded.
    """
    generation = Generation(limits)
    with _LOCK:  # the code generator is the process's
        own = tvm_ffi.get_global_func(BUILD, allow_missing=True) is None
        if own:
            tvm_ffi.register_global_func(BUILD, generation.build)
        try:
            yield generation
        finally:
            if own:
                tvm_ffi.remove_global_func(BUILD)


def device_kernels(functions: tvm.IRModule, target: Target, limits: VulkanLimits) -> list[Kernel]:
    """The kernels of scheduled functions, without host code. Raises LoweringError for what does not fit."""
    with target:
        pipeline, _, finalize = tirx.get_default_tir_pipeline(target)
        _, devices = split_host_device_mods(pipeline(tirx.transform.BindTarget(target)(functions)))
        return [k for mod in devices.values() for k in _kernels(finalize()(mod), limits)]


def _kernels(mod: IRModule, limits: VulkanLimits) -> list[Kernel]:
    kernels = []
    functions = sorted((g.name_hint, f) for g, f in mod.functions_items())
    for name, function in counted("writing kernels as SPIR-V", functions):
        try:
            kernel = compile_kernel(name, function, limits.features)
        except UnsupportedError as error:
            raise LoweringError(f"Vulkan code has no form for {error}", where=f"kernel '{name}'") from None
        problem = limits.misfit(kernel)
        if problem is not None:
            raise LoweringError(problem, where=f"kernel '{name}'", hint="give the node to another device")
        kernels.append(kernel)
    return kernels
