"""Quantised networks whose layers run in integers, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper

from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.cpu.lowering import CpuLowering
from heterocc.compiler.lower.pipeline import kernel_module
from heterocc.runtime.execute.ort_session import session_options
from tests.compiler.lower.cpu.test_symbolic import compare, compiled, lower
from tests.compiler.lower.lowered import Model, execute, job, model, run_ort
from tests.reference import reference_session
from tests.symbolic_models import dynamic_model

node = helper.make_node
RNG = np.random.default_rng(5)


def layer(
    kind: str, name: str, source: str, weight: np.ndarray, constants: dict[str, np.ndarray], **attrs: object
) -> list[onnx.NodeProto]:
    """A layer that reads quantised `source` and writes `name`, in the form of ONNX Runtime's quantiser."""
    axis = 0 if kind == "Conv" else 1
    channels = weight.shape[axis]
    scale = RNG.uniform(0.005, 0.02, channels).astype(np.float32)
    constants |= {
        f"{name}_w": weight,
        f"{name}_ws": scale,
        f"{name}_wz": np.zeros(channels, np.int8),
        f"{name}_b": RNG.integers(-500, 500, channels).astype(np.int32),
        f"{name}_bs": scale * constants["s"],
        f"{name}_bz": np.zeros(channels, np.int32),
    }
    operands = [f"{name}_x", f"{name}_wf", f"{name}_bf"]
    return [
        node("DequantizeLinear", [source, "s", "z"], [f"{name}_x"]),
        node("DequantizeLinear", [f"{name}_w", f"{name}_ws", f"{name}_wz"], [f"{name}_wf"], axis=axis),
        node("DequantizeLinear", [f"{name}_b", f"{name}_bs", f"{name}_bz"], [f"{name}_bf"], axis=0),
        node(kind, operands, [name], **attrs),
    ]


def integers(*shape: int) -> np.ndarray:
    return RNG.integers(-127, 128, shape).astype(np.int8)


def test_quantised_convolutions_and_recurrent_layers_take_images_of_any_width(tmp_path: Path) -> None:
    weights = {
        "w": RNG.integers(-127, 128, (24, 3, 4, 3)).astype(np.int8),
        "ws": np.float32(0.01),
        "shape": np.array([0, 24, -1], np.int64),
        "v": RNG.integers(-127, 128, (1, 24, 32)).astype(np.int8),
        "r": RNG.integers(-127, 128, (1, 8, 32)).astype(np.int8),
        "b": RNG.standard_normal((1, 64)).astype(np.float32),
        "s": np.array([0.004], np.float32),
        "z": np.array([0], np.int8),
    }
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "xs", "xz"]),
        node("ConvInteger", ["q", "w", "xz"], ["sums"], strides=[4, 2], pads=[0, 1, 0, 1]),
        node("Cast", ["sums"], ["real"], to=1),
        node("Mul", ["xs", "ws"], ["scale"]),
        node("Mul", ["real", "scale"], ["scaled"]),
        node("Reshape", ["scaled", "shape"], ["flat"]),
        node("Transpose", ["flat"], ["steps"], perm=[2, 0, 1]),
        node(
            "DynamicQuantizeLSTM",
            ["steps", "v", "r", "b", "", "", "", "", "s", "z", "s", "z"],
            ["y"],
            domain="com.microsoft",
            hidden_size=8,
        ),
    ]
    proto = dynamic_model(nodes, {"x": ("float32", (1, 3, 4, "wide"))}, ["y"], weights)
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    run = compiled(proto, tmp_path)
    reference = reference_session(proto)
    for wide in (9, 30):
        feed = {"x": RNG.standard_normal((1, 3, 4, wide)).astype(np.float32)}
        (wanted,) = reference.run(None, feed)
        # ONNX Runtime rounds the states, which are between -1 and 1, to 8 bits.
        np.testing.assert_allclose(run(feed)[0], wanted, rtol=0, atol=0.02)


