"""Sizes that depend on data, computed as the rules of operators' records say for symbolic shapes.

Each element of a short input, and each dimension that is not a number, is a named size for the rules. They give the
sizes of results, and what these need, as expressions of the names, which the kernel computes and checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import onnx
from tvm import relax, tirx

from heterocc.compiler.lower.converters.computed.numbers import LARGEST, PLACES, element, sizes, vector, whole
from heterocc.compiler.lower.converters.computed.required import relation
from heterocc.compiler.lower.converters.registry import Context, divided
from heterocc.compiler.lower.converters.values import dims_of
from heterocc.compiler.operators.applied import requirements_of, shapes_of
from heterocc.compiler.symbolic.contents import MOST_ELEMENTS, array
from heterocc.compiler.symbolic.given import Contents, Given, Shape
from heterocc.compiler.symbolic.requirement import Requirement, input_name
from heterocc.compiler.symbolic.sizes import Compound, Size, named, number

Buffers = Mapping[int, tirx.Buffer]
Source = Callable[[Buffers], tirx.Expr]

_TOO_LARGE = f"a size of its result would be more than {LARGEST}, the limit of a computed shape"
_NEGATIVE = "a size that it is given is negative"


@dataclass
class _Inputs:
    """The inputs of a node in terms of names: of dimensions and elements, with where the kernel reads them."""

    node: onnx.NodeProto
    opset: int
    dimensions: dict[str, tuple[int, Source]] = field(default_factory=dict)
    elements: dict[str, tuple[int, Source]] = field(default_factory=dict)

    def shape(self, place: int, dims: Sequence[object]) -> Shape:
        """The shape of an input."""
        found: list[Size] = []
        for axis, size in enumerate(dims):
            name = f"{self._name(place)}.{axis}"
            if not isinstance(size, int):
                self.dimensions[name] = place, partial(_dimension, place, axis)
            found.append(number(size) if isinstance(size, int) else named(name))
        return tuple(found)

    def contents(self, place: int, dims: Sequence[object]) -> Contents | None:
        """The elements of a scalar or short vector."""
        lengths = [size for size in dims if isinstance(size, int)]
        if len(lengths) < len(dims) or len(dims) > 1 or sum(lengths) > MOST_ELEMENTS:
            return None
        names = [f"{self._name(place)}[{n}]" for n in range(lengths[0] if lengths else 1)]
        self.elements.update((name, (place, partial(_element, place, n))) for n, name in enumerate(names))
        return array([named(name) for name in names], lengths)

    def places(self, read: Iterable[Size]) -> list[int]:
        """The inputs whose dimensions or elements are read."""
        every = {**self.dimensions, **self.elements}
        return sorted({every[name][0] for size in read for name in size.names})

    def expression(self, size: Size, ins: Buffers, dtype: str = "int64") -> tirx.Expr:
        """A size as an expression."""
        every = {**self.dimensions, **self.elements}
        total = tirx.const(0, dtype)
        for product, count in size.terms:
            term = tirx.const(count, dtype)
            for atom in product:
                if isinstance(atom, Compound):
                    left, right = (self.expression(side, ins, dtype) for side in (atom.left, atom.right))
                    factor = _RULES[atom.kind](left, right)
                else:
                    factor = every[str(atom)][1](ins).astype(dtype)
                term = term * factor
            total = total + term
        return total

    def _name(self, place: int) -> str:
        return input_name(self.node, self.opset, place).strip("'")


def _dimension(place: int, axis: int, ins: Buffers) -> tirx.Expr:
    return ins[place].shape[axis].astype("int64")


def _element(place: int, index: int, ins: Buffers) -> tirx.Expr:
    return element(ins[place], index)


_RULES: Mapping[str, Callable[[tirx.Expr, tirx.Expr], tirx.Expr]] = {
    "//": lambda left, right: tirx.floor(left / right) if "float" in str(left.dtype) else tirx.floordiv(left, right),
    "min": tirx.min,
    "max": tirx.max,
}


@sizes(lambda operator: operator.sized)
def _stated(ctx: Context, *inputs: relax.Expr | None) -> list[relax.Expr | None]:
    """The sizes of the outputs that the program needs."""
    node = onnx.NodeProto()
    node.CopyFrom(ctx.node)
    node.domain = divided(node.domain)[1]
    found = _Inputs(node, ctx.opset)
    dims = [None if value is None else dims_of(value) for value in inputs]
    shapes = [None if d is None else found.shape(place, d) for place, d in enumerate(dims)]
    contents = [None if d is None else found.contents(place, d) for place, d in enumerate(dims)]
    given = Given(node, ctx.opset, shapes, contents, dims=found.dimensions.keys(), floors={})
    results = shapes_of(given) or []
    needed = list(requirements_of(given, results[0] if results else None))
    limits = [(limit.size, number(limit.most)) for limit in given.limits.values()]
    needed += [Requirement(most, "at_least", size, _TOO_LARGE) for size, most in limits]
    needed += [Requirement(named(n), "at_least", number(low), n) for n, low in (given.floors or {}).items()]
    wanted = list(dict.fromkeys(int(n) for n in ctx.attrs[PLACES][::2]))
    vectors: list[relax.Expr | None] = [None] * len(results)
    for index in wanted:
        shape = results[index] if index < len(results) else None
        if shape is None or None in shape:
            raise NotImplementedError("the sizes of its result do not follow from its inputs")
        vectors[index] = _vector(ctx, inputs, found, [d for d in shape if d is not None], needed)
        needed = []  # the first kernel checks them
    return vectors


def _vector(
    ctx: Context,
    inputs: Sequence[relax.Expr | None],
    found: _Inputs,
    shape: Sequence[Size],
    needed: Sequence[Requirement],
) -> relax.Expr:
    sides = [side for one in needed for side in (one.left, one.right)]
    places = found.places((*shape, *sides))

    def at(ins: Sequence[tirx.Buffer]) -> Buffers:
        return dict(zip(places, ins, strict=True))

    def numbers(ins: Sequence[tirx.Buffer]) -> list[tirx.Expr]:
        return [found.expression(size, at(ins)) for size in shape]

    def check(ins: Sequence[tirx.Buffer]) -> list[tuple[tirx.Expr, str]]:
        read = dict.fromkeys(name for size in (*shape, *sides) for name in sorted(size.names & found.elements.keys()))
        known = [found.elements[name][1](at(ins)) >= whole(0) for name in read]
        summed = dict.fromkeys(size for size in (*shape, *sides) if size.number is None and size.name is None)
        small = [found.expression(size, at(ins), "float64") <= tirx.const(float(LARGEST), "float64") for size in summed]
        relations = [
            (relation(found.expression(r.left, at(ins)), r.relation, found.expression(r.right, at(ins))), r.text)
            for r in needed
        ]
        true = whole(0) == whole(0)
        return [(tirx.all(true, *known), _NEGATIVE), (tirx.all(true, *small), _TOO_LARGE), *relations]

    tensors = [value for place in places if (value := inputs[place]) is not None]
    return vector(ctx, tensors, len(shape), numbers, check)
