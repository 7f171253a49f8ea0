"""Convolutions whose weights are inputs: kernels pack them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.compiler.lower.cpu.generate.generated import Generated, assert_near, runnable, target_of
from tests.compiler.lower.lowered import assert_same, model, run_cpu, run_ort

RNG = np.random.default_rng(7)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(
    ("data", "weight", "attributes"),
    [
        ((1, 20, 9, 11), (40, 20, 3, 3), {"pads": [1] * 4}),
        ((1, 7, 13, 8), (5, 7, 3, 3), {"strides": [2, 2]}),
        ((2, 12, 10, 10), (24, 4, 3, 3), {"group": 3, "pads": [1] * 4}),
        ((1, 19, 15, 22), (19, 1, 3, 3), {"group": 19, "pads": [1] * 4}),
        ((1, 64, 40), (96, 64, 5), {"pads": [2, 2]}),
        ((1, 96, 5, 5), (96, 96, 3, 3), {"pads": [1] * 4}),
    ],
)
def test_convolutions_whose_weights_are_inputs_are_generated(
    cpu: str, data: tuple[int, ...], weight: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    inputs, bias = {"x": floats(*data), "w": floats(*weight)}, {"b": floats(weight[0])}
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"], **attributes)]
    kernel = Generated(nodes, inputs, bias, target_of(cpu))
    assert kernel.done is not None
    assert not kernel.done[1]  # nothing is packed before the run
    assert_near(kernel.run(), run_ort(model(nodes, inputs, ["y"], bias), inputs)["y"], int(np.prod(weight[1:])))


def test_layers_that_differ_in_their_channels_pack_weights_of_different_sizes() -> None:
    channels = (16, 24, 40, 56)
    inputs, nodes, last = {"x": floats(1, 8, 12, 12)}, [], "x"
    for number, (before, after) in enumerate(zip((8, *channels), channels, strict=False)):
        inputs[f"w{number}"] = floats(after, before, 3, 3) / np.float32(np.sqrt(9 * before))
        nodes += [
            helper.make_node("Conv", [last, f"w{number}"], [f"c{number}"], pads=[1] * 4),
            helper.make_node("Relu", [f"c{number}"], [f"r{number}"]),
        ]
        last = f"r{number}"
    made = model(nodes, inputs, [last], {})
    assert_same(run_cpu(made, inputs), run_ort(made, inputs), rtol=1e-4)
