"""Large models are checked by one node of each kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from heterocc.artifacts.errors import InvalidGraphError
from heterocc.compiler.importer import pipeline
from heterocc.compiler.importer.onnx_tools.onnx_runtime import objection
from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.small import save

WEIGHT = {"w": np.eye(4, dtype=np.float32)}


def chain(path: Path, kinds: list[str], *, end: list[onnx.NodeProto]) -> Path:
    """2,100 nodes of some operators, each on the result of the one before; `end` reads `last`."""
    nodes = []
    for index in range(2100):
        kind = kinds[index % len(kinds)]
        name = "last" if index == 2099 else f"v{index}"
        read = ["x" if index == 0 else f"v{index - 1}", *(["w"] if kind == "MatMul" else [])]
        nodes.append(helper.make_node(kind, read, [name], name=f"n{index}"))
    return save(path, [*nodes, *end], {"x": [2, 4]}, {"y": [2, 4]}, WEIGHT)


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
