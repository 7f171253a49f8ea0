"""Lowers small graphs and TIR functions for the first Vulkan device, runs them there, and validates their SPIR-V."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from opencl_run import Graph, imported, whole
from tvm import s_tir, te

from heterocc.compiler.devices.device import NUMERIC_DTYPES, Device
from heterocc.compiler.devices.present import inventory
from heterocc.compiler.imported import ImportedModel
from heterocc.compiler.lower.base import LoweredPartition
from heterocc.compiler.lower.vulkan.codegen import generating
from heterocc.compiler.lower.vulkan.kernel import Kernel
from heterocc.compiler.lower.vulkan.lowering import VulkanLowering
from heterocc.compiler.lower.vulkan.target import limits_of, vulkan_target
from heterocc.runtime.native.vulkan_api import load_vulkan

VALIDATOR = shutil.which("spirv-val")

ROOMY = Device(
    "VULKAN",
    "vulkan",
    target={
        "kind": "vulkan",
        "max_num_threads": 256,
        "max_block_size_x": 1024,
        "max_shared_memory_per_block": 32768,
        "max_per_stage_descriptor_storage_buffer": 32,
        "supported_subgroup_operations": 0xFF,
    },
    present=False,
    dtypes=NUMERIC_DTYPES,
)
"""A device with every feature, for code that is only validated."""


@functools.cache
def first_device() -> Device:
    """The first Vulkan device here."""
    return next(d for d in inventory().devices if d.backend == "vulkan")


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


def lower(graph: Graph, folder: Path, device: Device | None = None) -> tuple[ImportedModel, LoweredPartition]:
    """Import and lower the whole graph."""
    model = imported(graph, folder)
    return model, VulkanLowering().lower(whole(model, device or first_device()))


def run(model: ImportedModel, lowered: LoweredPartition, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a lowered model on the first Vulkan device, in model order."""
    load_vulkan()
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(lowered.code)
        file.flush()
        library = tvm_ffi.get_global_func("ffi.Module.load_from_file.so")(file.name, "so")
    machine = library.get_function("vm_load_executable")()
    machine.get_function("vm_initialization")(7, 0, 2, 1, 0, 2)
    graph = model.graph
    fed = [upload(inputs[model.sources[name]]) for name in graph.inputs]
    values = [graph.values[name] for name in graph.outputs]
    results = [upload(np.full(value.shape or (), 1, value.dtype)) for value in values]
    machine.get_function("main")(*fed, *results, tvm_ffi.Array([upload(a) for a in lowered.params]))
    return [download(r) for r in results]


def check(graph: Graph, folder: Path, tolerance: float = 1e-5, device: Device | None = None) -> LoweredPartition:
    """Lower, run and compare; the error names the outputs that are wrong. Absolute and relative tolerance are equal."""
    expected = graph.reference()
    model, lowered = lower(graph, folder, device)
    wrong = []
    for name, got, want in zip(model.graph.outputs, run(model, lowered, graph.inputs), expected, strict=True):
        same = got.dtype == want.dtype and got.shape == want.shape
        if not same or not np.allclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=True):
            wrong.append(f"{model.sources[name]}: {got.dtype}{got.shape} against {want.dtype}{want.shape}")
    assert wrong == []
    return lowered


def kernels_of(function: Any, device: Device = ROOMY) -> list[Kernel]:
    """The kernels of a TIR function whose loops are bound."""
    return _built(function, device)[1]


def elementwise(compute: Callable[..., Any], *arrays: np.ndarray, device: Device | None = None) -> np.ndarray:
    """Run `compute(a[i], b[i], …)` for every element of flat arrays on the first Vulkan device."""
    sources = [te.placeholder(a.shape, a.dtype.name, f"a{i}") for i, a in enumerate(arrays)]
    result = te.compute(arrays[0].shape, lambda i: compute(*(s[i] for s in sources)), "result")
    schedule = s_tir.Schedule(te.create_prim_func([*sources, result]))
    groups, items = schedule.split(schedule.get_loops(schedule.get_sblock("result"))[0], [None, 64])
    schedule.bind(groups, "blockIdx.x")
    schedule.bind(items, "threadIdx.x")
    dtype = result.dtype
    return call(schedule.mod["main"], arrays, np.zeros(arrays[0].shape, str(getattr(dtype, "dtype", dtype))), device)


def call(function: Any, inputs: Sequence[Any], output: np.ndarray, device: Device | None = None) -> np.ndarray:
    """Run a TIR function whose loops are bound on arrays and numbers; its last parameter is its output."""
    load_vulkan()
    module, _ = _built(function, device or first_device())
    result = upload(output)
    module["main"](*(upload(a) if isinstance(a, np.ndarray) else a for a in inputs), result)
    return download(result)


def upload(array: np.ndarray) -> Any:
    """The array on the first Vulkan device."""
    device = tvm_ffi.device("vulkan", 0)
    allocate = tvm_ffi.get_global_func("runtime.TVMTensorAllocWithScope")
    tensor = allocate(tvm_ffi.Shape(array.shape), tvm_ffi.dtype(str(array.dtype)), device, None)
    tvm_ffi.get_global_func("runtime.TVMTensorCopyFromTo")(tvm_ffi.from_dlpack(np.array(array)), tensor)
    return tensor


def download(tensor: Any) -> np.ndarray:
    """A device's tensor as an array."""
    array = np.empty(tuple(tensor.shape), str(tensor.dtype))
    tvm_ffi.get_global_func("runtime.TVMTensorCopyFromTo")(tensor, tvm_ffi.from_dlpack(array))
    return array


def _built(function: Any, device: Device) -> tuple[Any, list[Kernel]]:
    with generating(limits_of(device)) as generation:
        module = tvm.compile(tvm.IRModule({"main": function}), vulkan_target(device))
    return module, generation.kernels
