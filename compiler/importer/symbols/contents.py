"""Integers that nodes compute from shapes, element by element as sizes: the sources of computed shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from heterocc.compiler.symbolic.comparisons import differ
from heterocc.compiler.symbolic.given import Contents, Given, Shape, known_numbers
from heterocc.compiler.symbolic.integers import (
    above,
    absolute,
    divided,
    equal,
    truth,
)
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.sizes import Size, larger, named, number, product_of, smaller

MOST_ELEMENTS = 64
"""The most elements of a value whose contents are followed; shapes and indices have fewer."""

_NUMBERS = tuple(
    TensorProto.DataType.Value(name)
    for name in "INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 FLOAT16 FLOAT DOUBLE".split()
)
_ROUNDED = frozenset(("Div", "Mod"))
"""Operators that divide integers in another way than floating-point numbers."""


def as_contents(array: np.ndarray) -> Contents | None:
    """The contents of a constant; None unless it consists of few integers or truth values."""
    if array.dtype.kind not in "iub" or array.size > MOST_ELEMENTS:
        return None
    return _array([number(int(e)) for e in array.flat], array.shape)


def contents_of(given: Given, result: Shape, dtype: str = "int64") -> Contents | None:
    """The contents of a node's first output, whose shape is `result`; None if they are not known.

    A float may hold a size too, on its way to an integer.
    """
    rule = _RULES.get(given.node.op_type) if not given.node.domain else None
    dims = known_numbers(result)
    if "float" in dtype and given.node.op_type in _ROUNDED:
        return None
    if rule is None or dims is None or int(np.prod(dims, dtype=np.int64)) > MOST_ELEMENTS:
        return None
    found = rule(given)
    if found is None or all(e is None for e in found.flat):
        return None
    return found.reshape(dims) if found.size == int(np.prod(dims, dtype=np.int64)) else None


def _array(elements: Sequence[Size | None], shape: Sequence[int]) -> Contents:
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(tuple(shape))


def _shape(given: Given) -> Contents | None:
    shape = given.shape()
    if shape is None:
        return None
    part = list(shape)[slice(given.attribute("start", 0), given.attribute("end"))]
    return _array(part, [len(part)])


def _size(given: Given) -> Contents | None:
    shape = given.shape()
    if shape is None or any(d is None for d in shape):
        return None
    return _array([product_of(d for d in shape if d is not None)], [])


def _same(given: Given) -> Contents | None:
    return given.contents[0]


def _cast(given: Given) -> Contents | None:
    found, dtype = given.contents[0], given.attribute("to", TensorProto.UNDEFINED)
    if found is not None and dtype == TensorProto.BOOL:
        return _each(lambda e: truth(differ(e, number(0))), found)
    return found if dtype in _NUMBERS else None


def _concat(given: Given) -> Contents | None:
    parts: list[Contents] = []
    for index, shape in enumerate(given.shapes):
        found, dims = given.contents[index], known_numbers(shape)
        if found is None and dims is None:
            return None
        parts.append(_array([None] * int(np.prod(dims or ())), dims or ()) if found is None else found)
    return np.concatenate(parts, axis=given.attribute("axis"))


def _gather(given: Given) -> Contents | None:
    data, indices = given.contents[0], given.numbers(1)
    dims = known_numbers(given.shape(1))
    if data is None or indices is None or dims is None:
        return None
    axis = given.attribute("axis", 0)
    if any(not -data.shape[axis] <= i < data.shape[axis] for i in indices):
        return None
    return _array_of(np.take(data, np.array(indices, np.int64).reshape(dims), axis=axis))


def _slice(given: Given) -> Contents | None:
    data = given.contents[0]
    if data is None:
        return None
    starts, ends = given.numbers(1, "starts"), given.numbers(2, "ends")
    if starts is None or ends is None:
        return None
    axes = given.numbers(3, "axes") if given.has(3) or given.opset < 10 else list(range(len(starts)))
    steps = given.numbers(4) if given.has(4) else [1] * len(starts)
    if axes is None or steps is None:
        return None
    index: list[slice] = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        # the end of a slice that runs backwards to the first element is below every index
        index[axis] = slice(start, None if step < 0 and end < -data.shape[axis] else end, step)
    return data[tuple(index)]


def _where(given: Given) -> Contents | None:
    if any(c is None for c in given.contents):
        return None
    condition, yes, no = (c for c in given.contents if c is not None)

    def chosen(flag: Size | None, one: Size | None, other: Size | None) -> Size | None:
        if one is not None and one == other:
            return one
        return None if flag is None or flag.number is None else one if flag.number else other

    return _array_of(np.frompyfunc(chosen, 3, 1)(condition, yes, no))


def _constant_of_shape(given: Given) -> Contents | None:
    dims, value = given.numbers(0), given.attribute("value")
    array = np.zeros(1, np.float32) if value is None else onnx.numpy_helper.to_array(value)
    if dims is None or array.dtype.kind not in "iub":
        return None
    return _array([number(int(array.flat[0]))] * int(np.prod(dims, dtype=np.int64)), dims)


def _range(given: Given) -> Contents | None:
    ends = [given.numbers(index) for index in range(3)]
    if any(end is None for end in ends):
        return None
    start, limit, delta = (end[0] for end in ends if end is not None)
    return _array([number(n) for n in range(start, limit, delta)], [len(range(start, limit, delta))])


def _expand(given: Given) -> Contents | None:
    data, dims = given.contents[0], given.numbers(1)
    if data is None or dims is None:
        return None
    return np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(dims)))


def _transpose(given: Given) -> Contents | None:
    """Exporters of TorchScript turn the padding of a tensor around in this way."""
    data = given.contents[0]
    return None if data is None else np.transpose(data, given.attribute("perm"))


def _split(given: Given) -> Contents | None:
    """The first part."""
    data, count = given.contents[0], len(given.node.output)
    if data is None:
        return None
    axis = given.attribute("axis", 0) % data.ndim
    parts = given.attribute("split") if given.opset < 13 else given.numbers(1)
    if given.has(1) and parts is None:
        return None
    first = parts[0] if parts is not None else -(-data.shape[axis] // count)
    return data.take(range(first), axis)


def _clip(given: Given) -> Contents | None:
    data = given.contents[0]
    for index, rule in ((1, larger), (2, smaller)):
        end = given.sizes(index) if given.has(index) else ()
        if data is None or end is None or given.opset < 11:
            return None
        if end:
            data = _each(rule, data, _array(end, ()))
    return data


def _all_of(rule: Callable[[Size, Size], Size]) -> Callable[[Given], Contents | None]:
    """A rule for a reduction of a vector."""

    def apply(given: Given) -> Contents | None:
        found, shape = given.sizes(0), given.shape()
        if not found or shape is None or len(shape) != 1 or given.attribute("noop_with_empty_axes", 0):
            return None
        return _array([reduce(rule, found)], [1])

    return apply


def _product(given: Given) -> Contents | None:
    found = given.sizes(0)
    shape = given.shape()
    if found is None or shape is None or len(shape) != 1:
        return None
    return _array([product_of(found)], [1])


def _array_of(found: Any) -> Contents:
    return found if isinstance(found, np.ndarray) else _array([found], [])


def _each(rule: Callable[..., Size | None], *arrays: Contents) -> Contents:
    def known(*elements: Size | None) -> Size | None:
        return None if any(e is None for e in elements) else rule(*elements)

    return _array_of(np.frompyfunc(known, len(arrays), 1)(*arrays))


def _by_element(rule: Callable[..., Size | None]) -> Callable[[Given], Contents | None]:
    def apply(given: Given) -> Contents | None:
        arrays = [c for c in given.contents if c is not None]
        return _each(rule, *arrays) if len(arrays) == len(given.contents) else None

    return apply


def _comparison(rule: Callable[[Size, Size], Size | None]) -> Callable[[Given], Contents | None]:
    """A rule by element that knows of dimensions that they are not negative: exporters compare them with -1."""

    def apply(given: Given) -> Contents | None:
        def plain(size: Size) -> Size:
            return named(size.text) if size.number is None and size.text in given.dims else size

        def compared(left: Size, right: Size) -> Size | None:
            found = rule(left, right)
            if found is None and (left.number is not None or right.number is not None):
                found = rule(plain(left), plain(right))
            return found

        return _by_element(compared)(given)

    return apply


def _division(given: Given) -> Contents | None:
    """The quotients of integers. Those of a size that windows need to be large are not negative, as exporters assume
    of a length behind convolutions, such as (n // 5 - 5) // 4 + 1."""
    left, right = given.contents
    if left is None or right is None:
        return None

    def apart(one: Size, other: Size) -> Size | None:
        found = divided(one, other)
        return quotient(one, other) if found is None and given.assume_positive(one) else found

    return _each(apart, left, right)


def _fold(rule: Callable[[Size, Size], Size | None]) -> Callable[[Given], Contents | None]:
    def apply(given: Given) -> Contents | None:
        arrays = [c for c in given.contents if c is not None]
        if len(arrays) < len(given.contents):
            return None
        total = arrays[0]
        for other in arrays[1:]:
            total = _each(rule, total, other)
        return total

    return apply


def _least(given: Given) -> Contents | None:
    """Min, of which a number is not one if a limit of the shapes is that the other size is not larger."""

    def rule(one: Size, other: Size) -> Size:
        for size, most in ((one, other.number), (other, one.number)):
            limit = given.limits.get(size.text)
            if most is not None and limit is not None and limit.most <= most:
                return size
        return smaller(one, other)

    return _fold(rule)(given)


def _modulo(given: Given) -> Contents | None:
    """Mod has the sign of the divisor, as quotients that are rounded down do; with `fmod` that of the dividend."""
    by = divided if given.attribute("fmod", 0) else quotient

    def rest(left: Size, right: Size) -> Size | None:
        whole = by(left, right)
        if whole is None and left.number is not None and right.number is None:  # a shift by less than the size, say
            if left.number >= 0 and given.assume_positive(right - left - number(1)):
                return left
            if left.number < 0 and by is quotient and given.assume_positive(right + left):
                return right + left
        return None if whole is None else left - whole * right

    return _by_element(rest)(given)


_RULES: Mapping[str, Callable[[Given], Contents | None]] = {
    "Shape": _shape,
    "Size": _size,
    "Identity": _same,
    "Reshape": _same,
    "Flatten": _same,
    "Squeeze": _same,
    "Unsqueeze": _same,
    "Cast": _cast,
    "Concat": _concat,
    "Gather": _gather,
    "Slice": _slice,
    "Where": _where,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Expand": _expand,
    "Transpose": _transpose,
    "Split": _split,
    "Clip": _clip,
    **dict.fromkeys(("Ceil", "Floor", "Round"), _same),  # what is followed is whole
    "Abs": _by_element(absolute),
    "ReduceProd": _product,
    "ReduceSum": _all_of(lambda a, b: a + b),
    "ReduceMax": _all_of(larger),
    "ReduceMin": _all_of(smaller),
    "Sum": _fold(lambda a, b: a + b),
    "Add": _by_element(lambda a, b: a + b),
    "Sub": _by_element(lambda a, b: a - b),
    "Mul": _by_element(lambda a, b: a * b),
    "Div": _division,
    "Mod": _modulo,
    "Neg": _by_element(lambda a: -a),
    "Min": _least,
    "Max": _fold(larger),
    "Equal": _comparison(equal),
    "Greater": _comparison(lambda a, b: above(a, b, equal=False)),
    "GreaterOrEqual": _comparison(lambda a, b: above(a, b, equal=True)),
    "Less": _comparison(lambda a, b: above(b, a, equal=False)),
    "LessOrEqual": _comparison(lambda a, b: above(b, a, equal=True)),
    "Not": _by_element(lambda a: None if a.number is None else number(int(not a.number))),
}
