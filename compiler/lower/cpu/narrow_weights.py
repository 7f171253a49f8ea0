"""Weights that a bundle stores in 16 bits, because the model does: nothing is lost by it.

Products read large ones so (`generate/panels.py`), and other code as float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from heterocc.artifacts.manifest import Block, Layout, Weight
from heterocc.artifacts.weights.layouts import CODES, layout_problem
from heterocc.compiler.lower.arranged import Arranged, elements, layout
from heterocc.compiler.lower.backend import LoweredPartition, PartitionJob
from heterocc.compiler.lower.cpu.generate.panels import LEAST, narrowed
from heterocc.compiler.lower.kernels.transposed import contiguous, of_transposed
from heterocc.compiler.lower.relax.tied import is_transposed
from heterocc.compiler.lower.relax.widened import STORED


def stored_types(job: PartitionJob) -> list[str]:
    """The 16-bit types of the weights that a partition reads."""
    return sorted({weight.dtype.name for weight in _weights(job)} & STORED)


def _weights(job: PartitionJob) -> list[np.ndarray]:
    used = {name for n in job.nodes for name in job.model.graph.node_by_name[n].inputs} & job.model.weights.keys()
    return [job.model.weights[name] for name in sorted(used)]


def with_narrow_weights(lowered: LoweredPartition, job: PartitionJob) -> LoweredPartition:
    """The partition with weights of float32 stored in a 16-bit type of the model's weights that holds them exactly."""
    formats, weights = stored_types(job), _weights(job)
    if not formats:
        return lowered
    arranged = [*(lowered.arranged or (None,) * len(lowered.params))]
    for number, param in enumerate(lowered.params):
        known = arranged[number]
        source = param if known is None else known.source
        for name in formats:
            widens = source.dtype == np.float32
            packed = known is not None and source.dtype == CODES[name]
            if source.nbytes < LEAST or param.dtype != source.dtype or not (widens or packed):
                continue
            given = contiguous(elements(source))
            narrow = narrowed(given, CODES[name]) if widens else given
            tables = [w for w in weights if w.dtype.name == name]
            made = None if narrow is None else _arranged(narrow, param.shape, known, name if widens else None, tables)
            if made is not None:
                arranged[number] = made
                break
    return dataclasses.replace(lowered, arranged=tuple(arranged))


def _arranged(
    narrow: np.ndarray,
    shape: tuple[int, ...],
    known: Arranged | None,
    widens: str | None,
    tables: Sequence[np.ndarray],
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
    record = Weight(dtype=narrow.dtype.name, shape=narrow.shape, offset=0, nbytes=narrow.nbytes, sha256="0" * 64)
    made = Layout(shape=form.shape, blocks=form.blocks, matrix=form.matrix, widens=widens)  # type: ignore[arg-type]
    return None if layout_problem(record, made) is not None else Arranged(narrow, made)
