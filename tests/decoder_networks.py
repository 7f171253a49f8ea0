"""Small language models that write one token after the other and take their keys and values from call to call.

A Llama (Touvron et al. 2023): RMS normalisation, rotary positions, fewer key heads than query heads, SwiGLU; with the
operators of ONNX, and as exporters for ONNX Runtime write it. And a GPT-2 of plain operators. Weights are seeded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


@dataclass(frozen=True)
class Sizes:
    """Layers, query heads, key heads, size of a head, tokens that it knows, the longest text."""

    layers: int = 2
    heads: int = 4
    key_heads: int = 2
    head: int = 16
    words: int = 97
    longest: int = 128

    @property
    def width(self) -> int:
        return self.heads * self.head


class _Net:
    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.rng = np.random.default_rng(7)
        self.nodes: list[onnx.NodeProto] = []
        self.arrays: dict[str, np.ndarray] = {}

    def op(self, op_type: str, *inputs: str, results: int = 1, domain: str = "", **attributes: Any) -> Any:
        names = [f"{op_type}_{len(self.nodes)}_{n}" for n in range(results)]
        self.nodes.append(helper.make_node(op_type, list(inputs), names, domain=domain, **attributes))
        return names[0] if results == 1 else names

    def array(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.arrays)}"
        self.arrays[name] = np.asarray(value, dtype)
        return name

    def weight(self, *shape: int, scale: float | None = None) -> str:
        scale = shape[0] ** -0.5 if scale is None else scale
        return self.array(self.rng.standard_normal(shape) * scale, np.float32)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        found: str = self.op("MatMul", x, self.weight(inputs, outputs))
        return found

    def gain(self) -> str:
        return self.array(1 + 0.1 * self.rng.standard_normal(self.sizes.width), np.float32)

    def angles(self) -> tuple[str, str]:
        """Cosines and sines by position, [longest, head / 2]."""
        pace = 10000.0 ** -(np.arange(self.sizes.head // 2) / (self.sizes.head // 2))
        angle = np.arange(self.sizes.longest)[:, None] * pace
        return self.array(np.cos(angle), np.float32), self.array(np.sin(angle), np.float32)

    def model(self, logits: str, caches: list[tuple[str, str]], inputs: list[str]) -> onnx.ModelProto:
        """The model; `caches` are the present keys and values of each layer, `inputs` those beside the past ones."""
        s = self.sizes
        shapes = {
            "input_ids": ["batch", "sequence"],
            "position_ids": ["batch", "sequence"],
            "attention_mask": ["batch", "total_sequence"],
        }
        ins = [helper.make_tensor_value_info(n, TensorProto.INT64, shapes[n]) for n in inputs]
        outs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence", s.words])]
        self.nodes.append(helper.make_node("Identity", [logits], ["logits"]))
        for layer, pair in enumerate(caches):
            for kind, name in zip(("key", "value"), pair, strict=True):
                past = ["batch", s.key_heads, "past_sequence", s.head]
                present = ["batch", s.key_heads, "total_sequence", s.head]
                ins.append(helper.make_tensor_value_info(f"past_key_values.{layer}.{kind}", TensorProto.FLOAT, past))
                outs.append(helper.make_tensor_value_info(f"present.{layer}.{kind}", TensorProto.FLOAT, present))
                for node in self.nodes:
                    node.output[:] = [f"present.{layer}.{kind}" if o == name else o for o in node.output]
                    node.input[:] = [f"present.{layer}.{kind}" if i == name else i for i in node.input]
        tensors = [numpy_helper.from_array(a, n) for n, a in self.arrays.items()]
        graph = helper.make_graph(self.nodes, "decoder", ins, outs, tensors)
        imports = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
        made: onnx.ModelProto = helper.make_model(graph, opset_imports=imports, ir_version=11)
        return made


def _past(layer: int) -> tuple[str, str]:
    return f"past_key_values.{layer}.key", f"past_key_values.{layer}.value"


def _swiglu(net: _Net, x: str) -> str:
    width, inner = net.sizes.width, net.sizes.width * 2
    gate = net.linear(x, width, inner)
    gate = net.op("Mul", gate, net.op("Sigmoid", gate))
    return net.linear(net.op("Mul", gate, net.linear(x, width, inner)), inner, width)


def llama(sizes: Sizes | None = None) -> onnx.ModelProto:
    """A Llama with Attention, RotaryEmbedding and RMSNormalization of operator set 23."""
    net = _Net(s := sizes or Sizes())
    cos, sin = net.angles()
    x = net.op("Gather", net.weight(s.words, s.width, scale=1.0), "input_ids")
    caches = []
    for layer in range(s.layers):
        y = net.op("RMSNormalization", x, net.gain(), epsilon=1e-5)
        q, k, v = (net.linear(y, s.width, n * s.head) for n in (s.heads, s.key_heads, s.key_heads))
        q = net.op("RotaryEmbedding", q, cos, sin, "position_ids", num_heads=s.heads)
        k = net.op("RotaryEmbedding", k, cos, sin, "position_ids", num_heads=s.key_heads)
        heads = {"q_num_heads": s.heads, "kv_num_heads": s.key_heads}
        y, *cache = net.op("Attention", q, k, v, "", *_past(layer), results=3, is_causal=1, **heads)
        caches.append((cache[0], cache[1]))
        x = net.op("Add", x, net.linear(y, s.width, s.width))
        x = net.op("Add", x, _swiglu(net, net.op("RMSNormalization", x, net.gain(), epsilon=1e-5)))
    x = net.op("RMSNormalization", x, net.gain(), epsilon=1e-5)
    return net.model(net.linear(x, s.width, s.words), caches, ["input_ids", "position_ids"])


def llama_grouped(sizes: Sizes | None = None) -> onnx.ModelProto:
    """The Llama as exporters for ONNX Runtime write it: GroupQueryAttention with lengths from a mask."""
    net = _Net(s := sizes or Sizes())
    cos, sin = net.angles()
    own = "com.microsoft"
    count = net.op("ReduceSum", "attention_mask", net.array([1]), keepdims=0)
    lengths = net.op("Cast", net.op("Sub", count, net.array([1])), to=TensorProto.INT32)
    total = net.op("Gather", net.op("Shape", "attention_mask"), net.array(1), axis=0)
    total = net.op("Cast", total, to=TensorProto.INT32)
    x = net.op("Gather", net.weight(s.words, s.width, scale=1.0), "input_ids")
    y = net.op("SimplifiedLayerNormalization", x, net.gain(), epsilon=1e-5, axis=-1, stash_type=1)
    caches = []
    for layer in range(s.layers):
        q, k, v = (net.linear(y, s.width, n * s.head) for n in (s.heads, s.key_heads, s.key_heads))
        heads = {"num_heads": s.heads, "kv_num_heads": s.key_heads, "do_rotary": 1}
        given = (q, k, v, *_past(layer), lengths, total, cos, sin)
        y, *cache = net.op("GroupQueryAttention", *given, results=3, domain=own, **heads)
        caches.append((cache[0], cache[1]))
        for part in (lambda _: net.linear(y, s.width, s.width), lambda found: _swiglu(net, found)):  # noqa: B023
            added = part(y)
            y, _, _, x = net.op(
                "SkipSimplifiedLayerNormalization", x, added, net.gain(), results=4, domain=own, epsilon=1e-5
            )
            net.nodes[-1].output[1:3] = ["", ""]
    return net.model(net.linear(y, s.width, s.words), caches, ["input_ids", "attention_mask"])


def gpt2(sizes: Sizes | None = None) -> onnx.ModelProto:
    """A GPT-2 (Radford et al. 2019) of plain operators: past and new keys are joined by Concat."""
    net = _Net(s := sizes or Sizes(key_heads=4))
    x = net.op("Gather", net.weight(s.words, s.width, scale=1.0), "input_ids")
    x = net.op("Add", x, net.op("Gather", net.weight(s.longest, s.width, scale=0.2), "position_ids"))
    first = net.array(0)
    past = net.op("Gather", net.op("Shape", _past(0)[0]), net.array(2), axis=0)
    steps = net.op("Gather", net.op("Shape", "input_ids"), net.array(1), axis=0)
    total = net.op("Add", past, steps)
    one = net.array(1)
    keys = net.op("Unsqueeze", net.op("Range", first, total, one), net.array([0]))
    queries = net.op("Unsqueeze", net.op("Range", past, total, one), net.array([1]))
    allowed = net.op("LessOrEqual", keys, queries)
    low, factor = net.array(-1e9, np.float32), net.array(s.head**-0.5, np.float32)
    caches = []
    for layer in range(s.layers):
        y = _norm(net, x)
        packed = net.op("Add", net.linear(y, s.width, 3 * s.width), net.weight(3 * s.width, scale=0.1))
        parts = net.op("Split", packed, results=3, axis=-1, num_outputs=3)
        apart = net.array([0, 0, s.heads, s.head])
        q, k, v = (net.op("Transpose", net.op("Reshape", p, apart), perm=[0, 2, 1, 3]) for p in parts)
        k, v = (net.op("Concat", old, new, axis=2) for old, new in zip(_past(layer), (k, v), strict=True))
        caches.append((k, v))
        scores = net.op("Mul", net.op("MatMul", q, net.op("Transpose", k, perm=[0, 1, 3, 2])), factor)
        shares = net.op("Softmax", net.op("Where", allowed, scores, low), axis=-1)
        y = net.op("Transpose", net.op("MatMul", shares, v), perm=[0, 2, 1, 3])
        y = net.op("Reshape", y, net.array([0, 0, s.width]))
        x = net.op("Add", x, net.linear(y, s.width, s.width))
        y = net.op("Gelu", net.linear(_norm(net, x), s.width, 4 * s.width), approximate="tanh")
        x = net.op("Add", x, net.linear(y, 4 * s.width, s.width))
    return net.model(net.linear(_norm(net, x), s.width, s.words), caches, ["input_ids", "position_ids"])


def _norm(net: _Net, x: str) -> str:
    found: str = net.op("LayerNormalization", x, net.gain(), net.weight(net.sizes.width, scale=0.1), axis=-1)
    return found
