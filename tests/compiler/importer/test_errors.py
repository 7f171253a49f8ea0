import errno
import os
import stat
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from heterocc.artifacts.errors import (
    DynamicShapeError,
    ExternalDataError,
    FileMissingError,
    HeteroccError,
    Hint,
    InvalidGraphError,
    NotOnnxError,
    ShapeOptionError,
)
from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.onnx_build import F32, I64, model, node, noise, save, value

RELU = node("Relu", "x", "y", "act")


def relu(dims: object = (1, 3)) -> onnx.ModelProto:
    return model([RELU], [value("x", dims)], [value("y")])  # type: ignore[arg-type]


def refusal(path: Path, kind: type[HeteroccError], **options: object) -> HeteroccError:
    with pytest.raises(kind) as caught:
        import_model(path, **options)  # type: ignore[arg-type]
    error = caught.value
    assert error.message and not error.message.endswith(".") and "\n" not in error.message
    assert error.where and path.name in error.where
    return error


# ---- the file -----------------------------------------------------------------------------------------------------


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    error = refusal(tmp_path / "absent.onnx", FileMissingError)
    assert "no such file" in error.message


def test_a_directory_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").mkdir()
    assert "directory" in refusal(tmp_path / "m.onnx", FileMissingError).message


def test_a_model_that_may_not_be_read_has_a_hint_to_its_permissions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path, relu())

    def deny(_: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", deny)  # the superuser may read any file
    error = refusal(path, FileMissingError)
    assert "Permission denied" in error.message and "chmod u+r" in str(error.hint)


def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.onnx")
    assert "regular file" in refusal(tmp_path / "m.onnx", FileMissingError).message


def test_a_file_below_a_file_is_missing(tmp_path: Path) -> None:
    save(tmp_path, relu())
    assert refusal(tmp_path / "m.onnx" / "inner.onnx", FileMissingError).code == "HC101"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"not a model at all, just words", "not an ONNX model"),
        (b"PK\x03\x04 and so on", "zip file"),
        (b"\0\0\0\0TFL3", "TensorFlow Lite"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"\x08\x0a", "no ONNX graph"),
    ],
)
def test_what_is_not_onnx_is_said_to_be_what_it_is(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    error = refusal(path, NotOnnxError)
    assert words in error.message and error.hint


def test_a_model_cut_short_anywhere_is_never_accepted(tmp_path: Path) -> None:
    whole = relu().SerializeToString()
    path = tmp_path / "m.onnx"
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        refusal(path, NotOnnxError)


def test_a_file_over_two_gigabytes_gets_a_hint_to_external_data(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with path.open("wb") as file:
        file.truncate(2**31 + 8)
    error = refusal(path, NotOnnxError)
    assert "2 GB" in error.message and error.hint and "external" in error.hint


# ---- the graph ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([node("Rellu", "x", "y", "act")], "Rellu"),
        ([node("Relu", "absent", "y", "act")], "absent"),
        ([node("Relu", "x", "y"), node("Abs", "x", "y")], "y"),
        (
            [node("Add", "x b", "a", "first"), node("Relu", "a", "b"), node("Abs", "b", "y")],
            "'first' → 'Relu' → 'first'",
        ),
        ([node("Add", "x y", "y", "self")], "cycle, it needs its own result: 'self' → 'self'"),
        ([node("Relu", "x x", "y", "act")], "Relu"),
        ([node("Flatten", "x", "y", "act", axes=[1])], "axes"),
        ([node("Add", "x i", "y", "sum")], "Add"),
        ([node("MatMul", "x w", "y", "product")], "MatMul"),
        ([node("Mystery", "x", "y", "act", domain="org.example")], "Mystery"),
    ],
    ids=[
        "unknown operator",
        "missing input",
        "value written twice",
        "cycle",
        "cycle of one",
        "too many inputs",
        "unknown attribute",
        "types differ",
        "shapes do not fit",
        "unknown domain",
    ],
)
def test_an_invalid_graph_is_named(tmp_path: Path, nodes: list[onnx.NodeProto], words: str) -> None:
    constants = {"i": np.ones(3, np.int64), "w": noise(4, 4)}
    proto = model(nodes, [value("x", [1, 3])], [value("y")], constants, domains=[("org.example", 1)])
    error = refusal(save(tmp_path, proto), InvalidGraphError)
    assert words in error.message + (error.where or "")


