"""Small networks over images and video: classifiers, detectors, segmentation and generators."""

from __future__ import annotations

import onnx

from tests.network_builder import Activation, NetworkBuilder


def mobilenet_v2() -> onnx.ModelProto:
    """A classifier of inverted residuals: pointwise and depthwise convolutions with ReLU6 (Sandler et al. 2018)."""
    net = NetworkBuilder(image=(1, 3, 224, 224))
    x = net.conv("image", 3, 32, 3, stride=2, activation="relu6")
    channels = 32
    for expansion, filters, repeats, first_stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 2, 2),
        (6, 64, 2, 2),
        (6, 96, 2, 1),
        (6, 160, 2, 2),
        (6, 320, 1, 1),
    ):
        for stride in [first_stride] + [1] * (repeats - 1):
            x = _inverted_residual(net, x, channels, filters, expansion, 3, stride, "relu6")
            channels = filters
    x = net.conv(x, 320, 1280, 1, activation="relu6")
    return net.model(net.gemm(net.pooled(x), 1280, 1000))


def mobilenet_v3() -> onnx.ModelProto:
    """A classifier with hard swish, kernels of five and squeeze-and-excite in some blocks (Howard et al. 2019)."""
    net = NetworkBuilder(image=(1, 3, 224, 224))
    x = net.conv("image", 3, 16, 3, stride=2, activation="hard_swish")
    channels = 16
    blocks: tuple[tuple[int, int, int, int, bool, Activation], ...] = (
        (1, 16, 3, 1, False, "relu"),
        (4, 24, 3, 2, False, "relu"),
        (3, 24, 3, 1, False, "relu"),
        (3, 40, 5, 2, True, "relu"),
        (3, 40, 5, 1, True, "relu"),
        (6, 80, 3, 2, False, "hard_swish"),
        (2, 80, 3, 1, False, "hard_swish"),
        (6, 112, 3, 1, True, "hard_swish"),
        (6, 160, 5, 2, True, "hard_swish"),
        (6, 160, 5, 1, True, "hard_swish"),
    )
    for expansion, filters, kernel, stride, squeezed, activation in blocks:
        gate = "HardSigmoid" if squeezed else None
        x = _inverted_residual(net, x, channels, filters, expansion, kernel, stride, activation, gate)
        channels = filters
    x = net.conv(x, 160, 960, 1, activation="hard_swish")
    x = net.conv(net.op("GlobalAveragePool", x), 960, 1280, 1, activation="hard_swish")
    return net.model(net.gemm(net.op("Flatten", x), 1280, 1000))


def efficientnet() -> onnx.ModelProto:
    """A classifier with swish and squeeze-and-excite in every block (Tan and Le 2019)."""
    net = NetworkBuilder(image=(1, 3, 224, 224))
    x = net.conv("image", 3, 32, 3, stride=2, activation="swish")
    channels = 32
    for expansion, filters, kernel, stride in (
        (1, 16, 3, 1),
        (6, 24, 3, 2),
        (6, 24, 3, 1),
        (6, 40, 5, 2),
        (6, 40, 5, 1),
        (6, 80, 3, 2),
        (6, 112, 5, 1),
        (6, 192, 5, 2),
        (6, 320, 3, 1),
    ):
        x = _inverted_residual(net, x, channels, filters, expansion, kernel, stride, "swish", "Sigmoid")
        channels = filters
    return net.model(net.pooled(net.conv(x, 320, 1280, 1, activation="swish")))


def squeeze_excite() -> onnx.ModelProto:
    """One large squeeze-and-excite block alone: a pooling, two convolutions over one pixel, a broadcast product."""
    net = NetworkBuilder(features=(1, 960, 7, 7))
    return net.model(_squeeze_excite(net, "features", 960, "HardSigmoid"))


