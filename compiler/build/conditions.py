"""Conditions of sizes that the runtime checks before a run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import onnx

from heterocc.artifacts import manifest as m
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.symbols.requirements import open_requirements
from heterocc.compiler.importer.symbols.symbols import Symbols
from heterocc.compiler.symbolic.requirement import Requirement
from heterocc.compiler.symbolic.sizes import Compound, Size, number

_UNCHECKED = frozenset(
    {"ConvInteger", "NonMaxSuppression", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"}
)
"""Operators with which ONNX Runtime reads beside an array, or ends the process, if sizes do not fit."""

_EVERY = slice(None)
_FILLED: Mapping[str, tuple[tuple[int, slice], ...]] = {
    **dict.fromkeys(("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"), ((0, _EVERY),)),
    **dict.fromkeys(
        ("MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QLinearMatMul"), ((0, slice(-1, None)),)
    ),
    **dict.fromkeys(("Conv", "FusedConv"), ((1, slice(2, None)),)),
    "FeatureVectorizer": ((0, slice(1)),),
    "InstanceNormalization": ((0, slice(2, None)),),
    "MultiHeadAttention": ((2, slice(-1, None)),),
    "QGemm": ((0, _EVERY),),
    "QLinearConv": ((4, _EVERY), (5, _EVERY)),
    "RotaryEmbedding": ((0, slice(-1, None)),),
    "SkipLayerNormalization": ((1, _EVERY),),
    "SkipSimplifiedLayerNormalization": ((1, _EVERY),),
    "STFT": ((2, _EVERY),),
    "Unique": ((0, _EVERY),),
}
"""Inputs and their axes with whose size of 0 ONNX Runtime ends the process, runs on, or returns memory that it has not
written. Found by giving each dimension of the hostile models this size (tests/hostile)."""


def unchecked_by_onnx_runtime(node: onnx.NodeProto) -> bool:
    """Whether sizes must be checked before a run even where ONNX Runtime computes a node."""
    return node.op_type in _UNCHECKED or node.op_type in _FILLED


def _needed(
    model: ImportedModel, symbols: Symbols, node: onnx.NodeProto, in_code: bool, empty: Collection[str]
) -> Iterator[Requirement]:
    """What a node needs of sizes. Code takes sizes of at least 1; ONNX Runtime checks most operators itself."""
    values, opset = model.graph.values, model.opsets.get("", 1)
    if in_code or node.op_type in _UNCHECKED:
        yield from open_requirements(node, values, symbols, opset, empty if in_code else {*empty, *symbols.names})
    if in_code:
        return
    for place, axes in _FILLED.get(node.op_type, ()):
        shape = symbols.shape_of(values.get(node.input[place])) if place < len(node.input) else None
        for axis in range(len(shape or ()))[axes]:
            size = None if shape is None else shape[axis]
            if size is not None and size.number is None:
                yield Requirement(size, "at_least", number(1), f"dimension {axis} of input {place}")


def conditions_of(model: ImportedModel, nodes: Iterable[tuple[str, bool]]) -> tuple[m.Condition, ...]:
    """The conditions of these nodes, each once; True says that code runs a node, whose dimensions are at least 1.

    Those on sizes that are known only at run time are checked by the code.
    """
    symbols = model.symbols
    if symbols is None:
        return ()
    known = frozenset(symbols.names)
    empty = model.may_be_empty | symbols.fresh.keys()
    found: dict[tuple[str, str, str], m.Condition] = {}
    for name, in_code in nodes:
        node = model.graph.node_by_name[name]
        for needed in _needed(model, symbols, model.protos[name], in_code, empty):
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
