"""Conversion of sparse initializers and constants to dense ones, which devices and TVM's importer require."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx

from heterocc.artifacts.errors import InvalidGraphError
from heterocc.compiler.importer.draft.constants import is_constant
from heterocc.compiler.importer.draft.draft import to_array, to_tensor
from heterocc.compiler.importer.estimates.work import MAX_GROWTH_BYTES
from heterocc.compiler.importer.reading.tensors import MAX_INSIDE, check_dims, inside

MAX_DENSE = 1 << 32
"""The limit in bytes on the dense form of a sparse initializer of the graph."""

_MAX_GROWTH = 1000
"""How many times the bytes that are stored of a sparse tensor its dense form may have; pruned weights have fewer."""


@dataclass
class Room:
    """The bytes that the dense forms of a model's sparse tensors may still take, as a small model must not make a
    large bundle: 32 MiB, and for each tensor a multiple of what is stored of it.
    """

    left: int = MAX_GROWTH_BYTES

    def take(self, stored: int, needed: int, place: str) -> None:
        """Deduct what one tensor needs. Raises InvalidGraphError if that is more than is left."""
        self.left += _MAX_GROWTH * stored - needed
        if self.left < 0:
            raise InvalidGraphError(
                f"a sparse tensor of which {stored} bytes are stored has {needed} bytes when dense",
                where=place,
                hint="store it dense",
            )


def dense(
    sparse: onnx.SparseTensorProto,
    values: np.ndarray,
    indices: np.ndarray,
    where: str,
    room: Room,
    limit: int = MAX_DENSE,
) -> np.ndarray:
    """The dense tensor, read-only; `values` and `indices` are those of `sparse` as arrays.

    Raises InvalidGraphError for indices that are not integers or lie outside, and for more than `limit` bytes, or than
    there is room.
    """
    dims = tuple(sparse.dims)
    place = f"{where}: sparse tensor '{sparse.values.name}'"
    check_dims(dims, place)
    size = math.prod(dims)
    if size * values.dtype.itemsize > limit:
        raise InvalidGraphError(f"a sparse tensor is larger than {limit / 2**30:.3g} GiB when dense", where=place)
    room.take(values.nbytes + indices.nbytes, size * values.dtype.itemsize, place)
    if indices.dtype != np.int64:
        raise InvalidGraphError(f"the indices of a sparse tensor are {indices.dtype.name}, not int64", where=place)
    if values.ndim != 1 or indices.shape not in ((values.size,), (values.size, len(dims))):
        raise InvalidGraphError("the values and indices of a sparse tensor do not fit its shape", where=place)
    if indices.ndim == 2:
        if np.any(indices < 0) or np.any(indices >= np.array(dims, np.int64)):
            raise InvalidGraphError("a sparse tensor has an index outside its shape", where=place)
        indices = np.ravel_multi_index(tuple(indices.T), dims) if dims and values.size else indices[:, 0:0].sum(axis=1)
    if np.any(indices < 0) or np.any(indices >= size):
        raise InvalidGraphError("a sparse tensor has an index outside its shape", where=place)
    whole = np.zeros(size, values.dtype)
    whole[indices] = values
    whole.flags.writeable = False
    return whole.reshape(dims)


def settle_sparse(model: onnx.ModelProto, where: str, room: Room) -> None:
    """Make all sparse tensors in bodies, functions and Constant nodes dense; none of them may be external.

    Raises InvalidGraphError: see `dense`.
    """
    if not any(True for _ in inside(model, onnx.SparseTensorProto)):
        return
    total = 0

    def made(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
        nonlocal total
        array = dense(sparse, to_array(sparse.values), to_array(sparse.indices), where, room, MAX_INSIDE - total)
        total += array.nbytes
        return to_tensor(sparse.values.name, array)

    for graph in inside(model, onnx.GraphProto):
        graph.initializer.extend(made(s) for s in graph.sparse_initializer)
        graph.ClearField("sparse_initializer")
    for node in inside(model, onnx.NodeProto):
        for attribute in node.attribute if is_constant(node) else ():
            if attribute.name == "sparse_value" and attribute.HasField("sparse_tensor"):
                tensor = made(attribute.sparse_tensor)
                attribute.ClearField("sparse_tensor")
                attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
                attribute.t.CopyFrom(tensor)
