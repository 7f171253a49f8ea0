"""Rotary positions of parts of a head (MRotaryEmbedding) are ONNX Runtime's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.artifacts.errors import InputError
from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.reference import reference_session

PLACES, SIZE = 32, 16
CASES: list[tuple[list[int], int, dict[str, Any]]] = [
    ([3, 3, 2], 3, {"num_heads": 2}),
    ([2, 1, 1], 3, {"mrope_layout": 1, "rotary_embedding_dim": 8, "num_heads": 2}),
    ([4, 2, 2], 4, {"mrope_layout": 1, "interleaved": 1}),
]


@pytest.mark.parametrize(
    ("sections", "rank", "attributes"), [*CASES[:2], pytest.param(*CASES[2], marks=pytest.mark.slow)], ids=str
)
def test_parts_of_a_head_have_their_own_positions(
    sections: list[int], rank: int, attributes: dict[str, Any], tmp_path: Path
) -> None:
    numbers, half = np.random.default_rng(0), sum(sections)
    angles = numbers.uniform(-3, 3, (PLACES, half)).astype(np.float32)
    shape = ["batch", "steps", 2 * SIZE] if rank == 3 else ["batch", 2, "steps", SIZE]
    node = helper.make_node(
        "MRotaryEmbedding", ["x", "p", "c", "s"], ["y"], domain="com.microsoft", mrope_section=sections, **attributes
    )
    graph = helper.make_graph(
        [node],
        "positions",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("p", TensorProto.INT64, [3, "batch", "steps"]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(array, name) for name, array in (("c", np.cos(angles)), ("s", np.sin(angles)))],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False, measure=False)
    reference, sizes = reference_session(model), {"batch": 2}
    with load(tmp_path / "m.hcb") as session:
        for steps in (1, 5):
            data = [d if isinstance(d, int) else sizes.get(d, steps) for d in shape]
            feed: dict[str, Any] = {
                "x": numbers.standard_normal(data).astype(np.float32),
                "p": numbers.integers(0, PLACES, (3, 2, steps)),
            }
            np.testing.assert_allclose(session.run(feed)["y"], reference.run(None, feed)[0], rtol=0, atol=2e-6)
        with pytest.raises(InputError):
            session.run({**feed, "p": np.full((3, 2, 5), PLACES)})
