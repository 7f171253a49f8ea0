"""Which weights a bundle stores as its code reads them, and which it stores plain, for a runtime to arrange.

The reasons are in docs/decisions/0014-variants-share-plain-weights.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from heterocc.artifacts.manifest import Layout
from heterocc.compiler.importer.digests import Digests, digest
from heterocc.compiler.lower.arranged import Arranged, Deferred, Elements, elements, in_layout

if TYPE_CHECKING:
    from heterocc.compiler.lower.backend import LoweredPartition

LEAST = 4096
"""Bytes below which a weight is always stored as it is read."""

GROWTH = 2.0
"""How many times as large as the plain weight a layout may be that all readers share, for it to be stored: hashing the
added bytes takes less time than making them."""

Stored = dict[int, Arranged]
"""By number of the parameter, those that the bundle holds plain."""


def plain_weights(partitions: Sequence[LoweredPartition], known: Digests) -> list[Stored]:
    """For each partition of a bundle, the parameters that a runtime is to arrange. `known` are the model's digests.

    A weight that is read in several layouts is stored once, plain; so is one that its layout makes much larger, or
    widens. All others are stored as they are read.
    """
    sizes = (_source(part, number).nbytes for part in partitions for number in range(len(part.params)))
    names = _Names(sizes, known)
    layouts: dict[str, set[Layout | None]] = {}
    for part in partitions:
        for number in range(len(part.params)):
            arranged = _arranged(part, number)
            source = _source(part, number)
            if source.nbytes >= LEAST:
                layouts.setdefault(names.of(source), set()).add(None if arranged is None else arranged.layout)
    found: list[Stored] = []
    for part in partitions:
        stored: Stored = {}
        for number, array in enumerate(part.params):
            arranged = _arranged(part, number)
            if arranged is None or arranged.source.nbytes < LEAST:
                continue
            shared = len(layouts[names.of(arranged.source)]) > 1
            narrow = arranged.layout.widens is not None
            if (narrow or shared or array.nbytes > GROWTH * arranged.source.nbytes) and _gives(arranged, array):
                stored[number] = arranged
        found.append(stored)
    return found


def _arranged(part: LoweredPartition, number: int) -> Arranged | None:
    return part.arranged[number] if part.arranged else None


def _source(part: LoweredPartition, number: int) -> Elements:
    arranged = _arranged(part, number)
    return part.params[number] if arranged is None else arranged.source


def _gives(arranged: Arranged, param: Elements) -> bool:
    """Whether a runtime gets the parameter from the plain weight; a layout may be too large for its weight."""
    if arranged.proven:
        return True
    array, source = elements(param), np.ascontiguousarray(elements(arranged.source))
    made = in_layout(source, arranged.layout)
    if made is None or made.dtype != array.dtype or made.size != array.size:
        return False
    if arranged.layout.matrix is None:
        return made.tobytes() == np.ascontiguousarray(array).tobytes()
    return bool(np.allclose(made.reshape(-1), array.reshape(-1), rtol=1e-5, atol=1e-6, equal_nan=True))


class _Names:
    """Names of arrays by content: SHA-256, or the place of an array whose size no other has. Each is hashed once."""

    def __init__(self, sizes: Iterable[int], digests: Digests) -> None:
        self._sizes = Counter(sizes)
        self._digests = digests
        self._known: dict[int, tuple[Elements, str]] = {}

    def of(self, array: Elements) -> str:
        """The name of an array's dtype and bytes."""
        found = self._known.get(id(array))
        if found is None:
            alone = self._sizes[array.nbytes] == 1
            found = self._known[id(array)] = (array, f"alone {id(array)}" if alone else self._digest(array))
        return found[1]

    def _digest(self, array: Elements) -> str:
        found = array.sha256 if isinstance(array, Deferred) else self._digests.known(array) or digest(array)
        return f"{array.dtype.name} {found}"
