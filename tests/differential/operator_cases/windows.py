"""Convolutions, pooling, matrix products and resizing."""

from __future__ import annotations

import numpy as np

from tests.differential.operator_cases.values import IMAGE, X, ints, weight
from tests.differential.operators import Case, case, constant, draw

SPREAD = {"pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2]}
ROWS, COLUMNS = (IMAGE.shape[2] + 3 - 3) // 2 + 1, IMAGE.shape[3] + 1 - 3 + 1
OFFSETS = (IMAGE.shape[0], 12, ROWS, COLUMNS)
"""The shape of the offsets of a 3 x 2 window with these attributes."""

CASES: dict[str, list[Case]] = {}
CASES["conv"] = [
    case("Conv", IMAGE, weight(8, 4, 3, 3), weight(8), pads=[1] * 4),
    case("Conv", IMAGE, weight(8, 4, 3, 3), strides=[2, 2], auto_pad="SAME_UPPER"),
    case("Conv", IMAGE, weight(8, 4, 3, 3), strides=[2, 2], auto_pad="SAME_LOWER"),
    case("Conv", IMAGE, weight(8, 4, 2, 2), auto_pad="SAME_LOWER"),
    case("Conv", IMAGE, weight(8, 4, 3, 3), auto_pad="VALID"),
    case("Conv", IMAGE, weight(4, 1, 3, 3), group=4, pads=[1] * 4),
    case("Conv", IMAGE, weight(8, 2, 3, 3), group=2, dilations=[2, 2]),
    case("Conv", IMAGE, weight(8, 1, 3, 3), group=4, pads=[1, 0, 1, 2]),
    case("Conv", IMAGE, weight(8, 4, 1, 1)),
    case("Conv", draw(2, 3, 10), weight(5, 3, 3), weight(5), pads=[1, 1], strides=[2]),
    case("Conv", draw(1, 3, 10), weight(3, 1, 4), group=3, dilations=[2]),
    case("Conv", draw(1, 2, 5, 5, 5), weight(4, 2, 3, 3, 3), weight(4), pads=[1] * 6),
    case("Conv", draw(1, 2, 5, 5, 5), weight(4, 1, 2, 2, 2), group=2, strides=[2] * 3),
    case("Conv", IMAGE, draw(8, 4, 3, 3)),
    case(
        "Conv",
        IMAGE.astype(np.float16),
        constant(draw(8, 4, 3, 3, low=-0.5, high=0.5).astype(np.float16)),
        pads=[1] * 4,
    ),
    case("Conv", draw(2, 4, 1, 7), weight(8, 4, 1, 3)),
    case("Conv", draw(2, 4, 7, 1), weight(8, 4, 3, 1)),
    case("ConvTranspose", IMAGE, weight(4, 6, 3, 3), weight(6), strides=[2, 2], pads=[1] * 4, output_padding=[1, 1]),
    case("ConvTranspose", IMAGE, weight(4, 6, 2, 2), strides=[2, 2]),
    case("ConvTranspose", IMAGE, weight(4, 3, 3, 3), group=2),
    case("ConvTranspose", IMAGE, weight(4, 1, 4, 4), group=4, strides=[2, 2], pads=[1] * 4),
    case("ConvTranspose", IMAGE, weight(4, 6, 3, 3), dilations=[2, 2]),
    case("ConvTranspose", draw(1, 3, 6), weight(3, 4, 4), strides=[2], pads=[1, 1]),
    case("ConvTranspose", draw(1, 2, 3, 3, 3), weight(2, 3, 2, 2, 2), strides=[2, 2, 2]),
    case("ConvTranspose", IMAGE, weight(4, 6, 3, 3), strides=[2, 2], pads=[0, 1, 2, 1]),
    case("DeformConv", IMAGE, weight(6, 4, 3, 2), draw(*OFFSETS, low=-2, high=2), opset=22, **SPREAD),
    case(
        "DeformConv",
        IMAGE,
        weight(6, 2, 3, 2),
        draw(OFFSETS[0], 2 * OFFSETS[1], *OFFSETS[2:], low=-2, high=2),
        weight(6),
        draw(OFFSETS[0], OFFSETS[1], *OFFSETS[2:], low=0),
        opset=22,
        group=2,
        offset_group=2,
        **SPREAD,
    ),
    case("MaxPool", IMAGE, kernel_shape=[2, 2], strides=[2, 2]),
    case("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    case("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    case("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
    case("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_LOWER"),
    case("MaxPool", IMAGE, kernel_shape=[2, 2], dilations=[2, 2]),
    case("MaxPool", draw(1, 2, 9), kernel_shape=[3], strides=[2], pads=[1, 1]),
    case("MaxPool", draw(1, 2, 5, 5, 5), kernel_shape=[2, 2, 2]),
    case("MaxPool", ints(1, 2, 4, 4, d=np.uint8, lo=0), kernel_shape=[2, 2]),
    case("MaxPool", ints(1, 2, 4, 4, d=np.int8), kernel_shape=[2, 2], pads=[1] * 4),
    case("AveragePool", IMAGE, kernel_shape=[2, 2], strides=[2, 2]),
    case("AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1] * 4),
    case("AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1),
    case("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    case("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, pads=[1] * 4, count_include_pad=1),
    case("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
    case("AveragePool", draw(1, 2, 9), kernel_shape=[3]),
    case("AveragePool", draw(1, 2, 4, 4, 4), kernel_shape=[2] * 3),
    case("GlobalAveragePool", IMAGE),
    case("GlobalMaxPool", IMAGE),
    case("GlobalAveragePool", draw(1, 2, 9)),
    case("LpPool", IMAGE, kernel_shape=[2, 2]),
    case("GlobalLpPool", IMAGE),
    case("MatMul", X, draw(2, 4, 5)),
    case("MatMul", X, weight(4, 5)),
    case("MatMul", draw(4), weight(4, 5)),
    case("MatMul", X, draw(4)),
    case("MatMul", draw(2, 1, 3, 4), draw(5, 4, 6)),
    case("MatMul", draw(4), draw(4)),
    case("MatMul", ints(3, 4), constant(ints(4, 5))),
    case("MatMul", ints(3, 4, d=np.int32), ints(4, 5, d=np.int32)),
    case("MatMul", draw(3, 4, dtype=np.float64), draw(4, 5, dtype=np.float64)),
    case("MatMul", X.astype(np.float16), constant(draw(4, 5).astype(np.float16))),
    case("Gemm", draw(3, 4), weight(5, 4), weight(5), transB=1),
    case("Gemm", draw(4, 3), weight(4, 5), transA=1, alpha=0.5),
    case("Gemm", draw(3, 4), weight(4, 5), weight(3, 1), beta=2.0),
    case("Gemm", draw(3, 4), weight(4, 5), weight(1)),
    case("Gemm", draw(3, 4), draw(4, 5), draw(3, 5)),
    case("Gemm", draw(3, 4), weight(4, 5), constant(2.0, np.float32)),
]
CASES["resize"] = [
    case(
        "Resize",
        IMAGE,
        None,
        constant([1, 1, 2, 2], np.float32),
        mode=m,
        coordinate_transformation_mode=c,
        **({"nearest_mode": n} if m == "nearest" else {}),
    )
    for m, c, n in (
        ("nearest", "asymmetric", "floor"),
        ("nearest", "half_pixel", "round_prefer_floor"),
        ("nearest", "align_corners", "ceil"),
        ("linear", "half_pixel", ""),
        ("linear", "align_corners", ""),
        ("linear", "asymmetric", ""),
        ("linear", "pytorch_half_pixel", ""),
        ("cubic", "half_pixel", ""),
        ("cubic", "align_corners", ""),
    )
] + [
    case("Resize", IMAGE, None, None, constant([1, 4, 9, 5], np.int64), mode="linear"),
    case("Resize", IMAGE, None, constant([1, 1, 0.5, 0.5], np.float32), mode="nearest"),
    case("Resize", IMAGE, None, constant([1, 1, 1.7, 0.6], np.float32), mode="linear"),
    case("Resize", draw(1, 2, 8), None, constant([1, 1, 2], np.float32), mode="linear"),
    case("Resize", draw(1, 2, 3, 3, 3), None, constant([1, 1, 2, 2, 2], np.float32), mode="linear"),
    case(
        "Resize", IMAGE, None, constant([1, 1, 2, 2], np.float32), mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1
    ),
]
