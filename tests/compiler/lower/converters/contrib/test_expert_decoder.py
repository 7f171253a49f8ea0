"""A decoder as onnxruntime-genai writes gpt-oss: a local window, sinks, a router and experts of 4 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.mixtures import Mixture, packed
from tests.reference import reference_session

HEADS, KEY_HEADS, SIZE, WIDTH, EXPERTS = 4, 2, 16, 64, 4


def _decoder() -> onnx.ModelProto:
    numbers, given = np.random.default_rng(0), {}
    mixture, _ = Mixture(experts=EXPERTS, hidden=WIDTH, inter=64, bits=4, block=32).drawn()
    nodes: list[onnx.NodeProto] = []

    def add(op_type: str, inputs: list[str], outputs: list[str], domain: str = "", **attributes: Any) -> None:
        nodes.append(helper.make_node(op_type, inputs, outputs, domain=domain, **attributes))

    def product(name: str, data: str, columns: int) -> None:
        codes = numbers.integers(0, 16, (columns, WIDTH // 32, 32))
        given[f"{name}_w"] = packed(codes, 4)
        given[f"{name}_s"] = numbers.uniform(0.005, 0.03, (columns, WIDTH // 32)).astype(np.float32)
        inputs, sizes = [data, f"{name}_w", f"{name}_s"], {"K": WIDTH, "N": columns, "bits": 4, "block_size": 32}
        add("MatMulNBits", inputs, [name], "com.microsoft", **sizes)

    angles = np.outer(np.arange(64), 10.0 ** -np.arange(SIZE // 2)).astype(np.float32)
    given |= {"table": numbers.standard_normal((128, WIDTH)).astype(np.float32), "one": np.ones(WIDTH, np.float32)}
    given |= {"cos": np.cos(angles), "sin": np.sin(angles), "rows": np.array([-1, EXPERTS])}
    given |= {"sinks": numbers.standard_normal(HEADS).astype(np.float32), "least": np.array([1]), "axis": np.array([1])}
    given["last"] = np.array(1)
    add("Gather", ["table", "ids"], ["x"])
    add("ReduceSum", ["mask", "axis"], ["sum"], keepdims=0)
    add("Sub", ["sum", "least"], ["less"])
    add("Cast", ["less"], ["lengths"], to=TensorProto.INT32)
    add("Shape", ["mask"], ["shape"])
    add("Gather", ["shape", "last"], ["total"], axis=0)
    add("Cast", ["total"], ["keys"], to=TensorProto.INT32)
    add("SimplifiedLayerNormalization", ["x", "one"], ["n1"], epsilon=1e-5)
    product("qkv", "n1", (HEADS + 2 * KEY_HEADS) * SIZE)
    attention = ["qkv", "", "", "past_k", "past_v", "lengths", "keys", "cos", "sin", "", "", "sinks"]
    options = {"num_heads": HEADS, "kv_num_heads": KEY_HEADS, "do_rotary": 1, "local_window_size": 4, "scale": 0.25}
    add("GroupQueryAttention", attention, ["a", "new_k", "new_v"], "com.microsoft", **options)
    product("o", "a", WIDTH)
    skip = "SkipSimplifiedLayerNormalization"
    add(skip, ["x", "o", "one"], ["n2", "", "", "h"], "com.microsoft", epsilon=1e-5)
    product("scores", "n2", EXPERTS)
    add("Reshape", ["scores", "rows"], ["router"])
    node = mixture.graph.node[0]
    node.input[0], node.input[1], node.output[0] = "n2", "router", "m"
    nodes.append(node)
    add(skip, ["h", "m", "one"], ["n3"], "com.microsoft", epsilon=1e-5)
    product("logits", "n3", 128)
    caches = ["batch", KEY_HEADS, "past", SIZE], ["batch", KEY_HEADS, "total", SIZE]
    real, whole = TensorProto.FLOAT, TensorProto.INT64
    inputs = [("ids", whole, ["batch", "steps"]), ("mask", whole, ["batch", "total"])]
    inputs += [(name, real, caches[0]) for name in ("past_k", "past_v")]
    outputs = [("logits", real, ["batch", "steps", 128]), *((n, real, caches[1]) for n in ("new_k", "new_v"))]
    graph = helper.make_graph(
        nodes,
        "decoder",
        [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_tensor_value_info(*o) for o in outputs],
        [*(numpy_helper.from_array(array, name) for name, array in given.items()), *mixture.graph.initializer],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.slow
def test_a_decoder_of_experts_is_one_partition_and_equals_onnx_runtime(tmp_path: Path) -> None:
    model, numbers = _decoder(), np.random.default_rng(1)
    report = compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False, measure=False)
    assert len(report.plan.partitions) == 1
    reference = reference_session(model)
    with load(tmp_path / "m.hcb") as session:
        for past, steps in ((0, 7), (7, 1), (8, 1), (5, 3)):
            cache = numbers.standard_normal((1, KEY_HEADS, past, SIZE)).astype(np.float32)
            feed = {
                "ids": numbers.integers(0, 128, (1, steps)),
                "mask": np.ones((1, past + steps), np.int64),
                "past_k": cache,
                "past_v": cache[..., ::-1].copy(),
            }
            got = session.run(feed)
            for name, wanted in zip(got, reference.run(list(got), feed), strict=True):
                np.testing.assert_allclose(got[name], wanted, rtol=0, atol=5e-6 * np.abs(wanted).max())
