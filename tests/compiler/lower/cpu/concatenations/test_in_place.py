"""Concatenations whose parts are written where the result lies."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from onnx import NodeProto, helper
from onnxruntime import InferenceSession
from pytest import MonkeyPatch
from tvm.tirx import FloorDiv, FloorMod, PrimFunc

from heterocc.compiler import compile_model
from heterocc.compiler.devices.host import host_cpu
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.backend import PartitionJob
from heterocc.compiler.lower.cpu.concatenations.in_place import joined_arguments
from heterocc.compiler.lower.cpu.lowering import CpuLowering
from heterocc.compiler.lower.pipeline import kernel_module
from heterocc.compiler.lower.relax.kernels import KernelModule, calls_run
from heterocc.compiler.lower.relax.views import joins_after_turns_apart
from heterocc.runtime import load
from heterocc.runtime.native import cpu_api
from tests.compiler.lower.cpu.generate.generated import AVX512, runnable, target_of
from tests.compiler.lower.lowered import CPU, assert_same, execute, job, model, run_ort
from tests.compiler.lower.lowered import load as load_code
from tests.symbolic_models import dynamic_model

node = helper.make_node
RNG = np.random.default_rng(17)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def kernels_of(
    nodes: Sequence[NodeProto], feeds: Mapping[str, np.ndarray], outputs: Sequence[str], weights: dict[str, np.ndarray]
) -> tuple[list[str], list[str]]:
    """The nodes of the kernels that run, each with that of its last; the results are as ONNX Runtime's."""
    made = model(nodes, feeds, outputs, weights)
    work = job(made)
    lowered = CpuLowering().lower(work)
    assert_same(execute(work, lowered, feeds), run_ort(made, feeds))
    every = [n for k in lowered.kernels for n in k.nodes]
    assert sorted(every) == sorted(n.name for n in made.graph.nodes)
    return [k.nodes[0] for k in lowered.kernels], [k.nodes[-1] for k in lowered.kernels]


def test_parts_of_nested_concatenations_are_written_in_place() -> None:
    weights = {f"w{n}": floats(5, 3 if n == 0 else 5 * n, 1, 1) for n in range(4)}
    nodes = [
        node("Conv", ["x", "w0"], ["a"], name="a"),
        node("Conv", ["a", "w1"], ["b"], name="b"),
        node("Concat", ["a", "b"], ["ab"], axis=1, name="ab"),
        node("Conv", ["ab", "w2"], ["c"], name="c"),
        node("Concat", ["ab", "c"], ["abc"], axis=1, name="abc"),
        node("Conv", ["abc", "w3"], ["y"], name="y"),
        # A part that is read after all of the whole has been.
        node("MaxPool", ["y"], ["p"], kernel_shape=[3, 3], pads=[1] * 4, name="p"),
        node("Conv", ["p", "w1"], ["q"], name="q"),
        node("Add", ["q", "b"], ["z"], name="z"),
    ]
    first, last = kernels_of(nodes, {"x": floats(1, 3, 7, 9)}, ["y", "z"], weights)
    assert first == ["a", "b", "c", "y", "p", "q"] and last[1:3] == ["ab", "abc"]


@pytest.mark.parametrize(
    ("parts", "axis", "batch", "outputs"),
    [
        (["a", "x"], 1, 1, ["y"]),
        (["a", "a"], 1, 1, ["y"]),
        (["a", "b"], 1, 2, ["y"]),
        (["a", "b"], 2, 1, ["y"]),
        (["a", "b"], 1, 1, ["y", "c"]),
        (["a", "b"], 1, 1, ["y", "a"]),
    ],
    ids=["an input", "one twice", "a batch", "rows", "an output", "an output as a part"],
)
def test_parts_that_lie_elsewhere_are_copied(parts: list[str], axis: int, batch: int, outputs: list[str]) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="a"),
        node("Conv", ["x", "v"], ["b"], name="b"),
        node("Concat", parts, ["c"], axis=axis, name="c"),
        node("MaxPool", ["c"], ["y"], kernel_shape=[2, 2], name="y"),
    ]
    used = [n for n in nodes if n.name in {*parts, "c", "y"}]
    weights = {n: floats(4, 4, 1, 1) for n, name in (("w", "a"), ("v", "b")) if name in parts}
    first, _ = kernels_of(used, {"x": floats(batch, 4, 6, 5)}, outputs, weights)
    assert "c" in first


def _kernel(nodes: Sequence[NodeProto], feeds: Mapping[str, np.ndarray]) -> tuple[KernelModule, str]:
    module = kernel_module(job(model(nodes, feeds, ["y"])), target_of(runnable()[0]))
    (name,) = (g.name_hint for g, _ in module.mod.functions_items() if g.name_hint != "main")
    return module, name


