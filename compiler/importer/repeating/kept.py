"""States of loops that are the same in every turn: their bodies read the value before the loop in their place.

TensorFlow's exporter passes the weights of a layer through its loop so; a body then does not know them to be constant.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from heterocc.compiler.importer.draft.draft import Draft, set_nodes
from heterocc.compiler.importer.draft.names import Namer
from heterocc.compiler.importer.draft.written import copy_of
from heterocc.compiler.importer.repeating.body import drop_state, prune, rename, source_of
from heterocc.compiler.importer.symbols.repeats import first_state, repeat_of
from heterocc.compiler.operators.table import of_node
from heterocc.passes.graph import Value


def take_out_kept(draft: Draft, values: Mapping[str, Value], namer: Namer) -> bool:
    """Take such states out of the graph's loops; return whether there was any."""
    nodes: list[onnx.NodeProto] = []
    changed = False
    for node in draft.graph.node:
        nodes.append(node)
        repeat = repeat_of(node, draft.weights) if of_node(node).control in ("loop", "scan") else None
        for place in reversed(range(0 if repeat is None else len(repeat.states))):
            assert repeat is not None
            state, body = repeat.states[place], repeat.body
            value = values.get(state.initial)
            returned = [o.name for o in body.output]
            del returned[place + bool(first_state(node))]
            if (
                source_of(body, state.returned) != state.given
                or value is None
                or value.is_opaque
                or state.given in returned
            ):
                continue
            drop_state(node, body, place)
            prune(body)
            rename(body, {state.given: state.initial})
            changed = True
            if state.result:
                name = namer.give(f"{node.name}_{state.result}", "n")
                nodes.append(copy_of(state.initial, state.result, name))
                draft.origins[name] = draft.origins.get(node.name, ())
    if changed:
        set_nodes(draft.graph, nodes)
    return changed