def convnext() -> onnx.ModelProto:
    """Depthwise kernels of seven and layer normalisation with the channels last (Liu et al. 2022)."""
    net = NetworkBuilder(image=(1, 3, 112, 112))
    x = net.conv("image", 3, 96, 4, stride=4, pad=0)
    for _ in range(2):
        y = net.transpose(net.conv(x, 96, 96, 7, groups=96), 0, 2, 3, 1)
        y = net.op("LayerNormalization", y, net.gain(96), net.bias(96), axis=-1)
        y = net.dense(net.activate(net.dense(y, 96, 384), "gelu"), 384, 96)
        y = net.op("Mul", y, net.gain(96))
        x = net.op("Add", x, net.transpose(y, 0, 3, 1, 2))
    x = net.transpose(x, 0, 2, 3, 1)
    x = net.op("LayerNormalization", x, net.gain(96), net.bias(96), axis=-1)
    return net.model(net.conv(net.transpose(x, 0, 3, 1, 2), 96, 192, 2, stride=2, pad=0))


def unet() -> onnx.ModelProto:
    """Segmentation with skips, brought up again by two transposed convolutions and a linear resize."""
    net = NetworkBuilder(image=(1, 3, 128, 128))
    x, channels, skips = "image", 3, []
    for filters in (16, 32, 64):
        x = net.conv(x, channels, filters, activation="relu")
        x = net.conv(x, filters, filters, activation="relu")
        skips.append(x)
        x, channels = net.max_pool(x, 2, 2), filters
    x = net.conv(x, 64, 128, activation="relu")
    x = net.op("Concat", net.upconv(x, 128, 64, (2, 2), 2), skips[2], axis=1)
    x = net.conv(x, 128, 64, activation="relu")
    x = net.op("Concat", net.upconv(x, 64, 32, (4, 4), 2), skips[1], axis=1)
    x = net.conv(x, 64, 32, activation="relu")
    x = net.upsample(x, "linear", coordinate_transformation_mode="half_pixel")
    x = net.conv(net.op("Concat", x, skips[0], axis=1), 48, 16, activation="relu")
    return net.model(net.op("Softmax", net.conv(x, 16, 2, 1), axis=1))


def dilated() -> onnx.ModelProto:
    """Segmentation by dilated convolutions side by side and a resize with aligned corners (DeepLab's head)."""
    net = NetworkBuilder(features=(1, 64, 33, 33))
    branches = [net.conv("features", 64, 64, dilation=d, activation="relu") for d in (1, 6, 12)]
    branches.append(net.conv("features", 64, 64, 1, activation="relu"))
    x = net.conv(net.op("Concat", *branches, axis=1), 256, 64, 1, activation="relu")
    sizes = net.ints(1, 64, 129, 129)
    x = net.op("Resize", x, "", "", sizes, mode="linear", coordinate_transformation_mode="align_corners")
    return net.model(net.op("Softmax", net.conv(x, 64, 21, 1), axis=1))


