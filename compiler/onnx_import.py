"""Import: from an ONNX file to the normalised model and the graph that passes see."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from heterocc.artifacts.errors import FileMissingError, NotOnnxError
from heterocc.compiler.imported import ImportedModel
from heterocc.compiler.onnx_draft import INLINE_BYTES, Draft, opsets, reads, to_array, to_stub, to_tensor
from heterocc.compiler.onnx_fold import drop_dead, fold
from heterocc.compiler.onnx_names import Namer, rename_graph
from heterocc.compiler.onnx_shapes import fix_inputs, forget_inferred, infer
from heterocc.passes.graph import Graph, Node, Value

_MAX_ROUNDS = 64


def import_model(path: str | Path, *, shapes: Mapping[str, Sequence[int]] | None = None) -> ImportedModel:
    """Read, check and normalise an ONNX model.

    `shapes` fixes dynamic input shapes by the input's name in the model.

    Raises an InputError (HC1xx) for whatever is wrong with the file, its external data or the shapes.
    """
    path = Path(path)
    draft, digest = _read(path)
    where = path.name
    fix_inputs(draft, shapes or {}, where)
    forget_inferred(draft)
    refused: set[str] = set()
    for _ in range(_MAX_ROUNDS):
        values = infer(draft, where)
        if not fold(draft, values, refused):
            break
    drop_dead(draft)
    return _finish(draft, path.stem, digest, infer(draft, where))


def _read(path: Path) -> tuple[Draft, str]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FileMissingError(f"cannot read the model: {error.strerror}", where=str(path)) from error
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:
        raise NotOnnxError("the file is not an ONNX model", where=str(path)) from error
    draft = Draft(model, {})
    for tensor in model.graph.initializer:
        draft.weights[tensor.name] = to_array(tensor)
    draft.adopt(model)
    taken = {n.name for n in model.graph.node}
    seen: set[str] = set()
    for index, node in enumerate(draft.graph.node):
        original = node.name
        if not original or original in seen:
            node.name = f"{original or node.op_type}_{index}"
            while node.name in taken:
                node.name += "_"
            taken.add(node.name)
        seen.add(original)
        draft.origins[node.name] = (original,) if original else ()
        for entry in node.metadata_props:
            if entry.key == "affinity":
                draft.affinity[node.name] = entry.value
    return draft, hashlib.sha256(data).hexdigest()


def _finish(draft: Draft, stem: str, digest: str, table: Mapping[str, Value]) -> ImportedModel:
    """Rename everything and build what import hands on."""
    values: dict[str, str] = {}
    value_namer, node_namer = Namer(), Namer()
    before = [n.name for n in draft.graph.node]
    inputs = [i.name for i in draft.graph.input]
    outputs = [o.name for o in draft.graph.output]
    for name in (*inputs, *outputs, *draft.weights):
        if name not in values:
            values[name] = value_namer.give(name, "v")
    rename_graph(draft.graph, values, value_namer, node_namer)
    weights: dict[str, np.ndarray] = {values[name]: array for name, array in draft.weights.items()}
    nodes = []
    used: dict[str, None] = dict.fromkeys((*(values[i] for i in inputs), *(values[o] for o in outputs), *weights))
    for old, node in zip(before, draft.graph.node, strict=True):
        op_type = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"
        written = tuple(o for o in node.output if o)
        nodes.append(Node(node.name, op_type, reads(node), written, draft.origins[old], draft.affinity.get(old)))
        used.update(dict.fromkeys((*reads(node), *written)))
    renamed = {values[n]: v for n, v in table.items() if n in values}
    graph = Graph(
        name=stem,
        nodes=tuple(nodes),
        values={
            n: Value(n, renamed[n].dtype, renamed[n].shape) if n in renamed else Value(n, "undefined", None) for n in used
        },
        inputs=tuple(values[i] for i in inputs),
        outputs=tuple(values[o] for o in outputs),
        constants=frozenset(weights),
    )
    proto = draft.model
    for name, array in weights.items():
        small = array.nbytes <= INLINE_BYTES or array.dtype == object
        proto.graph.initializer.append(to_tensor(name, array) if small else to_stub(name, array))
    sources = {values[n]: n for n in (*inputs, *outputs)}
    return ImportedModel(stem, digest, graph, proto, weights, sources, opsets(proto), tuple(draft.notes))
