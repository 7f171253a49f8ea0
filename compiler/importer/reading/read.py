"""Reading: from a file to a checked draft, with constants taken out of the proto and external data mapped."""

from __future__ import annotations

import hashlib
import re
import stat
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import onnx

from heterocc.artifacts.errors import FileMissingError, Hint, InvalidGraphError, NotOnnxError
from heterocc.artifacts.files.filetype import BUNDLE, HEAD, ONNX, TEXT, file_kind
from heterocc.artifacts.files.reading import note_read
from heterocc.compiler.importer.draft.draft import Draft, bodies, graphs_of, keep, to_array
from heterocc.compiler.importer.draft.order import sort_nodes
from heterocc.compiler.importer.reading.external_data import ExternalData
from heterocc.compiler.importer.reading.source import ModelSource
from heterocc.compiler.importer.reading.sparse import dense, settle_sparse
from heterocc.compiler.importer.reading.tensors import check_model, settle_tensors

_MAX_FILE = 2**31 - 1
"""Protobuf's limit on one message; a larger model keeps its weights in external data."""

_IR_VERSION = 10
"""Every file is brought to this version: what it forbids is repaired on reading, what is newer concerns no device."""


def read_model(source: ModelSource) -> tuple[Draft, str]:
    """The model as a draft, and its SHA-256 (over external data too, where there is any).

    Raises:
        FileMissingError: there is no such file, or it cannot be read.
        NotOnnxError: it is not ONNX, or cut short.
        InvalidGraphError: it breaks a rule of ONNX.
        ExternalDataError: see `ExternalData`.
    """
    path = source.path
    data = _file_bytes(path) if source.data is None else _given_bytes(source.data)
    model = _parse(data, path)
    digest = hashlib.sha256(data).hexdigest()
    del data
    where = path.name
    if _is_training(model):
        raise InvalidGraphError("the model holds a training step", where=where, hint="export it for inference")
    del model.training_info[:]
    model.ir_version = _IR_VERSION
    _normalise_domains(model)
    for graph in graphs_of(model.graph):
        graph.name = graph.name or path.stem  # the checker insists on one, ONNX Runtime does not
    external = ExternalData(path, placed=source.placed)
    draft = Draft(model, {})
    _take_constants(draft, external, where)
    _drop_repeated_outputs(draft)
    sort_nodes(draft.graph, where)
    check(draft, where)
    _name_nodes(draft)
    _strip(model)
    return draft, external.digest(digest)


def _file_bytes(path: Path) -> bytes:
    shown = str(path)
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise FileMissingError("the model is a directory", where=shown, hint="name the .onnx file inside it")
        if not stat.S_ISREG(status.st_mode):
            raise FileMissingError("the model is not a regular file", where=shown, hint="name a .onnx file")
        if status.st_size == 0:
            raise NotOnnxError("the file is empty", where=shown, hint="export or download the model again")
        if status.st_size > _MAX_FILE:
            raise NotOnnxError(
                "the file is larger than 2 GB, the limit of ONNX's file format",
                where=shown,
                hint="save the weights as external data: onnx.save_model(..., save_as_external_data=True)",
            )
        note_read(path, "the model")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise FileMissingError("there is no such file", where=shown, hint="check the path") from error
    except OSError as error:
        raise FileMissingError(f"cannot read the model: {error.strerror}", where=shown) from error


def read_proto(source: ModelSource) -> tuple[onnx.ModelProto, int]:
    """The model as it is written, unchecked, and its size in bytes. Raises FileMissingError, NotOnnxError."""
    data = _file_bytes(source.path) if source.data is None else _given_bytes(source.data)
    return _parse(data, source.path), len(data)


def _given_bytes(data: bytes) -> bytes:
    if not data:
        raise NotOnnxError("the model is empty: no bytes are given", hint="give the bytes of an ONNX file")
    if len(data) > _MAX_FILE:
        raise NotOnnxError(
            "the model is larger than 2 GB, the limit of ONNX's file format",
            hint="save the weights as external data, and give the model's path",
        )
    return data


def _parse(data: bytes, path: Path) -> onnx.ModelProto:
    shown = str(path)
    kind = file_kind(data[:HEAD])
    if kind is not None and kind not in (ONNX, TEXT):
        raise _foreign(kind, shown)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf has one error class per implementation
        if kind == TEXT:
            raise _foreign(kind, shown) from error
        raise NotOnnxError(
            "the file is not an ONNX model, or it is cut short",
            where=shown,
            hint=_CONVERT.get(path.suffix.lower(), "export or download the model again"),
        ) from error
    if not model.HasField("graph"):
        raise NotOnnxError("the file holds no ONNX graph", where=shown, hint="export or download the model again")
    if not model.opset_import:
        # written after the graph, so it is what a file that ends early loses
        raise NotOnnxError(
            "the model names no operator set: the file may be cut short",
            where=shown,
            hint="export or download the model again",
        )
    check_model(model, path.name)
    return model


_CONVERT = {
    ".pb": "a TensorFlow graph is converted by tf2onnx: python -m tf2onnx.convert",
    ".pt": "export the model to ONNX: torch.onnx.export",
    ".pth": "export the model to ONNX: torch.onnx.export",
}