def yolo() -> onnx.ModelProto:
    """A detector: a split stage, poolings in a row, a nearest resize and boxes decoded at two scales (YOLOv5)."""
    net = NetworkBuilder(image=(1, 3, 160, 160))
    x = net.conv("image", 3, 16, 6, stride=2, pad=2, activation="swish")
    x = net.conv(x, 16, 32, stride=2, activation="swish")
    kept, y = net.ops("Split", net.conv(x, 32, 32, 1, activation="swish"), results=2, axis=1)
    z = net.conv(net.conv(y, 16, 16, activation="swish"), 16, 16, activation="swish")
    x = net.conv(net.op("Concat", kept, y, net.op("Add", y, z), axis=1), 48, 32, 1, activation="swish")
    fine = net.conv(x, 32, 64, stride=2, activation="swish")
    x = net.conv(fine, 64, 128, stride=2, activation="swish")
    pooled = [net.conv(x, 128, 64, 1, activation="swish")]
    for _ in range(3):
        pooled.append(net.op("MaxPool", pooled[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2] * 4))
    coarse = net.conv(net.op("Concat", *pooled, axis=1), 256, 128, 1, activation="swish")
    up = net.upsample(coarse, "nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    fine = net.conv(net.op("Concat", up, fine, axis=1), 192, 64, 1, activation="swish")
    boxes = [_yolo_boxes(net, fine, 64, 20, 8.0), _yolo_boxes(net, coarse, 128, 10, 16.0)]
    return net.model(net.op("Concat", *boxes, axis=1))


def super_resolution() -> onnx.ModelProto:
    """Residual blocks with PReLU and a rearrangement of channels into four times the size."""
    net = NetworkBuilder(image=(1, 3, 64, 64))
    x = net.conv("image", 3, 48)
    for _ in range(2):
        y = net.op("PRelu", net.conv(x, 48, 48), net.weight(48, 1, 1, scale=0.2))
        x = net.op("Add", x, net.conv(y, 48, 48))
    return net.model(net.op("DepthToSpace", net.conv(x, 48, 48), blocksize=4, mode="CRD"))


def style_transfer() -> onnx.ModelProto:
    """Reflecting padding, kernels of nine and instance normalisation (Johnson et al. 2016)."""
    net = NetworkBuilder(image=(1, 3, 128, 128))
    x = net.op("Pad", "image", net.ints(0, 0, 4, 4, 0, 0, 4, 4), mode="reflect")
    for channels, filters, kernel, stride, pad in ((3, 32, 9, 1, 0), (32, 64, 3, 2, 1)):
        x = net.conv(x, channels, filters, kernel, stride=stride, pad=pad)
        x = net.activate(net.op("InstanceNormalization", x, net.gain(filters), net.bias(filters)), "relu")
    y = net.op("Pad", x, net.ints(0, 0, 1, 1, 0, 0, 1, 1), mode="reflect")
    x = net.op("Add", x, net.conv(y, 64, 64, pad=0))
    x = net.conv(net.upsample(x, "nearest"), 64, 32, activation="relu")
    return net.model(net.conv(x, 32, 3, 9))


def gan() -> onnx.ModelProto:
    """A generator: a vector made an image by transposed convolutions, with tanh at the end (DCGAN)."""
    net = NetworkBuilder(noise=(1, 100))
    x = net.reshape(net.gemm("noise", 100, 4096), 1, 256, 4, 4)
    x = net.activate(net.upconv(x, 256, 128, (4, 4), 2), "relu")
    x = net.activate(net.upconv(x, 128, 64, (4, 4), 2), "relu")
    return net.model(net.op("Tanh", net.upconv(x, 64, 3, (4, 4), 2)))


def grouped() -> onnx.ModelProto:
    """Convolutions in two to 32 groups, strided and dilated (ResNeXt and its kin)."""
    net = NetworkBuilder(features=(1, 64, 28, 28))
    x = "features"
    for groups in (2, 4, 32):
        x = net.conv(x, 64, 64, groups=groups, activation="relu")
    x = net.conv(x, 64, 128, 1, groups=2, activation="relu")
    x = net.conv(x, 128, 128, groups=32, stride=2, activation="relu")
    x = net.conv(x, 128, 256, groups=4, activation="relu")
    x = net.conv(x, 256, 256, dilation=2, activation="relu")
    return net.model(net.conv(x, 256, 128, dilation=4))


def large_kernels() -> onnx.ModelProto:
    """Kernels of five to eleven, square, of one row or column, dense and depthwise."""
    net = NetworkBuilder(image=(1, 3, 128, 128))
    x = net.conv("image", 3, 32, 7, stride=2, activation="relu")
    x = net.conv(x, 32, 32, 7, groups=32)
    x = net.conv(x, 32, 64, 5, stride=2, activation="relu")
    x = net.conv(x, 64, 64, (1, 7))
    x = net.conv(x, 64, 64, (7, 1), activation="relu")
    x = net.conv(x, 64, 64, 11, groups=64)
    return net.model(net.conv(x, 64, 32, 11, activation="relu"))


def one_channel() -> onnx.ModelProto:
    """Convolutions to and from a single channel: heat maps and spatial attention."""
    net = NetworkBuilder(features=(1, 32, 96, 96))
    narrow = net.conv(net.conv("features", 32, 1), 1, 1, 5)
    return net.model(net.op("Sigmoid", net.op("Add", net.conv("features", 32, 1, 7), narrow)))


def batch_of_four() -> onnx.ModelProto:
    """A plain classifier over four images at once."""
    net = NetworkBuilder(images=(4, 3, 64, 64))
    x = net.conv("images", 3, 32, stride=2, activation="relu")
    x = net.conv(x, 32, 64, activation="relu")
    x = net.conv(x, 64, 64, 1, activation="relu")
    x = net.conv(net.max_pool(x, 2, 2), 64, 128, stride=2, activation="relu")
    x = net.activate(net.gemm(net.pooled(x), 128, 256), "relu")
    return net.model(net.op("Softmax", net.gemm(x, 256, 100), axis=-1))


def conv3d() -> onnx.ModelProto:
    """Convolutions and poolings over eight frames (C3D)."""
    net = NetworkBuilder(frames=(1, 3, 8, 56, 56))
    x = net.max_pool(net.conv("frames", 3, 16, (3, 3, 3), activation="relu"), 1, 2, 2)
    x = net.max_pool(net.conv(x, 16, 32, (3, 3, 3), activation="relu"), 2, 2, 2)
    x = net.conv(x, 32, 64, (3, 3, 3), stride=2, activation="relu")
    x = net.conv(x, 64, 64, (1, 1, 1))
    return net.model(net.op("AveragePool", x, kernel_shape=[2, 2, 2], strides=[2, 2, 2]))


def _inverted_residual(
    net: NetworkBuilder,
    x: str,
    channels: int,
    filters: int,
    expansion: int,
    kernel: int,
    stride: int,
    activation: Activation,
    gate: str | None = None,
) -> str:
    """Widen by a pointwise convolution, filter each channel, gate the channels if asked to, narrow again."""
    wide = channels * expansion
    y = net.conv(x, channels, wide, 1, activation=activation) if expansion > 1 else x
    y = net.conv(y, wide, wide, kernel, stride=stride, groups=wide, activation=activation)
    if gate is not None:
        y = _squeeze_excite(net, y, wide, gate)
    y = net.conv(y, wide, filters, 1)
    return net.op("Add", x, y) if stride == 1 and channels == filters else y


def _squeeze_excite(net: NetworkBuilder, x: str, channels: int, gate: str) -> str:
    """Every channel times a gate between nought and one that the means of all channels give (Hu et al. 2018)."""
    few = max(8, channels // 4)
    means = net.op("GlobalAveragePool", x)
    weights = net.conv(net.conv(means, channels, few, 1, activation="relu"), few, channels, 1)
    return net.op("Mul", x, net.op(gate, weights))


def _yolo_boxes(net: NetworkBuilder, x: str, channels: int, size: int, stride: float) -> str:
    """Three boxes a cell of 4 coordinates and 21 scores, [1, 3·size², 25]; seeded noise replaces grid and anchors."""
    y = net.reshape(net.conv(x, channels, 3 * 25, 1), 1, 3, 25, size, size)
    y = net.op("Sigmoid", net.transpose(y, 0, 1, 3, 4, 2))
    centre, extent, scores = net.ops("Split", y, net.ints(2, 2, 21), results=3, axis=4)
    grid, anchors = (net.weight(1, 3, size, size, 2, scale=1.0) for _ in range(2))
    centre = net.op("Add", net.op("Mul", centre, net.floats(2)), grid)
    centre = net.op("Mul", centre, net.floats(stride))
    extent = net.op("Pow", net.op("Mul", extent, net.floats(2)), net.floats(2))
    return net.reshape(net.op("Concat", centre, net.op("Mul", extent, anchors), scores, axis=4), 1, -1, 25)