@pytest.mark.parametrize(
    ("nodes", "joined"),
    [
        ([node("Concat", ["x", "z", "x2"], ["y"], axis=1)], True),
        ([node("Concat", ["x", "z", "x2"], ["c"], axis=1), node("Relu", ["c"], ["y"])], False),
        ([node("Concat", ["x", "z", "x2"], ["y"], axis=3)], False),
        ([node("Where", ["m", "x", "x2"], ["y"])], False),
    ],
    ids=["alone", "with an activation", "along columns", "a choice"],
)
def test_kernels_that_only_join_are_recognised(nodes: Sequence[NodeProto], joined: bool) -> None:
    feeds = {
        "x": floats(1, 3, 4, 5),
        "z": floats(1, 3, 4, 5),
        "x2": floats(1, 3, 4, 5),
        "m": np.ones((1, 3, 4, 5), bool),
    }
    used = {n: feeds[n] for n in feeds if n in nodes[0].input}
    module, name = _kernel(nodes, used)
    order = joined_arguments(module.mod[name])
    assert len(order) == (3 if joined else 0) and len(set(order)) == len(order)


@pytest.mark.skipif("avx512bf16" not in host_cpu().features, reason="this CPU lacks AVX512-BF16")
def test_parts_are_written_in_place_where_products_are_rounded() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="a"),
        node("Conv", ["x", "v"], ["b"], name="b"),
        node("Concat", ["a", "b"], ["c"], axis=1, name="c"),
        node("MaxPool", ["c"], ["y"], kernel_shape=[2, 2], name="y"),
    ]
    made = model(nodes, {"x": floats(1, 8, 6, 5)}, ["y"], {n: floats(4, 8, 1, 1) for n in "wv"})
    rounded = dataclasses.replace(CPU, properties={"precision": "bf16"})
    lowered = CpuLowering().lower(dataclasses.replace(job(made), device=rounded))
    assert [k.nodes[0] for k in lowered.kernels] == ["a", "b", "y"]


def test_a_part_that_another_kernel_reads_in_another_shape_lies_in_the_whole() -> None:
    weights = {"w": floats(4, 3, 1, 1), "v": floats(5, 3, 1, 1), "u": floats(2, 9, 1, 1), "t": np.array([20, 9])}
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="a"),
        node("Conv", ["x", "v"], ["b"], name="b"),
        node("Concat", ["a", "b"], ["c"], axis=1, name="c"),
        node("Conv", ["c", "u"], ["y"], name="y"),
        node("Reshape", ["b", "t"], ["r"], name="r"),
        node("Softmax", ["r"], ["z"], axis=-1, name="z"),
    ]
    x = floats(1, 3, 4, 9)
    made = model(nodes, {"x": x}, ["y", "z"], weights)
    work = job(made)
    lowered = CpuLowering().lower(work)
    assert_same(execute(work, lowered, {"x": x}), run_ort(made, {"x": x}))
    assert "c" in lowered.kernels[1].nodes


def sized(nodes: Sequence[NodeProto], shape: Sequence[int | str], weights: Mapping[str, np.ndarray]) -> list[str]:
    """The first node of each kernel that runs, of a model of float32 with one input of any size and one output."""
    made = dynamic_model([*nodes], {"x": ("float32", tuple(shape))}, [nodes[-1].output[0]], dict(weights))
    imported = import_model(made, keep_dims=True)
    graph = imported.graph
    names = tuple(n.name for n in graph.nodes)
    lowered = CpuLowering().lower(PartitionJob("p0", imported, CPU, names, graph.inputs, graph.outputs))
    return [kernel.nodes[0] for kernel in lowered.kernels]


NESTED = [
    node("Conv", ["x", "w0"], ["a"], name="a"),
    node("Conv", ["a", "w1"], ["b"], name="b"),
    node("Concat", ["a", "b"], ["ab"], axis=1, name="ab"),
    node("Conv", ["ab", "w2"], ["c"], name="c"),
    node("Concat", ["ab", "c"], ["abc"], axis=1, name="abc"),
    node("Conv", ["abc", "w3"], ["y"], name="y"),
]


