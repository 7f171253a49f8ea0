"""Reading of a model: from a source to a checked draft, with constants outside the proto and external data mapped."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx

from heterocc.artifacts.errors import InvalidGraphError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.importer.draft.draft import Draft, graphs_of, keep, to_array
from heterocc.compiler.importer.draft.names import unused
from heterocc.compiler.importer.draft.order import sort_nodes
from heterocc.compiler.importer.onnx_tools.checker import check
from heterocc.compiler.importer.reading.defaults import take_defaults
from heterocc.compiler.importer.reading.external_data import ExternalData
from heterocc.compiler.importer.reading.parse import parse_apart
from heterocc.compiler.importer.reading.source import ModelSource
from heterocc.compiler.importer.reading.sparse import Room, dense, settle_sparse
from heterocc.compiler.importer.reading.tensors import settle_tensors

_REPLACEABLE = 4
"""The first IR version in which runs may replace initializers; before, all of them are listed as inputs."""
_IR_VERSION = 10
"""The IR version of every draft.

Forms that it forbids are repaired on reading; features of newer versions do not concern devices.
"""


MOST_ENDS = 30_000
"""The most inputs and outputs of a model. A bundle has a member for each, with a number to try it with."""


def read_model(
    source: ModelSource, *, beside_last_resort: bool = True, replacing: bool = False, checked: bool = True
) -> tuple[Draft, Callable[[], str]]:
    """The model as a draft, and a function that waits for the SHA-256 of its file and external data in hex.

    `beside_last_resort` says whether a device that runs all nodes is listed. With `replacing` all initializers that a
    run may replace are inputs. One that is not `checked` may break rules of ONNX: of initializers of one name the last
    counts, as in ONNX Runtime.

    Raises:
        FileMissingError: the file does not exist or cannot be read.
        NotOnnxError: the file is not an ONNX model, or is cut short.
        InvalidGraphError: the model breaks a rule of ONNX.
        ExternalDataError: see `ExternalData`.
    """
    path = source.path
    parsed = parse_apart(source)
    model = parsed.model
    where = path.name
    if checked and _is_training(model):
        raise InvalidGraphError("the model holds a training step", where=where, hint="export it for inference")
    del model.training_info[:]
    replaceable = model.ir_version >= _REPLACEABLE
    model.ir_version = _IR_VERSION
    _normalise_domains(model)
    for graph in graphs_of(model.graph):
        graph.name = graph.name or path.stem  # the checker requires one, ONNX Runtime does not
    external = ExternalData(path, placed=source.placed, inside=parsed.inside)
    draft = Draft(model, {})
    _take_constants(draft, external, where, repeated=not checked)
    if replaceable:
        take_defaults(draft, beside_last_resort=beside_last_resort, replacing=replacing)
    keep(draft.graph.input, lambda i: i.name not in draft.weights)
    _drop_repeated_outputs(draft)
    sort_nodes(draft.graph, where)
    if checked:
        check(draft, where)
    _require_few_ends(draft, where)
    _name_nodes(draft)
    _strip(model)
    pool = ThreadPoolExecutor(1)
    digest = pool.submit(lambda: external.digest(parsed.digest()))
    pool.shutdown(wait=False)
    return draft, digest.result


def _require_few_ends(draft: Draft, where: str) -> None:
    ends = len(draft.graph.input) + len(draft.graph.output)
    if ends > MOST_ENDS:
        raise InvalidGraphError(
            f"the model has {ends} inputs and outputs, more than {MOST_ENDS}",
            where=where,
            hint="join them, with Split behind an input and Concat before an output",
        )


def _is_training(model: onnx.ModelProto) -> bool:
    return any(t.algorithm.node for t in model.training_info)


def _normalise_domains(model: onnx.ModelProto) -> None:
    """Replace the domain `ai.onnx` by the empty string, which means the same."""
    seen: dict[str, int] = {}
    for entry in model.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        seen[domain] = max(entry.version, seen.get(domain, 0))
    del model.opset_import[:]
    for domain, version in seen.items():
        model.opset_import.add(domain=domain, version=version)
    for graph in graphs_of(model.graph):
        for node in graph.node:
            if node.domain == "ai.onnx":
                node.domain = ""


def _take_constants(draft: Draft, external: ExternalData, where: str, *, repeated: bool) -> None:
    """Move the graph's initializers out of the proto, and external tensors in other places into it."""
    graph = draft.graph
    for tensor in graph.initializer:
        if tensor.name in draft.weights and not repeated:
            raise InvalidGraphError(f"two initializers are called '{tensor.name}'", where=where)
        draft.weights[tensor.name] = _load(tensor, external, where)
    del graph.initializer[:]
    room = Room()
    for sparse in graph.sparse_initializer:
        name = sparse.values.name
        if name in draft.weights and not repeated:
            raise InvalidGraphError(f"two initializers are called '{name}'", where=where)
        values, indices = _load(sparse.values, external, where), _load(sparse.indices, external, where)
        draft.weights[name] = dense(sparse, values, indices, where, room)
    del graph.sparse_initializer[:]
    settle_tensors(draft.model, external, where)
    settle_sparse(draft.model, where, room)


