"""The rules of a node's operator, applied to what is known of its inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import onnx
from onnx import numpy_helper

from heterocc.compiler.operators.table import of_node
from heterocc.compiler.symbolic.contents import MOST_ELEMENTS
from heterocc.compiler.symbolic.given import Contents, Given, Shape, known_numbers
from heterocc.compiler.symbolic.requirement import Needs, Requirement

_FLOATS, _INTEGERS = ("float32", "float64"), ("int32", "int64")


def texts_of(node: onnx.NodeProto) -> Iterator[bytes]:
    """The texts in a node's attributes that may be elements of its results."""
    names = of_node(node).texts.split()
    for attribute in node.attribute if names else ():
        if attribute.name in names:
            yield from (attribute.s, *attribute.strings, *attribute.t.string_data)


def keys_of(node: onnx.NodeProto) -> Iterator[str | float]:
    """What a node looks for in its first input: texts, or numbers."""
    names = of_node(node).keys.split()
    for attribute in node.attribute if names else ():
        if attribute.name in names:
            yield from (text.decode(errors="replace") for text in (*attribute.strings, *attribute.t.string_data))
            yield from (*attribute.ints, *attribute.floats)
            if attribute.t.data_type not in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
                yield from numpy_helper.to_array(attribute.t).ravel().tolist()


def shapes_of(given: Given) -> list[Shape] | None:
    """The shapes of a node's outputs, if there is a rule for its operator and enough is known of its inputs."""
    rule = of_node(given.node).shapes
    return rule(given) if rule is not None and given.shape() is not None else None


def requirements_of(given: Given, result: Shape) -> Iterator[Requirement]:
    """What a node needs of sizes, without what holds for all; `result` is the shape of its first output."""
    rule = of_node(given.node).needs
    if rule is None or not given.shapes:
        return
    needs = Needs(given, result)
    rule(needs)
    yield from (needed for needed in dict.fromkeys(needs.found) if not needed.always)


def contents_of(given: Given, result: Shape, dtype: str = "int64") -> Contents | None:
    """The contents of a node's first output, whose shape is `result`; None if they are not known.

    A float may hold a size too, on its way to an integer.
    """
    operator, dims = of_node(given.node), _few(result)
    if operator.contents is None or dims is None or ("float" in dtype and operator.integers_differ):
        return None
    found = operator.contents(given)
    if found is None or all(e is None for e in found.flat):
        return None
    return found.reshape(dims) if found.size == math.prod(dims) else None


def fractions_of(given: Given, parts: Sequence[Contents | None], result: Shape, dtype: str) -> Contents | None:
    """The elements of a node's first output if they are fractions, or whole numbers made of these; else None.

    `parts` are the fractions of the inputs, where `Given.contents` has none.
    """
    operator, dims = of_node(given.node), _few(result)
    rule = operator.fractions
    if rule is None or dims is None or dtype not in (*_FLOATS, *(() if operator.integers_differ else _INTEGERS)):
        return None
    read = [c if c is not None else p for c, p in zip(given.contents, parts, strict=True)]
    found = rule(given, read) if any(r is not None for r in read) else None
    if found is None or found.size != math.prod(dims) or any(e is None for e in found.flat):
        return None
    return found.reshape(dims)


def _few(shape: Shape) -> tuple[int, ...] | None:
    """The dimensions of a result, if they are known and its elements are few enough to be followed."""
    dims = known_numbers(shape)
    return None if dims is None or math.prod(dims) > MOST_ELEMENTS else dims
