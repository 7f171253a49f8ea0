"""MoE and QMoE with drawn weights, as models and as a reference in float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]

GPT_OSS = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 7.0}


def packed(codes: Array, bits: int) -> Array:
    """The codes along the last axis, the first in the lowest bits of a byte; zeros follow the last."""
    each = 8 // bits
    whole = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % each)])
    return sum(whole[..., place::each].astype(np.int64) << (bits * place) for place in range(each)).astype(np.uint8)


@dataclass(frozen=True)
class Mixture:
    """A layer of experts. With `bits` it is a QMoE, in blocks if `block` is not 0."""

    experts: int = 6
    k: int = 2
    hidden: int = 64
    inter: int = 32
    activation: str = "swiglu"
    bits: int = 0
    block: int = 0
    zeros: bool = False
    level: int = 0
    normalised: bool = False
    mixed: bool = False
    bias: bool = True
    batched: bool = False
    attributes: dict[str, Any] = field(default_factory=lambda: dict(GPT_OSS))
    dtype: str = "float32"

    def __str__(self) -> str:
        kind = f"QMoE-{self.bits}-{self.block}" if self.bits else "MoE"
        flags = "".join(name[0] for name in ("zeros", "normalised", "mixed", "bias", "batched") if getattr(self, name))
        sizes = f"{self.k}of{self.experts}-{self.hidden}x{self.inter}"
        return f"{kind}-{self.activation}-{sizes}-{flags}-level{self.level}-{self.dtype}"

    def drawn(self) -> tuple[onnx.ModelProto, list[tuple[Array, Array]]]:
        """The model, and the weights [experts, columns, terms] and biases [experts, columns] of both layers."""
        numbers = np.random.default_rng(0)
        given: dict[str, Array] = {}
        weights, names = [], []
        gated = self.activation == "swiglu"
        for layer, (columns, terms) in enumerate(
            ((self.inter * (1 + gated), self.hidden), (self.hidden, self.inter)), 1
        ):
            weight = self._layer(numbers, given, layer, columns, terms)
            bias = (numbers.standard_normal((self.experts, columns)) * 0.3).astype(self.dtype)
            if self.bias:
                given[f"b{layer}"] = bias
            weights.append((weight, bias.astype(np.float64) * self.bias))
            names.append([n if n in given else "" for n in (f"w{layer}", f"s{layer}", f"b{layer}", f"z{layer}")])
        (w1, s1, b1, z1), (w2, s2, b2, z2) = names
        inputs = ["x", "r", w1, b1, w2, b2]
        if self.bits:
            inputs = ["x", "r", w1, s1, b1, w2, s2, b2, "", "", "", z1, z2, "", "q" if self.mixed else ""]
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        data = ["batch", "rows", self.hidden] if self.batched else ["rows", self.hidden]
        router = ["routed" if self.batched else "rows", self.experts]
        graph = helper.make_graph(
            [
                helper.make_node(
                    "QMoE" if self.bits else "MoE", inputs, ["y"], domain="com.microsoft", **self._attributes()
                )
            ],
            "mixture",
            [
                helper.make_tensor_value_info("x", kind, data),
                helper.make_tensor_value_info("r", kind, router),
                *([helper.make_tensor_value_info("q", kind, router)] if self.mixed else []),
            ],
            [helper.make_tensor_value_info("y", kind, data)],
            [numpy_helper.from_array(array, name) for name, array in given.items()],
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10), weights

    def _layer(
        self, numbers: np.random.Generator, given: dict[str, Array], layer: int, columns: int, terms: int
    ) -> Array:
        if not self.bits:
            given[f"w{layer}"] = (numbers.standard_normal((self.experts, columns, terms)) * 0.2).astype(self.dtype)
            return given[f"w{layer}"].astype(np.float64)
        blocks = terms // self.block if self.block else 1
        codes = numbers.integers(0, 1 << self.bits, (self.experts, columns, blocks, terms // blocks))
        scales = numbers.uniform(0.005, 0.05, (self.experts, columns, blocks)).astype(self.dtype)
        middle: Array = np.full((self.experts, columns, blocks), 1 << (self.bits - 1))
        if self.zeros:
            middle = numbers.integers(0, 1 << self.bits, middle.shape)
            given[f"z{layer}"] = packed(middle if self.block else middle[..., 0], self.bits)
        given[f"w{layer}"] = packed(codes.reshape(self.experts, columns, terms), self.bits)
        given[f"s{layer}"] = scales if self.block else scales[..., 0]
        return ((codes - middle[..., None]) * scales[..., None].astype(np.float64)).reshape(
            self.experts, columns, terms
        )

    def _attributes(self) -> dict[str, Any]:
        found = {"k": self.k, "activation_type": self.activation, **self.attributes}
        found |= {"normalize_routing_weights": int(self.normalised)}
        if self.activation == "swiglu":
            found["swiglu_fusion"] = 1
        if self.bits:
            found |= {"expert_weight_bits": self.bits, "accuracy_level": self.level}
        return found | ({"block_size": self.block} if self.block else {})

    def feed(self, rows: int, seed: int = 1) -> dict[str, Array]:
        """Inputs with so many rows."""
        numbers = np.random.default_rng(seed)
        given = {"x": numbers.standard_normal((rows, self.hidden)), "r": numbers.standard_normal((rows, self.experts))}
        if self.mixed:
            given["q"] = numbers.uniform(0, 1, (rows, self.experts))
        if self.batched:
            given["x"] = given["x"].reshape(1 if rows % 2 else 2, -1, self.hidden)
        return {name: array.astype(self.dtype) for name, array in given.items()}

    def result(self, feed: dict[str, Array], weights: list[tuple[Array, Array]]) -> Array:
        """The result in float64, rounded where ONNX Runtime rounds."""
        x = feed["x"].astype(np.float64).reshape(-1, self.hidden)
        router = feed["r"].astype(np.float64)
        total = np.zeros_like(x)
        for row in range(len(x)):
            order = sorted(range(self.experts), key=lambda expert: (-router[row, expert], -expert))[: self.k]
            for expert, share in zip(order, self._shares(feed, row, order), strict=True):
                hidden = weights[0][0][expert] @ self._rounded(x[row]) + weights[0][1][expert]
                active = self._rounded(self._activated(hidden))
                total[row] += share * (weights[1][0][expert] @ active + weights[1][1][expert])
        return total.reshape(feed["x"].shape)

    def _shares(self, feed: dict[str, Array], row: int, order: list[int]) -> Array:
        scores = np.exp(feed["r"][row].astype(np.float64) - feed["r"][row].max())
        shares = (feed["q"][row].astype(np.float64) if self.mixed else scores / scores.sum())[order]
        always = bool(self.bits) and not self.mixed
        return np.asarray(shares / shares.sum() if self.normalised or always else shares)

    def _rounded(self, data: Array) -> Array:
        if not self.block or not (self.bits == 8 or (self.bits == 4 and self.level == 4)):
            return data
        blocks = data.reshape(-1, self.block)
        most = np.abs(blocks).max(-1, keepdims=True)
        steps = np.divide(127, most, out=np.zeros_like(most), where=most > 0)
        return np.asarray((np.rint(blocks * steps) * (most / 127)).reshape(-1))

    def _activated(self, value: Array) -> Array:
        match self.activation:
            case "relu":
                return np.maximum(value, 0)
            case "gelu":
                return np.asarray(0.5 * value * (1 + np.tanh(np.sqrt(2 / np.pi) * (value + 0.044715 * value**3))))
            case "silu":
                return np.asarray(value / (1 + np.exp(-value)))
            case "identity":
                return value
        gate, linear = value[0::2], value[1::2]
        if (limit := self.attributes.get("swiglu_limit")) is not None:
            gate, linear = np.minimum(gate, limit), np.clip(linear, -limit, limit)
        alpha, beta = self.attributes.get("activation_alpha", 1.0), self.attributes.get("activation_beta", 0.0)
        return np.asarray(gate / (1 + np.exp(-alpha * gate)) * (linear + beta))
