"""Values of which ONNX infers shapes that they do not have in a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx

from heterocc.compiler.importer.draft.draft import bodies
from heterocc.compiler.operators.applied import shapes_of
from heterocc.compiler.operators.table import of_node
from heterocc.compiler.symbolic.given import Given, Shape

ShapeOf = Callable[[str], Shape]


def misjudged(nodes: Sequence[onnx.NodeProto], shape_of: ShapeOf, opset: int) -> frozenset[str]:
    """The values whose shapes, as ONNX infers them, need not hold in a run of ONNX Runtime, and all that follow.

    Before operator set 22 ONNX counts a last window of pooling that begins behind the data, which no run has; with
    dilation it takes `auto_pad` for padding that runs do not add. For transposed convolutions it adds
    `output_padding` to what `auto_pad` gives, and leaves an `output_shape` out that is smaller than the data. For
    attention it takes a size that is not fixed for 0, and of Einsum's operands it believes the first one, be it 1. It
    multiplies sizes and scales of Resize in float64, runs in float32.
    """
    found: set[str] = set()
    for node in nodes:
        if (found and not found.isdisjoint(node.input)) or _is_misjudged(node, shape_of, found, opset):
            found.update(node.output)
    return frozenset(found - {""})


def _is_misjudged(node: onnx.NodeProto, shape_of: ShapeOf, found: set[str], opset: int) -> bool:
    operator, within = of_node(node), bodies(node)
    if within:
        inner = [n for body in within for n in body.node]
        return any(not found.isdisjoint(n.input) or _is_misjudged(n, shape_of, found, opset) for n in inner)
    rule = operator.shapes if operator.misjudged else None
    if node.op_type == "Attention":
        return any(size is None for name in node.input if name for size in shape_of(name) or (None,))
    if rule is None:
        return False
    given = Given(node, opset, [shape_of(name) for name in node.input], [])
    believed, right = shape_of(node.output[0]), (shapes_of(given) or [None])[0]
    if believed is None or right is None:  # in a body, for example
        return any(given.attribute(name) for name in ("ceil_mode", "output_padding", "output_shape"))
    if operator.broadcasts:  # of two names onnx believes one, and only a run knows which of the sizes is 1
        return believed != right
    pairs = zip(believed, right, strict=False)
    return len(believed) != len(right) or any(a is not None and a.number is not None and a != b for a, b in pairs)
