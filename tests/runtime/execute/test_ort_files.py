"""Files that the ONNX model of a bundle names are never opened: it is refused at load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import AttributeProto, TensorProto, helper, numpy_helper

import heterocc.runtime.execute.ort as ort_module
from heterocc.artifacts.errors import BundleError, DeviceError, DriverMissingError
from heterocc.runtime import load
from heterocc.runtime.execute.onnx_wire import unexpected_external
from tests.runtime import standin
from tests.runtime.standin import Model, Part

Write = Callable[..., Path]
X = np.arange(4, dtype=np.float32)
OPSET = helper.make_opsetid("", 17)


def floats(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [4])


def outside(name: str = "w", location: str = "secret.bin") -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


def adding(*nodes: onnx.NodeProto, tensors: tuple[TensorProto, ...] = ()) -> onnx.ModelProto:
    """y = x + w, with w from the nodes or tensors given."""
    last = helper.make_node("Add", ["x", "w"], ["y"])
    graph = helper.make_graph([*nodes, last], "g", [floats("x")], [floats("y")], list(tensors))
    return helper.make_model(graph, opset_imports=[OPSET, helper.make_opsetid("f", 1)], ir_version=8)


def constant(**attribute: object) -> onnx.NodeProto:
    made = helper.make_node("Constant", [], ["w"])
    made.attribute.add(**attribute)
    return made


def sparse() -> onnx.SparseTensorProto:
    return onnx.SparseTensorProto(
        dims=[4], values=outside(), indices=numpy_helper.from_array(np.arange(4, dtype=np.int64))
    )


def choosing(branch: onnx.GraphProto) -> onnx.ModelProto:
    flag = numpy_helper.from_array(np.array(True), "c")
    choose = helper.make_node("If", ["c"], ["w"], then_branch=branch, else_branch=branch)
    return adding(choose, tensors=(flag,))


def branch() -> onnx.GraphProto:
    copy = helper.make_node("Identity", ["v"], ["r"])
    return helper.make_graph([copy], "b", [], [floats("r")], [outside("v")])


def with_function() -> onnx.ModelProto:
    made = helper.make_function(
        "f", "F", [], ["w"], [constant(name="value", type=AttributeProto.TENSOR, t=outside())], [OPSET]
    )
    model = adding(helper.make_node("F", [], ["w"], domain="f"))
    model.functions.append(made)
    return model


def with_default() -> onnx.ModelProto:
    model = with_function()
    attribute = model.functions[0].node[0].attribute[0]
    attribute.ClearField("t")
    attribute.ref_attr_name = "d"
    model.functions[0].attribute_proto.add(name="d", type=AttributeProto.TENSOR, t=outside())
    return model


def with_sparse_initializer() -> onnx.ModelProto:
    model = adding()
    model.graph.sparse_initializer.append(sparse())
    return model


FORMS: dict[str, Callable[[], onnx.ModelProto]] = {
    "an initializer": lambda: adding(tensors=(outside(),)),
    "an address": lambda: adding(tensors=(outside(location="*/_ORT_MEM_ADDR_/*"),)),
    "a constant": lambda: adding(constant(name="value", type=AttributeProto.TENSOR, t=outside())),
    "a sparse constant": lambda: adding(
        constant(name="sparse_value", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=sparse())
    ),
    "a sparse initializer": with_sparse_initializer,
    "an initializer of a branch": lambda: choosing(branch()),
    "a constant of a function": with_function,
    "a default attribute of a function": with_default,
}


def bundle(model: bytes, params: tuple[str, ...] = ()) -> Model:
    return Model(
        values=dict.fromkeys("xy", ("float32", (4,))),
        inputs=("x",),
        outputs=("y",),
        parts=(Part(0, ("x",), ("y",), onnx=model, params=params),),
        weights={name: np.full(4, 7, np.float32) for name in params},
        devices=(standin.ORT,),
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the file that the models ask for."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.bin").write_bytes(np.full(4, 42, np.float32).tobytes())
    return tmp_path


@pytest.mark.parametrize("form", FORMS)
def test_a_bundle_whose_model_names_a_file_is_refused(bundle_of: Write, here: Path, form: str) -> None:
    with pytest.raises(BundleError, match="external") as caught:
        load(bundle_of(bundle(FORMS[form]().SerializeToString())))
    assert caught.value.where and caught.value.hint


@pytest.mark.parametrize("form", FORMS)
def test_onnx_runtime_alone_would_not_read_it_either(
    bundle_of: Write, here: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ort_module, "unexpected_external", lambda model, given: None)
    with pytest.raises(DeviceError):
        load(bundle_of(bundle(FORMS[form]().SerializeToString())))


def test_data_that_the_bundle_has_takes_the_files_place(bundle_of: Write, here: Path) -> None:
    model = FORMS["an initializer"]().SerializeToString()
    with load(bundle_of(bundle(model, ("w",)))) as session:
        np.testing.assert_array_equal(session.run({"x": X})["y"], X + 7)


@pytest.mark.parametrize(
    "model",
    [
        FORMS["a constant"]().SerializeToString(),
        adding(tensors=(outside(), outside())).SerializeToString(),
        adding(tensors=(outside(), numpy_helper.from_array(X, "w"))).SerializeToString(),
        FORMS["a sparse initializer"]().SerializeToString(),
    ],
    ids=["a constant", "twice", "once inside", "sparse"],
)
def test_a_given_name_opens_no_second_tensor(model: bytes) -> None:
    assert unexpected_external(model, ["w"]) is not None


def test_a_location_that_is_only_a_name_is_no_file() -> None:
    made = adding(helper.make_node("Relu", ["x"], ["w"], name="location/relu"))
    assert unexpected_external(made.SerializeToString(), []) is None


def test_a_model_in_onnx_runtimes_own_format_is_refused(bundle_of: Write) -> None:
    with pytest.raises(DeviceError):
        load(bundle_of(bundle(b"\x20\0\0\0ORTM" + bytes(64))))


@pytest.mark.parametrize(("version", "old"), [("1.22.0", True), ("1.30.2", True), ("1.31.0", False), ("2.0", False)])
def test_an_onnxruntime_that_follows_paths_is_refused(
    bundle_of: Write, monkeypatch: pytest.MonkeyPatch, version: str, old: bool
) -> None:
    monkeypatch.setattr("onnxruntime.__version__", version)
    written = bundle_of(bundle(FORMS["an initializer"]().SerializeToString(), ("w",)))
    if old:
        with pytest.raises(DriverMissingError, match="too old"):
            load(written)
    else:
        load(written).close()


def split(model: bytes) -> bytes:
    """The same model with its one external constant in two pieces, which protobuf merges."""
    whole = constant(name="value", type=AttributeProto.TENSOR, t=outside()).attribute[0]
    first, second = AttributeProto(t=TensorProto(data_location=TensorProto.EXTERNAL)), AttributeProto()
    second.CopyFrom(whole)
    second.t.ClearField("data_location")
    merged = first.SerializeToString() + second.SerializeToString()
    node = helper.make_node("Constant", [], ["w"]).SerializeToString() + b"\x2a" + bytes([len(merged)]) + merged
    graph = b"\x0a" + bytes([len(node)]) + node
    return model + b"\x3a" + bytes([len(graph)]) + graph


def test_pieces_that_protobuf_merges_are_found() -> None:
    made = split(adding().SerializeToString())
    held = onnx.ModelProto.FromString(made).graph.node[1].attribute[0].t
    assert held.data_location == TensorProto.EXTERNAL and held.external_data
    assert "external" in (unexpected_external(made, ["w"]) or "")


def external_for_protobuf(model: onnx.ModelProto) -> bool:
    """Whether any tensor at all is external, as protobuf reads the model."""
    return "data_location: EXTERNAL" in str(model) or "external_data {" in str(model)


@settings(max_examples=400, database=None)
@given(st.sampled_from(sorted(FORMS)), st.data())
def test_any_bytes_are_refused_or_hold_no_external_tensor(form: str, data: st.DataObject) -> None:
    model = bytearray(FORMS[form]().SerializeToString())
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(model) - 1))
        model[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    if unexpected_external(bytes(model), []) is not None:
        return
    try:
        parsed = onnx.ModelProto.FromString(bytes(model))
    except Exception:
        return
    if b"location" in model:
        parsed.DiscardUnknownFields()
        assert not external_for_protobuf(parsed)
