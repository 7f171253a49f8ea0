"""Weights that code reads as float32 and a bundle stores in 16 bits, because the model does: nothing is lost by it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from heterocc.artifacts.manifest import Block, Layout, Weight
from heterocc.artifacts.weights.layouts import CODES, layout_problem
from heterocc.compiler.lower.arranged import Arranged, elements, layout
from heterocc.compiler.lower.backend import LoweredPartition, PartitionJob
from heterocc.compiler.lower.kernels.transposed import contiguous, of_transposed
from heterocc.compiler.lower.relax.tied import is_transposed
from heterocc.compiler.lower.relax.widened import STORED

LEAST = 8192
"""Bytes below which a weight is stored as it is read: bundles store those of 4096 bytes so, too."""

_GLANCE = 256
"""Elements that are compared first: nearly all weights of float32 differ there."""

_Array = np.ndarray


def with_narrow_weights(lowered: LoweredPartition, job: PartitionJob) -> LoweredPartition:
    """The partition with weights of float32 stored in a 16-bit type of the model's weights that holds them exactly."""
    used = {name for n in job.nodes for name in job.model.graph.node_by_name[n].inputs} & job.model.weights.keys()
    formats = sorted({job.model.weights[name].dtype.name for name in used} & STORED)
    if not formats:
        return lowered
    weights = [job.model.weights[name] for name in sorted(used)]
    arranged = [*(lowered.arranged or (None,) * len(lowered.params))]
    for number, array in enumerate(map(elements, lowered.params)):
        known = arranged[number]
        source = array if known is None else elements(known.source)
        if array.dtype != np.float32 or source.dtype != np.float32 or source.nbytes < LEAST:
            continue
        for name in formats:
            narrow = _narrowed(contiguous(source), name)
            if narrow is None:
                continue
            tables = [w for w in weights if w.dtype.name == name]
            widening = _widening(narrow, array.shape, known, name, tables)
            if widening is not None:
                arranged[number] = widening
                break
    return dataclasses.replace(lowered, arranged=tuple(arranged))


def _widening(
    narrow: _Array, shape: tuple[int, ...], known: Arranged | None, name: str, tables: Sequence[_Array]
) -> Arranged | None:
    """How a runtime makes the parameter; None if its layout is too large for the weight in 16 bits.

    It is made from one of the model's `tables` in this type, where the weight is that one transposed.
    """
    form: Layout | None = known.layout if known is not None else None
    if form is None:
        form = layout(shape, [Block(extents=(narrow.size,), start=0, strides=(1,), to=0, to_strides=(1,))])
        assert form is not None
    for table in tables:
        direct = of_transposed(form, table.shape, (1, 0)) if is_transposed(narrow, table) else None
        if direct is not None:
            narrow, form = table.view(narrow.dtype), direct
            break
    record = Weight(dtype=CODES[name], shape=narrow.shape, offset=0, nbytes=narrow.nbytes, sha256="0" * 64)
    widens = Layout(shape=form.shape, blocks=form.blocks, matrix=form.matrix, widens=name)  # type: ignore[arg-type]
    return None if layout_problem(record, widens) is not None else Arranged(narrow, widens)


def _narrowed(array: _Array, name: str) -> _Array | None:
    """The array in a 16-bit type, as compiled code stores it; None if that changes a bit of it."""
    convert = _CONVERSIONS[name]
    flat = array.reshape(-1)
    return convert(array) if convert(flat[:_GLANCE]) is not None else None


def _as_half(array: _Array) -> _Array | None:
    with np.errstate(over="ignore"):
        half = array.astype(np.float16)
    return half if np.array_equal(half.astype(np.float32).view(np.uint32), array.view(np.uint32)) else None


def _as_bfloat(array: _Array) -> _Array | None:
    bits = array.view(np.uint32)
    return None if (bits & 0xFFFF).any() else (bits >> 16).astype(np.uint16)


_CONVERSIONS: dict[str, Callable[[_Array], _Array | None]] = {"float16": _as_half, "bfloat16": _as_bfloat}
