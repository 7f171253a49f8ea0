"""One executable for all sizes of the dynamic dimensions, compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper
from tvm import relax

from heterocc.artifacts.errors import FeedError, LoweringError
from heterocc.compiler import compile_model
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.backend import LoweredPartition, PartitionJob
from heterocc.compiler.lower.cpu.lowering import CpuLowering
from heterocc.compiler.lower.cpu.target import cpu_target
from heterocc.compiler.lower.pipeline import import_partition
from heterocc.compiler.lower.relax.separable import is_separable
from heterocc.compiler.lower.variables import Variables
from heterocc.runtime import load
from tests.compiler.lower.lowered import CPU
from tests.reference import reference_session
from tests.symbolic_models import convolutions, dynamic_model, perceptron, transformer

Feeds = Mapping[str, np.ndarray]


def lower(proto: onnx.ModelProto | ImportedModel) -> LoweredPartition:
    model = proto if isinstance(proto, ImportedModel) else import_model(proto, keep_dims=True)
    graph = model.graph
    job = PartitionJob("p0", model, CPU, tuple(n.name for n in graph.nodes), graph.inputs, graph.outputs)
    return CpuLowering().lower(job)


def compiled(proto: onnx.ModelProto, folder: object) -> Callable[[Feeds], list[np.ndarray]]:
    """A function that runs one executable of the model on inputs of any sizes."""
    model = import_model(proto, keep_dims=True)
    graph = model.graph
    lowered = lower(model)
    path = f"{folder}/code.so"
    with open(path, "wb") as file:  # noqa: PTH123
        file.write(lowered.code)
    entry = relax.VirtualMachine(tvm.runtime.load_module(path), tvm.cpu())["main"]
    params = tuple(tvm.runtime.tensor(p) for p in lowered.params)

    def run(feeds: Feeds) -> list[np.ndarray]:
        given = [feeds[model.sources[name]] for name in graph.inputs]
        outputs = entry(*map(tvm.runtime.tensor, given), params)
        return [o.numpy() for o in outputs]

    return run


def compare(proto: onnx.ModelProto, folder: object, feeds: list[Feeds]) -> None:
    run = compiled(proto, folder)
    reference = reference_session(proto)
    for given in feeds:
        for got, wanted in zip(run(given), reference.run(None, dict(given)), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape, dtype=np.float32)


def test_a_perceptron_runs_any_batch(tmp_path: object) -> None:
    compare(perceptron(), tmp_path, [{"x": normal(n, 24)} for n in (1, 5, 17)])


def test_a_convolutional_network_runs_any_batch(tmp_path: object) -> None:
    compare(convolutions(), tmp_path, [{"x": normal(n, 3, 16, 16)} for n in (1, 3, 8)])


def test_a_transformer_runs_any_batch_and_sequence(tmp_path: object) -> None:
    rng = np.random.default_rng(1)
    sizes = [(1, 1), (2, 9), (3, 40)]
    masks = [(rng.random(size) < 0.8).astype(np.int64) for size in sizes]
    feeds = [{"ids": rng.integers(0, 50, size), "mask": m} for size, m in zip(sizes, masks, strict=True)]
    compare(transformer(), tmp_path, feeds)


def test_kernels_of_a_batch_are_generated_without_other_code_for_some_sizes() -> None:
    lowered = lower(convolutions())
    text = dict(lowered.dumps)["scheduled.py"]
    assert "T.sblock" not in text and "assumed" not in text
    assert any("panels" in name for name in lowered.param_names)  # as the kernels of fixed shapes want them


def test_depthwise_convolutions_of_bytes_are_generated_for_any_batch(tmp_path: object) -> None:
    rng = np.random.default_rng(2)
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
    constants = {name: np.array(0.05, np.float32) for name in ("xs", "ws", "ys")}
    constants |= {"xz": np.array(120, np.uint8), "wz": np.array(0, np.int8), "yz": np.array(128, np.uint8)}
    constants["w"] = rng.integers(-90, 90, (24, 1, 3, 3)).astype(np.int8)
    nodes = [helper.make_node("QLinearConv", names, ["y"], group=24, pads=[1] * 4)]
    model = dynamic_model(nodes, {"x": ("uint8", ("n", 24, 7, 9))}, ["y"], constants)
    text = dict(lower(model).dumps)["scheduled.py"]
    assert "T.sblock" not in text
    feeds = [{"x": rng.integers(0, 255, (n, 24, 7, 9)).astype(np.uint8)} for n in (1, 3)]
    compare(model, tmp_path, feeds)


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("ReduceMean", ["x"], ["y"], axes=[0]),
        helper.make_node("Softmax", ["x"], ["y"], axis=0),
        helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0]),
        helper.make_node("Concat", ["x", "x"], ["y"], axis=0),
        helper.make_node("Slice", ["x", "one", "end", "zeros"], ["y"]),
    ],
    ids=lambda node: node.op_type,
)
def test_items_that_depend_on_each_other_are_not_separable(node: onnx.NodeProto) -> None:
    assert not separable([node])


@pytest.mark.parametrize(
    "nodes",
    [
        [helper.make_node("Clip", ["x", "number"], ["y"])],
        [helper.make_node("Slice", ["x", "starts", "ends", "axes"], ["y"])],
        [helper.make_node("Gather", ["x", "minus"], ["y"], axis=1)],
        [helper.make_node("Unsqueeze", ["x", "two"], ["u"]), helper.make_node("PRelu", ["u", "slopes"], ["y"])],
    ],
    ids=lambda nodes: nodes[-1].op_type,
)
def test_kernels_that_index_items_alone_are_separable(nodes: list[onnx.NodeProto]) -> None:
    assert separable(nodes)


def separable(nodes: list[onnx.NodeProto]) -> bool:
    """Whether the rows of an input of three columns are computed apart from each other."""
    integers = {
        "one": [1],
        "end": [-1],
        "zeros": [0],
        "starts": [0, 1],
        "ends": [2**63 - 1, 3],
        "axes": [0, 1],
        "minus": -1,
    }
    constants = {n: np.array(v, np.int64) for n, v in (integers | {"two": [2]}).items()}
    constants |= {"number": np.array(0.5, np.float32), "slopes": normal(3, 1)}
    model = import_model(dynamic_model(nodes, {"x": ("float32", ("n", 3))}, ["y"], constants), keep_dims=True)
    job = PartitionJob(
        "p0", model, CPU, tuple(n.name for n in model.graph.nodes), model.graph.inputs, model.graph.outputs
    )
    return is_separable(import_partition(job, cpu_target(CPU)).mod, Variables(model).variable("n").name)


def test_an_input_of_fixed_size_beside_a_batch_is_not_separable() -> None:
    inputs = {"x": ("float32", ("n", 4)), "w": ("float32", (4, 3))}
    model = import_model(
        dynamic_model([helper.make_node("MatMul", ["x", "w"], ["y"])], inputs, ["y"], {}), keep_dims=True
    )
    job = PartitionJob("p0", model, CPU, (model.graph.nodes[0].name,), model.graph.inputs, model.graph.outputs)
    mod, size = import_partition(job, cpu_target(CPU)).mod, Variables(model).variable("n")
    assert not is_separable(mod, size.name, inputs=2) and is_separable(mod, size.name, inputs=1)


def test_a_size_that_is_computed_with_is_not_separable(tmp_path: object) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Cast", ["n"], ["f"], to=1),
        helper.make_node("Div", ["x", "f"], ["y"]),
    ]
    model = dynamic_model(nodes, {"x": ("float32", ("n", 3))}, ["y"], {"zero": np.array(0, np.int64)})
    compare(model, tmp_path, [{"x": normal(n, 3)} for n in (1, 2, 4)])


def test_values_computed_from_sizes_are_outputs(tmp_path: object) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "one"], ["n"]),
        helper.make_node("Range", ["zero", "n", "one"], ["r"]),
        helper.make_node("ConstantOfShape", ["s"], ["z"]),
        helper.make_node("Concat", ["x", "z"], ["c"], axis=1),
        helper.make_node("Slice", ["x", "first", "end", "first"], ["p"]),
    ]
    constants = {name: np.array(v, np.int64) for name, v in {"zero": 0, "one": 1, "first": [1], "end": [-1]}.items()}
    inputs = {"x": ("float32", ("a", "b"))}
    model = dynamic_model(nodes, inputs, ["s", "r", "c", "p"], constants)
    compare(model, tmp_path, [{"x": normal(a, b)} for a, b in ((1, 2), (3, 3), (4, 9))])


def test_a_size_that_depends_on_data_follows_from_a_named_one(tmp_path: object) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Cast", ["i"], ["y"], to=1)]
    model = dynamic_model(nodes, {"x": ("float32", ("a",))}, ["y"], {})
    compare(model, tmp_path, [{"x": np.maximum(normal(n), 0)} for n in (1, 5, 8)])


def test_a_shape_that_depends_on_data_is_refused_with_its_node(tmp_path: object) -> None:
    mel = helper.make_node("MelWeightMatrix", ["bins", "length", "rate", "low", "high"], ["m"])
    nodes = [mel, helper.make_node("Neg", ["m"], ["y"])]
    inputs = dict.fromkeys(("bins", "length", "rate"), ("int64", ()))
    model = dynamic_model(nodes, {**inputs, "low": ("float32", ()), "high": ("float32", ())}, ["y"], {})
    with pytest.raises(LoweringError, match="no converter for MelWeightMatrix"):
        compiled(model, tmp_path)


@pytest.mark.parametrize(
    ("node", "fits", "wrong"),
    [
        (helper.make_node("Reshape", ["x", "one_row"], ["y"]), (1, 3), (2, 3)),
        (helper.make_node("MatMul", ["x", "w"], ["y"]), (5, 4), (5, 3)),
    ],
    ids=lambda value: value.op_type if isinstance(value, onnx.NodeProto) else None,
)
def test_sizes_that_only_some_inputs_make_equal_are_checked_before_a_run(
    node: onnx.NodeProto, fits: tuple[int, int], wrong: tuple[int, int], tmp_path: Path
) -> None:
    constants = {"one_row": np.array([1, 3], np.int64), "w": normal(4, 2)}
    model = dynamic_model([node], {"x": ("float32", ("n", "k"))}, ["y"], constants)
    compile_model(model, tmp_path / "m.hcb", devices="CPU")
    x = normal(*fits)
    with load(tmp_path / "m.hcb") as session:
        expected = x if node.op_type == "Reshape" else x @ constants["w"]
        np.testing.assert_allclose(session.run({"x": x})["y"], expected, rtol=1e-5, atol=1e-6)
        with pytest.raises(FeedError, match="x"):
            session.run({"x": normal(*wrong)})


def test_sizes_that_are_equal_for_no_input_are_refused() -> None:
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["double"], axis=0),
        helper.make_node("Concat", ["x", "double"], ["y"], axis=1),
    ]
    with pytest.raises(LoweringError, match="shape of output 'y'"):
        lower(dynamic_model(nodes, {"x": ("float32", ("n", 3))}, ["y"], {}))


def test_a_batch_has_a_shape_that_is_computed_from_its_size(tmp_path: object) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], start=0, end=1),
        helper.make_node("Concat", ["n", "rest"], ["wide"], axis=0),
        helper.make_node("Expand", ["token", "wide"], ["e"]),
        helper.make_node("Concat", ["e", "x"], ["y"], axis=1),
    ]
    constants = {"token": normal(1, 1, 4), "rest": np.array([1, 4], np.int64)}
    model = dynamic_model(nodes, {"x": ("float32", ("n", 3, 4))}, ["y"], constants)
    compare(model, tmp_path, [{"x": normal(n, 3, 4)} for n in (1, 2, 5)])
