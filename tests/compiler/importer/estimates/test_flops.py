"""Work of nodes against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import helper

from heterocc.compiler.importer.estimates.flops import node_flops
from heterocc.passes.graph import Node, Value

Shape = tuple[int | None, ...] | None


def flops(op_type: str, inputs: list[Shape | str], outputs: list[Shape], **attributes: Any) -> float:
    names = ["" if shape == "" else f"i{k}" for k, shape in enumerate(inputs)]
    outs = [f"o{k}" for k in range(len(outputs))]
    proto = helper.make_node(op_type, names, outs, **attributes)
    shapes = {**dict(zip(names, inputs, strict=True)), **dict(zip(outs, outputs, strict=True))}
    values = {n: Value(n, "float32", s) for n, s in shapes.items() if n and not isinstance(s, str)}
    node = Node("n", op_type, tuple(n for n in names if n), tuple(outs))
    return node_flops(proto, node, values)


@pytest.mark.parametrize(
    ("expected", "op_type", "inputs", "outputs", "attributes"),
    [
        # ResNet50's first layer: 64 x 112 x 112 outputs, each 3 x 7 x 7 products; with a bias one more operation each.
        (236027904, "Conv", [(1, 3, 224, 224), (64, 3, 7, 7)], [(1, 64, 112, 112)], {}),
        (236830720, "Conv", [(1, 3, 224, 224), (64, 3, 7, 7), (64,)], [(1, 64, 112, 112)], {}),
        # Depthwise 3 x 3 over 32 channels of 4 x 4: 512 outputs x 9 taps x 2.
        (9216, "Conv", [(1, 32, 4, 4), (32, 1, 3, 3)], [(1, 32, 4, 4)], {"group": 32}),
        (9216, "ConvInteger", [(1, 32, 4, 4), (32, 1, 3, 3)], [(1, 32, 4, 4)], {"group": 32}),
        # 2 x 3 x 3 input elements, each into 4 channels of 2 x 2: 18 x 16 x 2.
        (576, "ConvTranspose", [(1, 2, 3, 3), (2, 4, 2, 2)], [(1, 4, 6, 6)], {}),
        (2 * 5 * 7 * 11, "MatMul", [(5, 7), (7, 11)], [(5, 11)], {}),
        (2 * 3 * 5 * 7 * 11, "MatMul", [(3, 5, 7), (7, 11)], [(3, 5, 11)], {}),
        (2 * 7 * 11, "MatMul", [(7,), (7, 11)], [(11,)], {}),
        (2 * 7, "MatMul", [(7,), (7,)], [()], {}),
        (2 * 5 * 7 * 11, "Gemm", [(5, 7), (7, 11)], [(5, 11)], {}),
        (2 * 5 * 7 * 11 + 55, "Gemm", [(7, 5), (7, 11), (11,)], [(5, 11)], {"transA": 1}),
        (2 * 2 * 3 * 4 * 5, "Einsum", [(2, 3, 4), (2, 4, 5)], [(2, 3, 5)], {"equation": "bij, bjk -> bik"}),
        (2 * 7 * 3 * 4 * 5, "Einsum", [(7, 3, 4), (4, 1, 5)], [(7, 3, 5)], {"equation": "...ij, j...k -> ...ik"}),
        (24, "Add", [(2, 3, 4), (4,)], [(2, 3, 4)], {}),
        (48, "Sum", [(2, 3, 4), (4,), (4,)], [(2, 3, 4)], {}),
        (24, "Relu", [(2, 3, 4)], [(2, 3, 4)], {}),
        (192, "Tanh", [(2, 3, 4)], [(2, 3, 4)], {}),
        (24, "ReduceMean", [(2, 3, 4)], [(2, 3, 1)], {}),
        (9 * 16, "MaxPool", [(1, 4, 4, 4)], [(1, 4, 2, 2)], {"kernel_shape": [3, 3]}),
        # Two steps, batch 3, four gates of 5 units that read 7 features and 5 states.
        (2 * 2 * 3 * 4 * 5 * 12, "LSTM", [(2, 3, 7), (1, 20, 7), (1, 20, 5)], [(2, 1, 3, 5)], {}),
        (0, "Reshape", [(2, 3, 4), (2,)], [(6, 4)], {}),
        (0, "Transpose", [(2, 3)], [(3, 2)], {}),
        (0, "Relu", [(None, 3)], [(None, 3)], {}),
        (0, "Relu", [None], [None], {}),
        (8, "SomethingNew", [(2, 4)], [(2, 4)], {}),
        (0, "Clip", [(0, 4), "", (1,)], [(0, 4)], {}),
    ],
)
def test_work_is_what_one_counts_by_hand(
    expected: int, op_type: str, inputs: list[Any], outputs: list[Any], attributes: dict[str, Any]
) -> None:
    assert flops(op_type, inputs, outputs, **attributes) == expected
