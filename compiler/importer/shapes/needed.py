"""What the nodes of a draft need of the sizes of named dimensions, asked once for several steps."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from heterocc.compiler.importer.draft.draft import Draft
from heterocc.compiler.importer.symbols.agree import Asked, ask
from heterocc.compiler.importer.symbols.kinds import kind_of
from heterocc.compiler.importer.symbols.symbols import Symbols
from heterocc.compiler.symbolic.given import Given
from heterocc.passes.graph import Value


def ask_all(draft: Draft, symbols: Symbols, values: Mapping[str, Value]) -> Sequence[Asked]:
    """What each node needs of sizes; `values` are those that inference has found last."""
    known = draft.asked
    if known is not None and known[0] is values and known[1] is symbols:
        return known[2]
    found: list[Asked] = []
    opset = draft.opset
    alike: dict[Hashable, Asked] = {}
    for node in draft.graph.node:
        kind = kind_of(node, values, (symbols.contents,), draft.weights)
        first = None if kind is None else alike.get(kind)
        if first is not None:
            found.append(Asked(node, first.given, first.requirements))
            continue
        shapes = [symbols.shape_of(values.get(name)) for name in node.input]
        given = Given(node, opset, shapes, [symbols.contents.get(name) for name in node.input])
        found.append(ask(given, symbols.shape_of(values.get(node.output[0]))))
        if kind is not None:
            alike[kind] = found[-1]
    draft.asked = values, symbols, found
    return found
