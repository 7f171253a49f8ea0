"""Differences of what two bundles have for data: weights and golden vectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from heterocc.artifacts.bundle import Bundle
from heterocc.artifacts.text.one_line import one_line
from heterocc.compiler.regression.differences import Difference, changed, shortened
from heterocc.passes.show.printer import count, human_bytes


def weights(a: Bundle, b: Bundle) -> Iterator[Difference]:
    """Weights that only one bundle has; those of one name, dtype and shape with their largest difference."""
    named = [_names_of_weights(bundle) for bundle in (a, b)]
    hashes = [{w.sha256 for w in bundle.manifest.weights} for bundle in (a, b)]
    paired: set[str] = set()
    lines = []
    for name, index in named[0].items():
        ours = a.manifest.weights[index]
        place = named[1].get(name)
        if place is None or ours.sha256 == b.manifest.weights[place].sha256:
            continue
        theirs = b.manifest.weights[place]
        paired |= {ours.sha256, theirs.sha256}
        if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
            lines.append(one_line(f"{name}: {ours.dtype}{list(ours.shape)} → {theirs.dtype}{list(theirs.shape)}"))
        else:
            # Only now, because most comparisons need no weight's content.
            a.verify_weights()
            b.verify_weights()
            lines.append(one_line(f"{name}: {_distance(a.weights_view(index), b.weights_view(place))}"))
    if lines:
        yield Difference("", f"{count(len(lines), 'weight')} changed", shortened(lines))
    for bundle, here, there, label in ((a, 0, 1, "first"), (b, 1, 0, "second")):
        only = {w.sha256: w for w in bundle.manifest.weights if w.sha256 not in hashes[there] | paired}
        if only:
            total = sum(w.nbytes for w in only.values())
            names = {bundle.manifest.weights[i].sha256: n for n, i in named[here].items()}
            shown = [one_line(f"{names.get(h, '')}: {w.dtype}{list(w.shape)}") for h, w in only.items()]
            text = f"{count(len(only), 'weight')}, {human_bytes(total)}, only in the {label} bundle"
            yield Difference("", text, shortened(shown))


def _names_of_weights(bundle: Bundle) -> dict[str, int]:
    """The weights by variant, partition and name, the names that code and models have for them."""
    return {
        f"{variant.name}, {part.name}, {name}": index
        for variant in bundle.manifest.variants
        for part in variant.partitions
        for name, index in zip(part.param_names, part.params, strict=False)
    }


def _distance(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> str:
    differ = int(np.count_nonzero(one != other))
    text = f"{differ} of {one.size} elements differ"
    if one.dtype.kind in "fiu" and one.dtype.itemsize > 1 and one.size:
        with np.errstate(invalid="ignore", over="ignore"):
            text += f", at most by {float(np.nanmax(np.abs(one.astype(np.float64) - other.astype(np.float64)))):.3g}"
    return text


def golden(a: Bundle, b: Bundle) -> Iterator[Difference]:
    """Differences of golden vectors, of their seed and of the tolerances."""
    ours, theirs = a.manifest.golden, b.manifest.golden
    if ours is None or theirs is None:
        if ours is not theirs:
            yield Difference("", "only in the second bundle" if ours is None else "only in the first bundle")
        return
    for what in ("seed", "rtol", "atol", "steps", "snr"):
        yield from changed(what, getattr(ours, what), getattr(theirs, what))
    for kind in ("inputs", "outputs"):
        here, there = getattr(ours, kind), getattr(theirs, kind)
        for name in dict.fromkeys((*here, *there)):
            if name not in here or name not in there:
                side = "second" if name not in here else "first"
                yield Difference("", one_line(f"{kind[:-1]} {name!r} only in the {side} bundle"))
                continue
            one, other = a.array(here[name]), b.array(there[name])
            if (one.dtype, one.shape) != (other.dtype, other.shape):
                text = f"{one.dtype}{list(one.shape)} → {other.dtype}{list(other.shape)}"
            elif one.tobytes() != other.tobytes():
                text = _distance(one, other)
            else:
                continue
            yield Difference("", one_line(f"{kind[:-1]} {name!r}: {text}"))
