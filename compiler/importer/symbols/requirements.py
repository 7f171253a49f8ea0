"""The requirements of nodes that only a run can check, because they depend on sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import onnx

from heterocc.compiler.importer.symbols.symbols import Symbols
from heterocc.compiler.operators.applied import requirements_of
from heterocc.compiler.symbolic.given import Given
from heterocc.compiler.symbolic.requirement import Requirement
from heterocc.compiler.symbolic.sizes import Compound, Filled, Size, named, number, product_of
from heterocc.passes.graph import Value


def requirements_at(
    node: onnx.NodeProto, values: Mapping[str, Value], symbols: Symbols, opset: int
) -> Iterator[Requirement]:
    """What a node needs of sizes and does not have for all of them, unless assumptions about sizes give it."""
    shapes = [symbols.shape_of(values.get(name)) for name in node.input]
    given = Given(node, opset, shapes, [symbols.contents.get(name) for name in node.input])
    result = symbols.shape_of(values.get(node.output[0])) if node.output else None
    for needed in requirements_of(given, result):
        if not (needed.relation in ("equal", "broadcast") and symbols.agree(needed.left, needed.right)):
            yield needed


def needs_are_stated(node: onnx.NodeProto, values: Mapping[str, Value], symbols: Symbols | None, opset: int) -> bool:
    """Whether the sizes that a node needs are known, or follow from named dimensions, which conditions state.

    `symbols` is None if no dimension has a name.
    """
    symbols = Symbols(()) if symbols is None else symbols
    shapes = [symbols.shape_of(values.get(name)) for name in node.input if name]
    if any(shape is None or None in shape for shape in shapes):
        return False
    known = frozenset(symbols.names)
    return all(
        needed.left.names | needed.right.names <= known for needed in requirements_at(node, values, symbols, opset)
    )


def open_requirements(
    node: onnx.NodeProto, values: Mapping[str, Value], symbols: Symbols, opset: int, empty: Collection[str]
) -> Iterator[Requirement]:
    """The requirements that a run has to check, knowing that all dimensions but the `empty` ones are at least 1.

    They include that sizes of results are not negative, of those that depend on several dimensions.
    """
    for needed in (*requirements_at(node, values, symbols, opset), *_not_negative(node, values, symbols)):
        sides = (_filled(side, empty) for side in (needed.left, needed.right))
        if not Requirement(next(sides), needed.relation, next(sides), needed.what).always:
            yield needed


def _not_negative(node: onnx.NodeProto, values: Mapping[str, Value], symbols: Symbols) -> Iterator[Requirement]:
    for place, name in enumerate(node.output):
        for axis, size in enumerate(symbols.shape_of(values.get(name)) or ()):
            if size is not None and len(size.names) > 1 and (size.least is None or size.least < 0):
                yield Requirement(size, "at_least", number(0), f"dimension {axis} of its result {place}")


def _filled(size: Size, empty: Collection[str]) -> Size:
    """The size of dimensions that are at least 1, unless they are `empty` ones."""
    total = number(0)
    for product, count in size.terms:
        factors = [number(count)]
        for atom in product:
            if isinstance(atom, Compound):
                both = _filled(atom.left, empty), _filled(atom.right, empty)
                factors.append(Size((((Compound(atom.kind, *both),), 1),)))
            else:
                factors.append(named(atom if atom in empty else Filled(atom)))
        total = total + product_of(factors)
    return total
