"""Sizes with which ONNX Runtime reads or returns memory that is not the request's are refused before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from heterocc.artifacts.errors import FeedError, InputValueError
from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.compiler.onnx_build import model, node, save, value

Shapes = Mapping[str, Sequence[int | str]]
RNG = np.random.default_rng(0)
UINT8, INT64 = onnx.TensorProto.UINT8, onnx.TensorProto.INT64


def session_of(folder: Path, nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], **constants: np.ndarray):  # type: ignore[no-untyped-def]
    """The model's session, all of it in ONNX Runtime."""
    proto = model(nodes, inputs, [value(nodes[-1].output[-1], elem_type=0)], constants, opset=17)
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    proto.graph.output[0].ClearField("type")
    bundle = folder / "m.hcb"
    compile_model(save(folder, proto), bundle, devices="ORT")
    return load(bundle)


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_a_recurrent_layer_has_steps_and_a_batch(tmp_path: Path, kind: str, gates: int) -> None:
    weights = {"w": RNG.random((1, gates * 4, 3), np.float32), "r": RNG.random((1, gates * 4, 4), np.float32)}
    nodes = [node(kind, "x w r", "y last", hidden_size=4)]
    with session_of(tmp_path, nodes, [value("x", ["steps", "batch", 3])], **weights) as session:
        assert session.run({"x": np.ones((2, 1, 3), np.float32)})["last"].shape == (1, 1, 4)
        for steps, batch in ((0, 1), (2, 0), (0, 0)):
            with pytest.raises(FeedError, match="1 or more"):
                session.run({"x": np.ones((steps, batch, 3), np.float32)})


def test_a_product_of_bytes_has_terms(tmp_path: Path) -> None:
    inputs = [value("a", ["n", "k"], UINT8), value("b", ["k", "m"], UINT8)]
    with session_of(tmp_path, [node("MatMulInteger", "a b", "y")], inputs) as session:

        def run(n: int, k: int) -> np.ndarray:
            return session.run({"a": np.ones((n, k), np.uint8), "b": np.ones((k, 2), np.uint8)})["y"]

        assert run(3, 5).tolist() == [[5, 5]] * 3 and run(0, 5).shape == (0, 2)
        with pytest.raises(FeedError, match="1 or more"):
            run(3, 0)


def test_a_convolution_of_bytes_has_a_scale_for_all_channels_or_for_each(tmp_path: Path) -> None:
    constants = {"s": np.array(0.1, np.float32), "z": np.array(0, np.uint8)}
    inputs = [
        value("x", ["n", 1, 7, 7], UINT8), value("w", ["c", 1, 1, 1], UINT8),
        value("ws", ["scales"]), value("wz", ["zeros"], UINT8),
    ]  # fmt: skip
    with session_of(tmp_path, [node("QLinearConv", "x s z w ws wz s z", "y")], inputs, **constants) as session:

        def run(channels: int, scales: int, zeros: int) -> tuple[int, ...]:
            feed = {
                "x": np.ones((1, 1, 7, 7), np.uint8), "w": np.ones((channels, 1, 1, 1), np.uint8),
                "ws": np.full(scales, 0.1, np.float32), "wz": np.zeros(zeros, np.uint8),
            }  # fmt: skip
            return tuple(session.run(feed)["y"].shape)

        assert [run(*sizes) for sizes in ((1, 1, 1), (3, 3, 3), (3, 1, 1), (3, 3, 1))] == [(1, 1, 7, 7)] + [
            (1, 3, 7, 7)
        ] * 3
        for sizes in ((3, 0, 0), (0, 0, 0), (3, 3, 0)):
            with pytest.raises(FeedError, match="1 or more"):
                run(*sizes)
        for sizes in ((1, 5, 5), (1, 1, 4096), (3, 2, 1)):
            with pytest.raises((FeedError, InputValueError)):
                run(*sizes)