def test_an_output_that_nobody_writes_is_an_invalid_graph(tmp_path: Path) -> None:
    refusal(save(tmp_path, model([RELU], [value("x", [1])], [value("z")])), InvalidGraphError)


def test_two_inputs_of_one_name_are_an_invalid_graph(tmp_path: Path) -> None:
    proto = model([RELU], [value("x", [1]), value("x", [1])], [value("y")])
    assert "'x'" in refusal(save(tmp_path, proto), InvalidGraphError).message


def test_an_initializer_with_too_few_bytes_is_an_invalid_graph(tmp_path: Path) -> None:
    proto = model([node("Add", "x w", "y")], [value("x", [1, 3])], [value("y")])
    proto.graph.initializer.add(name="w", data_type=F32, dims=[3], raw_data=b"\0" * 8)
    assert "'w'" in (refusal(save(tmp_path, proto), InvalidGraphError).where or "")


def test_recursive_functions_are_an_invalid_graph(tmp_path: Path) -> None:
    body = helper.make_function("f", "Again", ["a"], ["b"], [node("Again", "a", "b", domain="f")], [])
    body.opset_import.add(domain="f", version=1)
    proto = model(
        [node("Again", "x", "y", domain="f")], [value("x", [1])], [value("y")], domains=[("f", 1)], functions=[body]
    )
    assert "calls itself" in refusal(save(tmp_path, proto), InvalidGraphError).message


def test_the_functions_of_a_recursion_are_named(tmp_path: Path) -> None:
    calls = {"Outer": "First", "First": "Second", "Second": "Third", "Third": "First"}
    functions = []
    for name, called in calls.items():
        made = helper.make_function("f", name, ["a"], ["b"], [node(called, "a", "b", domain="f")], [])
        made.opset_import.add(domain="f", version=1)
        functions.append(made)
    call = node("Outer", "x", "y", domain="f")
    proto = model([call], [value("x", [1])], [value("y")], domains=[("f", 1)], functions=functions)
    message = refusal(save(tmp_path, proto), InvalidGraphError).message
    assert message == "function 'First' calls itself: 'First' → 'Second' → 'Third' → 'First'"


def test_functions_that_call_each_other_too_deep_are_an_invalid_graph(tmp_path: Path) -> None:
    functions = []
    for level in range(201):
        inner = node(f"F{level + 1}", "a", "b", domain="f") if level < 200 else node("Relu", "a", "b")
        made = helper.make_function("f", f"F{level}", ["a"], ["b"], [inner], [helper.make_opsetid("", 17)])
        made.opset_import.add(domain="f", version=1)
        functions.append(made)
    call = node("F0", "x", "y", domain="f")
    proto = model([call], [value("x", [1])], [value("y")], domains=[("f", 1)], functions=functions)
    assert "more than 200 levels deep" in refusal(save(tmp_path, proto), InvalidGraphError).message


def test_functions_that_multiply_without_measure_are_an_invalid_graph(tmp_path: Path) -> None:
    functions = []
    for level in range(40):
        inner = [node(f"F{level - 1}" if level else "Relu", "a", "m", domain="f" if level else "")]
        inner.append(node(f"F{level - 1}" if level else "Relu", "m", "b", domain="f" if level else ""))
        made = helper.make_function("f", f"F{level}", ["a"], ["b"], inner, [helper.make_opsetid("", 17)])
        made.opset_import.add(domain="f", version=1)
        functions.append(made)
    call = node("F39", "x", "y", domain="f")
    proto = model([call], [value("x", [1])], [value("y")], domains=[("f", 1)], functions=functions)
    assert "expand" in refusal(save(tmp_path, proto), InvalidGraphError).message


def test_a_function_with_an_invalid_body_is_an_invalid_graph(tmp_path: Path) -> None:
    body = helper.make_function("f", "F", ["a"], ["b"], [node("Relu", "lost", "b")], [helper.make_opsetid("", 17)])
    call = node("F", "x", "y", "call", domain="f")
    proto = model([call], [value("x", [1])], [value("y")], domains=[("f", 1)], functions=[body])
    refusal(save(tmp_path, proto), InvalidGraphError)


