"""What a bundle records of its sizes: the inputs and outputs for all of them, and conditions that a run checks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import onnx

from heterocc.artifacts import manifest as m
from heterocc.artifacts.manifest import Dim, TensorSpec
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
    for pin in symbols.pins.values():
        if pin.is_joint:
            found[pin.size.text, "equal", str(pin.number)] = m.Condition(
                left=tuple(postfix(pin.size)),
                relation="equal",
                right=(pin.number,),
                node=pin.node[: m.MAX_NAME],
                what=pin.size.text[: m.MAX_NAME],
            )
    relying = list(nodes)
    if model.assumes or any(in_code for _, in_code in relying):
        for limit in model.joint_limits:
            found[str(limit.most), "at_least", limit.size.text] = m.Condition(
                left=(limit.most,),
                relation="at_least",
                right=tuple(postfix(limit.size)),
                node="the model",
                what=f"the length of a table, which {limit.size.text} may not exceed,"[: m.MAX_NAME],
            )
    for name, in_code in relying:
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


Specs = Sequence[TensorSpec]


def ends(
    names: Mapping[str, Sequence[str | None]], inputs: Sequence[Specs], outputs: Sequence[Specs]
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """The specs of inputs and outputs, from those of each variant; a dimension in which they differ gets its name.

    `names` are the names of dimensions in the model, by input or output. An output's dimension is named after an
    input's that has the same size in all variants, preferably by the name in the model; if there is none it is None.
    """
    sizes: dict[str, list[Dim]] = {}
    found_inputs = []
    for specs in zip(*inputs, strict=True):
        shape: list[Dim] = []
        for dims, name in _places(specs, names):
            label = name or next((d for d in dims if isinstance(d, str)), None)
            shape.append(dims[0] if len(set(dims)) == 1 else label)
            if label is not None:
                sizes.setdefault(label, dims)
        found_inputs.append(_with(specs, shape))
    labels: dict[tuple[Dim, ...], list[str]] = {}
    for label, dims in sizes.items():
        labels.setdefault(tuple(dims), []).append(label)
    found_outputs = []
    for specs in zip(*outputs, strict=True):
        shape = []
        for dims, name in _places(specs, names):
            equal = labels.get(tuple(dims), [])
            label = name if name in equal else next(iter(equal), None)
            shape.append(dims[0] if len(set(dims)) == 1 else label)
        found_outputs.append(_with(specs, shape))
    return tuple(found_inputs), tuple(found_outputs)


def _places(specs: Specs, names: Mapping[str, Sequence[str | None]]) -> list[tuple[list[Dim], str | None]]:
    """The sizes of each dimension in all variants, and its name in the model."""
    shapes = [spec.shape for spec in specs if spec.shape is not None]
    if len(shapes) < len(specs) or len({len(shape) for shape in shapes}) != 1:
        return []
    rank = len(shapes[0])
    declared = names.get(specs[0].name, ())
    declared = declared if len(declared) == rank else (None,) * rank
    return [([shape[place] for shape in shapes], declared[place]) for place in range(rank)]


def _with(specs: Specs, shape: Sequence[Dim]) -> TensorSpec:
    ranks = {None if spec.shape is None else len(spec.shape) for spec in specs}
    return specs[0].model_copy(update={"shape": tuple(shape) if ranks == {len(shape)} else None})
