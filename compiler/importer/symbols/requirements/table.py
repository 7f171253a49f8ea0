"""The requirements of each operator that compiled code computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from heterocc.compiler.importer.symbols.operators.contrib import MICROSOFT
from heterocc.compiler.importer.symbols.operators.ml import ML
from heterocc.compiler.importer.symbols.requirements import (
    attention,
    contrib,
    elementwise,
    indexing,
    ml,
    normalization,
    quantised,
    recurrent,
    shaping,
    windows,
)
from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.requirement import Needs, Requirement

Rule = Callable[[Needs], None]

_RULES: Mapping[str, Mapping[str, Rule]] = {
    "": {
        **attention.RULES,
        **elementwise.RULES,
        **indexing.RULES,
        **normalization.RULES,
        **quantised.RULES,
        **recurrent.RULES,
        **shaping.RULES,
        **windows.RULES,
    },
    MICROSOFT: contrib.MICROSOFT_RULES,
    ML: ml.RULES,
}


FREE: Mapping[str, frozenset[str]] = {
    "": frozenset(
        # of one tensor, and numbers
        "Abs Acos Acosh Asin Asinh Atan Atanh Bernoulli BitCast BitwiseNot Cast CastLike Ceil "
        "Constant ConstantOfShape Cos Cosh DynamicQuantizeLinear Elu Erf Exp EyeLike Floor "
        "Gelu HardSigmoid HardSwish Hardmax Identity IsInf IsNaN LRN "
        "LeakyRelu Log LogSoftmax LpNormalization MeanVarianceNormalization Mish Neg NonZero Not "
        "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Reciprocal ReduceL1 ReduceL2 "
        "ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Round "
        "Selu Shape Shrink Sigmoid Sign Sin Sinh Size Slice Softmax Softplus Softsign Sqrt Tan Tanh "
        "TfIdfVectorizer ThresholdedRelu Transpose Unique "
        # of which the result has as many elements as the run finds
        "Compress "
        # of sequences and optional values, whose functions check what they are given
        "ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt SequenceConstruct SequenceEmpty "
        "SequenceErase SequenceInsert SequenceLength SplitToSequence "
        # TVM's names of operators that are not ONNX's
        "AllClassNMS BiasGelu EmbedLayerNormalization FastGelu MatMulInteger16 SkipLayerNormalization".split()
    ),
    MICROSOFT: frozenset(["Gelu", "QuickGelu"]),
    ML: frozenset("ArrayFeatureExtractor Binarizer LabelEncoder Normalizer OneHotEncoder".split()),
}
"""Operators that need nothing of sizes, by domain."""


def has_rule(domain: str, op_type: str) -> bool:
    """Whether the table says what an operator needs."""
    return op_type in _RULES.get(domain, {})


def requirements_of(given: Given, result: Shape) -> Iterator[Requirement]:
    """What a node needs of sizes, without what holds for all; `result` is the shape of its first output."""
    rule = _RULES.get(given.node.domain, {}).get(given.node.op_type)
    if rule is None or not given.shapes:
        return
    needs = Needs(given, result)
    rule(needs)
    yield from (needed for needed in dict.fromkeys(needs.found) if not needed.always)
