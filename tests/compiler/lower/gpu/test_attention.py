from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.compiler.lower.gpu_places import PLACES, outputs, wrong
from tests.compiler.lower.gpu_run import Graph, node

RNG = np.random.default_rng(19)
LENGTH, HEADS, SIZE = 19, 2, 24
WIDTH = HEADS * SIZE


def weight(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def block() -> Graph:
    """A transformer's attention with mask, residual and normalisation."""
    nodes = []
    for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            node("MatMul", "x", f"w{name}", outputs=[f"{name}0"]),
            node("Add", f"{name}0", f"b{name}", outputs=[f"{name}1"]),
            node("Reshape", f"{name}1", "split", outputs=[f"{name}2"]),
            node("Transpose", f"{name}2", outputs=[f"{name}3"], perm=order),
        ]
    nodes += [
        node("MatMul", "q3", "k3", outputs=["scores"]),
        node("Div", "scores", "root", outputs=["scaled"]),
        node("Add", "scaled", "mask", outputs=["masked"]),
        node("Softmax", "masked", outputs=["shares"]),
        node("MatMul", "shares", "v3", outputs=["mixed"]),
        node("Transpose", "mixed", outputs=["turned"], perm=[0, 2, 1, 3]),
        node("Reshape", "turned", "joined", outputs=["wide"]),
        node("MatMul", "wide", "wo", outputs=["out"]),
        node("Add", "out", "x", outputs=["sum"]),
        node("LayerNormalization", "sum", "scale", "shift"),
    ]
    mask = np.where(np.arange(LENGTH) < 15, 0, -1e9).astype(np.float32).reshape(1, 1, 1, LENGTH)
    constants = {f"w{n}": weight(WIDTH, WIDTH) for n in "qkvo"} | {f"b{n}": weight(WIDTH) for n in "qkv"}
    constants |= {
        "split": np.array([1, LENGTH, HEADS, SIZE]),
        "joined": np.array([1, LENGTH, WIDTH]),
        "root": np.float32(np.sqrt(SIZE)),
        "scale": weight(WIDTH),
        "shift": weight(WIDTH),
    }
    return Graph({"x": RNG.standard_normal((1, LENGTH, WIDTH), np.float32), "mask": mask}, nodes, constants)


def attention(graph: Graph) -> np.ndarray:
    """The block in float64."""
    c = {name: np.asarray(a, np.float64) for name, a in graph.constants.items()}
    x = graph.inputs["x"].astype(np.float64)
    q, k, v = (
        (x @ c[f"w{n}"] + c[f"b{n}"]).reshape(1, LENGTH, HEADS, SIZE).transpose(0, 2, 1, 3) for n in ("q", "k", "v")
    )
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(SIZE) + graph.inputs["mask"]
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    y = (shares @ v).transpose(0, 2, 1, 3).reshape(1, LENGTH, WIDTH) @ c["wo"] + x
    centred = y - y.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * c["scale"] + c["shift"]


@pytest.mark.parametrize("place", PLACES)
def test_attention_with_mask_and_normalisation_is_right(place: str, tmp_path: Path) -> None:
    graph = block()
    found, rules = outputs(graph, place, tmp_path)
    assert wrong(found, [attention(graph)], 1e-5) == []
    assert "rows" in rules
