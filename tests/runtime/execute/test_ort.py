from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from heterocc.artifacts.errors import DeviceError, InputValueError
from heterocc.runtime import load
from tests.runtime import standin
from tests.runtime.standin import Model, Op, Part

Write = Callable[..., Path]
X = np.arange(16, dtype=np.float32) - 8
FLOAT = TensorProto.FLOAT


def onnx_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    external: Sequence[tuple[str, np.ndarray]] = (),
) -> bytes:
    """A model whose initializers `external` are without data."""
    tensors = []
    for name, array in external:
        tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="heterocc")
        tensors.append(tensor)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), tensors)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def floats(name: str, *shape: int | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, list(shape) or [16])


def mixed() -> Model:
    """x + w in TVM, then times k in ONNX Runtime with an external initializer, then + w in TVM."""
    k = np.full(16, 3, np.float32)
    times = onnx_model([helper.make_node("Mul", ["a", "k"], ["b"])], [floats("a")], [floats("b")], [("k", k)])
    return Model(
        values=dict.fromkeys("xaby", ("float32", (16,))),
        inputs=("x",),
        outputs=("y", "b"),
        parts=(
            Part(0, ("x",), ("a",), (Op("add_w", "add", ("x", "w"), "a"),), ("w",)),
            Part(1, ("a",), ("b",), onnx=times, params=("k",), nodes=("scale",)),
            Part(0, ("b",), ("y",), (Op("add_w", "add", ("b", "w"), "y"),), ("w",)),
        ),
        weights={"w": np.ones(16, np.float32), "k": k},
        devices=(standin.CPU, standin.ORT),
    )


def test_compiled_and_onnx_partitions_work_on_the_same_buffers(bundle_of: Write) -> None:
    with load(bundle_of(mixed())) as session:
        for x in (X, X * 2):
            got = session.run({"x": x})
            np.testing.assert_array_equal(got["b"], (x + 1) * 3)
            np.testing.assert_array_equal(got["y"], (x + 1) * 3 + 1)


def test_onnx_partitions_allocate_no_tensor_memory_of_ours_after_load(bundle_of: Write) -> None:
    with load(bundle_of(mixed())) as session:
        binding = session.bind()
        before = session.allocations
        binding.inputs["x"][...] = X
        np.testing.assert_array_equal(binding.run()["y"], (X + 1) * 3 + 1)
        assert session.allocations == before


def test_threads_share_onnx_partitions(bundle_of: Write) -> None:
    with load(bundle_of(mixed()), threads=1) as session, ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda i: (i, session.run({"x": X + i})["y"]), range(100)))
    for i, got in results:
        np.testing.assert_array_equal(got, (X + i + 1) * 3 + 1)


def test_values_of_unknown_shape_pass_between_onnx_partitions_and_out(bundle_of: Write) -> None:
    where = onnx_model(
        [helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Neg", ["x"], ["n"])],
        [floats("x")],
        [helper.make_tensor_value_info("i", TensorProto.INT64, [1, None]), floats("n")],
    )
    shape = onnx_model(
        [helper.make_node("Shape", ["i"], ["s"]), helper.make_node("Neg", ["i"], ["m"])],
        [helper.make_tensor_value_info("i", TensorProto.INT64, [1, None])],
        [
            helper.make_tensor_value_info("s", TensorProto.INT64, [2]),
            helper.make_tensor_value_info("m", TensorProto.INT64, [1, None]),
        ],
    )
    model = Model(
        values={
            "x": ("float32", (16,)),
            "i": ("int64", (1, None)),
            "n": ("float32", (16,)),
            "s": ("int64", (2,)),
            "m": ("int64", (1, None)),
            "y": ("float32", (16,)),
        },
        inputs=("x",),
        outputs=("s", "m", "y", "i"),
        parts=(
            Part(1, ("x",), ("i", "n"), onnx=where),
            Part(1, ("i",), ("s", "m"), onnx=shape),
            Part(0, ("n",), ("y",), (Op("add_w", "add", ("n", "w"), "y"),), ("w",)),
        ),
        weights={"w": np.ones(16, np.float32)},
        devices=(standin.CPU, standin.ORT),
    )
    with load(bundle_of(model)) as session:
        for x in (X, np.zeros(16, np.float32)):
            got = session.run({"x": x})
            expected = np.array(np.nonzero(x))
            np.testing.assert_array_equal(got["i"], expected)
            np.testing.assert_array_equal(got["m"], -expected)
            np.testing.assert_array_equal(got["s"], expected.shape)
            np.testing.assert_array_equal(got["y"], 1 - x)
        traced = session.run_traced({"x": X})
        assert set(traced) == set("xinsmy")
        with pytest.raises(Exception, match="does not have a static shape"):
            session.bind()


def test_outputs_that_are_no_tensors_come_as_python_values(bundle_of: Write) -> None:
    kind = "seq(map(int64,tensor(float)))"
    zipped = helper.make_value_info(
        "z",
        helper.make_sequence_type_proto(
            helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(FLOAT, []))
        ),
    )
    node = helper.make_node("ZipMap", ["x"], ["z"], domain="ai.onnx.ml", classlabels_int64s=[10, 20])
    model = Model(
        values={"x": ("float32", (2, 2)), "z": (kind, None)},
        inputs=("x",),
        outputs=("z",),
        parts=(Part(0, ("x",), ("z",), onnx=onnx_model([node], [floats("x", 2, 2)], [zipped])),),
        devices=(standin.ORT,),
    )
    with load(bundle_of(model)) as session:
        got = session.run({"x": np.array([[1, 2], [3, 4]], np.float32)})["z"]
        assert got == [{10: 1.0, 20: 2.0}, {10: 3.0, 20: 4.0}]
        assert session.outputs[0].dtype == kind


