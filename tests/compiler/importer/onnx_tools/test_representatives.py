"""Large models are checked by one node of each kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from heterocc.artifacts.errors import InvalidGraphError
from heterocc.compiler.importer import pipeline
from heterocc.compiler.importer.onnx_tools.onnx_runtime import objection, output_types
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.importer.shapes import shapes
from tests.compiler.small import save

WEIGHT = {"w": np.eye(4, dtype=np.float32)}


def chain(path: Path, kinds: list[str], *, end: list[onnx.NodeProto], rows: int | str = 2) -> Path:
    """2,100 nodes of some operators, each on the result of the one before; `end` reads `last`."""
    nodes = []
    for index in range(2100):
        kind = kinds[index % len(kinds)]
        name = "last" if index == 2099 else f"v{index}"
        read = ["x" if index == 0 else f"v{index - 1}", *(["w"] if kind == "MatMul" else [])]
        nodes.append(helper.make_node(kind, read, [name], name=f"n{index}"))
    return save(path, [*nodes, *end], {"x": [rows, 4]}, {"y": [rows, 4]}, WEIGHT)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of nodes of each model that ONNX Runtime is asked about."""
    found: list[int] = []

    def counted(proto: onnx.ModelProto, *, compute: bool = True) -> str | None:
        found.append(len(proto.graph.node))
        return objection(proto, compute=compute)

    monkeypatch.setattr(pipeline, "objection", counted)
    return found


def test_a_large_model_of_few_kinds_of_nodes_is_checked_by_one_of_each(tmp_path: Path, asked: list[int]) -> None:
    end = [helper.make_node("Softmax", ["last"], ["y"])]
    import_model(chain(tmp_path / "m.onnx", ["MatMul", "Relu", "Tanh"], end=end))
    assert len(asked) == 1
    assert asked[0] <= 5


def test_a_node_that_onnx_runtime_refuses_is_found_among_many(tmp_path: Path, asked: list[int]) -> None:
    end = [
        helper.make_node("Cast", ["last"], ["flags"], to=onnx.TensorProto.BOOL),
        helper.make_node("Sigmoid", ["flags"], ["bad"], name="bad"),
        helper.make_node("Cast", ["bad"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    with pytest.raises(InvalidGraphError, match=r"Sigmoid|bad"):
        import_model(chain(tmp_path / "m.onnx", ["MatMul", "Relu"], end=end))
    assert len(asked) > 1, "it was asked about few nodes, then about all"


def test_texts_of_a_large_model_have_their_type(tmp_path: Path) -> None:
    end = [
        helper.make_node("Cast", ["last"], ["text"], to=onnx.TensorProto.STRING),
        helper.make_node("Cast", ["text"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    model = import_model(chain(tmp_path / "m.onnx", ["Relu", "Tanh"], end=end))
    assert model.graph.values["text"].dtype == "string"


@pytest.mark.parametrize("rows", [2, "n"])
def test_onnx_runtime_infers_the_types_of_all_nodes_only_if_those_of_one_of_each_kind_do_not_say_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int | str
) -> None:
    asked: list[int] = []

    def counted(proto: onnx.ModelProto) -> list[Any]:
        asked.append(len(proto.graph.node))
        return output_types(proto)

    monkeypatch.setattr(shapes, "output_types", counted)
    end = [helper.make_node("Softmax", ["last"], ["y"])]
    path = chain(tmp_path / "m.onnx", ["MatMul", "Relu", "Tanh"], end=end, rows=rows)
    model = import_model(path, keep_dims=True)
    assert model.graph.values["last"].shape == (rows, 4)
    assert max(asked) <= 5 if rows == 2 else max(asked) == 2101
