"""Requirements of ONNX Runtime's operators and of those of `ai.onnx.ml`."""

from __future__ import annotations

from heterocc.compiler.importer.symbols.requirements import attention, normalization
from heterocc.compiler.importer.symbols.requirements.elementwise import fused_product, gemm, product, stacked
from heterocc.compiler.importer.symbols.requirements.quantised import along, linear
from heterocc.compiler.importer.symbols.requirements.recurrent import quantised_layer
from heterocc.compiler.importer.symbols.requirements.windows import convolution, pooling
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import number


def bias(needs: Needs) -> None:
    """BiasGelu and FastGelu: a number for each element of a row."""
    needs.shaped(1, [needs.size(0, -1)])


def quantised_pair(needs: Needs) -> None:
    """QLinearAdd and QLinearMul: two tensors that are broadcast with each other."""
    stacked(needs, [(place, needs.shape(place), 0) for place in (0, 3)])
    needs.single(1, 2, 4, 5, 6, 7)


def quantised_choice(needs: Needs) -> None:
    """QLinearWhere: three tensors that are broadcast with each other."""
    stacked(needs, [(place, needs.shape(place), 0) for place in (0, 1, 4)])
    needs.single(2, 3, 5, 6, 7, 8)


def quantised_concat(needs: Needs) -> None:
    """QLinearConcat: all other axes are equal."""
    first = needs.shape(2)
    axis = needs.given.attribute("axis") % max(len(first), 1)
    for place in range(5, len(needs.given.shapes), 3):
        if len(needs.shape(place)) == len(first):
            needs.shaped(place, [None if n == axis else size for n, size in enumerate(first)])
    needs.single(*(place for place in range(len(needs.given.shapes)) if place < 2 or place % 3 != 2))


def quantised_gemm(needs: Needs) -> None:
    """QGemm."""
    gemm(needs, second=3, bias=6)
    needs.single(1, 2, 7, 8)
    along(needs, (4, 5), needs.size(3, 0 if needs.given.attribute("transB", 0) else 1))


def quantised_unary(needs: Needs) -> None:
    """One tensor with a scale and a zero point, and those of the result."""
    needs.single(1, 2, 3, 4)


def quantised_pool(needs: Needs) -> None:
    """QLinearAveragePool."""
    pooling(needs)
    quantised_unary(needs)


def added_convolution(needs: Needs) -> None:
    """FusedConv: a tensor that is added has the shape of the result."""
    convolution(needs)
    if needs.result is not None:
        needs.shaped(3, needs.result)


def blocks_product(needs: Needs) -> None:
    """MatMulNBits."""
    needs.equal(0, -1, needs.given.attribute("K"))
    needs.shaped(5, [number(needs.given.attribute("N"))])


def ranged_product(needs: Needs) -> None:
    """DynamicQuantizeMatMul."""
    product(needs)
    along(needs, (2, 3), needs.size(1, -1))
    needs.shaped(4, [needs.size(1, -1)])


def scaled_product(needs: Needs) -> None:
    """MatMulIntegerToFloat."""
    product(needs)
    needs.single(2, 4)
    along(needs, (3, 5), needs.size(1, -1))
    needs.shaped(6, [needs.size(1, -1)])


MICROSOFT_RULES = {
    **attention.MICROSOFT_RULES,
    **dict.fromkeys(("BiasGelu", "FastGelu"), bias),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), linear),
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), quantised_pair),
    **dict.fromkeys(
        ("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "QLinearGlobalAveragePool"), quantised_unary
    ),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), normalization.skip),
    "EmbedLayerNormalization": normalization.embedding,
    "FusedMatMul": fused_product,
    "FusedGemm": gemm,
    "FusedConv": added_convolution,
    "MatMulInteger16": product,
    "MatMulNBits": blocks_product,
    "MatMulIntegerToFloat": scaled_product,
    "DynamicQuantizeMatMul": ranged_product,
    "DynamicQuantizeLSTM": quantised_layer,
    "QGemm": quantised_gemm,
    "QLinearAveragePool": quantised_pool,
    "QLinearConcat": quantised_concat,
    "QLinearWhere": quantised_choice,
}
