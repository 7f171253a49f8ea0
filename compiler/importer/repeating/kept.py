"""States of loops that are the same in every turn: their bodies read the value before the loop in their place.

TensorFlow's exporter passes the weights of a layer through its loop so; a body then does not know them to be constant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import onnx

from heterocc.compiler.importer.draft.draft import Draft, set_nodes
from heterocc.compiler.importer.draft.names import Namer
from heterocc.compiler.importer.draft.written import copy_of
from heterocc.compiler.importer.repeating.body import copies_in, drop_state, origin, prune, rename
from heterocc.compiler.importer.symbols.repeats import repeat_of
from heterocc.compiler.operators.table import of_node
from heterocc.passes.graph import Value


def take_out_kept(draft: Draft, values: Mapping[str, Value], namer: Namer) -> bool:
    """Take such states out of the graph's loops; return whether there was any."""
    nodes: list[onnx.NodeProto] = []
    changed = False
    for node in draft.graph.node:
        nodes.append(node)
        repeat = repeat_of(node, draft.weights) if of_node(node).control in ("loop", "scan") else None
        if repeat is None:
            continue
        body, kept = repeat.body, dict[str, str]()
        copies, returned = copies_in(body), Counter(o.name for o in body.output)
        for place in reversed(range(len(repeat.states))):
            state = repeat.states[place]
            value = values.get(state.initial)
            others = returned[state.given] - (state.returned == state.given)
            if value is None or value.is_opaque or others or origin(copies, state.returned) != state.given:
                continue
            drop_state(node, body, place)
            returned[state.returned] -= 1
            kept[state.given] = state.initial
            changed = True
            if state.result:
                name = namer.give(f"{node.name}_{state.result}", "n")
                nodes.append(copy_of(state.initial, state.result, name))
                draft.origins[name] = draft.origins.get(node.name, ())
        if kept:
            prune(body)
            rename(body, kept)
    if changed:
        set_nodes(draft.graph, nodes)
    return changed