def _load(tensor: onnx.TensorProto, external: ExternalData, where: str) -> np.ndarray:
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return external.array(tensor)
    try:
        return to_array(tensor)
    except (ValueError, TypeError, KeyError) as error:
        pass_foreign(error)
        raise InvalidGraphError(
            f"initializer '{tensor.name}' does not hold what its type and shape need", where=where
        ) from error


def _drop_repeated_outputs(draft: Draft) -> None:
    outputs = {o.name: o for o in draft.graph.output}
    if len(outputs) < len(draft.graph.output):
        repeated = len(draft.graph.output) - len(outputs)
        kept = list(outputs.values())
        del draft.graph.output[:]
        draft.graph.output.extend(kept)
        draft.notes.append(f"{repeated} outputs are listed more than once in the model; each is given once")


def _strip(model: onnx.ModelProto) -> None:
    """Remove documentation, exporters' stack traces, and annotations that refer to values by name.

    Devices do not need them, and they could reveal details of the exporting machine in a bundle.
    """
    _clear(model, ("doc_string", "metadata_props", "configuration"))
    for graph in graphs_of(model.graph):
        for node in graph.node:
            _clear(node, ("doc_string", "metadata_props", "device_configurations"))
        for info in (*graph.input, *graph.output, *graph.value_info):
            _clear(info, ("doc_string", "metadata_props"))
        _clear(graph, ("doc_string", "metadata_props", "quantization_annotation"))


def _clear(message: Any, names: Iterable[str]) -> None:
    known = message.DESCRIPTOR.fields_by_name  # some fields are newer than the oldest onnx that is supported
    for name in names:
        if name in known:
            message.ClearField(name)


def _name_nodes(draft: Draft) -> None:
    """Give every node, also in subgraphs, a unique name; record the original names and affinities in the draft."""
    taken = {n.name for g in graphs_of(draft.graph) for n in g.node}
    seen: set[str] = set()
    for graph in graphs_of(draft.graph):
        for index, node in enumerate(graph.node):
            original = node.name
            if not original or original in seen:
                node.name = unused(f"{original or node.op_type}_{index}", taken)
            seen.add(original)
            draft.origins[node.name] = (original,) if original else ()
            for entry in node.metadata_props:
                if entry.key == "affinity":
                    draft.affinity[node.name] = entry.value
                elif entry.key == _SCOPES and original and (module := _module(entry.value)):
                    draft.modules[original] = module


_SCOPES = "pkg.torch.onnx.name_scopes"
"""The key under which PyTorch's exporter lists the modules around a node, from the outermost to the node itself."""

_LONGEST = 4096

_NO_MODULE = "_empty_nn_module_stack"


def _module(scopes: str) -> str:
    """The path of a node's module, `encoder/layer/3`, from the list of scopes; empty if it has none."""
    try:
        names = ast.literal_eval(scopes) if len(scopes) < _LONGEST else None
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return ""
    if not isinstance(names, list) or len(names) < 2 or not isinstance(names[-2], str):
        return ""
    return "" if names[-2].startswith(_NO_MODULE) else names[-2].replace(".", "/")
