"""Every operator of the cases on halves, as between two kernels, on Vulkan: right as ONNX Runtime has it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler.checking.compare import Tolerance, compare
from heterocc.compiler.checking.reference import Reference
from heterocc.compiler.devices.names import resolve_devices
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.backend import PartitionJob
from heterocc.compiler.lower.pipeline import kernel_module
from heterocc.compiler.lower.vulkan.lowering import VulkanLowering
from heterocc.compiler.lower.vulkan.target import vulkan_target
from heterocc.runtime.native.vulkan_api import load_vulkan, vulkan_unavailable_reason
from tests import device_run
from tests.device_run import download, upload
from tests.differential.operator_cases import CASES
from tests.differential.operators import Case, save_model

REASON = vulkan_unavailable_reason()
pytestmark = [
    pytest.mark.vulkan,
    pytest.mark.slow,
    pytest.mark.skipif(REASON is not None, reason=f"no Vulkan device: {REASON}"),
]
ROUNDINGS = Tolerance(rtol=3e-3, atol=1e-3, scale=3e-3)
"""A few roundings of 2^-11: of weights, and of the result."""


@pytest.mark.parametrize("theme", CASES)
def test_operators_on_halves_are_right(theme: str, tmp_path: Path) -> None:
    (device,), _ = resolve_devices("VULKAN", properties=["VULKAN.precision=f16"])
    wrong: list[str] = []
    for case in CASES[theme]:
        wrong += failures(case, tmp_path, device)
    assert wrong == []


def failures(case: Case, folder: Path, device: Any) -> list[str]:
    """The faults of a case that lowers in float32; it must lower in half precision too."""
    try:
        path, feed = save_model([case], folder)
        model = import_model(path)
    except HeteroccError:
        return []
    graph = model.graph
    job = PartitionJob("p0", model, device, tuple(n.name for n in graph.nodes), graph.inputs, graph.outputs, trial=True)
    single = dataclasses.replace(job, device=dataclasses.replace(device, properties={}))
    try:
        VulkanLowering().lower(single)
    except HeteroccError:
        return []
    given = {n: rounded(feed[model.sources.get(n, n)]) for n in graph.inputs}
    expected = Reference(model, graph.outputs).run(given)
    found = []
    for name, got in ran(job, given).items():
        want = expected[name]
        if got.dtype == np.float16 and want.dtype == np.float32:
            got = np.where(np.isinf(got) & (np.abs(want) > 65504), want, got.astype(np.float32))
        steps = 1 if case.op.startswith("QLinear") else 0  # by which ONNX Runtime differs from float32 as well
        reason = compare(name, got, want, dataclasses.replace(ROUNDINGS, steps=steps)).reason
        found += [f"{case.text}: {reason}"] if reason is not None else []
    return found


def rounded(array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return array.astype(np.float16).astype(np.float32) if array.dtype == np.float32 else array


def ran(job: PartitionJob, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of the whole model on the device, inputs and outputs of the types that a trial gives them."""
    load_vulkan()
    module = kernel_module(job, vulkan_target(job.device))
    main = module.mod["main"]
    inputs = [str(p.ty.dtype.dtype) for p in main.params if p.name not in module.arrays]
    outputs = [str(ty.dtype.dtype) for ty in main.ret_ty.fields]
    lowered = VulkanLowering().lower(job)
    on = tvm_ffi.device("vulkan", 0)
    machine = device_run.machine(lowered.code, on)
    graph = job.model.graph
    fed = [upload(given[n].astype(dtype), on) for n, dtype in zip(graph.inputs, inputs, strict=True)]
    shapes = [shape_of(job.model, n) for n in graph.outputs]
    written = [upload(np.ones(shape, dtype), on) for shape, dtype in zip(shapes, outputs, strict=True)]
    machine.get_function("main")(*fed, *written, tvm_ffi.Array([upload(a, on) for a in lowered.params]))
    return dict(zip(graph.outputs, (download(t) for t in written), strict=True))


def shape_of(model: ImportedModel, name: str) -> tuple[int, ...]:
    shape = model.graph.values[name].shape
    assert shape is not None
    return tuple(d or 0 for d in shape)
