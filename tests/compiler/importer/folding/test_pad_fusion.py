"""Moving of zero padding into the window behind it, by the import."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.compiler.onnx_build import imported_like, model, node, noise, op_types, save, value

AROUND = [0, 0, 1, 0, 0, 0, 2, 1]
READERS: dict[str, onnx.NodeProto] = {
    "conv": node("Conv", "p w", "y", name="window", strides=[2, 2]),
    "conv with pads": node("Conv", "p w", "y", name="window", pads=[1, 0, 0, 1]),
    "conv with VALID": node("Conv", "p w", "y", name="window", auto_pad="VALID"),
    "average": node("AveragePool", "p", "y", name="window", kernel_shape=[3, 3]),
    "average that counts": node(
        "AveragePool", "p", "y", name="window", kernel_shape=[3, 3], pads=[0, 1, 0, 0], count_include_pad=1
    ),
}
OTHERS: dict[str, onnx.NodeProto] = {
    "conv with SAME": node("Conv", "p w", "y", auto_pad="SAME_UPPER"),
    "narrow window": node("Conv", "p narrow", "y"),
    "average of the inside": node("AveragePool", "p", "y", kernel_shape=[3, 3], pads=[0, 0, 1, 0]),
    "average with ceil": node("AveragePool", "p", "y", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    "largest of any numbers": node("MaxPool", "p", "y", kernel_shape=[3, 3]),
}


def padded(
    pads: list[int], *nodes: onnx.NodeProto, fill: float = 0, axes: list[int] | None = None, **attributes: Any
) -> onnx.ModelProto:
    constants: dict[str, np.ndarray] = {"w": noise(4, 3, 3, 3), "narrow": noise(4, 3, 2, 2)}
    constants |= {"pads": np.array(pads, np.int64), "fill": np.array(fill, np.float32)}
    if axes is not None:
        constants["axes"] = np.array(axes, np.int64)
    pad = node("Pad", "x pads fill axes" if axes else "x pads fill", "p", name="pad", **attributes)
    return model([pad, *nodes], [value("x", [1, 3, 7, 6])], [value("y")], constants, opset=18)


@pytest.mark.parametrize("reader", READERS)
def test_zeros_around_a_window_become_its_padding(tmp_path: Path, reader: str) -> None:
    found = imported_like(save(tmp_path, padded(AROUND, READERS[reader])), {"x": noise(1, 3, 7, 6)})
    assert op_types(found) == [READERS[reader].op_type]
    assert found.graph.nodes[0].original == ("window", "pad")


@pytest.mark.parametrize("axes", [[2, 3], [-1, -2]])
def test_padding_may_name_its_axes(tmp_path: Path, axes: list[int]) -> None:
    proto = padded([1, 0, 2, 1], READERS["conv"], axes=axes)
    assert op_types(imported_like(save(tmp_path, proto), {"x": noise(1, 3, 7, 6)})) == ["Conv"]


def test_padding_of_old_models_is_an_attribute(tmp_path: Path) -> None:
    nodes = [node("Pad", "x", "p", pads=AROUND), READERS["conv"]]
    proto = model(nodes, [value("x", [1, 3, 7, 6])], [value("y")], {"w": noise(4, 3, 3, 3)}, opset=9)
    assert op_types(imported_like(save(tmp_path, proto), {"x": noise(1, 3, 7, 6)})) == ["Conv"]


@pytest.mark.parametrize("bounded", ["Relu", "Clip"])
def test_zeros_are_the_padding_of_a_largest_value_that_is_not_negative(tmp_path: Path, bounded: str) -> None:
    pool = node("MaxPool", "p", "y", kernel_shape=[3, 3], strides=[2, 2])
    nodes = [node(bounded, "x low" if bounded == "Clip" else "x", "r"), node("Pad", "r pads", "p"), pool]
    constants = {"pads": np.array(AROUND, np.int64), "low": np.array(0.25, np.float32)}
    proto = model(nodes, [value("x", [1, 3, 7, 6])], [value("y")], constants)
    assert op_types(imported_like(save(tmp_path, proto), {"x": noise(1, 3, 7, 6)})) == [bounded, "MaxPool"]


@pytest.mark.parametrize("reader", OTHERS)
def test_padding_that_means_something_else_is_left_alone(tmp_path: Path, reader: str) -> None:
    found = imported_like(save(tmp_path, padded(AROUND, OTHERS[reader])), {"x": noise(1, 3, 7, 6)})
    assert op_types(found) == ["Pad", OTHERS[reader].op_type]


@pytest.mark.parametrize(
    ("pads", "changes"),
    [
        (AROUND, {"fill": 1.0}),
        (AROUND, {"mode": "edge"}),
        ([0, 0, -1, 0, 0, 0, 0, 0], {}),
        ([1, 0, 1, 0, 0, 0, 0, 0], {}),
    ],
)
def test_other_padding_is_left_alone(tmp_path: Path, pads: list[int], changes: dict[str, Any]) -> None:
    found = imported_like(save(tmp_path, padded(pads, READERS["conv"], **changes)), {"x": noise(1, 3, 7, 6)})
    assert op_types(found) == ["Pad", "Conv"]


def test_padding_with_another_reader_is_left_alone(tmp_path: Path) -> None:
    proto = padded(AROUND, READERS["conv"], node("Relu", "p", "z"))
    proto.graph.output.append(value("z", elem_type=TensorProto.FLOAT))
    assert op_types(imported_like(save(tmp_path, proto), {"x": noise(1, 3, 7, 6)})) == ["Pad", "Conv", "Relu"]


def test_padding_that_two_windows_read_goes_into_both(tmp_path: Path) -> None:
    proto = padded(AROUND, READERS["conv"], node("Conv", "p w", "z"))
    proto.graph.output.append(value("z", elem_type=TensorProto.FLOAT))
    assert op_types(imported_like(save(tmp_path, proto), {"x": noise(1, 3, 7, 6)})) == ["Conv", "Conv"]


def test_padding_pinned_elsewhere_is_left_alone(tmp_path: Path) -> None:
    proto = padded(AROUND, READERS["conv"])
    proto.graph.node[0].metadata_props.add(key="affinity", value="CPU")
    assert op_types(imported_like(save(tmp_path, proto), {"x": noise(1, 3, 7, 6)})) == ["Pad", "Conv"]
