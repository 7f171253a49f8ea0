"""Models that are malformed inside: each is refused with an error that names the place, whatever is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper

from heterocc.artifacts.errors import InputError
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.importer.reading.tensors import check_model
from tests.compiler.onnx_build import F32, model, node, noise, save, value
from tests.fresh_process import fresh

INPUTS, OUTPUTS = [value("x", [4])], [value("y", [4])]
FLAG = value("c", [], TensorProto.BOOL)
OPSET = helper.make_opsetid("", 17)


def refusal(folder: Path, proto: onnx.ModelProto | bytes) -> InputError:
    path = folder / "m.onnx"
    path.write_bytes(proto if isinstance(proto, bytes) else proto.SerializeToString())
    with pytest.raises(InputError) as caught:
        import_model(path)
    error = caught.value
    assert error.message and "\n" not in error.message and error.where and "m.onnx" in error.where
    return error


def constant(**fields: object) -> NodeProto:
    made = node("Constant", "", "w")
    if fields:
        made.attribute.add(**fields)
    return made


# ---- the places of tensors ----------------------------------------------------------------------------------------


def as_initializer(tensor: TensorProto) -> onnx.ModelProto:
    made = model([node("Add", "x w", "y")], INPUTS, OUTPUTS)
    made.graph.initializer.append(tensor)
    return made


def as_constant(tensor: TensorProto) -> onnx.ModelProto:
    return model(
        [constant(name="value", type=AttributeProto.TENSOR, t=tensor), node("Add", "x w", "y")], INPUTS, OUTPUTS
    )


def in_branch(tensor: TensorProto) -> onnx.ModelProto:
    body = helper.make_graph([node("Add", "x w", "r")], "b", [], [value("r", [4])], [tensor])
    return model([node("If", "c", "y", then_branch=body, else_branch=body)], [*INPUTS, FLAG], OUTPUTS)


def in_function(tensor: TensorProto) -> onnx.ModelProto:
    nodes = [constant(name="value", type=AttributeProto.TENSOR, t=tensor), node("Add", "a w", "b")]
    made = helper.make_function("f", "F", ["a"], ["b"], nodes, [OPSET])
    return model([node("F", "x", "y", domain="f")], INPUTS, OUTPUTS, domains=[("f", 1)], functions=[made])


PLACES = [as_initializer, as_constant, in_branch, in_function]


def tensor(**fields: object) -> TensorProto:
    return TensorProto(**{"name": "w", "data_type": F32, "dims": [4], **fields})


TENSORS = {
    "unknown element type": (tensor(data_type=99, raw_data=bytes(16)), "element type 99"),
    "negative element type": (tensor(data_type=-1, raw_data=bytes(16)), "element type -1"),
    "no element type": (tensor(data_type=0, raw_data=bytes(16)), "no element type"),
    "no data": (tensor(), "4 entries"),
    "too few bytes": (tensor(raw_data=bytes(12)), "16 bytes"),
    "too many bytes": (tensor(raw_data=bytes(20)), "16 bytes"),
    "too few entries": (tensor(float_data=[1.0]), "4 entries"),
    "data of two kinds": (tensor(float_data=[1.0] * 4, raw_data=bytes(16)), "both"),
    "data of another type": (tensor(int64_data=[1] * 4), "int64_data"),
    "text that is not UTF-8": (tensor(data_type=TensorProto.STRING, string_data=[b"\xff"] * 4), "element"),
    "strings as bytes": (tensor(data_type=TensorProto.STRING, raw_data=bytes(4)), "raw_data"),
    "a negative dimension": (tensor(dims=[-4], raw_data=bytes(16)), "negative"),
    "dimensions beyond all memory": (tensor(dims=[2**40, 2**40], raw_data=bytes(16)), "too large"),
    "no elements, beyond all memory": (tensor(dims=[0, 2**62, 2**62], raw_data=b""), "too large"),
    "no elements, one huge dimension": (tensor(dims=[0, 2**62], raw_data=b""), "too large"),
    "65 dimensions": (tensor(dims=[1] * 65, raw_data=bytes(4)), "65 dimensions"),
    "segments": (tensor(segment=TensorProto.Segment(begin=0, end=4), raw_data=bytes(16)), "segments"),
    "four bits short of a byte": (tensor(data_type=TensorProto.INT4, dims=[3], raw_data=b"\0"), "2 bytes"),
}


@pytest.mark.parametrize("place", PLACES, ids=lambda p: p.__name__)
@pytest.mark.parametrize("form", TENSORS)
def test_a_malformed_tensor_is_named_wherever_it_stands(
    tmp_path: Path, form: str, place: Callable[[TensorProto], onnx.ModelProto]
) -> None:
    malformed, words = TENSORS[form]
    error = refusal(tmp_path, place(malformed))
    assert words in error.message and "'w'" in (error.where or "")


def test_a_tensor_without_a_name_is_named_by_its_path(tmp_path: Path) -> None:
    error = refusal(tmp_path, as_constant(tensor(name="", raw_data=b"")))
    assert (error.where or "").endswith("model.graph.node[0].attribute[0].t")


@pytest.mark.parametrize("key", ["offset", "length"])
def test_an_external_number_of_thousands_of_digits_is_refused(tmp_path: Path, key: str) -> None:
    made = tensor(data_location=TensorProto.EXTERNAL)
    made.external_data.add(key="location", value="w.bin")
    made.external_data.add(key=key, value="9" * 5000)
    (tmp_path / "w.bin").write_bytes(bytes(16))
    for place in PLACES:
        error = refusal(tmp_path, place(made))
        assert key in error.message and len(str(error)) < 300


# ---- text ---------------------------------------------------------------------------------------------------------


def with_text(name: str) -> onnx.ModelProto:
    """A model with the text QQQQ in one place."""
    q = "QQQQ"
    made = model([node("Add", "x w", "y", "sum")], [value("x", ["n"])], OUTPUTS, {"w": noise(4)}, domains=[("f", 1)])
    graph = made.graph
    body = helper.make_function("f", "F", ["a"], ["b"], [node("Relu", "a", "b")], [OPSET])
    made.functions.append(body)
    texts: dict[str, Callable[[], object]] = {
        "node": lambda: setattr(graph.node[0], "name", q),
        "operator": lambda: setattr(graph.node[0], "op_type", q),
        "domain": lambda: setattr(graph.node[0], "domain", q),
        "read value": lambda: graph.node[0].input.__setitem__(0, q),
        "written value": lambda: graph.node[0].output.__setitem__(0, q),
        "input": lambda: setattr(graph.input[0], "name", q),
        "initializer": lambda: setattr(graph.initializer[0], "name", q),
        "dimension": lambda: setattr(graph.input[0].type.tensor_type.shape.dim[0], "dim_param", q),
        "attribute": lambda: graph.node[0].attribute.add(name=q, type=AttributeProto.INT, i=1),
        "operator set": lambda: made.opset_import.add(domain=q, version=1),
        "graph": lambda: setattr(graph, "name", q),
        "function": lambda: setattr(made.functions[0], "name", q),
        "function's input": lambda: made.functions[0].input.append(q),
        "metadata": lambda: made.metadata_props.add(key=q, value="v"),
        "tensor's documentation": lambda: setattr(graph.initializer[0], "doc_string", q),
        "location": lambda: graph.initializer[0].external_data.add(key="location", value=q),
    }
    texts[name]()
    return made


@pytest.mark.parametrize(
    "name",
    "node,operator,domain,read value,written value,input,initializer,dimension,attribute,operator set,graph,function,"
    "function's input,metadata,tensor's documentation,location".split(","),
)
def test_text_that_is_not_utf8_is_refused_with_its_path(tmp_path: Path, name: str) -> None:
    data = with_text(name).SerializeToString()
    assert data.count(b"QQQQ") == 1
    error = refusal(tmp_path, data.replace(b"QQQQ", b"Q\xff\xfeQ"))
    assert "not UTF-8" in error.message and "model" in (error.where or "").removeprefix("m.onnx")


def test_the_text_of_a_constant_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    for name, fields in {
        "value_string": {"type": AttributeProto.STRING, "s": b"\xff"},
        "value_strings": {"type": AttributeProto.STRINGS, "strings": [b"\xff"]},
    }.items():
        made = constant(name=name, **fields)
        shape = [] if name == "value_string" else [1]
        refusal(tmp_path, model([made], [], [value("w", shape, TensorProto.STRING)]))


# ---- types --------------------------------------------------------------------------------------------------------


def typed(**fields: object) -> onnx.ModelProto:
    made = model([node("Relu", "x", "y")], INPUTS, OUTPUTS)
    made.graph.input.add(name="z").type.CopyFrom(onnx.TypeProto(**fields))
    return made


SHAPE = onnx.TensorShapeProto(dim=[onnx.TensorShapeProto.Dimension(dim_value=1)] * 65)
UNKNOWN = onnx.TypeProto.Tensor(elem_type=99)
TYPES = {
    "tensor": {"tensor_type": UNKNOWN},
    "sequence": {"sequence_type": onnx.TypeProto.Sequence(elem_type=onnx.TypeProto(tensor_type=UNKNOWN))},
    "optional": {"optional_type": onnx.TypeProto.Optional(elem_type=onnx.TypeProto(tensor_type=UNKNOWN))},
    "map": {"map_type": onnx.TypeProto.Map(key_type=99)},
    "sparse": {"sparse_tensor_type": onnx.TypeProto.SparseTensor(elem_type=99)},
    "rank": {"tensor_type": onnx.TypeProto.Tensor(elem_type=F32, shape=SHAPE)},
}


@pytest.mark.parametrize("kind", TYPES)
def test_an_input_of_an_unknown_type_is_refused_with_its_path(tmp_path: Path, kind: str) -> None:
    error = refusal(tmp_path, typed(**TYPES[kind]))
    assert ("65 dimensions" if kind == "rank" else "element type 99") in error.message
    assert "graph.input[1].type" in (error.where or "")


# ---- nodes --------------------------------------------------------------------------------------------------------


def using(made: NodeProto) -> onnx.ModelProto:
    return model([made, node("Add", "x w", "y")], [*INPUTS, FLAG], OUTPUTS)


def in_a_function(made: NodeProto) -> onnx.ModelProto:
    body = helper.make_function("f", "F", ["x", "c"], ["y"], [made, node("Add", "x w", "y")], [OPSET])
    call = node("F", "x c", "y", domain="f")
    return model([call], [*INPUTS, FLAG], OUTPUTS, domains=[("f", 1)], functions=[body])


def in_a_branch(made: NodeProto) -> onnx.ModelProto:
    body = helper.make_graph([made, node("Add", "x w", "r")], "b", [], [value("r", [4])])
    return model([node("If", "c", "y", then_branch=body, else_branch=body)], [*INPUTS, FLAG], OUTPUTS)


def branch_of_type(type_: int, **fields: object) -> NodeProto:
    made = node("If", "c", "w")
    for name in ("then_branch", "else_branch"):
        made.attribute.add(name=name, type=type_, **fields)
    return made


GOOD = numpy_helper.from_array(noise(4))
NODES = {
    "a constant without attributes": lambda: constant(),
    "a constant with two values": lambda: node("Constant", "", "w", value=GOOD, value_float=1.0),
    "a constant whose attribute has another type": lambda: constant(name="value", type=AttributeProto.INT, i=1),
    "a constant whose attribute has no tensor": lambda: constant(name="value", type=AttributeProto.TENSOR),
    "a constant with an unknown attribute": lambda: constant(name="worth", type=AttributeProto.INT, i=1),
    "a constant that refers to nothing": lambda: constant(name="value", type=AttributeProto.TENSOR, ref_attr_name="d"),
    "a branch without graphs": lambda: node("If", "c", "w"),
    "a branch whose attributes have no graph": lambda: branch_of_type(AttributeProto.GRAPH),
    "a branch whose attributes are numbers": lambda: branch_of_type(AttributeProto.INT, i=1),
    "a branch of empty graphs": lambda: branch_of_type(AttributeProto.GRAPH, g=GraphProto(name="b")),
    "a branch without a condition": lambda: node(
        "If", "", "w", then_branch=helper.make_graph([], "b", [], []), else_branch=helper.make_graph([], "b", [], [])
    ),
    "a loop without a body": lambda: node("Loop", "- c x", "w"),
    "a node without an operator": lambda: node("", "x", "w"),
    "a node without inputs": lambda: node("Relu", "", "w"),
    "a node without outputs": lambda: NodeProto(op_type="Relu", input=["x"]),
    "a cast to an unknown type": lambda: node("Cast", "x", "w", to=99),
    "a constant of an unknown sparse form": lambda: constant(
        name="sparse_value", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=onnx.SparseTensorProto(dims=[4])
    ),
}


def branching(*results: str, inputs: tuple[str, ...] = ()) -> GraphProto:
    nodes = [node("Relu", "x", name) for name in results]
    return helper.make_graph(nodes, "b", [value(i, [4]) for i in inputs], [value(name, [4]) for name in results])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (branching("a", "b"), branching("d", "e")),
        (branching(), branching()),
        (branching("a", inputs=("q",)), branching("d")),
    ],
    ids=["too many outputs", "too few outputs", "an input"],
)
@pytest.mark.parametrize("known", [True, False])
def test_a_branch_that_does_not_fit_its_node_is_refused(
    tmp_path: Path, one: GraphProto, other: GraphProto, known: bool
) -> None:
    made = model([node("If", "c", "y", then_branch=one, else_branch=other)], INPUTS, OUTPUTS)
    if known:
        made.graph.initializer.append(numpy_helper.from_array(np.array(True), "c"))
    else:
        made.graph.input.append(FLAG)
    assert "branch" in refusal(tmp_path, made).message


def test_tensors_of_two_ranks_that_are_joined_are_refused_also_if_sizes_follow_from_values(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s axes", "g"),
        node("ConstantOfShape", "g", "c"),
        node("Expand", "x k", "e"),
        node("Concat", "c e", "y", axis=0),
    ]
    constants = {"axes": np.array([0], np.int64), "k": np.array([2, 3], np.int64)}
    made = model(nodes, [value("x", [1, 3])], [value("y")], constants)
    assert "same rank" in refusal(tmp_path, made).message


def repeated(inputs: str, outputs: str) -> GraphProto:
    taken, given = inputs.split(), outputs.split()
    nodes = [node("Identity", taken[-1] if taken else "x", name) for name in given]
    return helper.make_graph(nodes, "b", [value(name, [4]) for name in taken], [value(name, [4]) for name in given])


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [("", "go a"), ("i", "go a"), ("i c", "go a"), ("i c s t", "go a b"), ("i c s", ""), ("i c s", "go")],
)
@pytest.mark.parametrize("place", [using, in_a_function, in_a_branch], ids=lambda p: p.__name__)
def test_a_loop_whose_body_takes_or_gives_other_values_is_refused(
    tmp_path: Path, inputs: str, outputs: str, place: Callable[[NodeProto], onnx.ModelProto]
) -> None:
    loop = node("Loop", "- - x", "w", body=repeated(inputs, outputs))
    loop.input[:2] = ["", ""]
    assert "the body of a Loop has" in refusal(tmp_path, place(loop)).message


@pytest.mark.parametrize(
    ("inputs", "outputs", "attributes"),
    [
        ("s", "a b", {}),
        ("s r q", "a b", {}),
        ("s r", "", {}),
        ("s r", "a", {}),
        ("s r", "a b", {"num_scan_inputs": 3}),
        ("s r", "a b", {"scan_input_axes": [0, 0]}),
        ("s r", "a b", {"scan_output_directions": [0, 0, 0]}),
    ],
)
def test_a_scan_whose_body_does_not_fit_is_refused(
    tmp_path: Path, inputs: str, outputs: str, attributes: dict[str, object]
) -> None:
    scan = node("Scan", "x x", "w y", body=repeated(inputs, outputs), **{"num_scan_inputs": 1, **attributes})
    refusal(tmp_path, model([scan], INPUTS, OUTPUTS))


@pytest.mark.parametrize("flag", [np.zeros(0, np.bool_), np.zeros(2, np.bool_)], ids=["none", "two"])
def test_a_flag_of_no_or_two_elements_decides_nothing(tmp_path: Path, flag: np.ndarray) -> None:
    drop = model([node("Dropout", "x r c", "y")], INPUTS, OUTPUTS, {"r": np.array(0.5, np.float32), "c": flag})
    refusal(tmp_path, drop)
    choose = node("If", "c", "y", then_branch=branching("a"), else_branch=branching("d"))
    (left,) = import_model(save(tmp_path, model([choose], INPUTS, OUTPUTS, {"c": flag}))).graph.nodes
    assert left.op_type == "If"  # ONNX Runtime reports it in a run


@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_normalisation_of_other_channels_than_its_convolution_is_not_merged_into_it(
    tmp_path: Path, size: int
) -> None:
    nodes = [node("Conv", "x w", "c"), node("BatchNormalization", "c g g g g", "y")]
    constants = {"w": noise(2, 1, 3, 3), "g": np.full(size, -1, np.float32)}
    made = model(nodes, [value("x", [1, 1, 4, 4])], [value("y")], constants)
    refusal(tmp_path, made)


def test_elements_of_six_bits_are_packed_only_if_they_are_raw(tmp_path: Path) -> None:
    for fields in {"int32_data": [1, 2, 3, 4]}, {"raw_data": b"\x81\x30\x10"}:
        check_model(as_initializer(tensor(data_type=TensorProto.FLOAT6E2M3, **fields)), "m.onnx")
    for fields in {"int32_data": [1, 2, 3]}, {"raw_data": b"\x81\x30\x10\0"}:
        with pytest.raises(InputError):
            check_model(as_initializer(tensor(data_type=TensorProto.FLOAT6E2M3, **fields)), "m.onnx")


@pytest.mark.parametrize("place", [using, in_a_function, in_a_branch], ids=lambda p: p.__name__)
@pytest.mark.parametrize("form", NODES)
def test_a_malformed_node_is_refused_wherever_it_stands(
    tmp_path: Path, form: str, place: Callable[[NodeProto], onnx.ModelProto]
) -> None:
    refusal(tmp_path, place(NODES[form]()))


# ---- sparse tensors -----------------------------------------------------------------------------------------------


def sparse(indices: np.ndarray, dims: list[int], values: np.ndarray | None = None) -> onnx.SparseTensorProto:
    given = np.ones(len(indices), np.float32) if values is None else values
    return onnx.SparseTensorProto(
        dims=dims, values=numpy_helper.from_array(given, "w"), indices=numpy_helper.from_array(indices)
    )


SPARSE = {
    "indices that are no integers": sparse(np.array([0.5], np.float32), [4]),
    "indices of another size": sparse(np.array([1], np.int32), [4]),
    "an index outside": sparse(np.array([4], np.int64), [4]),
    "a negative index": sparse(np.array([-1], np.int64), [4]),
    "an index outside one dimension": sparse(np.array([[0, 4]], np.int64), [2, 4]),
    "too many coordinates": sparse(np.array([[0, 0, 1]], np.int64), [4]),
    "fewer values than indices": sparse(np.array([0, 1], np.int64), [4], np.ones(1, np.float32)),
    "values that are no list": sparse(np.array([0], np.int64), [4], np.ones((1, 1), np.float32)),
    "a size beyond all memory": sparse(np.array([0], np.int64), [2**40]),
    "no elements, beyond all memory": sparse(np.array([], np.int64), [0, 2**62, 2**62]),
    "a negative dimension": sparse(np.array([0], np.int64), [-4]),
    "65 dimensions": sparse(np.array([0], np.int64), [1] * 65),
}


@pytest.mark.parametrize("form", SPARSE)
@pytest.mark.parametrize("place", ["initializer", "constant", "branch"])
def test_a_malformed_sparse_tensor_is_named(tmp_path: Path, form: str, place: str) -> None:
    if place == "constant":
        made = using(constant(name="sparse_value", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=SPARSE[form]))
    else:
        made = model([node("Add", "x w", "y")], INPUTS, OUTPUTS) if place == "initializer" else in_branch(GOOD)
        graph = made.graph if place == "initializer" else made.graph.node[0].attribute[0].g
        graph.sparse_initializer.append(SPARSE[form])
    assert "'w'" in (refusal(tmp_path, made).where or "")


def test_a_sparse_initializer_of_a_branch_is_an_ordinary_constant(tmp_path: Path) -> None:
    made = in_branch(GOOD)
    for attribute in made.graph.node[0].attribute:
        del attribute.g.initializer[:]
        attribute.g.sparse_initializer.append(sparse(np.array([1, 3], np.int64), [4], np.array([5, 7], np.float32)))
    branch = import_model(save(tmp_path, made)).proto.graph.node[0].attribute[0].g
    np.testing.assert_array_equal(numpy_helper.to_array(branch.initializer[0]), [0, 5, 0, 7])


# ---- the model ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, -1, 2**62, -(2**63)])
def test_an_operator_set_that_does_not_exist_is_refused(tmp_path: Path, version: int) -> None:
    made = model([node("Relu", "x", "y")], INPUTS, OUTPUTS)
    made.opset_import[0].version = version
    refusal(tmp_path, made)


def nested(depth: int) -> GraphProto:
    inner = [node("Relu", "x", f"r{depth}")]
    if depth:
        inner = [node("If", "c", f"r{depth}", then_branch=nested(depth - 1), else_branch=nested(0))]
    return helper.make_graph(inner, "b", [], [value(f"r{depth}", [4])])


def test_functions_that_nest_their_branches_too_deeply_are_refused(tmp_path: Path) -> None:
    """Each function puts the one before it into two more branches: the whole is deeper than protobuf reads."""
    functions = []
    for level in range(40):
        inner = node(f"F{level - 1}" if level else "Relu", "x c" if level else "x", "r", domain="f" if level else "")
        body = helper.make_graph([inner], "b", [], [onnx.ValueInfoProto(name="r")])
        choose = node("If", "c", "y", then_branch=body, else_branch=nested(0))
        made = helper.make_function("f", f"F{level}", ["x", "c"], ["y"], [choose], [OPSET])
        made.opset_import.add(domain="f", version=1)
        functions.append(made)
    call = node("F39", "x c", "y", domain="f")
    refusal(tmp_path, model([call], [*INPUTS, FLAG], OUTPUTS, domains=[("f", 1)], functions=functions))


def test_a_shape_beyond_all_memory_is_refused(tmp_path: Path) -> None:
    made = model([node("Relu", "x", "y")], [value("x", [0, 2**62, 2**62])], [value("y")])
    assert "too large" in refusal(tmp_path, made).message


def test_a_named_dimension_beyond_all_memory_is_refused(tmp_path: Path) -> None:
    made = model(
        [node("Tile", "x k", "y")], [value("x", ["n", 2**40])], [value("y")], {"k": np.array([1, 2**40], np.int64)}
    )
    with pytest.raises(InputError, match="too large"):
        import_model(save(tmp_path, made), keep_dims=True)


@pytest.mark.parametrize(
    ("operator", "attribute", "number"),
    [("LayerNormalization", "axis", 2**31), ("GatherND", "batch_dims", -7), ("Concat", "axis", 2**63 - 1)],
)
def test_an_axis_beyond_all_tensors_with_which_shape_inference_may_crash_is_refused(
    tmp_path: Path, operator: str, attribute: str, number: int
) -> None:
    second = value("w", [2, 1], TensorProto.INT64) if operator == "GatherND" else value("w", [4])
    made = model([node(operator, "x w", "y", **{attribute: number})], [value("x", [2, 4]), second], [value("y")])
    error = refusal(tmp_path, made)
    assert f"'{attribute}' is {number}" in error.message and f"({operator})" in str(error.where)


def test_two_sparse_initializers_of_one_name_are_refused(tmp_path: Path) -> None:
    made = model([node("Relu", "x", "y")], INPUTS, OUTPUTS)
    twice = sparse(np.array([1], np.int64), [4])
    made.graph.sparse_initializer.extend([twice, twice])
    assert "two initializers" in refusal(tmp_path, made).message


def test_a_model_that_asks_for_more_memory_than_there_is_is_refused(tmp_path: Path) -> None:
    """A sparse initializer of 3 GiB; the process may take one."""
    made = model([node("Add", "x w", "y")], INPUTS, OUTPUTS)
    stored = np.arange(400_000, dtype=np.int64)
    made.graph.sparse_initializer.append(sparse(stored, [3 << 28]))
    path = save(tmp_path, made)
    program = f"""
import resource
from heterocc.artifacts.errors import InputError
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.importer.reading.tensors import check_model
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + 2**30,) * 2)
try:
    import_model({str(path)!r})
except InputError as error:
    print(error.message)
"""
    assert "memory" in fresh(program)
