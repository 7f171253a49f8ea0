"""Products of matrices, and operators of single matrices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from math import prod

import onnx

from heterocc.compiler.operators.elements.arithmetic import stacked, widened
from heterocc.compiler.operators.record import (
    EVERY,
    FIRST_TWO,
    FLAT,
    INNER,
    MICROSOFT,
    RANGE,
    Dims,
    Operator,
    Part,
    Renamed,
    attribute,
    same_shape,
)
from heterocc.compiler.symbolic.alike import alike
from heterocc.compiler.symbolic.comparisons import broadcast_size
from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import Size, number

ROUNDED = 4
"""The `accuracy_level` of MatMulNBits at which ONNX Runtime rounds the other factor to int8, block by block."""


def product(needs: Needs, left: int = 0, right: int = 1) -> None:
    """MatMul: the rows of one are as long as the columns of the other, and stacks are broadcast."""
    first, second = needs.shape(left), needs.shape(right)
    if not first or not second:
        return
    needs.equal(right, -2 if len(second) > 1 else 0, first[-1])
    if len(first) > 2 and len(second) > 2:
        stacked(needs, [(left, first, 2), (right, second, 2)])


def gemm(needs: Needs, second: int = 1, bias: int = 2) -> None:
    """Gemm: the rows of one are as long as the columns of the other, and the bias is broadcast to the result."""
    turned = [bool(needs.given.attribute(name, 0)) for name in ("transA", "transB")]
    if len(needs.shape(0)) != 2 or len(needs.shape(second)) != 2:
        return
    needs.equal(second, 1 if turned[1] else 0, needs.size(0, 0 if turned[0] else 1))
    result = needs.size(0, 1 if turned[0] else 0), needs.size(second, 0 if turned[1] else 1)
    for axis in range(1, 1 + len(needs.shape(bias))):
        needs.spread(bias, -axis, result[-axis] if axis <= 2 else number(1))


def fused_product(needs: Needs) -> None:
    """FusedMatMul: as MatMul of matrices that may be transposed."""
    first, second = needs.shape(0), needs.shape(1)
    if len(first) < 2 or len(second) < 2 or any(needs.given.attribute(f"transBatch{s}", 0) for s in "AB"):
        return
    turned = [bool(needs.given.attribute(name, 0)) for name in ("transA", "transB")]
    needs.equal(1, -1 if turned[1] else -2, first[-2 if turned[0] else -1])
    stacked(needs, [(0, first, 2), (1, second, 2)])


def blocks_product(needs: Needs) -> None:
    """MatMulNBits."""
    needs.equal(0, -1, needs.given.attribute("K"))
    needs.shaped(5, [number(needs.given.attribute("N"))])


_GROUPS, _MISREAD = 4, 2


def _misread(node: onnx.NodeProto) -> str:
    """The bits with which ONNX Runtime 1.32 misreads weights whose terms belong to blocks in any order (g_idx)."""
    grouped = len(node.input) > _GROUPS and bool(node.input[_GROUPS])
    return "bits" if grouped and attribute(node, "bits", 4) == _MISREAD else ""


def square(needs: Needs) -> None:
    """Det: square matrices."""
    needs.equal(0, -1, needs.size(0, -2))


def _labels(letters: str, rank: int) -> list[str]:
    """The letter of each axis; dimensions of an ellipsis are numbered from its end."""
    before, dots, after = letters.partition("...")
    several = range(rank - len(before) - len(after) - 1, -1, -1) if dots else ()
    return [*before, *(f"...{step}" for step in several), *after]


def einsum(needs: Needs) -> None:
    """Einsum: the sizes of one letter are equal within an operand, and equal or 1 in different ones."""
    sizes: dict[str, Size] = {}
    for place, letters in enumerate(_equation(needs.given)[0].split(",")):
        shape = needs.shape(place)
        labels = _labels(letters, len(shape))
        for axis, label in enumerate(labels if len(labels) == len(shape) else ()):
            size = shape[axis]
            if size is None:
                continue
            if labels.index(label) < axis:
                needs.equal(place, axis, shape[labels.index(label)])
                continue
            known = sizes.setdefault(label, size)
            if size != known:
                needs.broadcast(place, axis, known)
            if known.number == 1:
                sizes[label] = size


def _equation(given: Given) -> tuple[str, str, str]:
    """The letters of the inputs, an arrow or nothing, and the letters of the result."""
    text: str = given.attribute("equation", b"").decode()
    return text.replace(" ", "").partition("->")


def _einsum_shapes(given: Given) -> list[Shape] | None:
    """The size of each letter of the result, which ONNX takes from the first operand that has it, be it 1."""
    left, arrow, result = _equation(given)
    sizes: dict[str, Size | None] = {}
    count: Counter[str] = Counter()
    for place, letters in enumerate(left.split(",")):
        shape = given.shape(place)
        if shape is None:
            return None
        labels = _labels(letters, len(shape))
        if len(labels) != len(shape):
            return None
        for label, size in zip(labels, shape, strict=True):
            sizes[label] = broadcast_size(sizes[label], size) if label in sizes else size
        count.update(labels)
    dots = sorted((label for label in count if label.startswith("...")), key=lambda label: -int(label[3:]))
    once = sorted(label for label, times in count.items() if times == 1 and label not in dots)
    wanted = _labels(result, len(result.replace("...", "")) + len(dots)) if arrow else [*dots, *once]
    return [tuple(sizes[label] for label in wanted)] if sizes.keys() >= set(wanted) else None


def product_shapes(given: Given, second: int = 1) -> list[Shape] | None:
    """A matrix product of input 0 and input `second`."""
    left, right = given.shape(), given.shape(second)
    if left is None or right is None or len(left) < 2 or len(right) < 2:
        return None
    if given.attribute("transBatchA", 0) or given.attribute("transBatchB", 0):
        return None
    rows = left[-1 if given.attribute("transA", 0) else -2]
    columns = right[-2 if given.attribute("transB", 0) else -1]
    rank = max(len(left), len(right)) - 2
    pairs = zip(widened(left[:-2], rank), widened(right[:-2], rank), strict=True)
    return [(*(broadcast_size(a, b) for a, b in pairs), rows, columns)]


def _blocks_shapes(given: Given) -> list[Shape] | None:
    shape = given.shape()
    return None if shape is None else [(*shape[:-1], number(given.attribute("N")))]


def matmul_flops(_node: onnx.NodeProto, inputs: Sequence[Dims], output: Dims) -> float:
    """2 x output elements x the shared dimension."""
    return 2.0 * prod(output) * (inputs[0][-1] if inputs[0] else 1)


def _fused_matmul_flops(node: onnx.NodeProto, inputs: Sequence[Dims], output: Dims) -> float:
    return 2.0 * prod(output) * inputs[0][-2 if attribute(node, "transA", 0) else -1]


def _gemm_flops(node: onnx.NodeProto, inputs: Sequence[Dims], output: Dims) -> float:
    """2 x M x N x K, and M x N for C."""
    shared = inputs[0][0] if attribute(node, "transA", 0) else inputs[0][1]
    return 2.0 * prod(output) * shared + (prod(output) if len(inputs) > 2 and inputs[2] else 0)


def _einsum_flops(node: onnx.NodeProto, inputs: Sequence[Dims], output: Dims) -> float:
    """2 x the product of all index ranges, and of the longest ellipsis."""
    equation = attribute(node, "equation").decode().replace(" ", "")
    terms = equation.split("->")[0].split(",")
    if len(terms) != len(inputs):
        return 2.0 * prod(output)
    extent: dict[str, int] = {}
    batch = 1
    for term, shape in zip(terms, inputs, strict=True):
        before, dots, after = term.partition("...")
        last = len(shape) - len(after)
        extent.update(zip(before, shape, strict=False))
        extent.update(zip(after, shape[last:], strict=False) if dots else ())
        batch = max(batch, prod(shape[len(before) : last])) if dots else batch
    return 2.0 * prod(extent.values()) * batch


def is_plain_product(node: onnx.NodeProto) -> bool:
    """Whether a node is a product of its first two inputs, the first not transposed, or the sum of that and a third."""
    if node.domain or node.op_type not in (_MATMUL, _GEMM):
        return False
    has_bias = len(node.input) > 2 and bool(node.input[2])
    ones = ("alpha", "beta") if has_bias else ("alpha",)
    return all(attribute(node, name, 1.0) == 1.0 for name in ones) and not attribute(node, "transA", 0)


def _shaped(given: Given, _result: Shape, unknown: Collection[str]) -> dict[int, tuple[Size, ...]]:
    """MatMul: the axis along which is summed has one size."""
    first, second = given.shape(0) or (), given.shape(1)
    if second is None or None in second:
        return {}
    return alike([first, second], [[(0, len(first) - 1), (1, max(len(second) - 2, 0))]], unknown)


_DISTANCES = f"""
    {FLAT}
    squares = Mul (a, a)
    left = ReduceSum <keepdims = 1> (squares, flat)
    others = Mul (b, b)
    right = ReduceSum <keepdims = 0> (others, flat)
    turned = Transpose <perm = [1, 0]> (b)
    products = MatMul (a, turned)
    twice = Add (products, products)
    sums = Add (left, right)
    apart = Sub (sums, twice)
