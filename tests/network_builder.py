"""Build small ONNX networks with seeded weights: a method adds a layer and gives the name of the value it writes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import helper, numpy_helper

OPSET = 17
IR_VERSION = 8
"""The versions that exporters of a few years ago write, as in most models in use."""

Activation = Literal["none", "relu", "relu6", "hard_swish", "swish", "leaky_relu", "gelu"]


class NetworkBuilder:
    """A graph that grows by a layer a call; every builder draws its weights from the same seed."""

    def __init__(self, **inputs: Sequence[int]) -> None:
        """Begin with float32 inputs of these shapes, by name."""
        self._inputs = [self._tensor(name, shape) for name, shape in inputs.items()]
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(0)

    @staticmethod
    def _tensor(name: str, shape: Sequence[int] | None) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)

    def model(self, *outputs: str) -> onnx.ModelProto:
        """The checked model that gives these values, with every shape in it inferred."""
        results = [self._tensor(name, None) for name in outputs]
        graph = helper.make_graph(self._nodes, "network", self._inputs, results, self._weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        onnx.checker.check_model(model)
        return model

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """Normal noise, scaled by √(2 / all axes but the first) if no scale is given: results stay near one (He)."""
        spread = (2 / prod(shape[1:])) ** 0.5 if scale is None else scale
        return self._initializer(self._rng.standard_normal(shape) * spread)

    def bias(self, size: int) -> str:
        """A vector of small noise."""
        return self.weight(size, scale=0.1)

    def gain(self, size: int) -> str:
        """A vector of noise about one, as a normalisation multiplies by."""
        return self._initializer(1 + 0.1 * self._rng.standard_normal(size))

    def floats(self, values: ArrayLike) -> str:
        """A float32 constant; a plain number becomes a scalar."""
        return self._initializer(np.asarray(values, np.float32))

    def ints(self, *values: int) -> str:
        """A vector of int64: a shape, axes or sizes."""
        return self._initializer(np.array(values, np.int64))

    def _initializer(self, values: np.ndarray[Any, Any]) -> str:
        name = f"w{len(self._weights)}"
        kept = values if values.dtype == np.int64 else values.astype(np.float32)
        self._weights.append(numpy_helper.from_array(kept, name))
        return name

    def op(self, op_type: str, *inputs: str, **attributes: object) -> str:
        """A node with one result; an empty name leaves an optional input out."""
        return self.ops(op_type, *inputs, results=1, **attributes)[0]

    def ops(self, op_type: str, *inputs: str, results: int, **attributes: object) -> list[str]:
        """A node with several results."""
        name = f"{op_type}_{len(self._nodes)}"
        written = [name if results == 1 else f"{name}_{index}" for index in range(results)]
        self._nodes.append(helper.make_node(op_type, list(inputs), written, name=name, **attributes))
        return written

    def conv(
        self,
        x: str,
        channels: int,
        filters: int,
        kernel: int | Sequence[int] = 3,
        *,
        stride: int = 1,
        groups: int = 1,
        dilation: int = 1,
        pad: int | None = None,
        activation: Activation = "none",
    ) -> str:
        """A convolution from `channels` to `filters` channels with a bias; a number as kernel means a square one.

        Padding keeps the size unless another `pad` is given, apart from the effect of the stride.
        """
        sizes = [kernel] * 2 if isinstance(kernel, int) else list(kernel)
        pads = [dilation * (size - 1) // 2 if pad is None else pad for size in sizes]
        y = self.op(
            "Conv",
            x,
            self.weight(filters, channels // groups, *sizes),
            self.bias(filters),
            kernel_shape=sizes,
            strides=[stride] * len(sizes),
            pads=pads * 2,
            group=groups,
            dilations=[dilation] * len(sizes),
        )
        return self.activate(y, activation)

    def upconv(self, x: str, channels: int, filters: int, kernel: Sequence[int], stride: int) -> str:
        """A transposed convolution that multiplies the size by its stride."""
        pads = [(size - stride) // 2 for size in kernel]
        taps = channels * prod(kernel) // stride ** len(kernel)
        weight = self.weight(channels, filters, *kernel, scale=(2 / taps) ** 0.5)
        strides = [stride] * len(kernel)
        bias = self.bias(filters)
        return self.op("ConvTranspose", x, weight, bias, kernel_shape=list(kernel), strides=strides, pads=pads * 2)

    def activate(self, x: str, activation: Activation) -> str:
        """An activation the way exporters write it."""
        match activation:
            case "none":
                return x
            case "relu":
                return self.op("Relu", x)
            case "relu6":
                return self.op("Clip", x, self.floats(0), self.floats(6))
            case "hard_swish":
                return self.op("HardSwish", x)
            case "swish":
                return self.op("Mul", x, self.op("Sigmoid", x))
            case "leaky_relu":
                return self.op("LeakyRelu", x, alpha=0.1)
            case "gelu":
                erf = self.op("Erf", self.op("Div", x, self.floats(2**0.5)))
                return self.op("Mul", self.op("Mul", x, self.op("Add", erf, self.floats(1))), self.floats(0.5))

    def gemm(self, x: str, size: int, units: int) -> str:
        """A fully connected layer as one Gemm, its weight stored by unit (PyTorch's Linear)."""
        return self.op("Gemm", x, self.weight(units, size, scale=size**-0.5), self.bias(units), transB=1)

    def dense(self, x: str, size: int, units: int) -> str:
        """A fully connected layer along the last axis of a tensor of any rank: MatMul and Add."""
        return self.op("Add", self.op("MatMul", x, self.weight(size, units, scale=size**-0.5)), self.bias(units))

    def reshape(self, x: str, *shape: int) -> str:
        """The same values in another shape."""
        return self.op("Reshape", x, self.ints(*shape))

    def transpose(self, x: str, *axes: int) -> str:
        """The axes in another order."""
        return self.op("Transpose", x, perm=list(axes))

    def max_pool(self, x: str, *kernel: int) -> str:
        """The largest of every window of windows side by side."""
        return self.op("MaxPool", x, kernel_shape=list(kernel), strides=list(kernel))

    def upsample(self, x: str, mode: Literal["nearest", "linear"], **attributes: object) -> str:
        """An image of twice the height and width."""
        return self.op("Resize", x, "", self.floats([1, 1, 2, 2]), mode=mode, **attributes)

    def pooled(self, x: str) -> str:
        """The mean of every channel, as a matrix of one row an image."""
        return self.op("Flatten", self.op("GlobalAveragePool", x))