def test_parts_of_concatenations_of_any_size_are_written_in_place(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    weights = {f"w{n}": floats(5, 3 if n == 0 else 5 * n, 1, 1) for n in range(4)}
    assert sized(NESTED, (1, 3, "m", "k"), weights) == ["a", "b", "c", "y"]
    # Parts of several items do not lie in one piece.
    assert "ab" in sized(NESTED, ("n", 3, "m", "k"), weights)
    made = dynamic_model([*NESTED], {"x": ("float32", (1, 3, "m", "k"))}, ["y"], weights)
    compile_model(made, tmp_path / "m.hcb", devices="CPU")
    needs_machine: list[bool] = []
    original = cpu_api.straight

    def recorded(executable: Any, name: str, weights: Any, machine: Any) -> Any:
        found = original(executable, name, weights, machine)
        needs_machine.append(found[0] is machine)
        return found

    monkeypatch.setattr(cpu_api, "straight", recorded)
    with load(tmp_path / "m.hcb", threads=1) as session:
        for rows, columns in ((1, 1), (7, 9), (2, 40), (61, 3)):
            x = floats(1, 3, rows, columns)
            w0, w1, w2, w3 = (weights[f"w{n}"][:, :, 0, 0].astype(np.float64) for n in range(4))
            a = np.einsum("oc,nchw->nohw", w0, x)
            ab = np.concatenate([a, np.einsum("oc,nchw->nohw", w1, a)], 1)
            abc = np.concatenate([ab, np.einsum("oc,nchw->nohw", w2, ab)], 1)
            wanted = np.einsum("oc,nchw->nohw", w3, abc)
            np.testing.assert_allclose(session.run({"x": x})["y"], wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    assert needs_machine and not any(needs_machine)


def test_a_part_that_is_written_by_masks_begins_where_the_parts_before_it_end(tmp_path: Path) -> None:
    """The part that is computed first lies behind the other, and what reads it reads it there."""
    nodes = [
        node("Conv", ["x", "w0"], ["c"], pads=[1] * 4),
        node("Softmax", ["c"], ["first"], axis=3),
        node("Conv", ["first", "w1"], ["second"], pads=[1] * 4),
        node("Concat", ["second", "c", "first"], ["both"], axis=1),
        node("Conv", ["both", "w2"], ["y"]),
    ]
    weights = {"w0": floats(16, 3, 3, 3), "w1": floats(32, 16, 3, 3), "w2": floats(4, 64, 1, 1)}
    made = dynamic_model(nodes, {"x": ("float32", (1, 3, "m", "k"))}, ["y"], weights)
    compile_model(made, tmp_path / "m.hcb", devices="CPU", check=False, measure=False, cpu_variant=False)
    reference = InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    with load(tmp_path / "m.hcb", threads=1) as session:
        for rows, columns in ((9, 13), (40, 33)):
            x = floats(1, 3, rows, columns)
            (wanted,) = reference.run(None, {"x": x})
            np.testing.assert_allclose(session.run({"x": x})["y"], wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def calls_of(module: KernelModule) -> list[PrimFunc]:
    """The kernels in the order in which they are called."""
    return [module.mod[symbol] for symbol, _ in calls_run(module)]


TURNED = node("Transpose", ["x"], ["t"], perm=[0, 2, 1], name="t")


@pytest.mark.parametrize(
    ("nodes", "outputs", "run"),
    [
        ([TURNED], ["r"], ["t"]),
        ([node("Relu", ["x"], ["t"], name="t")], ["r"], ["t"]),
        ([node("Softmax", ["x"], ["t"], axis=1, name="t")], ["r"], ["t"]),
        ([TURNED], ["t", "r"], ["t", "r"]),
        ([], ["r"], ["r"]),
    ],
    ids=["turned", "by element", "rows", "an output itself", "an input"],
)
def test_outputs_of_any_size_that_reshape_a_value_are_where_it_is_written_else_copied_in_order(
    nodes: Sequence[NodeProto], outputs: Sequence[str], run: Sequence[str]
) -> None:
    """A kernel that reshapes would divide the place of each element by sizes of the run: forty times as long."""
    shaped = [*nodes, node("Reshape", ["t" if nodes else "x", "shape"], ["r"], name="r")]
    made = dynamic_model(shaped, {"x": ("float32", ("b", 5, "n"))}, [*outputs], {"shape": np.array([0, -1])})
    imported = import_model(made, keep_dims=True)
    graph = imported.graph
    work = PartitionJob("p0", imported, CPU, tuple(n.name for n in graph.nodes), graph.inputs, graph.outputs)
    lowered = CpuLowering().lower(work)
    assert [kernel.nodes[0] for kernel in lowered.kernels] == run
    module = kernel_module(work, target_of(AVX512), apart=lambda mod: joins_after_turns_apart(mod, outputs=True))
    divided: list[object] = []
    tvm_ffi.structural_walk(calls_of(module)[-1].body, [((FloorDiv, FloorMod), divided.append)], order="pre")
    assert not divided
    machine = load_code(lowered.code)
    for rows, columns in ((1, 1), (3, 7), (2, 40)):
        feeds = {"x": floats(rows, 5, columns)}
        results = machine["main"](tvm.runtime.tensor(feeds["x"]), [tvm.runtime.tensor(a) for a in lowered.params])
        found = {name: result.numpy() for name, result in zip(outputs, results, strict=True)}
        assert_same(found, run_ort(imported, feeds))