def test_a_model_with_a_training_step_is_refused(tmp_path: Path) -> None:
    proto = relu()
    proto.training_info.add().algorithm.CopyFrom(proto.graph)
    assert "training" in refusal(save(tmp_path, proto), InvalidGraphError).message


# ---- shapes -------------------------------------------------------------------------------------------------------


def test_a_dynamic_input_is_named_with_its_dimensions_and_a_shape_to_try(tmp_path: Path) -> None:
    error = refusal(save(tmp_path, relu(["batch", 3, "h", None])), DynamicShapeError)
    assert "'x' [batch,3,h,?]" in error.message
    assert isinstance(error.hint, Hint) and "--shape x=1,3,224,224" in error.hint.command


def test_an_input_of_unknown_rank_is_dynamic(tmp_path: Path) -> None:
    assert "unknown rank" in refusal(save(tmp_path, relu(None)), DynamicShapeError).message


def test_an_input_with_a_negative_dimension_is_dynamic(tmp_path: Path) -> None:
    proto = relu()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert "'x' [?,3]" in refusal(save(tmp_path, proto), DynamicShapeError).message


def test_a_shape_left_over_is_named_if_another_was_given(tmp_path: Path) -> None:
    proto = model([node("Add", "a b", "y")], [value("a", ["n"]), value("b", ["m"])], [value("y")])
    error = refusal(save(tmp_path, proto), DynamicShapeError, shapes={"a": [4]})
    assert "'b'" in error.message and "'a'" not in error.message


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"z": [1, 3]}, "not an input"),
        ({"x": [1]}, "2"),
        ({"x": [1, 4]}, "fixed to 3"),
        ({"x": [-1, 3]}, "dimension 0 of 'x' is negative"),
        ({"x": [2, 3], "other": [5]}, "'n'"),
    ],
    ids=["unknown name", "wrong rank", "fixed dimension", "negative", "one symbol with two values"],
)
def test_a_shape_that_cannot_be_is_refused_and_the_inputs_are_listed(
    tmp_path: Path, shapes: dict[str, list[int]], words: str
) -> None:
    proto = model([RELU], [value("x", ["n", 3]), value("other", ["n"])], [value("y")])
    error = refusal(save(tmp_path, proto), ShapeOptionError, shapes=shapes)
    assert words in error.message
    assert error.exit_code == 2
    assert error.hint and "'x' [" in error.hint and "'other' [" in error.hint


# ---- external data ------------------------------------------------------------------------------------------------


def external(**entries: str) -> onnx.ModelProto:
    """`y = x + w`, with w = 4 floats outside the file."""
    proto = model([node("Add", "x w", "y")], [value("x", [4])], [value("y")])
    tensor = proto.graph.initializer.add(name="w", data_type=F32, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, text in entries.items():
        tensor.external_data.add(key=key, value=text)
    return proto


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The model's folder, beside a file that it must not reach."""
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    inner = tmp_path / "model"
    inner.mkdir()
    (inner / "w.bin").write_bytes(noise(16).tobytes())
    (inner / "sub").mkdir()
    (inner / "sub" / "w.bin").write_bytes(noise(16).tobytes())
    return inner


@pytest.mark.parametrize(
    "entries",
    [{"location": "w.bin"}, {"location": "sub/w.bin", "offset": "48"}, {"location": "./w.bin", "length": "16"}],
)
def test_external_data_inside_the_folder_is_read(folder: Path, entries: dict[str, str]) -> None:
    start = int(entries.get("offset", "0")) // 4
    found = import_model(save(folder, external(**entries))).weights["w"]
    np.testing.assert_array_equal(found, noise(16)[start : start + 4])


@pytest.mark.parametrize(
    "location",
    [
        "../secret.bin",
        "sub/../../secret.bin",
        "sub/../w.bin",
        "/etc/passwd",
        "",
        ".",
        "absent.bin",
        "sub",
        "w.bin/x",
        "a\0b",
    ],
)
def test_external_data_that_leaves_the_folder_or_is_no_file_is_refused(folder: Path, location: str) -> None:
    error = refusal(save(folder, external(location=location)), ExternalDataError)
    assert "'w'" in (error.where or "")


def test_an_absolute_location_is_refused_even_inside_the_folder(folder: Path) -> None:
    refusal(save(folder, external(location=str(folder / "w.bin"))), ExternalDataError)


@pytest.mark.parametrize("target", ["../secret.bin", "w.bin"])
def test_a_symbolic_link_is_refused_wherever_it_leads(folder: Path, target: str) -> None:
    (folder / "link.bin").symlink_to(target)
    assert "symbolic link" in refusal(save(folder, external(location="link.bin")), ExternalDataError).message


def test_a_linked_folder_is_refused(folder: Path) -> None:
    (folder / "up").symlink_to("..")
    assert "symbolic link" in refusal(save(folder, external(location="up/secret.bin")), ExternalDataError).message


def test_a_hard_link_is_refused(folder: Path) -> None:
    os.link(folder.parent / "secret.bin", folder / "hard.bin")
    assert "hard link" in refusal(save(folder, external(location="hard.bin")), ExternalDataError).message


def test_a_named_pipe_as_external_data_is_refused_and_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    assert stat.S_ISFIFO((folder / "pipe").stat().st_mode)
    assert "regular file" in refusal(save(folder, external(location="pipe")), ExternalDataError).message


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": "49"},
        {"offset": "1000"},
        {"offset": "-4"},
        {"offset": "99999999999999999999999999"},
        {"length": "12"},
        {"length": "0"},
        {"length": "x"},
    ],
)
def test_bytes_outside_the_file_or_other_than_needed_are_refused(folder: Path, entries: dict[str, str]) -> None:
    refusal(save(folder, external(location="w.bin", **entries)), ExternalDataError)


