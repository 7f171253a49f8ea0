"""TVM's code generator function for Vulkan, `target.build.vulkan`, and generation of kernels without host code."""

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
from heterocc.compiler.lower.gpu.code_passes import PIPELINE
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
    """One run of TVM's build: the limits of the device, the kernels generated, and the error if it failed."""

    limits: VulkanLimits
    kernels: list[Kernel] = field(default_factory=list)
    problem: LoweringError | None = None

    def build(self, mod: IRModule, _target: Target) -> runtime.Module:
        """Generate the runtime module for the device functions of a TVM module."""
        try:
            self.kernels = _kernels(mod, self.limits)
        except LoweringError as error:
            self.problem = error  # TVM converts it to another exception
            raise
        create = tvm_ffi.get_global_func(CREATE, allow_missing=True)
        if create is None:
            raise NativePluginError(
                "code generation for Vulkan needs the Vulkan plug-in, which is not loaded",
                hint="`heterocc devices` prints the reason; to build it, install g++ and the Vulkan headers and "
                "reinstall heterocc",
            )
        return create(package(self.kernels))


@contextmanager
def generating(limits: VulkanLimits) -> Iterator[Generation]:
    """Generate code within the limits in TVM's builds for Vulkan within the block; yield a record of the kernels.

    If TVM already has a code generator for Vulkan, that is used, and nothing is recorded.
    """
    generation = Generation(limits)
    with _LOCK:  # TVM's global functions belong to the process
        own = tvm_ffi.get_global_func(BUILD, allow_missing=True) is None
        if own:
            tvm_ffi.register_global_func(BUILD, generation.build)
        try:
            yield generation
        finally:
            if own:
                tvm_ffi.remove_global_func(BUILD)


def device_kernels(functions: tvm.IRModule, target: Target, limits: VulkanLimits) -> list[Kernel]:
    """The kernels of scheduled functions, without host code. Raises LoweringError if one exceeds the limits."""
    with target:
        pipeline, _, finalize = tirx.get_tir_pipeline(PIPELINE)
        _, devices = split_host_device_mods(pipeline(tirx.transform.BindTarget(target)(functions)))
        return [k for mod in devices.values() for k in _kernels(finalize()(mod), limits)]


def _kernels(mod: IRModule, limits: VulkanLimits) -> list[Kernel]:
    kernels = []
    functions = sorted((g.name_hint, f) for g, f in mod.functions_items())
    for name, function in counted("writing kernels as SPIR-V", functions):
        try:
            kernel = compile_kernel(name, function, limits.features)
        except UnsupportedError as error:
            raise LoweringError(f"Vulkan code cannot express {error}", where=f"kernel '{name}'") from None
        problem = limits.misfit(kernel)
        if problem is not None:
            raise LoweringError(problem, where=f"kernel '{name}'", hint="list another device after this one")
        kernels.append(kernel)
    return kernels
