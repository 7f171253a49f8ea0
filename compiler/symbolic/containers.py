"""What is known of sequences and optional values: the shapes of the tensors that they hold."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx

from heterocc.compiler.symbolic.given import Shape
from heterocc.compiler.symbolic.sizes import number


@dataclass(frozen=True, slots=True)
class Elements:
    """The tensors of a sequence or an optional value.

    `shape` is that of all of them: a size is None if it differs or is not known, the shape if the rank does or is not.
    Without `some` there are none.
    """

    shape: Shape
    some: bool = True


NONE = Elements(None, some=False)


Typed = tuple[str, Shape | Elements]
"""The dtype of a result, and its shape or, of a container, what it holds."""


@dataclass(frozen=True, slots=True)
class Held:
    """An input of a node: its dtype, and its shape if it is a tensor, or else what it holds."""

    dtype: str
    shape: Shape
    elements: Elements | None


def merged(one: Elements, other: Elements) -> Elements:
    """What is known of a value that is one of two."""
    if not (one.some and other.some):
        return one if one.some else other
    if one.shape is None or other.shape is None or len(one.shape) != len(other.shape):
        return Elements(None)
    return Elements(tuple(a if a == b else None for a, b in zip(one.shape, other.shape, strict=True)))


def elements_of(kind: onnx.TypeProto) -> Elements | None:
    """What the type of a value says of the tensors that it holds; None for a tensor.

    Names of dimensions say nothing: the tensors of a sequence may have different sizes.
    """
    if kind.WhichOneof("value") not in ("sequence_type", "optional_type"):
        return None
    while not kind.HasField("tensor_type"):
        field = kind.WhichOneof("value")
        if field not in ("sequence_type", "optional_type"):
            return Elements(None)
        kind = getattr(kind, field).elem_type
    if not kind.tensor_type.HasField("shape"):
        return Elements(None)
    dims = kind.tensor_type.shape.dim
    return Elements(tuple(number(d.dim_value) if d.HasField("dim_value") and d.dim_value >= 0 else None for d in dims))


def without(elements: Elements, names: frozenset[str]) -> Elements:
    """What is known where sizes of these names are not."""
    if elements.shape is None:
        return elements
    shape = tuple(None if d is None or d.names & names else d for d in elements.shape)
    return replace(elements, shape=shape)
