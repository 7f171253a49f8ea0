"""The last step of an import: identifiers for names, and the draft as an imported model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from heterocc.compiler.importer.draft.draft import INLINE_BYTES, Draft, opsets, reads, to_stub, to_tensor
from heterocc.compiler.importer.draft.names import Namer, keep_values, rename_nodes, rename_values
from heterocc.compiler.importer.given import GivenModel
from heterocc.compiler.importer.model import ImportedModel, open_shapes
from heterocc.compiler.importer.operators.opset import drop_unused_domains
from heterocc.passes.graph import Graph, Node, Value


def rename(draft: Draft) -> tuple[dict[str, str], Namer]:
    """Give all values and nodes names that are unique over the graph and its bodies.

    Returns the names so far of the graph's values by new name, and the namer for values of later steps.
    """
    namer = Namer()
    ends = [i.name for i in (*draft.graph.input, *draft.graph.output)]
    values = {name: name for name in dict.fromkeys((*ends, *draft.weights))}
    if not keep_values(draft.graph, values, namer):
        values = {name: namer.give(name, "v") for name in values}
        rename_values(draft.graph, values, lambda name: namer.give(name, "v"))
    nodes = rename_nodes(draft.graph, namer)
    draft.weights = {values[name]: array for name, array in draft.weights.items()}
    draft.defaults = {values[name]: array for name, array in draft.defaults.items()}
    draft.origins = {nodes[name]: original for name, original in draft.origins.items() if name in nodes}
    draft.affinity = {nodes[name]: device for name, device in draft.affinity.items() if name in nodes}
    return {new: name for name, new in values.items()}, namer


def rename_known(draft: Draft, known: Mapping[str, Value] | None) -> tuple[dict[str, str], dict[str, Value] | None]:
    """The names so far, as `rename` returns them, and what is known of the values under their new names.

    Nothing is known any more if others than constants get new names: names of sizes come from nodes.
    """
    before = [node.name for node in draft.graph.node]
    olds, _ = rename(draft)
    changed = {old: new for new, old in olds.items() if new != old}
    others = set(changed.values()) - draft.weights.keys()
    if known is None or others or before != [node.name for node in draft.graph.node]:
        return olds, None
    symbols = draft.symbols
    if symbols is not None and changed:
        draft.symbols = replace(
            symbols,
            contents={changed.get(name, name): found for name, found in symbols.contents.items()},
            fractions={changed.get(name, name): found for name, found in symbols.fractions.items()},
            elements={changed.get(name, name): found for name, found in symbols.elements.items()},
        )
    values = known.items()
    return olds, {changed.get(n, n): replace(v, name=changed[n]) if n in changed else v for n, v in values}


def assembled(
    draft: Draft,
    stem: str,
    digest: Callable[[], str],
    given: GivenModel,
    table: Mapping[str, Value],
    loose: frozenset[str] = frozenset(),
) -> ImportedModel:
    """The draft as an imported model called `stem`, with the values in `table`; `given` has the names in the model."""
    names = given.names
    graph = draft.graph
    drop_unused_domains(draft)
    nodes = []
    for node in graph.node:
        op_type = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        written = tuple([o for o in node.output[:] if o])
        origin = draft.origins.get(node.name, ())
        nodes.append(Node(node.name, op_type, reads(node), written, origin, draft.affinity.get(node.name)))
    inputs = tuple(i.name for i in graph.input)
    outputs = tuple(o.name for o in graph.output)
    used = dict.fromkeys((*inputs, *outputs, *draft.weights))
    used.update(dict.fromkeys(v for n in nodes for v in (*n.inputs, *n.outputs)))
    values = {name: table.get(name) or Value(name, "undefined", None) for name in used}
    for name, array in draft.weights.items():
        small = array.nbytes <= INLINE_BYTES or array.dtype == object
        graph.initializer.append(to_tensor(name, array) if small else to_stub(name, array))
    if loose:
        open_shapes(draft.model)
    return ImportedModel(
        name=stem,
        source_digest=digest,
        graph=Graph(stem, tuple(nodes), values, inputs, outputs, frozenset(draft.weights)),
        proto=draft.model,
        weights=MappingProxyType(draft.weights),
        sources=MappingProxyType({name: names[name] for name in (*inputs, *outputs)}),
        opsets=MappingProxyType(opsets(draft.model)),
        notes=tuple(draft.notes),
        loose=loose,
        symbols=draft.symbols,
        defaults=MappingProxyType(draft.defaults),
        held=draft.held,
        apart=draft.apart,
        assumes=draft.assumes,
        ones=draft.ones,
        modules=MappingProxyType(draft.modules),
        given=given,
    )
