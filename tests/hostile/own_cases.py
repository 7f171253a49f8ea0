"""Cases of operators and modes that the other lists of cases lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.differential.operator_cases.quantized import MICROSOFT
from tests.differential.operator_cases.values import sc, u8
from tests.differential.operators import Case, case, constant, draw
from tests.ml_models import random_trees

Array = np.ndarray[Any, Any]

ML = {"domain": "ai.onnx.ml"}
ROWS = draw(4, 3)
STATE = draw(2, 2, 5, 4)
HEADS = draw(2, 3, 8)


def _trees(**more: Any) -> dict[str, Any]:
    return random_trees(np.random.default_rng(0), trees=3, depth=3, **more)


def _positive(*shape: int) -> Array:
    return draw(*shape, low=0.1, high=1)


_LINEAR = {"coefficients": [0.5, -1.0, 2.0, 1.0, 0.0, -2.0, 0.3, 0.2, 0.1], "intercepts": [0.1, 0.2, 0.3]}
_SVM = {"kernel_params": [0.5, 0.0, 3.0], "support_vectors": [1.0, 0.0, -1.0, 0.5, 2.0, 1.0], "rho": [0.3]}

OWN: list[Case] = [
    case("FeatureVectorizer", draw(4, 2), draw(4, 3), inputdimensions=[2, 3], **ML),
    case("Imputer", ROWS, imputed_value_floats=[1.0, 2.0, 3.0], replaced_value_float=0.0, **ML),
    case("LinearClassifier", ROWS, outputs=2, classlabels_ints=[0, 1, 2], post_transform="SOFTMAX", **_LINEAR, **ML),
    case("LinearRegressor", ROWS, targets=3, **_LINEAR, **ML),
    case("Normalizer", ROWS, norm="L2", **ML),
    case("OneHotEncoder", np.array([[1], [3]], np.int64), cats_int64s=[1, 2, 3], zeros=1, **ML),
    case(
        "SVMClassifier",
        ROWS,
        outputs=2,
        classlabels_ints=[0, 1],
        coefficients=[1.0, -1.0],
        vectors_per_class=[1, 1],
        kernel_type="RBF",
        **_SVM,
        **ML,
    ),
    case("SVMRegressor", ROWS, coefficients=[1.0, -1.0], n_supports=2, kernel_type="RBF", **_SVM, **ML),
    case("Scaler", ROWS, offset=[1.0, 2.0, 3.0], scale=[0.5, 1.0, 2.0], **ML),
    case(
        "TreeEnsembleClassifier",
        ROWS,
        outputs=2,
        classlabels_int64s=[0, 1, 2],
        **_trees(targets=(0, 1, 2), prefix="class"),
        **ML,
    ),
    case("TreeEnsembleRegressor", ROWS, n_targets=1, **_trees(), **ML),
    case("ArrayFeatureExtractor", ROWS, np.array([2, 0], np.int64), **ML),
    case("Binarizer", ROWS, threshold=0.5, **ML),
    case("LabelEncoder", np.array([1, 3, 9], np.int64), keys_int64s=[1, 3], values_int64s=[7, 8], **ML),
    case("Attention", draw(2, 3, 6), draw(6, 24), draw(24), num_heads=2, **MICROSOFT),
    case("Attention", draw(2, 3, 6), draw(6, 24), draw(24), np.array([3, 2], np.int32), num_heads=2, **MICROSOFT),
    case("Attention", draw(2, 3, 6), draw(6, 24), draw(24), num_heads=2, unidirectional=1, **MICROSOFT),
    case(
        "MoE",
        draw(4, 8),
        draw(4, 3),
        constant(draw(3, 6, 8)),
        constant(draw(3, 6)),
        constant(draw(3, 8, 6)),
        k=2,
        activation_type="silu",
        **MICROSOFT,
    ),
    case(
        "QMoE",
        draw(4, 16),
        draw(4, 3),
        constant(u8(3, 32, 8)),
        constant(draw(3, 32)),
        None,
        constant(u8(3, 16, 8)),
        constant(draw(3, 16)),
        k=2,
        activation_type="swiglu",
        swiglu_fusion=1,
        **MICROSOFT,
    ),
    case("CausalConvWithState", draw(2, 4, 5), draw(4, 1, 3), draw(4), draw(2, 4, 2), outputs=2, **MICROSOFT),
    case("CausalConvWithState", draw(2, 5, 4), draw(4, 1, 3), outputs=2, channels_last=1, **MICROSOFT),
    case(
        "LinearAttention",
        HEADS,
        draw(2, 3, 8),
        draw(2, 3, 8),
        draw(2, 2, 4, 4),
        draw(2, 3, 2, low=-2, high=0),
        _positive(2, 3, 2),
        outputs=2,
        update_rule="gated_delta",
        q_num_heads=2,
        kv_num_heads=2,
        **MICROSOFT,
    ),
    case("LinearAttentionGate", draw(2, 3, 4), draw(4), draw(4), draw(2, 3, 4), outputs=2, **MICROSOFT),
    case("GatedRMSNorm", draw(2, 3, 12), draw(4), draw(2, 3, 12), **MICROSOFT),
    case("GatedAdd", draw(2, 3, 12), draw(2, 3, 12), draw(2, 3, 1), **MICROSOFT),
    case(
        "MRotaryEmbedding",
        draw(2, 3, 16),
        np.array([[[0, 1, 2], [3, 4, 5]]] * 3, np.int64),
        draw(8, 4),
        draw(8, 4),
        mrope_section=[2, 1, 1],
        num_heads=2,
        **MICROSOFT,
    ),
    case("MultiHeadAttention", HEADS, draw(2, 5, 8), draw(2, 5, 8), num_heads=2, **MICROSOFT),
    case("MultiHeadAttention", HEADS, draw(2, 5, 8), draw(2, 5, 8), draw(24), num_heads=2, **MICROSOFT),
    case(
        "MultiHeadAttention",
        HEADS,
        draw(2, 3, 8),
        draw(2, 3, 8),
        None,
        None,
        draw(1, 2, 3, 8),
        STATE,
        STATE,
        outputs=3,
        num_heads=2,
        **MICROSOFT,
    ),
    case(
        "GroupQueryAttention",
        draw(2, 1, 16),
        draw(2, 1, 8),
        draw(2, 1, 8),
        draw(2, 1, 5, 8),
        draw(2, 1, 5, 8),
        np.array([5, 3], np.int32),
        np.array(6, np.int32),
        outputs=3,
        num_heads=2,
        kv_num_heads=1,
        **MICROSOFT,
    ),
    case(
        "GroupQueryAttention",
        draw(1, 2, 32),
        draw(1, 2, 16),
        draw(1, 2, 16),
        draw(1, 1, 5, 16),
        draw(1, 1, 5, 16),
        np.array([6], np.int32),
        np.array(7, np.int32),
        draw(12, 8),
        draw(12, 8),
        outputs=3,
        num_heads=2,
        kv_num_heads=1,
        do_rotary=1,
        local_window_size=4,
        **MICROSOFT,
    ),
    case(
        "GroupQueryAttention",
        draw(2, 1, 16, dtype=np.float16),
        draw(2, 1, 8, dtype=np.float16),
        draw(2, 1, 8, dtype=np.float16),
        draw(2, 1, 5, 8, dtype=np.float16),
        draw(2, 1, 5, 8, dtype=np.float16),
        np.array([5, 3], np.int32),
        constant(np.array(6, np.int32)),
        outputs=3,
        num_heads=2,
        kv_num_heads=1,
        **MICROSOFT,
    ),
    *(
        case(
            "GroupQueryAttention",
            draw(2, 1, 16),
            draw(2, 1, 8),
            draw(2, 1, 8),
            *(draw(2, 1, 5, bits, dtype=dtype, low=0, high=100, seed=seed) for seed in (0, 1)),
            np.array([5, 3], np.int32),
            np.array(6, np.int32),
            *[None] * 5,
            constant(draw(*scales)),
            constant(draw(*scales)),
            outputs=3,
            num_heads=2,
            kv_num_heads=1,
            kv_cache_bit_width=bits,
            k_quant_type=kind,
            v_quant_type=kind,
            **MICROSOFT,
        )
        for bits, dtype, kind, scales in ((8, np.int8, "PER_CHANNEL", (1, 1, 1, 8)), (4, np.uint8, "PER_TENSOR", (1,)))
    ),
    case("RotaryEmbedding", draw(2, 2, 3, 8), np.array([[0, 1, 2], [1, 2, 3]]), draw(6, 4), draw(6, 4), **MICROSOFT),
    case("RotaryEmbedding", draw(2, 3, 16), np.array([2]), draw(6, 4), draw(6, 4), num_heads=2, **MICROSOFT),
    case("ExpandDims", ROWS, constant(-2, np.int32), **MICROSOFT),
    case("Trilu", ROWS, np.array(1), upper=0, **MICROSOFT),
    case("Pad", ROWS, constant([1, 0, 2, 1]), mode="reflect", **MICROSOFT),
    case("Pad", ROWS, np.array([1, 0, 2, 1]), np.array([2], np.float32), **MICROSOFT),
    case("Range", np.array(1), np.array(9), **MICROSOFT),
    case("Range", np.array(1.5, np.float32), np.array(9, np.float32), np.array(2, np.float32), **MICROSOFT),
    case("Unique", np.array([3, 1, 3, 2, 1], np.float32), outputs=3, **MICROSOFT),
    case("GridSample", draw(2, 3, 4, 5), draw(2, 3, 2, 2, high=1, low=-1), padding_mode="border", **MICROSOFT),
    case("TransposeMatMul", ROWS, draw(4, 5), transA=1, alpha=0.5, **MICROSOFT),
    case("CDist", ROWS, draw(5, 3), **MICROSOFT),
    case("CDist", ROWS, draw(5, 3), metric="euclidean", **MICROSOFT),
    case("MatMulInteger16", draw(3, 4, dtype=np.int16), draw(4, 5, dtype=np.int16), **MICROSOFT),
    # One of its attributes is named as one of `case`.
    Case(
        "QLinearSoftmax",
        (u8(2, 5), sc(0.05), constant(120, np.uint8), sc(0.004), constant(0, np.uint8)),
        {"axis": 1, "opset": 13},
        1,
        17,
        "com.microsoft",
    ),
    *(
        case(
            op,
            u8(2, 5, 4, 3),
            sc(0.05),
            constant(120, np.uint8),
            sc(0.04),
            constant(100, np.uint8),
            channels_last=1,
            **window,
            **MICROSOFT,
        )
        for op, window in (("QLinearAveragePool", {"kernel_shape": [2, 2]}), ("QLinearGlobalAveragePool", {}))
    ),
    case(
        "DynamicQuantizeLSTM",
        draw(5, 2, 3),
        draw(1, 3, 16, dtype=np.int8),
        draw(1, 4, 16, dtype=np.int8),
        draw(1, 32),
        None,
        None,
        None,
        None,
        sc([0.02]),
        constant([1], np.int8),
        sc([0.02]),
        constant([2], np.int8),
        outputs=3,
        hidden_size=4,
        **MICROSOFT,
    ),
    case("SimplifiedLayerNormalization", draw(2, 3, 8), draw(8)),
    case("SkipLayerNormalization", draw(2, 3, 8), draw(2, 3, 8), draw(8), draw(8), draw(8), **MICROSOFT),
    case("SkipLayerNormalization", draw(2, 3, 8), draw(3, 8), draw(8), **MICROSOFT),
    case("RandomNormalLike", ROWS),
    case("RandomUniformLike", ROWS),
    case("Multinomial", _positive(2, 5), sample_size=4),
    case("FusedMatMul", draw(2, 4, 3), draw(2, 4, 5), transA=1, alpha=0.5, **MICROSOFT),
    case("GridSample", draw(1, 2, 4, 5), draw(1, 3, 3, 2), mode="cubic", padding_mode="reflection", opset=20),
    case("GridSample", draw(1, 2, 3, 4, 5), draw(1, 2, 3, 3, 3), mode="linear", opset=20),
    case("NonMaxSuppression", _positive(1, 6, 4), _positive(1, 2, 6), np.array([3]), np.array([0.5], np.float32)),
    case("MaxRoiPool", draw(1, 2, 6, 6), np.array([[0, 1, 1, 4, 4]], np.float32), pooled_shape=[2, 2]),
    case("Inverse", draw(2, 3, 3), **MICROSOFT),
    case(
        "QAttention",
        u8(2, 3, 8),
        u8(8, 24),
        draw(24),
        sc(0.05),
        sc(0.05),
        None,
        *[constant(3, np.uint8)] * 2,
        num_heads=2,
        **MICROSOFT,
    ),
    case("DecoderMaskedMultiHeadAttention", draw(2, 1, 8), draw(2, 1, 8), draw(2, 1, 8), num_heads=2, **MICROSOFT),
    case("Slice", draw(4, 3), np.array([-1]), np.array([2**31 - 1]), np.array([0])),
    case("Expand", draw(3, 1), np.array([2, 3, 4])),
    case("Tile", draw(2, 3), np.array([2, 3])),
    case("Pad", draw(1, 3), np.array([0, 2, 0, 1]), mode="reflect", opset=13),
    case("Pad", draw(3, 4), np.array([1, 2, 0, 1]), mode="edge", opset=13),
    case("Pad", draw(3, 4), np.array([1, 2, 0, 1]), None, np.array([0, -1]), mode="wrap", opset=19),
    case("Einsum", draw(3, 4), draw(4, 5), equation="ij,jk->ik"),
    case("Einsum", draw(2, 3, 4), draw(2, 5, 4), equation="bij,bkj->bik"),
    case("Einsum", draw(4, 4), equation="ii->i"),
]
"""Of one node each; no input is constant in all of its models."""

_N = helper.make_node

SEQUENCES: Mapping[str, tuple[Sequence[onnx.NodeProto], Mapping[str, Array], int]] = {
    "SplitToSequence": (
        [_N("SplitToSequence", ["x", "split"], ["s"], axis=0), _N("SequenceAt", ["s", "at"], ["y"])],
        {"x": draw(6, 2), "split": np.array([2, 3, 1]), "at": np.array(1)},
        TensorProto.FLOAT,
    ),
    "SequenceAt": (
        [_N("SequenceConstruct", ["x", "z"], ["s"]), _N("SequenceAt", ["s", "at"], ["y"])],
        {"x": draw(3, 2), "z": draw(3, 2), "at": np.array(1)},
        TensorProto.FLOAT,
    ),
    "SequenceConstruct": (
        [_N("SequenceConstruct", ["x", "z"], ["s"]), _N("ConcatFromSequence", ["s"], ["y"], axis=1, new_axis=1)],
        {"x": draw(3, 2), "z": draw(3, 2)},
        TensorProto.FLOAT,
    ),
    "ConcatFromSequence": (
        [_N("SequenceConstruct", ["x", "z"], ["s"]), _N("ConcatFromSequence", ["s"], ["y"], axis=0)],
        {"x": draw(3, 2), "z": draw(4, 2)},
        TensorProto.FLOAT,
    ),
    "SequenceInsert": (
        [
            _N("SequenceConstruct", ["x", "z"], ["s"]),
            _N("SequenceInsert", ["s", "w", "at"], ["t"]),
            _N("ConcatFromSequence", ["t"], ["y"], axis=0),
        ],
        {"x": draw(3, 2), "z": draw(4, 2), "w": draw(1, 2), "at": np.array(1)},
        TensorProto.FLOAT,
    ),
    "SequenceErase": (
        [
            _N("SequenceConstruct", ["x", "z"], ["s"]),
            _N("SequenceErase", ["s", "at"], ["t"]),
            _N("ConcatFromSequence", ["t"], ["y"], axis=0),
        ],
        {"x": draw(3, 2), "z": draw(4, 2), "at": np.array(1)},
        TensorProto.FLOAT,
    ),
    "SequenceEmpty": (
        [
            _N("SequenceEmpty", [], ["s"]),
            _N("SequenceInsert", ["s", "x"], ["t"]),
            _N("SequenceAt", ["t", "at"], ["y"]),
        ],
        {"x": draw(3, 2), "at": np.array(0)},
        TensorProto.FLOAT,
    ),
    "SequenceLength": (
        [_N("SplitToSequence", ["x"], ["s"], axis=0), _N("SequenceLength", ["s"], ["y"])],
        {"x": draw(6, 2)},
        TensorProto.INT64,
    ),
    "com.microsoft::GatherBlockQuantized": (
        [
            _N("Constant", [], ["table"], value=numpy_helper.from_array(np.arange(80, dtype=np.uint8).reshape(5, 16))),
            _N("Constant", [], ["scales"], value=numpy_helper.from_array(_positive(5, 2))),
            _N("GatherBlockQuantized", ["table", "x", "scales"], ["y"], block_size=16, bits=4, **MICROSOFT),
        ],
        {"x": np.array([[0, 4, -5], [2, 2, -1]])},
        TensorProto.FLOAT,
    ),
    "com.microsoft::MatMulBnb4": (
        [
            _N("Constant", [], ["codes"], value=numpy_helper.from_array(np.arange(80, dtype=np.uint8))),
            _N("Constant", [], ["scales"], value=numpy_helper.from_array(_positive(10))),
            _N("MatMulBnb4", ["x", "codes", "scales"], ["y"], K=32, N=5, block_size=16, quant_type=1, **MICROSOFT),
        ],
        {"x": draw(3, 32)},
        TensorProto.FLOAT,
    ),
}
"""By operator: nodes from tensors to the tensor y, some with sequences or constants, their inputs, and y's dtype."""
