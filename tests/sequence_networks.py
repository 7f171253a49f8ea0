"""Small networks over sequences, signals and vectors: transformers, recurrent layers, audio, products of matrices."""

from __future__ import annotations

import onnx

from tests.network_builder import NetworkBuilder


def bert() -> onnx.ModelProto:
    """Two transformer blocks with a mask that is an input, layer normalisation as one node (Devlin et al. 2018).

    What is masked loses 2 from its score and not the usual 10000: inputs are drawn at random, and a softmax with one
    position left would hide every error before it.
    """
    net = NetworkBuilder(embedded=(1, 128, 256), mask=(1, 1, 1, 128))
    mask = net.op("Mul", net.op("Sub", net.floats(1), "mask"), net.floats(-2))
    x = "embedded"
    for _ in range(2):
        x = _transformer_block(net, x, 128, 256, 4, fused_norm=True, mask=mask)
    return net.model(x)


def bert_unmasked() -> onnx.ModelProto:
    """The same blocks without a mask: one input."""
    net = NetworkBuilder(embedded=(1, 128, 256))
    x = "embedded"
    for _ in range(2):
        x = _transformer_block(net, x, 128, 256, 4, fused_norm=True)
    return net.model(x)


def vit() -> onnx.ModelProto:
    """A vision transformer: patches as a convolution of stride 16, 197 positions, layer normalisation in nine nodes."""
    net = NetworkBuilder(image=(1, 3, 224, 224))
    patches = net.reshape(net.conv("image", 3, 192, 16, stride=16, pad=0), 1, 192, 196)
    x = net.op("Concat", net.weight(1, 1, 192, scale=0.1), net.transpose(patches, 0, 2, 1), axis=1)
    x = net.op("Add", x, net.weight(1, 197, 192, scale=0.1))
    for _ in range(2):
        x = _transformer_block(net, x, 197, 192, 3, fused_norm=False)
    return net.model(x)


def lstm_gru() -> onnx.ModelProto:
    """An LSTM over 50 steps and a bidirectional GRU after it, 64 wide."""
    net = NetworkBuilder(steps=(50, 1, 64))
    weights = [net.weight(1, 256, 64, scale=0.1), net.weight(1, 256, 64, scale=0.1), net.weight(1, 512, scale=0.1)]
    x, _, _ = net.ops("LSTM", "steps", *weights, results=3, hidden_size=64)
    x = net.op("Squeeze", x, net.ints(1))
    weights = [net.weight(2, 192, 64, scale=0.1), net.weight(2, 192, 64, scale=0.1), net.weight(2, 384, scale=0.1)]
    x, _ = net.ops("GRU", x, *weights, results=2, hidden_size=64, direction="bidirectional", linear_before_reset=1)
    return net.model(x)


def conv1d() -> onnx.ModelProto:
    """Convolutions over 80 mel bands: strided, dilated, depthwise with 9 and 31 taps (Conformer and its kin)."""
    net = NetworkBuilder(spectrum=(1, 80, 1000))
    x = net.conv("spectrum", 80, 128, (3,), activation="relu")
    x = net.conv(x, 128, 128, (3,), stride=2, activation="gelu")
    x = net.conv(x, 128, 128, (5,), dilation=2, activation="relu")
    x = net.conv(x, 128, 128, (9,), groups=128, activation="swish")
    x = net.conv(x, 128, 256, (1,), activation="relu")
    x = net.conv(x, 256, 256, (31,), groups=256)
    return net.model(net.conv(x, 256, 64, (1,)))


def waveform() -> onnx.ModelProto:
    """A vocoder over 16000 samples: strided convolutions down, a transposed one up, tanh (HiFi-GAN and its kin)."""
    net = NetworkBuilder(samples=(1, 1, 16000))
    x = net.conv("samples", 1, 64, (10,), stride=5, pad=0, activation="gelu")
    x = net.conv(x, 64, 64, (3,), stride=2, pad=0, activation="gelu")
    x = net.conv(x, 64, 64, (8,), stride=4, pad=2, activation="leaky_relu")
    x = net.activate(net.upconv(x, 64, 32, (8,), 4), "leaky_relu")
    x = net.conv(x, 32, 32, (7,), dilation=3)
    return net.model(net.op("Tanh", net.conv(x, 32, 1, (7,))))


