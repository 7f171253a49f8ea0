"""Conditions of sizes that the runtime checks before a run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import onnx

from heterocc.artifacts import manifest as m
from heterocc.compiler.importer.filled import filled_requirements
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.onnx_tools.filled import is_quantised
from heterocc.compiler.importer.symbols.requirements import open_requirements
from heterocc.compiler.importer.symbols.symbols import Symbols
from heterocc.compiler.operators.table import of_node
from heterocc.compiler.symbolic.postfix import postfix
from heterocc.compiler.symbolic.requirement import Requirement


def _needed(
    model: ImportedModel,
    symbols: Symbols,
    node: onnx.NodeProto,
    empty: Collection[str],
    *,
    in_code: bool,
    quantised: bool,
) -> Iterator[Requirement]:
    """What a node needs of sizes. Code takes sizes of at least 1; ONNX Runtime checks most operators itself."""
    values, opset = model.graph.values, model.opsets.get("", 1)
    if in_code or of_node(node).unchecked:
        yield from open_requirements(node, values, symbols, opset, empty if in_code else {*empty, *symbols.names})
    if not in_code:
        for needed in filled_requirements(node, values, symbols, quantised=quantised).values():
            yield from needed


def conditions_of(model: ImportedModel, nodes: Iterable[tuple[str, bool]]) -> tuple[m.Condition, ...]:
    """The conditions of these nodes, each once; True says that code runs a node, whose dimensions are at least 1.

    Those on sizes that are known only at run time are checked by the code.
    """
    symbols = model.symbols
    if symbols is None:
        return ()
    known = frozenset(symbols.names)
    empty = model.may_be_empty | symbols.fresh.keys()
    quantised = is_quantised(model.proto)
    found: dict[tuple[str, str, str], m.Condition] = {}
    for name, in_code in nodes:
        node = model.graph.node_by_name[name]
        for needed in _needed(model, symbols, model.protos[name], empty, in_code=in_code, quantised=quantised):
            if not needed.left.names | needed.right.names <= known:
                continue
            left, right = tuple(postfix(needed.left)), tuple(postfix(needed.right))
            key = needed.left.text, needed.relation, needed.right.text
            if key not in found and max(len(left), len(right)) <= m.MAX_TOKENS:
                label = f"{node.op_type} '{node.label}'"[: m.MAX_NAME]
                found[key] = m.Condition(
                    left=left, relation=needed.relation, right=right, node=label, what=needed.what[: m.MAX_NAME]
                )
    return tuple(found.values())