def test_an_empty_external_file_is_refused(folder: Path) -> None:
    (folder / "w.bin").write_bytes(b"")
    assert "has 0" in refusal(save(folder, external(location="w.bin")), ExternalDataError).message


def test_a_tensor_that_claims_to_be_huge_costs_nothing(folder: Path) -> None:
    proto = external(location="w.bin")
    proto.graph.initializer[0].dims[:] = [2**40, 2**10]
    refusal(save(folder, proto), ExternalDataError)


@pytest.mark.parametrize("place", ["attribute", "body", "function", "sparse"])
def test_external_data_is_checked_wherever_a_tensor_may_be(folder: Path, place: str) -> None:
    tensor = external(location="../secret.bin").graph.initializer[0]
    constant = node("Constant", "", "w")
    constant.attribute.add(name="value", type=onnx.AttributeProto.TENSOR, t=tensor)
    inputs, outputs = [value("x", [4])], [value("y")]
    if place == "attribute":
        proto = model([constant, node("Add", "x w", "y")], inputs, outputs)
    elif place == "function":
        body = helper.make_function("f", "F", ["a"], ["b"], [constant, node("Add", "a w", "b")], [])
        body.opset_import.add(domain="", version=17)
        proto = model([node("F", "x", "y", domain="f")], inputs, outputs, domains=[("f", 1)], functions=[body])
    elif place == "body":
        branch = helper.make_graph([node("Add", "x w", "r")], "b", [], [value("r", [4])], [tensor])
        choose = node("If", "c", "y", then_branch=branch, else_branch=branch)
        proto = model([choose], [*inputs, value("c", [], TensorProto.BOOL)], outputs)
    else:
        proto = model([node("Add", "x w", "y")], inputs, outputs)
        indices = onnx.numpy_helper.from_array(np.arange(4, dtype=np.int64), "i")
        proto.graph.sparse_initializer.add(values=tensor, indices=indices, dims=[4])
    refusal(save(folder, proto), ExternalDataError)


def test_a_sparse_initializer_with_an_index_outside_is_refused(tmp_path: Path) -> None:
    proto = model([node("Add", "x w", "y")], [value("x", [4])], [value("y")])
    values = onnx.numpy_helper.from_array(np.ones(2, np.float32), "w")
    indices = onnx.numpy_helper.from_array(np.array([1, 4], np.int64), "i")
    proto.graph.sparse_initializer.add(values=values, indices=indices, dims=[4])
    refusal(save(tmp_path, proto), InvalidGraphError)


def test_inputs_of_other_types_need_a_shape_too(tmp_path: Path) -> None:
    proto = model([node("Abs", "x", "y")], [value("x", ["n"], I64)], [value("y", None, I64)])
    refusal(save(tmp_path, proto), DynamicShapeError)
