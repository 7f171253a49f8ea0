"""Language models that write one token after the other, from one bundle for all lengths, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.compiler import compile_model
from heterocc.compiler.importer.pipeline import import_model
from heterocc.runtime import load
from tests import decoder_networks

TOKENS = 64


def empty_state(inputs: list[str], key_heads: int, head: int) -> dict[str, np.ndarray]:
    return {name: np.zeros((1, key_heads, 0, head), np.float32) for name in inputs if name.startswith("past")}


def feed_of(names: list[str], tokens: list[int], past: int) -> dict[str, np.ndarray]:
    """The inputs beside the state for some more tokens."""
    given = {
        "input_ids": np.array([tokens]),
        "position_ids": np.arange(past, past + len(tokens))[None],
        "attention_mask": np.ones((1, past + len(tokens)), np.int64),
    }
    return {name: array for name, array in given.items() if name in names}


@pytest.mark.slow  # compiles a network of 30 kernels for all lengths
@pytest.mark.parametrize("build", [decoder_networks.llama, decoder_networks.llama_grouped, decoder_networks.gpt2])
def test_64_tokens_equal_those_of_onnx_runtime(build: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    proto = build()
    path, bundle = tmp_path / "m.onnx", tmp_path / "m.hcb"
    onnx.save(proto, path)
    compile_model(path, bundle, devices="CPU", dims={"batch": 1})
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    reference = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [i.name for i in reference.get_inputs()]
    outputs = [o.name for o in reference.get_outputs()]
    key_heads = proto.graph.input[-1].type.tensor_type.shape.dim[1].dim_value
    state = empty_state(names, key_heads, 16)
    pairs = {name: name.replace("past_key_values", "present") for name in state}
    with load(bundle) as session:
        binding = session.bind(state=pairs)
        expected = state
        tokens, past, first = [5, 17, 3, 42, 8], 0, True
        written: list[int] = []
        for _ in range(TOKENS):
            feed = feed_of(names, tokens, past)
            want = dict(zip(outputs, reference.run(None, {**feed, **expected}), strict=True))
            found = binding.run({**feed, **state} if first else feed)["logits"]
            np.testing.assert_allclose(found, want["logits"], rtol=1e-3, atol=1e-3)
            expected = {name: want[pairs[name]] for name in pairs}
            past, first = past + len(tokens), False
            assert int(found[0, -1].argmax()) == int(want["logits"][0, -1].argmax())
            tokens = [int(want["logits"][0, -1].argmax())]
            written += tokens
        assert len(set(written)) > 5
        assert all(binding.state[name].shape == expected[name].shape for name in pairs)
        # Rows further apart than their number: the state was lengthened where it is.
        assert not any(binding.state[name].flags.c_contiguous for name in pairs)


def merged(path: Path) -> Path:
    """Two forms of a layer in one model, as optimum merges decoders: without past rows, and with them."""
    rng = np.random.default_rng(3)
    weight = numpy_helper.from_array(rng.standard_normal((8, 8)).astype(np.float32), "w")

    def branch(name: str, join: list[onnx.NodeProto], rows: str) -> onnx.GraphProto:
        nodes = [
            helper.make_node("MatMul", ["given", "w"], [f"{name}_new"]),
            *join,
            helper.make_node("MatMul", [f"{name}_new", f"{name}_turned"], [f"{name}_scores"]),
            helper.make_node("Softmax", [f"{name}_scores"], [f"{name}_shares"], axis=-1),
            helper.make_node("MatMul", [f"{name}_shares", f"{name}_all"], [f"{name}_mean"]),
            # The last rows: all if the number of new ones, of which it is the negative, is 0.
            helper.make_node("Shape", ["given"], [f"{name}_rows"], end=1),
            helper.make_node("Neg", [f"{name}_rows"], [f"{name}_back"]),
            helper.make_node("Slice", [f"{name}_all", f"{name}_back", "end", "axis"], [f"{name}_last"]),
            helper.make_node("Add", [f"{name}_mean", f"{name}_last"], [f"{name}_y"]),
        ]
        outputs = [(f"{name}_y", ["new", 8]), (f"{name}_all", [rows, 8])]
        return helper.make_graph(
            nodes, name, [], [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs]
        )

    turn = [helper.make_node("Transpose", [f"{name}_all"], [f"{name}_turned"]) for name in ("first", "later")]
    first = branch("first", [helper.make_node("Identity", ["first_new"], ["first_all"]), turn[0]], "new")
    join = helper.make_node("Concat", ["past", "later_new"], ["later_all"], axis=0)
    later = branch("later", [join, turn[1]], "past_rows + new")
    graph = helper.make_graph(
        [
            helper.make_node("If", ["use_cache"], ["y", "present"], then_branch=later, else_branch=first),
        ],
        "merged",
        [
            helper.make_tensor_value_info("given", TensorProto.FLOAT, ["new", 8]),
            helper.make_tensor_value_info("past", TensorProto.FLOAT, ["past_rows", 8]),
            helper.make_tensor_value_info("use_cache", TensorProto.BOOL, [1]),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["new", 8]),
            helper.make_tensor_value_info("present", TensorProto.FLOAT, ["present_rows", 8]),
        ],
        [weight, *(numpy_helper.from_array(np.array([n]), name) for n, name in ((1 << 40, "end"), (0, "axis")))],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_the_past_of_a_merged_decoder_may_be_empty(tmp_path: Path) -> None:
    """One branch has nothing of it: the first step takes that one."""
    model = import_model(merged(tmp_path / "m.onnx"), keep_dims=True)
    assert model.may_be_empty == {"past_rows"}


def test_the_first_step_of_a_merged_decoder_has_no_past(tmp_path: Path) -> None:
    path = merged(tmp_path / "m.onnx")
    compile_model(path, tmp_path / "m.hcb", devices="CPU", measure=False)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    reference = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    with load(tmp_path / "m.hcb") as session:
        for past, cached in ((0, False), (5, True), (0, True), (3, False)):
            feed = {
                "given": rng.standard_normal((2, 8)).astype(np.float32),
                "past": rng.standard_normal((past, 8)).astype(np.float32),
                "use_cache": np.array([cached]),
            }
            for name, wanted in zip(("y", "present"), reference.run(None, feed), strict=True):
                found = session.run(feed)[name]
                assert found.shape == wanted.shape
                np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
