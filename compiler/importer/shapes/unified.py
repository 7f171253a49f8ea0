"""Named dimensions that an operator needs to be equal get one name."""

from __future__ import annotations

from collections.abc import Mapping

from heterocc.compiler.importer.draft.draft import Draft
from heterocc.compiler.importer.shapes.named import dims_of, is_symbol, names_of
from heterocc.compiler.importer.symbols.agree import needed_equal
from heterocc.compiler.importer.symbols.contents import Given
from heterocc.compiler.importer.symbols.symbols import Symbols
from heterocc.passes.graph import Value


def unify_names(draft: Draft, values: Mapping[str, Value]) -> bool:
    """Rename dimensions of the inputs that an operator needs to be equal to others; return whether there were any.

    The runtime refuses inputs in which dimensions of one name differ, so that code may rely on their equality.
    """
    symbols = draft.symbols
    if symbols is None:
        return False
    first: dict[str, str] = {}

    def root(name: str) -> str:
        while name in first:
            name = first[name]
        return name

    for node in draft.graph.node:
        shapes = [symbols.shape_of(values.get(name)) for name in node.input]
        given = Given(node, draft.opset, shapes, [symbols.contents.get(name) for name in node.input])
        for sizes in needed_equal(given, symbols.shape_of(values.get(node.output[0]))):
            one, other = (root(size.name) if size.name in symbols.names else None for size in sizes)
            if one is None or other is None or one == other:
                continue
            kept, renamed = sorted((one, other), key=symbols.names.index)
            first[renamed] = kept
            draft.notes.append(
                f"{node.op_type} '{node.name}' needs the dimensions '{kept}' and '{renamed}' to be equal: "
                f"both are called '{kept}' in the bundle"
            )
    for info in draft.graph.input:
        for dim in dims_of(info):
            if is_symbol(dim) and dim.dim_param in first:
                dim.dim_param = root(dim.dim_param)
    if first:
        draft.symbols = Symbols(tuple(names_of(draft.graph.input)))
    return bool(first)
