"""Conditions of sizes that the runtime checks before a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

from heterocc.artifacts import manifest as m
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.symbols.requirements.of_model import open_requirements
from heterocc.compiler.importer.symbols.sizes import Compound, Size

_UNCHECKED = frozenset(
    {
        "ConvInteger",
        "DynamicQuantizeLSTM",
        "DynamicQuantizeMatMul",
        "GRU",
        "LSTM",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "NonMaxSuppression",
        "QGemm",
        "QLinearConv",
        "QLinearMatMul",
        "RNN",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
    }
)
"""Operators with which ONNX Runtime reads beside an array, returns memory that it has not written, or ends the process,
if sizes do not fit."""


def unchecked_by_onnx_runtime(node: onnx.NodeProto) -> bool:
    """Whether sizes must be checked before a run even where ONNX Runtime computes a node."""
    return node.op_type in _UNCHECKED


def conditions_of(model: ImportedModel, nodes: Iterable[tuple[str, bool]]) -> tuple[m.Condition, ...]:
    """The conditions of these nodes, each once; True says that code runs a node, whose dimensions are at least 1.

    Those on sizes that are known only at run time are checked by the code.
    """
    symbols = model.symbols
    if symbols is None:
        return ()
    known, opset = frozenset(symbols.names), model.opsets.get("", 1)
    empty = model.may_be_empty | symbols.fresh.keys()
    found: dict[tuple[str, str, str], m.Condition] = {}
    for name, in_code in nodes:
        node = model.graph.node_by_name[name]
        possibly = empty if in_code else empty | known
        for needed in open_requirements(model.protos[name], model.graph.values, symbols, opset, possibly):
            if not needed.left.names | needed.right.names <= known:
                continue
            left, right = tuple(_tokens(needed.left)), tuple(_tokens(needed.right))
            key = needed.left.text, needed.relation, needed.right.text
            if key not in found and max(len(left), len(right)) <= m.MAX_TOKENS:
                label = f"{node.op_type} '{node.label}'"[: m.MAX_NAME]
                found[key] = m.Condition(
                    left=left, relation=needed.relation, right=right, node=label, what=needed.what[: m.MAX_NAME]
                )
    return tuple(found.values())


def _tokens(size: Size) -> Iterator[int | str]:
    """A size in postfix notation."""
    if not size.terms:
        yield 0
    for index, (product, count) in enumerate(size.terms):
        parts = 0
        if count != 1 or not product:
            yield count
            parts = 1
        for atom in product:
            if isinstance(atom, Compound):
                yield from _tokens(atom.left)
                yield from _tokens(atom.right)
                yield atom.kind
            else:
                yield f"${atom}"
            if parts:
                yield "*"
            parts += 1
        if index:
            yield "+"