def _foreign(kind: str, shown: str) -> NotOnnxError:
    """The error for a file that is something else."""
    hint = "export the model to ONNX"
    if kind == BUNDLE:
        hint = Hint(f"it is compiled already: load({shown!r})", f"it is compiled already: heterocc run {quote(shown)}")
    elif "LFS" in kind:
        hint = "fetch the file itself: git lfs pull"
    elif kind.startswith("compressed") or "archive" in kind or "inside" in kind:
        hint = "unpack it first, and name the .onnx file"
    elif "PyTorch" in kind:
        hint = "export the model to ONNX: torch.onnx.export"
    elif "numpy" in kind:
        hint = Hint("name the .onnx file; inputs are given as `inputs`", "name the .onnx file; inputs go to --inputs")
    elif kind == TEXT:
        hint = Hint(
            "name the .onnx file; affinity and device files are given as `affinity` and `device_files`",
            "name the .onnx file; affinity and device files go to --affinity and --device-file",
        )
    elif "HTML" in kind:
        hint = "download the model again"
    return NotOnnxError(f"the file is {kind}, not an ONNX model", where=shown, hint=hint)


def _is_training(model: onnx.ModelProto) -> bool:
    return any(t.algorithm.node for t in model.training_info)


def _normalise_domains(model: onnx.ModelProto) -> None:
    """`ai.onnx` and the empty string mean the same domain; only the latter is used from here on."""
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


def _take_constants(draft: Draft, external: ExternalData, where: str) -> None:
    """Move the graph's initializers out of the proto, and whatever is external elsewhere into it."""
    graph = draft.graph
    for tensor in graph.initializer:
        if tensor.name in draft.weights:
            raise InvalidGraphError(f"two initializers are called '{tensor.name}'", where=where)
        draft.weights[tensor.name] = _load(tensor, external, where)
    del graph.initializer[:]
    for sparse in graph.sparse_initializer:
        name = sparse.values.name
        if name in draft.weights:
            raise InvalidGraphError(f"two initializers are called '{name}'", where=where)
        values, indices = _load(sparse.values, external, where), _load(sparse.indices, external, where)
        draft.weights[name] = dense(sparse, values, indices, where)
    del graph.sparse_initializer[:]
    # before IR version 4 every initializer was listed as an input too
    keep(graph.input, lambda i: i.name not in draft.weights)
    settle_tensors(draft.model, external, where)
    settle_sparse(draft.model, where)


def _load(tensor: onnx.TensorProto, external: ExternalData, where: str) -> np.ndarray:
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return external.array(tensor)
    try:
        return to_array(tensor)
    except (ValueError, TypeError, KeyError) as error:
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


def check(draft: Draft, where: str) -> None:
    """Run ONNX's checker over the draft, and hold its nodes to what the checker forgets.

    Raises InvalidGraphError with the checker's message in one sentence.
    """
    for graph in graphs_of(draft.graph):
        for node in graph.node:
            _check_node(node, where)
    proto = draft.to_proto()
    # it wants functions to import the model's own operator set, which ONNX Runtime does not; they are checked expanded
    del proto.functions[:]
    for info in (*proto.graph.input, *proto.graph.output):
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.shape.SetInParent()  # a value of unknown rank is legal; the checker says it is not
    repeated = [name for name, count in Counter(i.name for i in proto.graph.input).items() if count > 1]
    if repeated:
        raise InvalidGraphError(f"two inputs are called '{repeated[0]}'", where=where)
    try:
        onnx.checker.check_model(proto)
    except (onnx.checker.ValidationError, UnicodeDecodeError) as error:
        # where the checker quotes an attribute that is not text, its own message is what cannot be decoded
        text = error.object.decode(errors="replace") if isinstance(error, UnicodeDecodeError) else str(error)
        raise InvalidGraphError(condense(text), where=_place(text, where)) from error


def _check_node(node: onnx.NodeProto, where: str) -> None:
    place = f"{where}: node '{node.name or '(unnamed)'}' ({node.op_type})"
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            raise InvalidGraphError(
                f"attribute '{attribute.name}' refers to an attribute of a function, and has no value", where=place
            )
    if node.op_type == "If" and not node.domain:
        for body in bodies(node):
            if body.input or len(body.output) != len(node.output):
                found = f"{len(body.input)} inputs and {len(body.output)} outputs"
                raise InvalidGraphError(f"a branch has {found}, not 0 and {len(node.output)}", where=place)
    if node.op_type != "Constant" or node.domain:
        return
    if len(node.attribute) != 1:
        raise InvalidGraphError(f"a Constant has {len(node.attribute)} attributes, not one", where=place)
    try:
        for text in (node.attribute[0].s, *node.attribute[0].strings):
            text.decode()
    except UnicodeDecodeError as error:
        raise InvalidGraphError("the text of a Constant is not UTF-8", where=place) from error


def condense(text: str) -> str:
    """The first sentence of a message of ONNX's tools, without its context, in our form."""
    line = next((part.strip() for part in text.splitlines() if part.strip()), "the model is invalid")
    line = re.sub(r"^\[\w+(?: \w+)*\] ?:? ?", "", line).rstrip(" .")
    return re.sub(r"\s+", " ", line)


def _place(text: str, where: str) -> str:
    found = re.search(r"Bad node spec for node\. Name: (.*?) OpType: (\w+)", text)
    if not found:
        return where
    name = found[1].strip() or "(unnamed)"
    return f"{where}: node '{name}' ({found[2]})"


def _strip(model: onnx.ModelProto) -> None:
    """Drop what no device reads: documentation, exporters' stack traces, annotations that refer to values by name.

    Parts of the model may go into a bundle, which should not tell of the machine that exported it.
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
    """Give every node, those in bodies too, a name of its own, and remember what the user called it."""
    taken = {n.name for g in graphs_of(draft.graph) for n in g.node}
    seen: set[str] = set()
    for graph in graphs_of(draft.graph):
        for index, node in enumerate(graph.node):
            original = node.name
            if not original or original in seen:
                name = f"{original or node.op_type}_{index}"
                while name in taken:
                    name += "_"
                node.name = name
                taken.add(name)
            seen.add(original)
            draft.origins[node.name] = (original,) if original else ()
            for entry in node.metadata_props:
                if entry.key == "affinity":
                    draft.affinity[node.name] = entry.value