def test_sequences_pass_between_onnx_partitions(bundle_of: Write) -> None:
    kind = helper.make_value_info("q", helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [16])))
    pack = onnx_model([helper.make_node("SequenceConstruct", ["x", "x"], ["q"])], [floats("x")], [kind])
    unpack = onnx_model([helper.make_node("ConcatFromSequence", ["q"], ["y"], axis=0)], [kind], [floats("y", 32)])
    model = Model(
        values={"x": ("float32", (16,)), "q": ("seq(tensor(float))", None), "y": ("float32", (32,))},
        inputs=("x",),
        outputs=("y",),
        parts=(Part(0, ("x",), ("q",), onnx=pack), Part(0, ("q",), ("y",), onnx=unpack)),
        devices=(standin.ORT,),
    )
    with load(bundle_of(model)) as session:
        np.testing.assert_array_equal(session.run({"x": X})["y"], np.concatenate([X, X]))


def test_strings_pass_through(bundle_of: Write) -> None:
    text = helper.make_tensor_value_info
    node = helper.make_node("Identity", ["s"], ["t"])
    proto = onnx_model([node], [text("s", TensorProto.STRING, [2])], [text("t", TensorProto.STRING, [2])])
    model = Model(
        values=dict.fromkeys("st", ("tensor(string)", (2,))),
        inputs=("s",),
        outputs=("t",),
        parts=(Part(0, ("s",), ("t",), onnx=proto),),
        devices=(standin.ORT,),
    )
    with load(bundle_of(model)) as session:
        assert session.run({"s": np.array(["a", "bc"], object)})["t"].tolist() == ["a", "bc"]


def test_a_model_that_onnx_runtime_refuses_is_an_error_that_names_the_partition(bundle_of: Write) -> None:
    model = Model(
        values=dict.fromkeys("xy", ("float32", (16,))),
        inputs=("x",),
        outputs=("y",),
        parts=(Part(0, ("x",), ("y",), onnx=b"not onnx at all"),),
        devices=(standin.ORT,),
    )
    with pytest.raises(DeviceError, match="cannot load partition 'p0'"):
        load(bundle_of(model))


def test_an_input_that_a_kernel_of_onnx_runtime_refuses_is_an_error_of_the_input(bundle_of: Write) -> None:
    gather = onnx_model(
        [helper.make_node("Gather", ["x", "i"], ["y"])],
        [floats("x"), helper.make_tensor_value_info("i", TensorProto.INT64, [1])],
        [floats("y", 1)],
    )
    model = Model(
        values={"x": ("float32", (16,)), "i": ("int64", (1,)), "y": ("float32", (1,))},
        inputs=("x", "i"),
        outputs=("y",),
        parts=(Part(0, ("x", "i"), ("y",), onnx=gather),),
        devices=(standin.ORT,),
    )
    with load(bundle_of(model)) as session:
        with pytest.raises(InputValueError, match=r"Gather .*: indices element out of data bounds, idx=99"):
            session.run({"x": X, "i": np.array([99])})
        np.testing.assert_array_equal(session.run({"x": X, "i": np.array([3])})["y"], X[3:4])