def network() -> tuple[Model, dict[str, np.ndarray]]:
    """Two convolutions, a residual sum, a maximum over windows and a product, each between quantised values."""
    constants = {"s": np.array(0.05, np.float32), "z": np.array(119, np.uint8), "shape": np.array([1, -1], np.int64)}
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["q0"])]
    nodes += layer("Conv", "c1", "q0", integers(16, 3, 3, 3), constants, pads=[1] * 4, strides=[2, 2])
    nodes += [node("Relu", ["c1"], ["r1"]), node("QuantizeLinear", ["r1", "s", "z"], ["q1"])]
    nodes += layer("Conv", "c2", "q1", integers(16, 16, 1, 1), constants)
    nodes += [
        node("QuantizeLinear", ["c2", "s", "z"], ["q2"]),
        node("DequantizeLinear", ["q2", "s", "z"], ["d2"]),
        node("DequantizeLinear", ["q1", "s", "z"], ["d1"]),
        node("Add", ["d1", "d2"], ["a"]),
        node("Relu", ["a"], ["r2"]),
        node("MaxPool", ["r2"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Reshape", ["m", "shape"], ["f"]),
        node("QuantizeLinear", ["f", "s", "z"], ["q3"]),
    ]
    nodes += layer("Gemm", "g", "q3", integers(16 * 4 * 4, 10), constants)
    nodes += [node("QuantizeLinear", ["g", "s", "z"], ["y"])]
    for number, made in enumerate(nodes):
        made.name = f"n{number}"
    inputs = {"x": RNG.standard_normal((1, 3, 16, 16)).astype(np.float32)}
    return model(nodes, inputs, ["q1", "q2", "y"], constants), inputs


def test_a_network_between_quantised_values_agrees_with_onnx_runtime_to_a_step() -> None:
    made, inputs = network()
    work = job(made)
    found = execute(work, CpuLowering().lower(work), inputs)
    for name, right in run_ort(made, inputs).items():
        apart = np.abs(found[name].astype(int) - right.astype(int))
        assert apart.max() <= 1 and np.mean(apart > 0) < 0.05, name


def test_weights_of_quantised_layers_are_stored_in_8_bits() -> None:
    made, _ = network()
    lowered = CpuLowering().lower(job(made))
    wide = [a for a in lowered.params if a.dtype.itemsize > 1]
    assert max(a.size for a in wide) <= 32
    assert sum(a.nbytes for a in lowered.params) < 1.5 * sum(a.nbytes for a in made.weights.values())


@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 117), ("uint8", 128), ("int8", -9), ("uint8", 0)])
@pytest.mark.parametrize(
    ("channels", "groups", "taps", "attributes"),
    [
        ((24, 40), 1, 3, {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
        ((16, 48), 1, 1, {}),
        ((24, 24), 24, 3, {"pads": [1] * 4, "dilations": [1, 2]}),
    ],
)
def test_convolutions_of_integers_are_exact_with_any_zero_point(
    channels: tuple[int, int], groups: int, taps: int, attributes: dict[str, list[int]], dtype: str, zero: int
) -> None:
    limits, (inner, outer) = np.iinfo(dtype), channels
    weight = RNG.integers(limits.min, limits.max + 1, (outer, inner // groups, taps, taps)).astype(dtype)
    inputs = {"x": RNG.integers(0, 256, (2, inner, 9, 14)).astype(np.uint8), "z": np.array(93, np.uint8)}
    nodes = [node("ConvInteger", ["x", "w", "z", "wz"], ["y"], group=groups, **attributes)]
    made = model(nodes, inputs, ["y"], {"w": weight, "wz": np.array(zero, dtype)})
    work = job(made)
    lowered = CpuLowering().lower(work)
    np.testing.assert_array_equal(execute(work, lowered, inputs)["y"], run_ort(made, inputs)["y"])
    assert not any(a.dtype.kind == "f" for a in lowered.params)


@pytest.mark.parametrize(
    ("dtype", "zero", "by_column", "hidden"),
    [
        pytest.param("int8", 0, False, 20, marks=pytest.mark.slow),
        ("int8", 0, True, 40),
        pytest.param("uint8", 128, True, 20, marks=pytest.mark.slow),
        pytest.param("uint8", 90, True, 40, marks=pytest.mark.slow),
        ("int8", -31, False, 20),
    ],
)
def test_an_lstm_computes_with_weights_of_8_bits(
    dtype: str, zero: int, by_column: bool, hidden: int, tmp_path: Path
) -> None:
    steps, batch, features = 5, 3, 12
    limits = np.iinfo(dtype)
    weights = {}
    for name, rows in (("w", features), ("r", hidden)):
        weights[name] = RNG.integers(limits.min, limits.max + 1, (2, rows, 4 * hidden)).astype(dtype)
        scales = RNG.uniform(0.002, 0.004, (2, 4 * hidden) if by_column else 2)
        weights[f"{name}s"] = scales.astype(np.float32)
        weights[f"{name}z"] = np.full(weights[f"{name}s"].shape, zero, dtype)
    weights["b"] = RNG.standard_normal((2, 8 * hidden)).astype(np.float32)
    operands = ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"]
    attrs = {"domain": "com.microsoft", "hidden_size": hidden, "direction": "bidirectional", "name": "lstm"}
    proto = dynamic_model(
        [node("DynamicQuantizeLSTM", operands, ["y"], **attrs)],
        {"x": ("float32", ("steps", batch, features))},
        ["y"],
        weights,
    )
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    feed = {"x": RNG.standard_normal((steps, batch, features)).astype(np.float32)}
    (found,) = compiled(proto, tmp_path)(feed)
    np.testing.assert_allclose(found, lstm(feed["x"], weights), rtol=0, atol=1e-5)
    # With more threads ONNX Runtime may take the range of the rows that a thread computes.
    (wanted,) = reference_session(proto, session_options(threads=1)).run(None, feed)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
    recurrences = [
        a for a in lower(import_model(proto, keep_dims=True)).params if a.size == 4 * hidden * -(-hidden // 16) * 16
    ]
    assert [a.dtype.name for a in recurrences] == ["int8"] * 2


def lstm(x: np.ndarray, weights: dict[str, np.ndarray]) -> np.ndarray:
    """The outputs of a bidirectional layer in float64, of inputs and states rounded to 8 bits by their range."""
    rounded = in_bytes(x)
    found = []
    for number in range(2):
        own = {name: value[number].astype(np.float64) for name, value in weights.items()}
        into, again = ((own[n] - own[f"{n}z"]) * own[f"{n}s"] for n in "wr")
        outer, inner = np.split(own["b"], 2)
        hidden, cell = np.zeros((2, x.shape[1], again.shape[0]))
        outputs = []
        for step in rounded[:: -1 if number else 1]:
            i, o, f, c = np.split(step @ into + in_bytes(hidden) @ again + outer + inner, 4, axis=1)
            cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(c)
            hidden = sigmoid(o) * np.tanh(cell)
            outputs.append(hidden)
        found.append(outputs[:: -1 if number else 1])
    return np.stack(found, axis=1)


def in_bytes(x: np.ndarray) -> np.ndarray:
    """Numbers rounded to 8 bits by their range."""
    low, high = min(0.0, x.min()), max(0.0, x.max())
    scale = (high - low) / 255 if high > low else 1.0
    zero = np.clip(np.rint(-low / scale), 0, 255)
    return (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def test_a_quantised_table_is_gathered_in_8_bits() -> None:
    table = integers(50, 8)
    nodes = [
        node("DequantizeLinear", ["t", "s", "z"], ["f"], name="a"),
        node("Gather", ["f", "i"], ["y"], name="b"),
    ]
    inputs = {"i": RNG.integers(0, 50, (2, 3))}
    made = model(nodes, inputs, ["y"], {"t": table, "s": np.array(0.1, np.float32), "z": np.array(7, np.int8)})
    work = job(made)
    lowered = CpuLowering().lower(work)
    assert [a.dtype.name for a in lowered.params] == ["int8"]
    found = execute(work, lowered, inputs)["y"]
    np.testing.assert_array_equal(found, run_ort(made, inputs)["y"])


def test_products_that_differ_in_their_scales_have_one_kernel(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, np.ndarray] = {}
    for n in range(3):
        constants |= {f"w{n}": rng.integers(-9, 9, (32, 32)).astype(np.int8), f"s{n}": np.array(0.01 * (n + 1), "f4")}
        nodes += [
            helper.make_node("DynamicQuantizeLinear", [f"x{n}"], [f"bytes{n}", f"scale{n}", f"zero{n}"]),
            helper.make_node("MatMulInteger", [f"bytes{n}", f"w{n}", f"zero{n}"], [f"sum{n}"]),
            helper.make_node("Cast", [f"sum{n}"], [f"float{n}"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Mul", [f"scale{n}", f"s{n}"], [f"both{n}"]),
            helper.make_node("Mul", [f"float{n}", f"both{n}"], [f"x{n + 1}"]),
        ]
    x = rng.standard_normal((5, 32)).astype(np.float32)
    module = kernel_module(job(model(nodes, {"x0": x}, ["x3"], constants)), tvm.target.Target("llvm"))
    functions = [gvar for gvar in module.mod.get_global_vars() if gvar.name_hint != "main"]
    assert len(functions) * 3 == len(module.kernels)
    compare(dynamic_model(nodes, {"x0": ("float32", ("rows", 32))}, ["x3"], constants), tmp_path, [{"x0": x}])
