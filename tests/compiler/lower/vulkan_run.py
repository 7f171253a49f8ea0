"""Lowers small graphs and TIR functions for the first Vulkan device, runs them there, and validates their SPIR-V."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, te

from heterocc.artifacts.dtypes import NUMERIC_DTYPES
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.lower.vulkan.codegen import generating
from heterocc.compiler.lower.vulkan.kernel import Kernel
from heterocc.compiler.lower.vulkan.lowering import VulkanLowering
from heterocc.compiler.lower.vulkan.target import limits_of, vulkan_target
from heterocc.runtime.native.vulkan_api import load_vulkan
from tests.compiler.lower.gpu_run import Runner
from tests.device_run import download

VALIDATOR = shutil.which("spirv-val")

ROOMY = TargetDevice(
    "VULKAN",
    "vulkan",
    target={
        "kind": "vulkan",
        "max_num_threads": 256,
        "max_block_size_x": 1024,
        "max_shared_memory_per_block": 32768,
        "max_per_stage_descriptor_storage_buffer": 32,
        "supported_subgroup_operations": 0xFF,
        "supports_nan16": True,
        "supports_nan32": True,
        "supports_nan64": True,
    },
    present=False,
    dtypes=NUMERIC_DTYPES,
)
"""A device with every feature, for code that is only validated."""

RUNNER = Runner("vulkan", VulkanLowering(), load_vulkan)
first_device, lower, run, check = RUNNER.first_device, RUNNER.lower, RUNNER.run, RUNNER.check


def assert_valid(kernels: Sequence[Kernel]) -> None:
    """The validator of SPIR-V finds nothing in any kernel."""
    assert VALIDATOR is not None
    assert kernels
    with tempfile.TemporaryDirectory() as folder:
        for kernel in kernels:
            path = Path(folder) / "kernel.spv"
            path.write_bytes(kernel.code)
            done = subprocess.run(
                [VALIDATOR, "--target-env", "vulkan1.1", str(path)], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{kernel.name}: {done.stdout}{done.stderr}"


def kernels_of(function: Any, device: TargetDevice = ROOMY) -> list[Kernel]:
    """The kernels of a TIR function whose loops are bound."""
    return _built(function, device)[1]


def elementwise(compute: Callable[..., Any], *arrays: np.ndarray, device: TargetDevice | None = None) -> np.ndarray:
    """Run `compute(a[i], b[i], …)` for every element of flat arrays on the first Vulkan device."""
    sources = [te.placeholder(a.shape, a.dtype.name, f"a{i}") for i, a in enumerate(arrays)]
    result = te.compute(arrays[0].shape, lambda i: compute(*(s[i] for s in sources)), "result")
    schedule = s_tir.Schedule(te.create_prim_func([*sources, result]))
    groups, items = schedule.split(schedule.get_loops(schedule.get_sblock("result"))[0], [None, 64])
    schedule.bind(groups, "blockIdx.x")
    schedule.bind(items, "threadIdx.x")
    dtype = result.dtype
    return call(schedule.mod["main"], arrays, np.zeros(arrays[0].shape, str(getattr(dtype, "dtype", dtype))), device)


def call(function: Any, inputs: Sequence[Any], output: np.ndarray, device: TargetDevice | None = None) -> np.ndarray:
    """Run a TIR function whose loops are bound on arrays and numbers; its last parameter is its output."""
    load_vulkan()
    module, _ = _built(function, device or first_device())
    result = RUNNER.upload(output)
    module["main"](*(RUNNER.upload(a) if isinstance(a, np.ndarray) else a for a in inputs), result)
    return download(result)


def _built(function: Any, device: TargetDevice) -> tuple[Any, list[Kernel]]:
    with generating(limits_of(device)) as generation:
        module = tvm.compile(tvm.IRModule({"main": function}), vulkan_target(device))
    return module, generation.kernels
