"""Named dimensions that an operator needs to be equal get one name, or become the number that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx

from heterocc.compiler.importer.draft.draft import Draft
from heterocc.compiler.importer.shapes.named import dims_of, is_symbol, names_of
from heterocc.compiler.importer.shapes.needed import ask_all
from heterocc.compiler.importer.symbols.agree import Asked
from heterocc.compiler.importer.symbols.symbols import Symbols
from heterocc.compiler.operators.table import of_node
from heterocc.compiler.symbolic.given import Given
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.sizes import Size, product_of
from heterocc.passes.graph import Value


def unify_names(draft: Draft, values: Mapping[str, Value], *, assume: bool = False) -> bool:
    """Rename dimensions of the inputs that an operator needs to be equal to others; return whether there were any.

    One that has to be a certain number, such as the size of a head in a cache of keys, becomes that number.

    The runtime refuses inputs in which dimensions of one name differ, so that code may rely on their equality. With
    `assume` these include dimensions that a Reshape exchanges, which makes the size that it infers known, and those
    that operators broadcast with each other whose code cannot do so at the run.
    """
    symbols = draft.symbols
    if symbols is None:
        return False
    first: dict[str, str] = {}
    numbers: dict[str, int] = {}

    def root(name: str) -> str:
        while name in first:
            name = first[name]
        return name

    for asked in ask_all(draft, symbols, values):
        node = asked.node
        if not asked.requirements and not (assume and _may_be_assumed(node)):
            continue  # as most nodes
        needed = asked.equal
        assumed = (*_exchanged(asked.given), *_fixed_broadcasts(asked)) if assume else ()
        for sizes in needed:
            name, wanted = _number(*sizes)
            if name in symbols.names and name not in numbers:
                numbers[name] = wanted
                draft.notes.append(
                    f"{node.op_type} '{node.name}' needs the dimension '{name}' to be {wanted}: it is fixed"
                )
        for sizes in (*needed, *assumed):
            one, other = (root(name) if name in symbols.names else None for name in _differing(*sizes, factors=assume))
            if one is None or other is None or one == other:
                continue
            if sizes not in needed or _differing(*sizes, factors=False) == (None, None):
                draft.assumes = True
            if sizes not in needed and sizes in asked.broadcast:
                draft.exclude_one(*(size.name for size in sizes))
            kept, renamed = sorted((one, other), key=symbols.names.index)
            first[renamed] = kept
            draft.notes.append(
                f"{node.op_type} '{node.name}' needs the dimensions '{kept}' and '{renamed}' to be equal: "
                f"both are called '{kept}' in the bundle"
            )
    numbers = {root(name): size for name, size in numbers.items()}
    for info in draft.graph.input:
        for dim in dims_of(info):
            if is_symbol(dim):
                dim.dim_param = root(dim.dim_param)
                if dim.dim_param in numbers:
                    dim.dim_value = numbers[dim.dim_param]
    if first or numbers:
        draft.symbols = _renamed(symbols, tuple(names_of(draft.graph.input)), {n: root(n) for n in first}, numbers)
    return bool(first or numbers)


def _renamed(symbols: Symbols, names: tuple[str, ...], roots: Mapping[str, str], numbers: Mapping[str, int]) -> Symbols:
    """Symbols with the assumptions about names that have not changed."""
    changed = {*roots, *roots.values(), *numbers}
    floored = {roots.get(name, name) for name in symbols.floors}
    return Symbols(
        names,
        filled=symbols.filled - changed | {roots[n] for n in roots if {n, roots[n]} <= symbols.filled},
        ranges={n: r for n, r in symbols.ranges.items() if n not in changed},
        steps={n: s for n, s in symbols.steps.items() if n not in changed},
        floors={root: max(f for n, f in symbols.floors.items() if roots.get(n, n) == root) for root in floored},
    )


def _number(left: Size, right: Size) -> tuple[str, int]:
    """The dimension, and the number that it has to be for two sizes to be equal; an empty name if there is none."""
    for size, other in ((left, right), (right, left)):
        if size.name is not None and other.number is not None and other.number > 0:
            return size.name, other.number
    return "", 0


def _differing(left: Size, right: Size, *, factors: bool) -> tuple[str | None, str | None]:
    """The names in which two sizes differ, if they are equal where these are: past + new and other + new, say.

    With `factors` they may be factors, such as the batches of 64 * length * batch and 64 * length * other, which are
    equal unless the length is 0.
    """
    terms = (left - right).terms
    if len(terms) != 2 or terms[0][1] != -terms[1][1]:
        return None, None
    products = [list(product) for product, _ in terms]
    for atom in terms[0][0] if factors else ():
        if atom in products[1]:
            for product in products:
                product.remove(atom)
    one, other = (p[0] if len(p) == 1 and isinstance(p[0], str) else None for p in products)
    return one, other


def _fixed_broadcasts(asked: Asked) -> Iterator[tuple[Size, Size]]:
    """Dimensions that are broadcast with each other by an operator whose code needs to know which ones are 1.

    Of a parameter beside data none is expected to be 1. Of two tensors that are combined one may well be, and is not
    assumed to be another: a device without code for both refuses the operator. Two unknown numbers of heads are equal
    in most models, where no keys are shared.
    """
    given = asked.given
    if not of_node(given.node).broadcasts:
        yield from asked.broadcast
    if given.node.op_type != "Attention" or given.node.domain or len(given.shape() or ()) != 4:
        return
    heads = [(given.shape(place) or ())[1:2] for place in range(2)]
    yield from ((one, other) for one, other in zip(*heads, strict=False) if one is not None and other is not None)


def _may_be_assumed(node: onnx.NodeProto) -> bool:
    """Whether dimensions may be assumed to be equal that a node does not need to be: see `_exchanged`."""
    return of_node(node).copies_sizes or node.op_type == "Attention"


def _exchanged(given: Given) -> Iterator[tuple[Size, Size]]:
    """Named dimensions of a Reshape's input, each with the other name that its result has in the same place.

    An example is the batch of one input of a decoder in place of the other's. There are none unless the Reshape infers
    a size that cannot be written as an expression of the names.
    """
    shape, wanted = given.shape(), given.sizes(1)
    if not of_node(given.node).copies_sizes or shape is None or wanted is None or None in shape:
        return
    rest = [size for size in wanted if size.number != -1]
    total = product_of(size for size in shape if size is not None)
    if len(rest) != len(wanted) - 1 or quotient(total, product_of(rest)) is not None:
        return
    for size, other in zip(shape, wanted, strict=False):
        if size is not None and size.name and other.name and size != other:
            yield size, other
