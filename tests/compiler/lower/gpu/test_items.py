"""Kernels for one item of a batch, launched for all items."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx

from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.backend import PartitionJob
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.gpu.rules import RULE
from heterocc.compiler.lower.gpu.stages import GpuStages
from heterocc.compiler.lower.opencl.lowering import opencl_target
from heterocc.compiler.lower.stages import Stages
from heterocc.compiler.sizes.planned import with_planned_sizes
from tests.symbolic_models import convolutions, filtered

DEVICE = TargetDevice("GPU", "opencl")


def _stages(model: object) -> Stages:
    imported, _ = with_planned_sizes(import_model(model, keep_dims=True), {}, (DEVICE,))  # type: ignore[arg-type]
    graph = imported.graph
    job = PartitionJob("p0", imported, DEVICE, tuple(n.name for n in graph.nodes), graph.inputs, graph.outputs)
    limits = Limits(group=256, vectors=False, dtypes=DEVICE.dtypes, shared=32768)
    return GpuStages(opencl_target(DEVICE), limits, lambda _: b"").run(job)


def _axes(function: tirx.PrimFunc) -> list[str]:
    found: list[str] = []

    def visit(loop: tirx.For) -> None:
        if loop.thread_binding is not None:
            found.append(str(loop.thread_binding.thread_tag))

    tvm_ffi.structural_walk(function.body, [(tirx.For, visit)], order="post")
    return found


def _kernels(stages: Stages) -> list[tirx.PrimFunc]:
    return [f for _, f in stages.scheduled.mod.functions_items() if isinstance(f, tirx.PrimFunc)]


def test_each_launch_of_a_kernel_has_an_axis_for_items_and_tensors_between_them_a_part_for_each() -> None:
    kernels = _kernels(_stages(filtered()))
    rules = {str(f.attrs[RULE]) for f in kernels}
    assert "winograd" in rules and "plain" not in rules
    for function in kernels:
        axes = _axes(function)
        assert axes.count("blockIdx.z") == axes.count("blockIdx.x") >= 1
        for buffer in function.body.block.alloc_buffers:
            if buffer.scope() == "global":
                assert not isinstance(buffer.shape[0], tirx.IntImm)


def test_with_another_dynamic_dimension_kernels_compute_with_both_sizes() -> None:
    kernels = _kernels(_stages(convolutions("side")))
    assert {str(f.attrs[RULE]) for f in kernels} == {"tile of sizes", "plain"}
    scopes = [{b.scope() for b in f.body.block.alloc_buffers} for f in kernels]
    assert sum("local" in found for found in scopes) >= 4  # sums are in registers
