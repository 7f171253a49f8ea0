"""ONNX's checker, and rules that it does not check."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import onnx
from onnx import helper

from heterocc.artifacts.errors import InvalidGraphError
from heterocc.compiler.importer.draft.constants import is_constant
from heterocc.compiler.importer.draft.draft import Draft, bodies, graphs_of, opsets
from heterocc.compiler.operators.table import of_node

UNREGISTERED = frozenset({"SimplifiedLayerNormalization"})
"""Operators that ONNX Runtime defines in ONNX's own domain, and that its exporters write."""

_NAMES = "Affine Crop DynamicSlice ImageScaler ParametricSoftplus Scale ScaledTanh"
EXPERIMENTAL_BEFORE: Mapping[str, int] = dict.fromkeys(_NAMES.split(), 10)
"""Experimental operators of ONNX's first releases that ONNX Runtime runs, and the first operator set without them.

Those of which ONNX has kept the name are in the operators' records.
"""

_WITHDRAWN = "GroupNormalization"
_UNLIKE_ONNX = UNREGISTERED | EXPERIMENTAL_BEFORE.keys() | {_WITHDRAWN}
"""Operators of ONNX's own domain of which ONNX Runtime runs others than ONNX has."""


def is_experimental(node: onnx.NodeProto, version: int) -> bool:
    """Whether a node of a model of operator set `version` is one of these, or of an operator that ONNX has later."""
    before = EXPERIMENTAL_BEFORE.get(node.op_type) or of_node(node).taken_over
    return not node.domain and version < before


def check(draft: Draft, where: str) -> None:
    """Run ONNX's checker on the draft, and check rules that it omits.

    Raises InvalidGraphError with the checker's message in one sentence.
    """
    for graph in graphs_of(draft.graph):
        for node in graph.node:
            _check_node(node, where)
    proto = draft.to_proto()
    # unlike ONNX Runtime, it requires that functions import the model's operator set; they are checked after expansion
    del proto.functions[:]
    _hide_unregistered(proto)
    for info in (*proto.graph.input, *proto.graph.output):
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.shape.SetInParent()  # an unknown rank is legal, but the checker refuses it
    for info in proto.graph.output:
        if not info.type.WhichOneof("value"):
            info.type.tensor_type.shape.SetInParent()  # ONNX Runtime infers the type
            info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    repeated = [name for name, count in Counter(i.name for i in proto.graph.input).items() if count > 1]
    if repeated:
        raise InvalidGraphError(f"two inputs are called '{repeated[0]}'", where=where)
    try:
        onnx.checker.check_model(proto)
    except (onnx.checker.ValidationError, UnicodeDecodeError) as error:
        # if the checker quotes an attribute that is not UTF-8, decoding of its message fails
        text = error.object.decode(errors="replace") if isinstance(error, UnicodeDecodeError) else str(error)
        raise InvalidGraphError(condense(text), where=_place(text, where)) from error


def _hide_unregistered(proto: onnx.ModelProto) -> None:
    """Move operators that ONNX Runtime adds to ONNX's own domain to another one, which the checker leaves alone."""
    version = opsets(proto).get("", 0)
    nodes = (node for graph in graphs_of(proto.graph) for node in graph.node)
    found = [
        n
        for n in nodes
        if n.op_type in _UNLIKE_ONNX or of_node(n).taken_over > version
        if (n.op_type in UNREGISTERED and not n.domain) or is_experimental(n, version) or _is_withdrawn(n, version)
    ]
    for node in found:
        node.domain = "com.microsoft"
    if found and all(entry.domain != "com.microsoft" for entry in proto.opset_import):
        proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))


def _is_withdrawn(node: onnx.NodeProto, version: int) -> bool:
    """Whether a later release of ONNX has withdrawn a version of an operator that ONNX Runtime runs."""
    return not node.domain and node.op_type == _WITHDRAWN and version < 21


def _check_node(node: onnx.NodeProto, where: str) -> None:
    if not node.attribute and not is_constant(node) and not of_node(node).control:
        return  # as most nodes
    place = f"{where}: node '{node.name or '(unnamed)'}' ({node.op_type})"
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            raise InvalidGraphError(
                f"attribute '{attribute.name}' refers to an attribute of a function, and has no value", where=place
            )
    if of_node(node).control:
        _check_bodies(node, place)
    if not is_constant(node):
        return
    if len(node.attribute) != 1:
        raise InvalidGraphError(f"a Constant has {len(node.attribute)} attributes, not one", where=place)
    try:
        for text in (node.attribute[0].s, *node.attribute[0].strings):
            text.decode()
    except UnicodeDecodeError as error:
        raise InvalidGraphError("the text of a Constant is not UTF-8", where=place) from error


def _check_bodies(node: onnx.NodeProto, place: str) -> None:
    """Whether branches and bodies take and give as many values as their node."""
    lists = {a.name: len(a.ints) for a in node.attribute if a.type == onnx.AttributeProto.INTS}
    control = of_node(node).control
    rows = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
    for body in bodies(node):
        found = f"{len(body.input)} inputs and {len(body.output)} outputs"
        if control == "branches":
            if body.input or len(body.output) != len(node.output):
                raise InvalidGraphError(f"a branch has {found}, not 0 and {len(node.output)}", where=place)
            continue
        if control == "loop":
            states = max(0, len(node.input) - 2)
            taken, given, results = {states + 2}, states + 1, len(body.output) - 1
        else:  # before operator set 9 its first input is the lengths of sequences
            states = len(body.input) - rows
            taken, given, results = {len(node.input), len(node.input) - 1}, states, len(body.output)
        if len(body.input) not in taken or len(body.output) < given or results < len(node.output):
            ends = f"its node {len(node.input)} and {len(node.output)}"
            raise InvalidGraphError(f"the body of a {node.op_type} has {found}, {ends}, which do not fit", where=place)
        if control == "scan":
            if not 0 <= rows <= len(body.input):
                raise InvalidGraphError(f"num_scan_inputs is {rows} of {len(body.input)} inputs", where=place)
            for side, count in (("input", rows), ("output", len(body.output) - states)):
                for name in (f"scan_{side}_axes", f"scan_{side}_directions"):
                    if lists.get(name, count) != count:
                        raise InvalidGraphError(f"{name} has {lists[name]} numbers, not {count}", where=place)


def condense(text: str) -> str:
    """The first sentence of a message of ONNX's tools, without prefix and full stop."""
    line = next((part.strip() for part in text.splitlines() if part.strip()), "the model is invalid")
    line = re.sub(r"^\[\w+(?: \w+)*\] ?:? ?", "", line).rstrip(" .")
    return re.sub(r"\s+", " ", line)


def _place(text: str, where: str) -> str:
    found = re.search(r"Bad node spec for node\. Name: (.*?) OpType: (\w+)", text)
    if not found:
        return where
    name = found[1].strip() or "(unnamed)"
    return f"{where}: node '{name}' ({found[2]})"
