"""Checks of all tensors of a model, and reading of external ones, before any tool uses them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, TypeVar

import onnx
from onnx import helper

from heterocc.artifacts.errors import InvalidGraphError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.importer.draft.draft import MAX_RANK, describable, to_array, to_tensor
from heterocc.compiler.importer.reading.external_data import PACKED_BITS, ExternalData

M = TypeVar("M")

MAX_INSIDE = 1 << 30
"""The limit in bytes on external tensors in bodies, functions and attributes, which are inside protobuf's 2 GB."""


def check_model(model: onnx.ModelProto, where: str) -> None:
    """Check every field for the properties on which all later steps rely.

    Text is UTF-8, element types are known, ranks are at most 64, and tensors have the data for their type and shape.
    Fields that are unknown to this version of ONNX are dropped, because other tools might interpret them.

    Raises InvalidGraphError (HC103) with the tensor's name or the field's path.
    """
    model.DiscardUnknownFields()
    _check(model, "model", where)


def settle_tensors(model: onnx.ModelProto, external: ExternalData, where: str) -> None:
    """Read every external tensor into the proto, so that no tool of ONNX opens a file named in the model.

    Raises:
        ExternalDataError: see `ExternalData`.
        InvalidGraphError: they hold more than 1 GiB.
    """
    total = 0
    for tensor in inside(model, onnx.TensorProto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            array = external.array(tensor)
            total += array.nbytes
            if total > MAX_INSIDE:
                raise InvalidGraphError(
                    "the external tensors in bodies, functions and attributes hold more than 1 GiB",
                    where=f"{where}: tensor '{tensor.name}'",
                    hint="make them initializers of the graph",
                )
            tensor.CopyFrom(to_tensor(tensor.name, array))
        # some tools treat a tensor as external by this field alone
        tensor.ClearField("external_data")


def inside(message: Any, wanted: type[M]) -> Iterator[M]:
    """Every part of type `wanted` in a message, at any depth and in any field; an outer one before its inner ones."""
    kind: Any = wanted
    return _inside(message, message.DESCRIPTOR.full_name, kind.DESCRIPTOR.full_name)


def _inside(message: Any, kind: str, wanted: str) -> Iterator[Any]:
    """The same with the names of the kinds of messages."""
    if kind == wanted:
        yield message
    for field, held, repeated in _ways(kind, wanted):
        if repeated:
            for part in getattr(message, field):
                yield from _inside(part, held, wanted)
        elif message.HasField(field):
            yield from _inside(getattr(message, field), held, wanted)


@cache
def _descriptors() -> dict[str, Any]:
    """All kinds of messages in a model, by full name."""
    known: dict[str, Any] = {}
    todo = [onnx.ModelProto.DESCRIPTOR]
    while todo:
        descriptor = todo.pop()
        if descriptor.full_name not in known:
            known[descriptor.full_name] = descriptor
            todo += [f.message_type for f in descriptor.fields if f.message_type is not None]
    return known


@cache
def _holders(wanted: str) -> frozenset[str]:
    """The kinds of messages that can contain one of kind `wanted`, and `wanted` itself."""
    holders = {wanted}
    while True:
        found = {
            name
            for name, descriptor in _descriptors().items()
            if any(f.message_type is not None and f.message_type.full_name in holders for f in descriptor.fields)
        }
        if found <= holders:
            return frozenset(holders)
        holders |= found


@cache
def _ways(kind: str, wanted: str) -> tuple[tuple[str, str, bool], ...]:
    """Fields of a message that lead to one of kind `wanted`: name, kind of content, and whether it is repeated."""
    return tuple(
        (f.name, f.message_type.full_name, f.is_repeated)
        for f in sorted(_descriptors()[kind].fields, key=lambda f: f.number)
        if f.message_type is not None and f.message_type.full_name in _holders(wanted)
    )


def _check(message: Any, path: str, where: str) -> None:
    if isinstance(message, onnx.TensorProto):
        _check_tensor(message, path, where)
        return
    kinds = _fields(message.DESCRIPTOR.full_name)
    fields = message.ListFields()
    held: list[tuple[str, bool, Any]] = []
    for field, value in fields:
        kind = kinds[field.name]
        texts = value if kind is _TEXTS else (value,) if kind is _TEXT else ()
        for text in texts:
            if isinstance(text, bytes):  # protobuf gives text that is not UTF-8 so
                raise _not_text(f"{path}.{field.name}", where)
        if kind is _MESSAGES or kind is _MESSAGE:
            held.append((field.name, kind is _MESSAGES, value))
    for name, repeated, value in held:
        if repeated:
            for index, inner in enumerate(value):
                _check(inner, f"{path}.{name}[{index}]", where)
        else:
            _check(value, f"{path}.{name}", where)
    rule = _RULES.get(message.DESCRIPTOR.name)
    if rule is not None:
        rule(message, path, where)


_MESSAGE, _MESSAGES, _TEXT, _TEXTS = "message", "messages", "text", "texts"


@cache
def _fields(kind: str) -> dict[str, str | None]:
    """The kind of content of each field of a message that has to be checked."""
    found: dict[str, str | None] = {}
    for field in _descriptors()[kind].fields:
        if field.message_type is not None:
            found[field.name] = _MESSAGES if field.is_repeated else _MESSAGE
        elif field.type == field.TYPE_STRING:
            found[field.name] = _TEXTS if field.is_repeated else _TEXT
        else:
            found[field.name] = None
    return found


def _not_text(path: str, where: str) -> InvalidGraphError:
    return InvalidGraphError("a name or text in the model is not UTF-8", where=f"{where}: {path}", hint=_EXPORT_AGAIN)


def _check_type(message: onnx.TypeProto, path: str, where: str) -> None:
    """Check the element type and rank of a value's type; elements of sequences are checked separately."""
    kind = message.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        held = getattr(message, kind)
        _check_element(held.elem_type, path, where)
        check_dims([d.dim_value for d in held.shape.dim if d.dim_value > 0], f"{where}: {path}")
        if len(held.shape.dim) > MAX_RANK:
            raise _too_many(len(held.shape.dim), f"{where}: {path}")
    elif kind == "map_type":
        _check_element(message.map_type.key_type, path, where)


def _check_element(elem_type: int, place: str, where: str) -> None:
    if elem_type not in _known_types():
        raise InvalidGraphError(f"there is no element type {elem_type}", where=f"{where}: {place}", hint=_EXPORT_AGAIN)


@cache
def _known_types() -> frozenset[int]:
    return frozenset(onnx.TensorProto.DataType.values())


def _check_sparse(sparse: onnx.SparseTensorProto, path: str, where: str) -> None:
    if not (sparse.HasField("values") and sparse.HasField("indices")):
        raise InvalidGraphError("a sparse tensor lacks values or indices", where=f"{where}: {path}", hint=_EXPORT_AGAIN)


def _check_attribute(attribute: onnx.AttributeProto, path: str, where: str) -> None:
    """Check that an attribute has the value of its type, because onnx's checker ignores functions."""
    held = _HELD.get(attribute.type)
    if held is not None and not attribute.ref_attr_name and not attribute.HasField(held):
        raise InvalidGraphError(f"attribute '{attribute.name}' lacks a value of its type", where=f"{where}: {path}")


_HELD = {
    onnx.AttributeProto.TENSOR: "t",
    onnx.AttributeProto.GRAPH: "g",
    onnx.AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    onnx.AttributeProto.TYPE_PROTO: "tp",
}
_RULES: dict[str, Callable[[Any, str, str], None]] = {
    "TypeProto": _check_type,
    "SparseTensorProto": _check_sparse,
    "AttributeProto": _check_attribute,
}


def check_dims(dims: Sequence[int], place: str) -> None:
    """Raise InvalidGraphError unless numpy can describe a tensor of this shape, of any element type."""
    if len(dims) > MAX_RANK:
        raise _too_many(len(dims), place)
    if any(d < 0 for d in dims):
        raise InvalidGraphError("a tensor has a negative dimension", where=place, hint=_EXPORT_AGAIN)
    if not describable(dims):
        raise InvalidGraphError("the dimensions of a tensor are too large", where=place, hint=_EXPORT_AGAIN)


def _too_many(rank: int, where: str) -> InvalidGraphError:
    return InvalidGraphError(f"a tensor has {rank} dimensions, more than {MAX_RANK}", where=where)


def _check_tensor(tensor: onnx.TensorProto, path: str, where: str) -> None:
    """Raise InvalidGraphError unless numpy can describe the tensor and its data, if inside, matches type and shape."""
    for name in ("name", "doc_string"):
        if isinstance(getattr(tensor, name), bytes):
            raise _not_text(f"{path}.{name}", where)
    place = f"{where}: tensor '{tensor.name}'" if tensor.name else f"{where}: {path}"
    for entry in (*tensor.external_data, *tensor.metadata_props):
        _check(entry, path, where)
    if tensor.data_type not in _known_types():
        raise InvalidGraphError(f"there is no element type {tensor.data_type}", where=place, hint=_EXPORT_AGAIN)
    check_dims(tensor.dims, place)
    if tensor.data_type == onnx.TensorProto.UNDEFINED:
        raise InvalidGraphError("a tensor has no element type", where=place, hint=_EXPORT_AGAIN)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return  # ExternalData holds it against the file
    if tensor.HasField("segment"):
        raise InvalidGraphError("a tensor is given in segments, which no tool reads", where=place, hint=_EXPORT_AGAIN)
    _check_data(tensor, place)


def _check_data(tensor: onnx.TensorProto, place: str) -> None:
    count = math.prod(tensor.dims)
    kept = [f for f in _DATA if len(getattr(tensor, f))] + ["raw_data"] * tensor.HasField("raw_data")
    if len(kept) > 1:
        raise InvalidGraphError(f"a tensor has both {kept[0]} and {kept[1]}", where=place, hint=_EXPORT_AGAIN)
    if tensor.data_type == onnx.TensorProto.STRING:
        field, need = "string_data", count
    elif tensor.HasField("raw_data"):
        bits = PACKED_BITS.get(tensor.data_type, helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize * 8)
        field, need = "raw_data", (count * bits + 7) // 8
    else:
        field, need = _typed(tensor.data_type, count)
    if kept and kept[0] != field:
        name = onnx.TensorProto.DataType.Name(tensor.data_type)
        raise InvalidGraphError(f"a tensor of type {name} has its data in {kept[0]}", where=place, hint=_EXPORT_AGAIN)
    found = len(getattr(tensor, field))
    if found != need:
        what = "bytes" if field == "raw_data" else "entries"
        raise InvalidGraphError(
            f"a tensor does not hold what its type and shape need: {need} {what} in {field}, not {found}",
            where=place,
            hint=_EXPORT_AGAIN,
        )
    if field in ("string_data", "int32_data"):
        _try_read(tensor, place)


def _try_read(tensor: onnx.TensorProto, place: str) -> None:
    """Text may not be UTF-8, and a number in `int32_data` may be too large for its type."""
    try:
        to_array(tensor)
    except (ValueError, TypeError, OverflowError) as error:
        pass_foreign(error)
        raise InvalidGraphError("a tensor holds an element that is not of its type", where=place) from error


def _typed(data_type: int, count: int) -> tuple[str, int]:
    """The field that holds `count` elements of a type when they are not raw, and its entries."""
    field = helper.tensor_dtype_to_field(data_type)
    bits = PACKED_BITS.get(data_type, 8)
    if bits in (2, 4):  # elements of six bits are packed only in raw data
        return field, (count * bits + 7) // 8
    complex_ = data_type in (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128)
    return field, count * 2 if complex_ else count


_DATA = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
_EXPORT_AGAIN = "export the model again"