"""
_SQUARED_DISTANCES = f"{_DISTANCES}result = Relu (apart)"

_MATMUL, _GEMM = "MatMul", "Gemm"

OPERATORS = (
    Operator(
        _MATMUL,
        needs=product,
        factors=FIRST_TWO,
        broadcasts=EVERY,
        matrices=True,
        matrix=1,
        shaped=_shaped,
        flops=matmul_flops,
        filled_bytes=(INNER,),
    ),
    Operator(
        _GEMM,
        needs=gemm,
        chooses=True,
        matrix=1,
        factors=FIRST_TWO,
        flops=_gemm_flops,
        unread="beta",
        filled_bytes=((Part(0), Part(1)),),
    ),
    Operator("Einsum", shapes=_einsum_shapes, misjudged=True, needs=einsum, factors=EVERY, flops=_einsum_flops),
    Operator("Det", needs=square, float32_results=RANGE, steep=True),
    Operator("Inverse", MICROSOFT, shapes=same_shape, needs=square, unchecked="memory", steep=True),
    Operator(
        "FusedMatMul",
        MICROSOFT,
        shapes=product_shapes,
        needs=fused_product,
        factors=FIRST_TWO,
        broadcasts=EVERY,
        matrices=True,
        flops=_fused_matmul_flops,
    ),
    Operator(
        "FusedGemm",
        MICROSOFT,
        shapes=product_shapes,
        needs=gemm,
        chooses=True,
        factors=FIRST_TWO,
        flops=_gemm_flops,
        unread="beta",
    ),
    Operator(
        "TransposeMatMul",
        MICROSOFT,
        renamed=Renamed("result = FusedMatMul (a, b)", ("a", "b"), since=1, domain=MICROSOFT),
    ),
    Operator(
        "CDist",
        MICROSOFT,
        renamed=Renamed(
            _SQUARED_DISTANCES,
            ("a", "b"),
            read="metric",
            choices={
                b"sqeuclidean": _SQUARED_DISTANCES,
                b"euclidean": f"{_DISTANCES}square = Relu (apart)\nresult = Sqrt (square)",
            },
        ),
    ),
    Operator("MatMulInteger16", MICROSOFT, shapes=product_shapes, needs=product),
    Operator("MatMulBnb4", MICROSOFT, shapes=_blocks_shapes, needs=blocks_product, unread="training_mode"),
    Operator(
        "MatMulNBits",
        MICROSOFT,
        shapes=_blocks_shapes,
        needs=blocks_product,
        quantised="rounds",  # its other factor, where its accuracy_level allows this
        misleading=_misread,
        packed_rounds=lambda node: attribute(node, "accuracy_level", 0) == ROUNDED,
        unread="accuracy_level",
    ),
)