@pytest.mark.parametrize(
    ("kind", "shapes", "attributes"),
    [
        ("InstanceNormalization", [["n", 2, "h"], [2], [2]], {}),
        ("Unique", [[2, "n"]], {"axis": 0}),
        ("Conv", [["n", 1, 8, 8], [1, 1, "k", "k"]], {}),
    ],
)
def test_sizes_of_0_with_which_onnx_runtime_ends_the_process_are_refused(
    tmp_path: Path, kind: str, shapes: list[list[int | str]], attributes: dict[str, int]
) -> None:
    names = [f"x{place}" for place in range(len(shapes))]
    nodes = [node(kind, " ".join(names), "y", **attributes)]
    with session_of(tmp_path, nodes, list(map(value, names, shapes))) as session:

        def feed(size: int, batch: int) -> dict[str, np.ndarray]:
            sizes = {"h": size, "n": size if kind == "Unique" else batch, "k": size}
            filled = [[sizes.get(d, d) if isinstance(d, str) else d for d in shape] for shape in shapes]
            return {name: np.ones(shape, np.float32) for name, shape in zip(names, filled, strict=True)}

        session.run(feed(3, 2))
        if kind != "Unique":
            assert session.run(feed(3, 0))["y"].shape[0] == 0  # other empty dimensions are right
        with pytest.raises(FeedError, match="1 or more"):
            session.run(feed(0, 2))


def test_a_matrix_that_is_inverted_is_square(tmp_path: Path) -> None:
    inputs = [value("x", ["batch", "rows", "columns"])]
    with session_of(tmp_path, [node("Inverse", "x", "y", domain="com.microsoft")], inputs) as session:
        two = np.array([[[2, 0], [0, 4]]], np.float32)
        np.testing.assert_allclose(session.run({"x": two})["y"], [[[0.5, 0], [0, 0.25]]])
        for shape in ((2, 3, 2), (3, 2, 3), (2, 3, 0), (1, 2, 64)):
            with pytest.raises(FeedError):
                session.run({"x": np.ones(shape, np.float32)})


def test_an_inverse_of_what_follows_from_an_inverse_is_compiled(tmp_path: Path) -> None:
    """ONNX infers no rank of the first one's result, without which the second could not be checked, nor any run."""
    nodes = [
        node("Inverse", "x", "inverse", domain="com.microsoft"),
        node("Neg", "inverse", "turned"),
        node("Inverse", "turned", "y", domain="com.microsoft"),
    ]
    two = np.array([[[2, 0], [0, 4]]], np.float32)
    proto = model(nodes, [value("x", ["batch", 2, 2])], [value("y", ["batch", 2, 2])], opset=17)
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    report = compile_model(save(tmp_path, proto), tmp_path / "m.hcb", devices="CPU", measure=False)
    assert not report.warnings
    with load(tmp_path / "m.hcb") as session:
        assert np.array_equal(session.run({"x": two})["y"], -two)


def test_attention_of_bytes_has_items(tmp_path: Path) -> None:
    constants = {
        "w": np.ones((8, 24), np.uint8), "b": np.ones(24, np.float32), "s": np.array(0.1, np.float32),
        "z": np.array(1, np.uint8),
    }  # fmt: skip
    nodes = [node("QAttention", "x w b s s - z z", "y", num_heads=2, domain="com.microsoft")]
    with session_of(tmp_path, nodes, [value("x", ["batch", "steps", 8], UINT8)], **constants) as session:
        assert session.run({"x": np.ones((2, 3, 8), np.uint8)})["y"].shape == (2, 3, 8)
        with pytest.raises(FeedError, match="1 or more"):
            session.run({"x": np.ones((0, 3, 8), np.uint8)})


def test_decoders_attention_has_elements(tmp_path: Path) -> None:
    inputs = [value(name, ["batch", "steps", name]) for name in "qkv"]
    nodes = [node("DecoderMaskedMultiHeadAttention", "q k v", "y", num_heads=2, domain="com.microsoft")]
    with session_of(tmp_path, nodes, inputs) as session:
        assert session.run(dict.fromkeys("qkv", np.ones((2, 1, 8), np.float32)))["y"].shape == (2, 1, 8)
        with pytest.raises(FeedError, match="1 or more"):
            session.run(dict.fromkeys("qkv", np.ones((2, 1, 0), np.float32)))


def test_a_transposed_convolution_has_places(tmp_path: Path) -> None:
    inputs = [value("x", ["n", 2, "d", "h", "w"])]
    nodes = [node("ConvTranspose", "x f", "y", strides=[2, 2, 2])]
    with session_of(tmp_path, nodes, inputs, f=np.ones((2, 3, 2, 2, 2), np.float32)) as session:
        assert session.run({"x": np.ones((1, 2, 3, 1, 2), np.float32)})["y"].shape == (1, 3, 6, 2, 4)
        for shape in ((1, 2, 0, 3, 3), (1, 2, 3, 3, 0)):
            with pytest.raises(FeedError, match="1 or more"):
                session.run({"x": np.ones(shape, np.float32)})
