"""The import of shapes, odd graphs, names and weights."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from heterocc.compiler.importer.draft.names import MAX_LENGTH, Namer
from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.onnx_build import (
    F32,
    I64,
    assert_close,
    imported_like,
    model,
    node,
    noise,
    op_types,
    run_imported,
    run_original,
    save,
    value,
)

BOOL = TensorProto.BOOL


# ---- shapes ---------------------------------------------------------------------------------------------------------


def test_a_symbol_fixed_in_one_input_is_fixed_in_all(tmp_path: Path) -> None:
    proto = model([node("Add", "a b", "y")], [value("a", ["n", 3]), value("b", ["n", 3])], [value("y")])
    found = import_model(save(tmp_path, proto), shapes={"a": [2, 3]})
    assert found.graph.values["b"].shape == found.graph.values["y"].shape == (2, 3)


def test_question_marks_are_no_symbol(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y")], [value("x", ["?", "?"])], [value("y")])
    assert import_model(save(tmp_path, proto), shapes={"x": [2, 5]}).graph.values["y"].shape == (2, 5)


def test_stale_shapes_in_the_file_are_not_believed(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "a"), node("Abs", "a", "y")], [value("x", ["n"])], [value("y", [7])])
    proto.graph.value_info.append(value("a", [7]))
    found = imported_like(save(tmp_path, proto), {"x": noise(3)}, {"x": [3]})
    assert found.graph.values["a"].shape == found.graph.values["y"].shape == (3,)


def test_a_dimension_that_only_a_run_can_size_is_named_after_its_value(tmp_path: Path) -> None:
    proto = model([node("NonZero", "x", "y")], [value("x", [2, 3])], [value("y", None, I64)])
    found = imported_like(save(tmp_path, proto), {"x": np.eye(2, 3, dtype=np.float32)})
    assert found.graph.values["y"].shape == (2, "y.1")


def test_shapes_are_those_of_onnx_runtime_if_the_two_differ(tmp_path: Path) -> None:
    # ONNX's inference gives 512 instead of 257 frequencies when the attribute onesided is left to its default
    proto = model(
        [node("STFT", "x step window", "f"), node("Shape", "f", "y")],
        [value("x", [1, 8512, 1])],
        [value("y", None, I64)],
        {"step": np.array(160), "window": noise(512)},
    )
    found = imported_like(save(tmp_path, proto), {"x": noise(1, 8512, 1)})
    assert found.weights["y"].tolist() == [1, 51, 257, 2]


# ---- odd graphs -----------------------------------------------------------------------------------------------------


def test_constants_inputs_and_one_value_twice_may_be_outputs_and_inputs_unused(tmp_path: Path) -> None:
    proto = model(
        [node("Relu", "x", "y")],
        [value("x", [3]), value("spare", [2])],
        [value("y"), value("x", [3]), value("k", [300])],
        {"k": noise(300)},
    )
    found = imported_like(save(tmp_path, proto), {"x": noise(3), "spare": noise(2)})
    assert found.graph.inputs == ("x", "spare") and found.graph.outputs == ("y", "x", "k")


def test_an_output_listed_twice_is_given_once_and_noted(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y")], [value("x", [3])], [value("y"), value("y")])
    found = import_model(save(tmp_path, proto))
    assert found.graph.outputs == ("y",) and "more than once" in found.notes[0]


def test_nodes_in_any_order_come_out_sorted(tmp_path: Path) -> None:
    nodes = [node("Abs", "b", "y"), node("Neg", "a", "b"), node("Relu", "x", "a")]
    found = import_model(save(tmp_path, model(nodes, [value("x", [3])], [value("y")])))
    assert op_types(found) == ["Relu", "Neg", "Abs"]
    assert_close(run_imported(found, {"x": noise(3)}), [-np.maximum(noise(3), 0) * -1])


def test_absent_optional_inputs_are_skipped_in_the_graph_and_kept_in_the_model(tmp_path: Path) -> None:
    proto = model([node("Clip", "x - hi", "y")], [value("x", [3])], [value("y")], {"hi": np.array(0.1, np.float32)})
    found = imported_like(save(tmp_path, proto), {"x": noise(3)})
    assert found.graph.nodes[0].inputs == ("x", "hi")
    assert list(found.proto.graph.node[0].input) == ["x", "", "hi"]


def test_sparse_initializers_become_dense(tmp_path: Path) -> None:
    proto = model([node("MatMul", "x w", "y")], [value("x", [1, 2])], [value("y")])
    values = numpy_helper.from_array(np.array([2, 3], np.float32), "w")
    indices = numpy_helper.from_array(np.array([[0, 1], [1, 2]]), "i")
    proto.graph.sparse_initializer.add(values=values, indices=indices, dims=[2, 3])
    found = import_model(save(tmp_path, proto))
    assert found.weights["w"].tolist() == [[0, 2, 0], [0, 0, 3]]


def test_sequences_maps_and_strings_stay_as_opaque_values(tmp_path: Path) -> None:
    nodes = [
        node("SequenceInsert", "given x", "s", "insert"),  # into a sequence whose length the model does not say
        node("SequenceLength", "s", "n", "count"),
        node("LabelEncoder", "n", "y", "label", domain="ai.onnx.ml", keys_int64s=[3], values_strings=["three"]),
    ]
    inputs = [value("x", [3]), helper.make_tensor_sequence_value_info("given", TensorProto.FLOAT, None)]
    proto = model(nodes, inputs, [value("y", None, TensorProto.STRING)], domains=[("ai.onnx.ml", 2)])
    found = import_model(save(tmp_path, proto))
    assert op_types(found) == ["SequenceInsert", "SequenceLength", "ai.onnx.ml::LabelEncoder"]
    assert found.graph.values["s"].dtype == "seq(tensor(float))" and found.graph.values["s"].is_opaque
    assert found.graph.values["y"].dtype == "string"
    part = found.subgraph(["count"], ["s"], ["n"])
    assert part.graph.input[0].type.HasField("sequence_type")


def test_operators_of_onnx_runtime_keep_their_domain_and_get_shapes(tmp_path: Path) -> None:
    nodes = [node("FusedMatMul", "x w", "a", "fused", domain="com.microsoft", alpha=2.0), node("Shape", "a", "y")]
    proto = model(
        nodes, [value("x", [2, 3])], [value("y", None, I64)], {"w": noise(3, 4)}, domains=[("com.microsoft", 1)]
    )
    found = imported_like(save(tmp_path, proto), {"x": noise(2, 3)})
    assert found.weights["y"].tolist() == [2, 4]
    proto.graph.node.pop()
    proto.graph.output[0].CopyFrom(value("a"))
    found = import_model(save(tmp_path, proto))
    assert op_types(found) == ["com.microsoft::FusedMatMul"] and found.graph.values["a"].shape == (2, 4)


# ---- names ----------------------------------------------------------------------------------------------------------


def test_names_are_identifiers_unique_without_case_and_short(tmp_path: Path) -> None:
    originals = ["a/b", "a.b", "A_B", "0", "", "float", "main", "é", "_x", "n" * 200, "n" * 201, "a b"]
    nodes, previous = [], "x"
    for index, name in enumerate(originals):
        output = f"{name}:out" if index < len(originals) - 1 else "y/0"
        nodes.append(helper.make_node("Relu" if index % 2 else "Neg", [previous], [output], name=name))
        previous = output
    found = imported_like(save(tmp_path, model(nodes, [value("x", [3])], [value("y/0")])), {"x": noise(3)})
    for names in ([n.name for n in found.graph.nodes], list(found.graph.values)):
        assert len({n.lower() for n in names}) == len(names)
        assert all(re.fullmatch(r"[A-Za-z]\w*", n, re.ASCII) and len(n) <= MAX_LENGTH for n in names)
    assert [n.original for n in found.graph.nodes] == [(name,) if name else () for name in originals]
    assert found.sources == {"x": "x", "y_0": "y/0"}
    assert [n.name for n in found.proto.graph.node] == [n.name for n in found.graph.nodes]
    assert not {"float", "main"} & {n.name for n in found.graph.nodes}


def test_names_stay_as_they_are_if_possible(tmp_path: Path) -> None:
    proto = model(
        [node("Relu", "x", "act_out", "act"), node("Neg", "act_out", "y", "negate")], [value("x", [3])], [value("y")]
    )
    found = import_model(save(tmp_path, proto))
    assert [n.name for n in found.graph.nodes] == ["act", "negate"]
    assert list(found.graph.values) == ["x", "y", "act_out"]


def test_a_namer_gives_the_same_names_to_the_same_requests() -> None:
    requests = ["a", "A", "a_2", "a", "conv/1"]
    assert [Namer().give(r, "n") for r in requests] == ["a", "A", "a_2", "a", "conv_1"]
    one = Namer()
    assert [one.give(r, "n") for r in requests] == ["a", "A_2", "a_2_2", "a_3", "conv_1"]


# ---- weights and subgraphs ------------------------------------------------------------------------------------------


def test_weights_are_read_only_and_large_ones_are_outside_the_proto(tmp_path: Path) -> None:
    proto = model(
        [node("MatMul", "x w", "m"), node("Add", "m b", "y")],
        [value("x", [1, 20])],
        [value("y")],
        {"w": noise(20, 30), "b": noise(30)},
    )
    found = imported_like(save(tmp_path, proto), {"x": noise(1, 20)})
    assert not any(w.flags.writeable for w in found.weights.values())
    tensors = {t.name: t for t in found.proto.graph.initializer}
    assert tensors["w"].data_location == TensorProto.EXTERNAL and not tensors["w"].raw_data
    assert tensors["w"].external_data[0].value == "heterocc"
    assert tensors["b"].raw_data == found.weights["b"].tobytes()


def test_external_data_is_mapped_and_counts_in_the_digest(tmp_path: Path) -> None:
    def write(folder: str, seed: int) -> Path:
        (tmp_path / folder).mkdir()
        proto = model([node("Add", "x w", "y")], [value("x", [2000])], [value("y")], {"w": noise(2000, seed=seed)})
        path = tmp_path / folder / "m.onnx"
        onnx.save_model(proto, path, save_as_external_data=True, location="m.data", size_threshold=0)
        return path

    first, same, other = (import_model(write(f, s)) for f, s in (("a", 0), ("b", 0), ("c", 1)))
    np.testing.assert_array_equal(first.weights["w"], noise(2000))
    base = first.weights["w"]
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    assert type(base).__name__ in ("mmap", "memoryview")
    assert first.sha256 == same.sha256 != other.sha256


@pytest.mark.slow
def test_external_data_larger_than_two_gigabytes_is_mapped_not_read(tmp_path: Path) -> None:
    rows = 2**31 // 4096 + 1
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(rows * 4096)  # sparse: does not use space on the disk
    proto = model([node("Gather", "w i", "y")], [value("i", [1], I64)], [value("y")])
    tensor = proto.graph.initializer.add(name="w", data_type=F32, dims=[rows, 1024], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    found = import_model(save(tmp_path, proto))
    assert found.weights["w"].nbytes > 2**31
    assert found.graph.values["y"].shape == (1, 1024)
    assert len(found.proto.SerializeToString()) < 1000


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int4"])
def test_external_data_of_narrow_types_is_read(tmp_path: Path, dtype: str) -> None:
    import ml_dtypes

    array = np.arange(-4, 4).astype(np.dtype(getattr(ml_dtypes, dtype)))
    proto = model([node("Cast", "w", "f", to=F32), node("Add", "x f", "y")], [value("x", [8])], [value("y")], opset=21)
    tensor = numpy_helper.from_array(array, "w")
    (tmp_path / "w.bin").write_bytes(b"pad" + tensor.raw_data)
    raw = len(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in {"location": "w.bin", "offset": "3", "length": str(raw)}.items():
        tensor.external_data.add(key=key, value=text)
    proto.graph.initializer.append(tensor)
    found = import_model(save(tmp_path, proto))
    assert_close(run_imported(found, {"x": np.zeros(8, np.float32)}), [np.arange(-4, 4).astype(np.float32)])


def test_partitions_run_one_after_the_other_give_the_whole(tmp_path: Path) -> None:
    proto = model(
        [node("MatMul", "x w", "a", "one"), node("Relu", "a", "b", "two"), node("Add", "b a", "y", "three")],
        [value("x", [2, 40])],
        [value("y")],
        {"w": noise(40, 40)},
    )
    path = save(tmp_path, proto)
    found = import_model(path)
    known = {"x": noise(2, 40), "w": found.weights["w"]}
    for name, inputs, outputs in (("one", ["x"], ["a"]), ("three", ["b", "a"], ["y"]), ("two", ["a"], ["b"])):
        part = found.subgraph([name], inputs, outputs)
        onnx.checker.check_model(_inlined(part, found.weights))
        assert [n.name for n in part.graph.node] == [name]
    both = found.subgraph(["three", "two"], ["a"], ["y"])
    assert [n.name for n in both.graph.node] == ["two", "three"]
    a = ReferenceEvaluator(_inlined(found.subgraph(["one"], ["x"], ["a"]), found.weights)).run(None, {"x": known["x"]})[
        0
    ]
    y = ReferenceEvaluator(both).run(None, {"a": a})
    assert_close(y, run_original(path, {"x": known["x"]}))


def _inlined(proto: onnx.ModelProto, weights: object) -> onnx.ModelProto:
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    for tensor in copy.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))  # type: ignore[index]
    return copy


def test_a_subgraph_of_what_the_model_does_not_have_is_a_key_error(tmp_path: Path) -> None:
    found = import_model(save(tmp_path, model([node("Relu", "x", "y", "act")], [value("x", [3])], [value("y")])))
    for arguments in (["absent"], ["x"], ["y"]), (["act"], ["absent"], ["y"]):
        with pytest.raises(KeyError):
            found.subgraph(*arguments)
