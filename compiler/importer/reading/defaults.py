"""Initializers that the model lists as inputs, too: the values of inputs that a run may leave out.

ONNX Runtime lets a run replace them, from IR version 4 on. But some exporters list every weight, which hardly anybody
replaces, and code for inputs is slower than code for constants: nothing is folded, and no weight is packed. Those that
are constants of the code are inputs of a variant for ONNX Runtime alone (decision 67).
"""

from __future__ import annotations

from heterocc.artifacts.dtypes import is_narrow
from heterocc.compiler.importer.draft.draft import Draft, nodes_of
from heterocc.compiler.operators.table import of_node

MOST_BYTES = 1 << 20
"""The most bytes of initializers that become inputs in a model that lists most of its initializers."""
FEW_NODES = 8
"""The nodes of the largest model that lists most of its initializers whose settings become inputs, too, without ONNX
Runtime."""


def take_defaults(draft: Draft, *, beside_last_resort: bool = True, replacing: bool = False) -> None:
    """Make initializers that are inputs of the bundle the draft's defaults; the others stay constants, with a note.

    A model that lists a few of its initializers means them, and so does one that lists only settings of operators, such
    as the number of elements that TopK selects; of another one that lists most of them this is not known. Sizes that
    only a run knows cost little in a model of a few nodes, and in larger ones ONNX Runtime takes what has no code then,
    if a device that runs all nodes is listed. With `replacing` all that are listed become inputs.
    """
    listed = [i.name for i in draft.graph.input if i.name in draft.weights]
    settings = _settings(draft)
    texts = {name for name, array in draft.weights.items() if array.dtype == object or is_narrow(array)}
    intended = 2 * len(listed) <= len(draft.weights) or settings.issuperset(listed)
    sized = beside_last_resort or sum(1 for _ in nodes_of(draft.graph.node)) <= FEW_NODES
    held = texts if intended or sized else texts | settings
    found = {name: draft.weights[name] for name in listed if name not in held}
    if not intended and sum(draft.weights[name].nbytes for name in listed) > MOST_BYTES:
        found = {}
    if replacing:
        found = {name: draft.weights[name] for name in listed}
    for name in found:
        del draft.weights[name]
    draft.defaults = found
    draft.held = tuple(name for name in listed if name not in found)
    if draft.held:
        more = len(draft.held) - 1
        others = f" and {more} other{'s' if more > 1 else ''}" if more else ""
        stay = "stay constant" if more else "stays constant"
        them = "them as inputs with initial values" if more else "it as an input with an initial value"
        runs = "a run that gives another one is refused, without ORT among the devices"
        if beside_last_resort:
            runs = "a run that gives another one is computed by ONNX Runtime"
        draft.notes.append(f"'{draft.held[0]}'{others} {stay}: the model lists {them}; {runs}")


def _settings(draft: Draft) -> set[str]:
    """The values that determine shapes, or that code needs as constants."""
    found: set[str] = set()
    for node in nodes_of(draft.graph.node):
        if of_node(node).settings:
            found.update(node.input[1:])
    return found
