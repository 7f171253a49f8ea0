"""Sequences and optional values in files of arrays: the arrays of a sequence `s` are called `s[0]`, `s[1]` and so on.

An array `s` without elements is an empty sequence. An optional value that holds nothing has no array.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from heterocc.artifacts.dtypes import container

Array = np.ndarray[Any, Any]


def gathered(types: Iterable[tuple[str, str]], arrays: Mapping[str, Array]) -> dict[str, Any]:
    """The values of inputs, of which `types` has names and dtypes, from the arrays of files; other arrays stay.

    The result has no entry for a sequence without arrays.
    """
    feed: dict[str, Any] = dict(arrays)
    for name, dtype in types:
        kind = container(dtype)
        if kind is None:
            continue
        if kind.sequence:
            count = next(number for number in range(len(arrays) + 1) if f"{name}[{number}]" not in arrays)
            if count:
                feed[name] = [feed.pop(f"{name}[{number}]") for number in range(count)]
            elif name in arrays and arrays[name].size == 0:
                feed[name] = []
        if kind.optional:
            feed.setdefault(name, None)
    return feed


def spread(results: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays to store for results; what is neither a sequence nor an optional value stays as it is."""
    found: dict[str, Any] = {}
    for name, value in results.items():
        if isinstance(value, list) and all(isinstance(item, np.ndarray) for item in value):
            found.update((f"{name}[{number}]", item) for number, item in enumerate(value))
            if not value:
                found[name] = np.zeros(0)
        elif value is not None:
            found[name] = value
    return found
