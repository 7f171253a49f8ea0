"""Optional values: what they hold, their content where it is known at import, and the calls of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from heterocc.artifacts.dtypes import Container
from heterocc.compiler.operators.containers import Call, Registers, become, kind_of, replaced_optional
from heterocc.compiler.operators.record import Operator, nothing
from heterocc.compiler.symbolic.containers import NONE, Elements, Held, Typed
from heterocc.compiler.symbolic.given import attribute_of
from heterocc.compiler.symbolic.opened import Maybe


def _optional(node: onnx.NodeProto, given: Sequence[Held | None]) -> list[Typed] | None:
    held = given[0] if given else None
    if held is not None:
        kind = kind_of(held) or Container(held.dtype, sequence=False, optional=True)
        return [(replaced_optional(kind, optional=True), held.elements or Elements(held.shape))]
    declared = attribute_of(node, "type", None)
    if declared is None:
        return None
    inner = declared.sequence_type.elem_type if declared.HasField("sequence_type") else declared
    dtype = str(helper.tensor_dtype_to_np_dtype(inner.tensor_type.elem_type).name)
    sequence = declared.HasField("sequence_type")
    return [(Container(dtype, sequence=sequence, optional=True).text, NONE)]


def _has(_node: onnx.NodeProto, _given: Sequence[Held | None]) -> list[Typed]:
    return [("bool", ())]


def _get(_node: onnx.NodeProto, given: Sequence[Held | None]) -> list[Typed] | None:
    held = given[0]
    if held is None:
        return None
    kind = kind_of(held)
    if kind is None:
        return [(held.dtype, held.shape)]
    if held.elements is None:
        return None
    if not kind.sequence:
        return [(kind.dtype, held.elements.shape)]
    return [(replaced_optional(kind, optional=False), held.elements)]


def _open_optional(writer: Any, node: onnx.NodeProto) -> bool:
    name = node.input[0] if node.input else ""
    if not name:
        writer.known[node.output[0]] = Maybe(None)
    elif name in writer.known or _field(writer, name) == "tensor_type":
        writer.known[node.output[0]] = Maybe(writer.known.get(name, name))
    return False


def _open_has(writer: Any, node: onnx.NodeProto) -> bool:
    name = node.input[0] if node.input else ""
    held = writer.known.get(name)
    if name and held is None and _field(writer, name) not in ("tensor_type", "sequence_type"):
        return False
    there = bool(name) and not (isinstance(held, Maybe) and held.content is None)
    writer.constant(np.array(there), node.output[0])
    return True


def _open_get(writer: Any, node: onnx.NodeProto) -> bool:
    name = node.input[0]
    held = writer.known.get(name)
    if held is None and _field(writer, name) == "tensor_type":
        held = name
    content = held.content if isinstance(held, Maybe) else held
    return content is not None and become(writer, content, node.output[0])


def _field(writer: Any, name: str) -> str | None:
    """The field of ONNX's type of a value; a constant is a tensor."""
    if writer.array(name) is not None:
        return "tensor_type"
    return writer.types[name].WhichOneof("value") if name in writer.types else None


def _call_optional(_node: onnx.NodeProto, given: Registers, _rank: Callable[[str], int]) -> Call:
    return ("", (given[0],)) if given else ("nothing", ())


OPERATORS = (
    Operator("Optional", needs=nothing, holds=_optional, opens=_open_optional, call=_call_optional),
    Operator(
        "OptionalGetElement",
        needs=nothing,
        holds=_get,
        opens=_open_get,
        call=lambda _n, given, _r: ("get", (given[0],)),
    ),
    Operator(
        "OptionalHasElement",
        needs=nothing,
        holds=_has,
        opens=_open_has,
        call=lambda _n, given, _r: ("has", (given[0] if given else None,)),
    ),
)