def recognition_head() -> onnx.ModelProto:
    """The end of a text recogniser: 40 positions, a softmax over 6625 characters (PP-OCR).

    Scores spread by about 3, so that some characters stand out as they do after training.
    """
    net = NetworkBuilder(features=(1, 40, 120))
    scores = net.op("MatMul", "features", net.weight(120, 6625, scale=0.25))
    return net.model(net.op("Softmax", net.op("Add", scores, net.bias(6625)), axis=-1))


def mlp() -> onnx.ModelProto:
    """Three fully connected layers over one vector: nothing but reading weights."""
    net = NetworkBuilder(vector=(1, 512))
    x = "vector"
    for size, units in ((512, 2048), (2048, 2048), (2048, 1000)):
        x = net.activate(net.gemm(x, size, units), "relu")
    return net.model(x)


def few_rows() -> onnx.ModelProto:
    """One, two and four rows times one matrix of 2048²."""
    net = NetworkBuilder(rows=(7, 2048))
    matrix = net.weight(2048, 2048)
    parts = net.ops("Split", "rows", net.ints(1, 2, 4), results=3, axis=0)
    products = [net.activate(net.op("MatMul", part, matrix), "relu") for part in parts]
    return net.model(net.op("Concat", *products, axis=0))


def gemms() -> onnx.ModelProto:
    """Products of matrices with either side transposed, with a constant on the left, in batches and with odd sizes."""
    net = NetworkBuilder(matrix=(64, 256))
    x = net.gemm("matrix", 256, 512)
    x = net.op("Gemm", net.weight(64, 128), x, net.bias(512), transA=1)
    x = net.op("MatMul", x, net.op("Transpose", x, perm=[1, 0]))
    x = net.reshape(net.activate(x, "relu"), 4, 32, 128)
    x = net.op("MatMul", x, net.weight(1, 128, 100, scale=0.1))
    x = net.op("MatMul", x, net.weight(4, 100, 1325, scale=0.1))
    return net.model(net.op("Add", x, net.bias(1325)))


def _transformer_block(
    net: NetworkBuilder, x: str, positions: int, width: int, heads: int, *, fused_norm: bool, mask: str | None = None
) -> str:
    """Attention and a layer four times as wide, each after a normalisation and beside a skip (pre-norm)."""
    norm = _layer_norm if fused_norm else _decomposed_layer_norm
    size = width // heads
    y = norm(net, x, width)
    query, key, value = (
        net.transpose(net.reshape(net.dense(y, width, width), 1, positions, heads, size), 0, 2, 1, 3) for _ in range(3)
    )
    scores = net.op("Mul", net.op("MatMul", query, net.transpose(key, 0, 1, 3, 2)), net.floats(size**-0.5))
    if mask is not None:
        scores = net.op("Add", scores, mask)
    heard = net.transpose(net.op("MatMul", net.op("Softmax", scores, axis=-1), value), 0, 2, 1, 3)
    x = net.op("Add", x, net.dense(net.reshape(heard, 1, positions, width), width, width))
    y = net.activate(net.dense(norm(net, x, width), width, 4 * width), "gelu")
    return net.op("Add", x, net.dense(y, 4 * width, width))


def _layer_norm(net: NetworkBuilder, x: str, width: int) -> str:
    """Layer normalisation as one node, as exporters write it from operator set 17 on."""
    return net.op("LayerNormalization", x, net.gain(width), net.bias(width), axis=-1)


def _decomposed_layer_norm(net: NetworkBuilder, x: str, width: int) -> str:
    """Layer normalisation in nine nodes, as exporters wrote it before."""
    centred = net.op("Sub", x, net.op("ReduceMean", x, axes=[-1], keepdims=1))
    variance = net.op("ReduceMean", net.op("Pow", centred, net.floats(2)), axes=[-1], keepdims=1)
    scaled = net.op("Div", centred, net.op("Sqrt", net.op("Add", variance, net.floats(1e-5))))
    return net.op("Add", net.op("Mul", scaled, net.gain(width)), net.bias(width))
