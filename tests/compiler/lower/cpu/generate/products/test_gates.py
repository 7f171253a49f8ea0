"""Generated kernels of products that weight channels against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.compiler.lower.cpu.generate.generated import Generated, assert_near, runnable, target_of

node = helper.make_node
RNG = np.random.default_rng(7)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(
    ("batch", "squeezed", "channels", "rows", "columns"),
    [
        (1, 10, 40, 9, 7),
        (1, 24, 96, 21, 33),
        (3, 5, 17, 4, 5),
        (1, 1, 33, 56, 57),
        (2, 120, 480, 7, 7),
        (1, 3, 2, 5, 1),
    ],
)
def test_channels_weighted_by_a_product_of_any_size_agree(
    cpu: str, batch: int, squeezed: int, channels: int, rows: int, columns: int
) -> None:
    small, x = floats(batch, squeezed, 1, 1), floats(batch, channels, rows, columns)
    weight, bias = floats(channels, squeezed, 1, 1), floats(channels)
    nodes = [
        node("Conv", ["s", "w", "b"], ["c"]),
        node("Sigmoid", ["c"], ["g"]),
        node("Mul", ["x", "g"], ["y"]),
    ]
    kernel = Generated(nodes, {"s": small, "x": x}, {"w": weight, "b": bias}, target_of(cpu))
    assert kernel.done is not None, "the kernel is not generated"
    products = np.einsum("nk,ck->nc", small[:, :, 0, 0].astype(np.float64), weight[:, :, 0, 0])
    gate = 1 / (1 + np.exp(-(products + bias)))
    assert_near(kernel.run(), x * gate[:, :, None, None], squeezed)


@pytest.mark.parametrize("cpu", runnable())
def test_weighted_channels_may_be_added_and_bounded(cpu: str) -> None:
    small, x, r = floats(1, 12, 1, 1), floats(1, 24, 10, 13), floats(1, 24, 10, 13)
    weight, bias = floats(24, 12, 1, 1), floats(24)
    nodes = [
        node("Conv", ["s", "w", "b"], ["c"]),
        node("HardSigmoid", ["c"], ["g"], alpha=0.2),
        node("Mul", ["x", "g"], ["m"]),
        node("Add", ["m", "r"], ["a"]),
        node("Relu", ["a"], ["y"]),
    ]
    kernel = Generated(nodes, {"s": small, "x": x, "r": r}, {"w": weight, "b": bias}, target_of(cpu))
    assert kernel.done is not None, "the kernel is not generated"
    gate = np.clip(0.2 * (weight[:, :, 0, 0].astype(np.float64) @ small[0, :, 0, 0] + bias) + 0.5, 0, 1)
    assert_near(kernel.run(), np.maximum(x * gate[None, :, None, None] + r, 0), 12)
