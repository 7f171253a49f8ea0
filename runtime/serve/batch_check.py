"""Whether requests of a model may run together.

The first dimensions of all its inputs and outputs must be dynamic. Whether rows are independent of each other cannot be
read from that, so `check_rows` compares rows that run together with the same rows alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from heterocc.artifacts.errors import HeteroccError
from heterocc.runtime.feeds import Array, TensorInfo
from heterocc.runtime.serve.batches import Batching, join, split
from heterocc.runtime.session import Session

_TOLERANCE = 1e-3
"""Of the largest value of an output; kernels for other sizes sum in another order."""


def batching_of(session: Session, limit: int) -> Batching | str:
    """The batches that a model takes, or the reason why it takes none."""
    tensors: list[tuple[str, TensorInfo]] = [("input", t) for t in session.inputs]
    tensors += [("output", t) for t in session.outputs]
    for kind, tensor in tensors:
        if not tensor.shape or isinstance(tensor.shape[0], int):
            return f"{kind} '{tensor.name}' has no dynamic first dimension"
    named = {tensor.shape[0] for _, tensor in tensors if tensor.shape and tensor.shape[0] is not None}
    if len(named) > 1:
        return f"the first dimensions have different names: {', '.join(sorted(map(str, named)))}"
    found = [tensor.sizes[0] for _, tensor in tensors if tensor.sizes]
    batching = Batching(limit, tuple(dict.fromkeys(sizes for sizes in found if sizes is not None)))
    if not any(batching.allows(rows) for rows in range(2, limit + 1)):
        return f"no size of the first dimension is from 2 to {limit}"
    return batching


def check_rows(session: Session, batching: Batching) -> str | None:
    """The reason why rows may not run together, found by running the bundle's golden inputs; None if they may.

    The first rows are compared with the same rows behind and before others, which have the same values in another
    order.
    """
    feed = _first_row(session)
    if feed is None:
        return "the bundle has no golden inputs with which its rows could be checked"
    other = {name: np.ascontiguousarray(np.flip(array)) for name, array in feed.items()}
    count = next(n for n in range(2, batching.limit + 1) if batching.allows(n))
    names = [t.name for t in session.outputs]
    try:
        if not all(1 in sizes for sizes in batching.sizes):
            return "a single row cannot run, with which rows of a batch could be compared"
        alone = [session.run(names, feeds) for feeds in (feed, other)]
        together = split(session.run(names, join([feed, *[other] * (count - 1)])), [1] * count)
    except HeteroccError as error:
        return f"its golden inputs cannot run as a batch: {error.message} ({error.code})"
    except ValueError as error:
        return str(error)
    for place, rows in enumerate(together):
        for name, row, expected in zip(names, rows, alone[min(place, 1)], strict=True):
            if not _agree(row, expected):
                return f"rows of output '{name}' depend on the other rows of their batch"
    return None


def _first_row(session: Session) -> dict[str, Array] | None:
    for golden in session.bundle.manifest.all_goldens:
        arrays: dict[str, Any] = {name: session.bundle.array(member) for name, member in golden.inputs.items()}
        if all(array.ndim and array.shape[0] for array in arrays.values()):
            return {name: array[:1] for name, array in arrays.items()}
    return None


def _agree(found: Array, expected: Array) -> bool:
    if found.shape != expected.shape:
        return False
    if found.dtype.kind != "f":
        return bool(np.array_equal(found, expected))
    scale = float(np.max(np.abs(expected), initial=0.0, where=np.isfinite(expected)))
    return bool(np.allclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True))
