"""Operators that few models have: accumulations, determinants, transforms, n-grams, caches, fused layers."""

from __future__ import annotations

import numpy as np

from tests.differential.operator_cases.quantized import MICROSOFT
from tests.differential.operator_cases.values import IMAGE, X, ints, weight
from tests.differential.operators import Case, case, constant, draw

CASES: dict[str, list[Case]] = {}
CACHE = draw(2, 3, 6, 4)
CASES["accumulation"] = [
    case("CumSum", X, np.array(1), reverse=1, opset=14),
    case("CumSum", X, np.array(-1, np.int32), exclusive=1, opset=14),
    case("CumSum", ints(2, 3, 4, d=np.int32), np.array(0), exclusive=1, reverse=1, opset=14),
    case("CumSum", draw(5), constant(0, np.int64), exclusive=1, reverse=1, opset=14),
]
CASES["remainder"] = [
    case("Mod", draw(20, low=-50, high=50), draw(20, low=0.1, high=5, seed=1), fmod=1),
    case(
        "Mod", np.array([1e30, -7, 5, 3.5, np.inf], np.float32), np.array([3, 2.5, -3, np.inf, 2], np.float32), fmod=1
    ),
    case("Mod", draw(8, dtype=np.float16), draw(8, dtype=np.float16, seed=4), fmod=1),
    case("Mod", draw(8, dtype=np.float64, low=-9, high=9), draw(8, dtype=np.float64, low=1, high=3, seed=4), fmod=1),
]
SINGULAR = np.stack([np.eye(4), np.zeros((4, 4)), np.fliplr(np.eye(4)), np.arange(16).reshape(4, 4)])
CASES["determinant"] = [
    case("Det", draw(3, 3)),
    case("Det", draw(4, 5, 2, 2)),
    case("Det", draw(2, 1, 1)),
    case("Det", draw(6, 6)),
    case("Inverse", draw(3, 5, 5), **MICROSOFT),
    case("Inverse", np.concatenate([SINGULAR[:3], np.ones((1, 4, 4))]).astype(np.float32), **MICROSOFT),
    case("Inverse", np.array([[[-0.0, 0], [0, -0.0]], [[-1, 2], [-2, 4]]], np.float32), **MICROSOFT),
    case("Det", SINGULAR.astype(np.float32)),
]
WINDOW = draw(1, 3, 7, 9)
CASES["places of maxima"] = [
    case("MaxPool", WINDOW, outputs=2, kernel_shape=[2, 2], strides=[2, 2]),
    case("MaxPool", WINDOW, outputs=2, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    case("MaxPool", WINDOW, outputs=2, kernel_shape=[3, 2], pads=[1, 0, 2, 1], strides=[2, 1], storage_order=1),
    case("MaxPool", WINDOW, outputs=2, kernel_shape=[2, 3], dilations=[2, 2], strides=[1, 2]),
    case("MaxPool", WINDOW, outputs=2, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    case("MaxPool", WINDOW, outputs=2, kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_UPPER"),
    case("MaxPool", WINDOW, outputs=2, kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_LOWER"),
    case("MaxPool", WINDOW, kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_LOWER"),
    case("MaxPool", np.zeros((2, 2, 5), np.float32), outputs=2, kernel_shape=[3], pads=[1, 1]),
    case("MaxPool", draw(1, 2, 4, 5, 3), outputs=2, kernel_shape=[2, 2, 2]),
]
TAPS = weight(3, 2, 3, 3)
CASES["transposed by shape"] = [
    case("ConvTranspose", draw(1, 3, 4, 5), TAPS, strides=[3, 2], output_shape=[10, 8]),
    case("ConvTranspose", draw(1, 3, 4, 5), TAPS, strides=[3, 2], output_shape=[12, 9], output_padding=[1, 0]),
    case("ConvTranspose", draw(1, 3, 3, 3), TAPS, strides=[3, 2], output_shape=[10, 8]),
    case("ConvTranspose", draw(1, 3, 4, 5), TAPS, strides=[2, 2], auto_pad="SAME_UPPER"),
    case("ConvTranspose", draw(1, 3, 4, 5), TAPS, strides=[2, 2], auto_pad="SAME_LOWER"),
    case("ConvTranspose", draw(1, 3, 4, 5), TAPS, strides=[2, 2], output_shape=[8, 9], auto_pad="SAME_UPPER"),
    case("ConvTranspose", draw(1, 3, 4, 5), TAPS, strides=[2, 2], dilations=[2, 2], output_shape=[9, 10]),
    case("ConvTranspose", draw(1, 4, 6), weight(4, 1, 4), weight(2), strides=[2], group=2, output_shape=[11]),
]
STATISTICS = [constant(draw(3, seed=n, low=0.1)) for n in range(4)]
CASES["training"] = [
    case("BatchNormalization", draw(4, 3, 5, 2), *STATISTICS, training_mode=1, outputs=3, momentum=0.7),
    case("BatchNormalization", draw(4, 3), *STATISTICS, training_mode=1, outputs=3, epsilon=0.1),
]
CASES["fourier"] = [
    case("DFT", draw(2, 6, 1), axis=1),
    case("DFT", draw(2, 6, 2), axis=1, inverse=1),
    case("DFT", draw(2, 7, 4, 1), axis=1, onesided=1),
    case("DFT", draw(2, 4, 3, 2), axis=1, inverse=1, onesided=1),
    case("DFT", draw(2, 4, 3, 2), constant(7, np.int64), axis=1, inverse=1, onesided=1),
    case("DFT", draw(2, 7, 4, 2), constant(5, np.int64), axis=2),
    case("DFT", draw(2, 7, 4, 1), constant(11, np.int64), axis=1),
    case("DFT", draw(2, 6, 4, 2), None, constant(-2, np.int64), opset=20),
    case("DFT", draw(2, 6, 4, 1), constant(8, np.int64), constant(1, np.int64), opset=20, onesided=1),
]
CASES["columns to images"] = [
    case("Col2Im", draw(1, 5, 5), constant([5, 5], np.int64), constant([1, 5], np.int64), opset=18),
    case("Col2Im", draw(2, 18, 4), constant([5, 5], np.int64), constant([3, 3], np.int64), strides=[2, 2], opset=18),
    case("Col2Im", draw(1, 4, 5), constant([6, 6], np.int64), constant([2, 2], np.int64), dilations=[1, 5], opset=18),
    case("Col2Im", draw(2, 9, 15), constant([5, 5], np.int64), constant([3, 3], np.int64), pads=[0, 1, 0, 1], opset=18),
]
GRAMS = {"ngram_counts": [0, 4], "ngram_indexes": [0, 1, 2, 3, 4, 5, 6], "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7]}
CASES["n-grams"] = [
    case(
        "TfIdfVectorizer",
        tokens,
        mode=mode,
        max_gram_length=2,
        min_gram_length=least,
        max_skip_count=skip,
        **more,
        **GRAMS,
    )
    for mode in ("TF", "IDF", "TFIDF")
    for least, skip, more in ((1, 5, {}), (2, 0, {"weights": [0.5, 2.0, 1.0, 3.0, 0.25, 1.0, 2.0]}))
    for tokens in (np.array([1, 1, 3, 3, 3, 7, 8, 6, 7, 5, 6, 8], np.int32), np.array([[1, 3, 3, 7], [8, 6, 5, 6]]))
]
CASES["cache"] = [
    case("TensorScatter", CACHE, draw(2, 3, 2, 4, seed=1), np.array([1, 4]), opset=24),
    case("TensorScatter", CACHE, draw(2, 3, 2, 4, seed=1), np.array([1, 5]), mode="circular", opset=24),
    case("TensorScatter", CACHE, draw(2, 3, 2, 4, seed=1), opset=24),
]
CASES["rotation of short heads"] = [
    case(
        "RotaryEmbedding",
        draw(2, 3, 4 * size),
        draw(2, 3, size // 2),
        draw(2, 3, size // 2, seed=5),
        num_heads=4,
        opset=23,
    )
    for size in (4, 8, 16, 32)
]

TOKENS = ints(2, 5, d=np.int32, lo=0, hi=9)
CASES["joined"] = [
    case("FusedConv", IMAGE, weight(2, 4, 3, 3), weight(2), activation="Relu", **MICROSOFT),
    case("FusedConv", IMAGE, weight(2, 4, 3, 3), activation="LeakyRelu", activation_params=[0.1], **MICROSOFT),
    case("FusedConv", IMAGE, weight(2, 4, 3, 3), activation="Clip", activation_params=[-0.5, 0.5], **MICROSOFT),
    case(
        "FusedConv",
        IMAGE,
        weight(4, 4, 3, 3),
        weight(4),
        draw(1, 4, 6, 6, seed=8),
        pads=[1, 1, 1, 1],
        activation="Relu",
        **MICROSOFT,
    ),
    case("FusedGemm", draw(3, 4), weight(4, 5), weight(5), activation="Relu", **MICROSOFT),
    case("FusedGemm", draw(3, 4), weight(5, 4), weight(5), transB=1, alpha=0.5, activation="Tanh", **MICROSOFT),
    case(
        "EmbedLayerNormalization",
        TOKENS,
        ints(2, 5, d=np.int32, lo=0, hi=1),
        weight(10, 8),
        weight(6, 8),
        weight(2, 8),
        weight(8),
        weight(8),
        ints(2, 5, d=np.int32, lo=0, hi=1),
        outputs=2,
        **MICROSOFT,
    ),
    case(
        "EmbedLayerNormalization",
        TOKENS,
        None,
        weight(10, 8),
        weight(6, 8),
        None,
        weight(8),
        weight(8),
        outputs=2,
        **MICROSOFT,
    ),
]
