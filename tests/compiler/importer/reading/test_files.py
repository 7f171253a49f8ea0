"""Files that an import may read: those in the model's folder, independent of the working directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from heterocc.artifacts.errors import ExternalDataError, InputError
from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.onnx_build import F32, model, node, save, value

SECRET = np.array([3.5, -1.25, 8.0, 0.5], np.float32)
INPUTS, OUTPUTS = [value("x", [4])], [value("y", [4])]
FLAG = value("c", [], TensorProto.BOOL)
OPSET = helper.make_opsetid("", 17)


def outside(name: str = "w") -> TensorProto:
    """Four floats in a file beside the model, or beside whoever looks for it in the working directory."""
    tensor = TensorProto(name=name, data_type=F32, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="data.bin")
    return tensor


def sparse() -> onnx.SparseTensorProto:
    indices = numpy_helper.from_array(np.arange(4, dtype=np.int64), "i")
    return onnx.SparseTensorProto(dims=[4], values=outside(), indices=indices)


def constant(name: str = "value", **fields: object) -> onnx.NodeProto:
    made = node("Constant", "", "w")
    made.attribute.add(name=name, **fields)
    return made


def tensor_constant() -> onnx.NodeProto:
    return constant(type=AttributeProto.TENSOR, t=outside())


def sparse_constant() -> onnx.NodeProto:
    return constant("sparse_value", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=sparse())


def calling(nodes: list[onnx.NodeProto], *defaults: AttributeProto) -> onnx.ModelProto:
    """A call of a local function of `nodes`, which read `a` and write `b`."""
    body = helper.make_function("f", "F", ["a", "c"], ["b"], nodes, [OPSET])
    body.attribute_proto.extend(defaults)
    call = node("F", "x c", "y", domain="f")
    return model([call], [*INPUTS, FLAG], OUTPUTS, domains=[("f", 1)], functions=[body])


def branching(branch: onnx.GraphProto) -> onnx.NodeProto:
    return node("If", "c", "b", then_branch=branch, else_branch=branch)


def branch(*nodes: onnx.NodeProto, tensors: tuple[TensorProto, ...] = ()) -> onnx.GraphProto:
    return helper.make_graph([*nodes, node("Add", "a w", "r")], "b", [], [value("r", [4])], list(tensors))


def with_sparse_initializer() -> onnx.GraphProto:
    made = branch()
    made.sparse_initializer.append(sparse())
    return made


def referring() -> onnx.NodeProto:
    return constant(type=AttributeProto.TENSOR, ref_attr_name="default")


def in_graph(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    return model([*nodes, node("Add", "x w", "y")], INPUTS, OUTPUTS)


def default_of_a_default() -> onnx.ModelProto:
    """An If whose branches are a default attribute of the function, with a tensor inside."""
    made = node("If", "c", "b")
    for name in ("then_branch", "else_branch"):
        made.attribute.add(name=name, type=AttributeProto.GRAPH, ref_attr_name="default")
    body = helper.make_graph([tensor_constant(), node("Identity", "w", "r")], "b", [], [value("r", [4])])
    return calling([made], AttributeProto(name="default", type=AttributeProto.GRAPH, g=body))


PLACES: dict[str, Callable[[], onnx.ModelProto]] = {
    "a function's default attribute": lambda: calling(
        [referring(), node("Add", "a w", "b")],
        AttributeProto(name="default", type=AttributeProto.TENSOR, t=outside()),
    ),
    "a function's default branch": default_of_a_default,
    "an initializer of a branch in a function": lambda: calling([branching(branch(tensors=(outside(),)))]),
    "a constant of a branch in a function": lambda: calling([branching(branch(tensor_constant()))]),
    "a sparse initializer of a branch in a function": lambda: calling([branching(with_sparse_initializer())]),
    "a constant": lambda: in_graph(tensor_constant()),
    "a sparse constant": lambda: in_graph(sparse_constant()),
    "a sparse constant in a function": lambda: calling([sparse_constant(), node("Add", "a w", "b")]),
    "a sparse constant of a branch in a function": lambda: calling([branching(branch(sparse_constant()))]),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model's folder; the working directory is another one, with a file of the name that models ask for."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "data.bin").write_bytes(SECRET.tobytes())
    monkeypatch.chdir(here)
    made = tmp_path / "model"
    made.mkdir()
    return made


@pytest.mark.parametrize("place", PLACES)
def test_no_tensor_is_read_from_the_working_directory(folder: Path, place: str) -> None:
    with pytest.raises(ExternalDataError, match="missing") as caught:
        import_model(save(folder, PLACES[place]()))
    assert "'w'" in (caught.value.where or "")


@pytest.mark.parametrize("place", PLACES)
def test_a_tensor_beside_the_model_is_read_wherever_it_stands_and_counts_in_the_digest(
    folder: Path, place: str
) -> None:
    path = save(folder, PLACES[place]())
    digests = set()
    for data in (SECRET, SECRET + 1):
        (folder / "data.bin").write_bytes(data.tobytes())
        imported = import_model(path)
        held = [*imported.weights.values()]
        for body in (imported.proto.graph, *(a.g for n in imported.proto.graph.node for a in n.attribute)):
            held += [numpy_helper.to_array(t) for t in body.initializer]
            held += [numpy_helper.to_array(a.t) for n in body.node for a in n.attribute if a.HasField("t")]
        assert any(array.dtype == np.float32 and np.array_equal(array.ravel(), data) for array in held)
        digests.add(imported.sha256)
    assert len(digests) == 2


@pytest.mark.parametrize("kind", ["tensor in an unread attribute", "tensors of a list", "a training step's tensors"])
def test_a_tensor_that_nobody_reads_is_refused_or_dropped(folder: Path, kind: str) -> None:
    proto = in_graph(constant(type=AttributeProto.TENSOR, t=numpy_helper.from_array(SECRET)))
    if kind == "a training step's tensors":
        proto.training_info.add().initialization.initializer.append(outside())
        assert not import_model(save(folder, proto)).proto.training_info
        return
    extra = proto.graph.node[1].attribute.add(name="more")
    if kind == "tensors of a list":
        extra.type = AttributeProto.TENSORS
        extra.tensors.append(outside())
    else:
        extra.type = AttributeProto.INT
        extra.t.CopyFrom(outside())
    with pytest.raises(InputError):
        import_model(save(folder, proto))


def test_a_field_that_this_onnx_does_not_know_goes_to_no_tool(folder: Path) -> None:
    path = save(folder, in_graph(constant(type=AttributeProto.TENSOR, t=numpy_helper.from_array(SECRET))))
    # field 500 of the model: bytes
    path.write_bytes(path.read_bytes() + b"\xa2\x1f\x06hidden")
    imported = import_model(path)
    assert b"hidden" not in imported.proto.SerializeToString()


def test_onnx_runtimes_tag_for_memory_addresses_is_a_file_like_any_other(folder: Path) -> None:
    tensor = outside()
    tensor.external_data[0].value = "*/_ORT_MEM_ADDR_/*"
    tensor.external_data.add(key="offset", value="4096")
    body = helper.make_graph([node("Add", "x w", "r")], "b", [], [value("r", [4])], [tensor])
    choose = node("If", "c", "y", then_branch=body, else_branch=body)
    with pytest.raises(ExternalDataError):
        import_model(save(folder, model([choose], [*INPUTS, FLAG], OUTPUTS)))
