"""Language models that write one token after the other, from one bundle for all lengths, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from heterocc.compiler import compile_model
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
        in_place = build is not decoder_networks.llama_grouped
        assert all(binding.state[name].flags.c_contiguous != in_place for name in pairs)
