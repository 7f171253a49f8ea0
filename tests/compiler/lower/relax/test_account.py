"""Every kernel names the nodes that it computes and the values that it writes, whatever the model is made of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import NodeProto, helper
from tvm import relax

from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.backend import KernelInfo
from heterocc.compiler.lower.cpu.target import cpu_target
from heterocc.compiler.lower.pipeline import kernel_module
from tests import models
from tests.compiler.lower.lowered import CPU, job, model
from tests.symbolic_models import dynamic_model

RNG = np.random.default_rng(11)
WIDTH = 16


def weight(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def dynamically_quantised() -> ImportedModel:
    nodes: list[NodeProto] = []
    value = "x"
    for i in range(3):
        names = [f"{n}{i}" for n in ("q", "s", "z", "i", "f", "m", "y")]
        q, s, z, i32, f, m, y = names
        nodes += [
            helper.make_node("DynamicQuantizeLinear", [value], [q, s, z], name=f"quantise{i}"),
            helper.make_node("MatMulInteger", [q, f"w{i}", z], [i32], name=f"product{i}"),
            helper.make_node("Cast", [i32], [f], name=f"cast{i}", to=1),
            helper.make_node("Mul", [f, s], [m], name=f"scale{i}"),
            helper.make_node("Relu", [m], [y], name=f"relu{i}"),
        ]
        value = y
    weights = {f"w{i}": RNG.integers(-9, 9, (WIDTH, WIDTH)).astype(np.int8) for i in range(3)}
    return model(nodes, {"x": weight(4, WIDTH)}, [value, "z1"], weights)


def transformer_block() -> ImportedModel:
    node = helper.make_node
    nodes = [node("LayerNormalization", ["x", "gain", "bias"], ["n"], name="norm")]
    for name in "qkv":
        nodes += [
            node("MatMul", ["n", f"w{name}"], [f"{name}0"], name=f"{name}_project"),
            node("Reshape", [f"{name}0", "heads"], [f"{name}1"], name=f"{name}_split"),
            node("Transpose", [f"{name}1"], [name], name=f"{name}_swap", perm=[1, 0, 2] if name != "k" else [1, 2, 0]),
        ]
    nodes += [
        node("MatMul", ["q", "k"], ["scores"], name="scores"),
        node("Mul", ["scores", "factor"], ["scaled"], name="scale"),
        node("Where", ["mask", "scaled", "never"], ["masked"], name="mask_scores"),
        node("Softmax", ["masked"], ["shares"], name="softmax"),
        node("MatMul", ["shares", "v"], ["mixed"], name="mix"),
        node("Transpose", ["mixed"], ["joined"], name="join", perm=[1, 0, 2]),
        node("Reshape", ["joined", "flat"], ["rows"], name="flatten"),
        node("Add", ["rows", "x"], ["residual"], name="residual"),
        node("Split", ["residual"], ["left", "right"], name="halves", axis=1, num_outputs=2),
        node("Sigmoid", ["left"], ["gate"], name="gate"),
        node("Mul", ["gate", "right"], ["y"], name="gated"),
        node("TopK", ["y", "two"], ["best", "where"], name="best"),
    ]
    constants = {
        **{f"w{name}": weight(WIDTH, WIDTH) for name in "qkv"},
        "gain": weight(WIDTH),
        "bias": weight(WIDTH),
        "heads": np.array([8, 2, WIDTH // 2]),
        "flat": np.array([8, WIDTH]),
        "factor": np.array(0.35, np.float32),
        "never": np.array(-np.inf, np.float32),
        "two": np.array([2]),
    }
    inputs = {"x": weight(8, WIDTH), "mask": np.ones((1, 8, 8), bool)}
    return model(nodes, inputs, ["best", "where", "shares"], constants)


def recurrent() -> ImportedModel:
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["y", "h", "c"], name="lstm", hidden_size=4),
        helper.make_node("Squeeze", ["y", "one"], ["s"], name="squeeze"),
        helper.make_node("Relu", ["s"], ["t"], name="relu"),
    ]
    constants = {"w": weight(1, 16, 6), "r": weight(1, 16, 4), "one": np.array([1])}
    return model(nodes, {"x": weight(5, 2, 6)}, ["t", "c"], constants)


def image_of_any_size() -> ImportedModel:
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"], name="first", pads=[1] * 4),
        helper.make_node("MaxPool", ["a"], ["b"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["b", "w", "c"], ["d"], name="second", pads=[1] * 4),
        helper.make_node("Relu", ["d"], ["y"], name="relu"),
    ]
    constants = {"v": weight(8, 3, 3, 3), "w": weight(8, 8, 3, 3), "c": weight(8)}
    proto = dynamic_model(nodes, {"x": ("float32", ("n", 3, "height", "width"))}, ["y"], constants)
    return import_model(proto, keep_dims=True)


def two_inputs_of_any_number_of_rows() -> ImportedModel:
    """Fusion shares the functions of the two branches, which differ in the name of a size alone."""
    node = helper.make_node
    nodes: list[NodeProto] = []
    for side in "ab":
        nodes += [
            node("Gemm", [side, "w", "c"], [f"{side}1"], name=f"{side}_product"),
            node("LayerNormalization", [f"{side}1", "gain", "bias"], [f"{side}2"], name=f"{side}_norm"),
            node("Relu", [f"{side}2"], [f"{side}3"], name=f"{side}_relu"),
            node("MatMul", [f"{side}3", "v"], [f"{side}4"], name=f"{side}_second"),
        ]
    constants = {"w": weight(4, 8), "c": weight(8), "gain": weight(8), "bias": weight(8), "v": weight(8, 8)}
    inputs: dict[str, tuple[str, tuple[int | str, ...]]] = {"a": ("float32", ("n", 4)), "b": ("float32", ("m", 4))}
    return import_model(dynamic_model(nodes, inputs, ["a4", "b4"], constants), keep_dims=True)


def squeezenet() -> ImportedModel:
    try:
        return import_model(models.light("squeezenet"))
    except models.ModelUnavailableError as error:
        pytest.skip(str(error))


MODELS = [
    dynamically_quantised,
    transformer_block,
    recurrent,
    image_of_any_size,
    two_inputs_of_any_number_of_rows,
    squeezenet,
]


@pytest.mark.parametrize("make", MODELS)
def test_kernels_name_their_nodes_and_together_cover_the_partition(make: Callable[[], ImportedModel]) -> None:
    made = make()
    kernels = kernels_of(made)
    copies = [k for k in kernels if not k.nodes]
    assert [k.symbol for k in copies if not (k.symbol.startswith("copy_") and k.outputs)] == []
    covered = {n for k in kernels for n in k.nodes}
    views = {n.name for n in made.graph.nodes if n.op_type in ("Reshape", "Squeeze", "Flatten", "Identity")}
    assert {n.name for n in made.graph.nodes} - covered <= views


@pytest.mark.parametrize("make", MODELS)
def test_kernels_write_every_output_and_values_of_their_own_nodes(make: Callable[[], ImportedModel]) -> None:
    made = make()
    kernels = kernels_of(made)
    writers = [v for k in kernels for v in k.outputs]
    assert set(made.graph.outputs) <= set(writers)
    assert len(writers) == len(set(writers))
    for kernel in kernels:
        own = {v for n in kernel.nodes for v in made.graph.node_by_name[n].outputs}
        assert not kernel.nodes or set(kernel.outputs) <= own, kernel


def test_a_kernel_of_two_outputs_names_both_in_order() -> None:
    kernels = kernels_of(transformer_block())
    assert next(k.outputs for k in kernels if k.nodes == ("best",) and len(k.outputs) == 2) == ("best", "where")


def kernels_of(made: ImportedModel) -> tuple[KernelInfo, ...]:
    """The kernels of the whole model as one partition, on the CPU."""
    return kernel_module(job(made), cpu_target(CPU), [relax.backend.DispatchSortScan()]).kernels
