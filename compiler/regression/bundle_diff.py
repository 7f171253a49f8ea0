"""Comparison of two bundles by kind: versions, model, plan, kernels, code, weights, golden vectors, size, estimate."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from heterocc.artifacts.bundle import Bundle
from heterocc.artifacts.manifest import Device, ModelInfo, Partition, Variant
from heterocc.artifacts.reader import open_bundle
from heterocc.artifacts.text.one_line import one_line
from heterocc.compiler.regression.differences import (
    BundleDiff,
    Difference,
    changed,
    changed_lines,
    comma_list,
    in_percent,
    shortened,
)
from heterocc.passes.show.printer import count, human_bytes

_ESTIMATE = re.compile(r"\best\. ([0-9.]+) (us|ms|s)\b")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def diff_bundles(first: str | Path, second: str | Path) -> BundleDiff:
    """Compare two bundles without running them.

    Variants are compared by name, partitions by name, kernels by the nodes and values they compute, weights by content.
    Raises the errors of `open_bundle`, and BundleHashError (HC303) if a text or a weight that is compared is damaged.
    """
    with open_bundle(str(first)) as a, open_bundle(str(second)) as b:
        sizes = Path(first).stat().st_size, Path(second).stat().st_size
        pairs = _pairs(a, b)
        estimates = {name: (_estimate(one), _estimate(other)) for name, (one, other) in pairs.items() if one and other}
        found: dict[str, tuple[Difference, ...]] = {}
        if a.digest != b.digest:
            found = {
                "versions": tuple(_versions(a, b)),
                "model": tuple(_model(a, b)),
                "plan": tuple(_plans(a, b, pairs)),
                "kernels": tuple(_each_partition(pairs, _kernels)),
                "code": tuple(_each_partition(pairs, lambda p, q: _code(a, b, p, q))),
                "weights": tuple(weights(a, b)),
                "golden": tuple(golden(a, b)),
                "other": tuple(_others(a, b, pairs)),
                "size": tuple(_sizes(a, b, sizes)),
                "estimate": tuple(_estimates(estimates)),
            }
            if not any(found.values()):
                found["other"] = (Difference("", "the manifests differ in fields that are not compared"),)
        differences = {kind: listed for kind, listed in found.items() if listed}
        return BundleDiff((str(first), str(second)), (a.digest, b.digest), sizes, estimates, differences)


Pairs = Mapping[str, tuple[Variant | None, Variant | None]]


def _pairs(a: Bundle, b: Bundle) -> Pairs:
    ours, theirs = ({v.name: v for v in bundle.manifest.variants} for bundle in (a, b))
    return {name: (ours.get(name), theirs.get(name)) for name in dict.fromkeys((*ours, *theirs))}


def _versions(a: Bundle, b: Bundle) -> Iterator[Difference]:
    ours, theirs = (bundle.manifest.producer.model_dump() for bundle in (a, b))
    for name in ours:
        yield from changed(name, ours[name], theirs[name])
    formats = [f"{m.manifest.version.major}.{m.manifest.version.minor}" for m in (a, b)]
    yield from changed("format", *formats)


def _model(a: Bundle, b: Bundle) -> Iterator[Difference]:
    ours, theirs = a.manifest.model, b.manifest.model
    yield from changed("name", ours.name, theirs.name)
    yield from changed("SHA-256", ours.sha256, theirs.sha256)
    yield from changed("compressed weights", *(_compressed(model) for model in (ours, theirs)))
    yield from changed("operator sets", dict(sorted(ours.opsets.items())), dict(sorted(theirs.opsets.items())))
    for what in ("inputs", "outputs"):
        shown = [
            ", ".join(f"{t.name}: {t.dtype}{'' if t.shape is None else list(t.shape)}" for t in getattr(model, what))
            for model in (ours, theirs)
        ]
        yield from changed(what, *shown)


def _compressed(model: ModelInfo) -> str | None:
    """`int4:block=32 except head`; None for a model whose weights are as they were given."""
    found = model.compressed
    if found is None:
        return None
    return f"{found.form} except {', '.join(found.keep)}" if found.keep else found.form


def _device(device: Device) -> list[str]:
    """A device as lines of one fact each, without its empty fields."""
    facts = {key: value for key, value in device.model_dump(mode="json").items() if value and key != "name"}
    if device.target is not None:
        facts["target"] = json.loads(device.target)
    lines = []
    for key, value in facts.items():
        if isinstance(value, dict):
            lines += [f"{key}.{name}: {json.dumps(part)}" for name, part in sorted(value.items())]
        elif isinstance(value, list):
            lines += [f"{key}: {part}" for part in value]
        else:
            lines.append(f"{key}: {value}")
    return [one_line(f"{device.name} {line}") for line in lines]


def _plans(a: Bundle, b: Bundle, pairs: Pairs) -> Iterator[Difference]:
    for name, (one, other) in pairs.items():
        where = f"variant {one_line(name)}"
        if one is None or other is None:
            yield Difference(where, "only in the second bundle" if one is None else "only in the first bundle")
            continue
        devices = changed_lines(*([line for d in v.devices for line in _device(d)] for v in (one, other)))
        if devices:
            yield Difference(where, "the devices differ", devices)
        moved = _moved(one, other)
        if moved:
            yield Difference(where, f"{count(len(moved), 'node')} moved", shortened(moved))
        lines = changed_lines(a.text(one.plan).splitlines(), b.text(other.plan).splitlines())
        if lines:
            yield Difference(where, "the plan differs", lines)
        unchecked = [[p.name for p in v.partitions if not p.checked] for v in (one, other)]
        if unchecked[0] != unchecked[1]:
            yield Difference(
                where, f"partitions that were not checked: {comma_list(unchecked[0])} → {comma_list(unchecked[1])}"
            )


def _moved(one: Variant, other: Variant) -> list[str]:
    """The nodes of both variants that are on another device."""
    ours, theirs = (
        {node: v.devices[part.device].name for part in v.partitions for node in part.nodes} for v in (one, other)
    )
    return [
        one_line(f"{node}: {device} → {theirs[node]}")
        for node, device in ours.items()
        if node in theirs and theirs[node] != device
    ]


def _each_partition(pairs: Pairs, compare: Any) -> Iterator[Difference]:
    for name, (one, other) in pairs.items():
        if one is None or other is None:
            continue
        theirs = {part.name: part for part in other.partitions}
        for part in one.partitions:
            if part.name in theirs:
                for text, details in compare(part, theirs[part.name]):
                    yield Difference(f"variant {one_line(name)}, {one_line(part.name)}", text, details)


def _kernels(one: Partition, other: Partition) -> Iterator[tuple[str, tuple[str, ...]]]:
    ours, theirs = (
        [one_line(f"{k.symbol}: {', '.join(k.nodes)} -> {', '.join(k.outputs)}") for k in part.kernels]
        for part in (one, other)
    )
    lines = changed_lines(ours, theirs)
    if lines:
        gone, new = (sum(line.startswith(sign) for line in lines) for sign in "-+")
        yield f"{len(ours)} → {count(len(theirs), 'kernel')} ({gone} removed, {new} added)", lines


def _code(a: Bundle, b: Bundle, one: Partition, other: Partition) -> Iterator[tuple[str, tuple[str, ...]]]:
    records = [{m.name: m for m in bundle.manifest.members} for bundle in (a, b)]
    ours, theirs = records[0][one.code], records[1][other.code]
    if ours.sha256 != theirs.sha256:
        yield f"{human_bytes(ours.size)} → {human_bytes(theirs.size)}", ()
    if (one.kind, one.alignment, len(one.layouts)) != (other.kind, other.alignment, len(other.layouts)):
        yield f"kind, alignment or layouts: {one.kind}, {one.alignment} → {other.kind}, {other.alignment}", ()


def _others(a: Bundle, b: Bundle, pairs: Pairs) -> Iterator[Difference]:
    for name, (one, other) in pairs.items():
        lines = changed_lines(one.notes, other.notes) if one and other else ()
        if lines:
            yield Difference(f"variant {one_line(name)}", "the notes differ", tuple(map(one_line, lines)))
    kept = [{m.name: m.sha256 for m in bundle.manifest.members if m.name.startswith("graphs/")} for bundle in (a, b)]
    differing = [name for name in dict.fromkeys((*kept[0], *kept[1])) if kept[0].get(name) != kept[1].get(name)]
    if differing:
        yield Difference("", f"members that differ: {', '.join(differing)}")
    if a.manifest.faults != b.manifest.faults:
        yield Difference("", f"simulated failures: {comma_list(a.manifest.faults)} → {comma_list(b.manifest.faults)}")


def _sizes(a: Bundle, b: Bundle, sizes: tuple[int, int]) -> Iterator[Difference]:
    def of(bundle: Bundle) -> dict[str, int]:
        codes = {p.code for v in bundle.manifest.variants for p in v.partitions}
        parts = {m.name: m.size for m in bundle.manifest.members}
        return {
            "code": sum(parts[name] for name in codes),
            "weights": sum({w.sha256: w.nbytes for w in bundle.manifest.weights}.values()),
        }

    rows = {"file": sizes, **{name: (of(a)[name], of(b)[name]) for name in ("code", "weights")}}
    for name, (one, other) in rows.items():
        if one != other:
            yield Difference("", f"{name}: {human_bytes(one)} → {human_bytes(other)}{in_percent(one, other)}")


def _estimate(variant: Variant) -> float | None:
    found = _ESTIMATE.search(variant.summary)
    return None if found is None else float(found[1]) * _SECONDS[found[2]]


def _estimates(estimates: Mapping[str, tuple[float | None, float | None]]) -> Iterator[Difference]:
    for name, (one, other) in estimates.items():
        if one != other:
            shown = ["unknown" if e is None else f"{e * 1e3:.4g} ms" for e in (one, other)]
            percent = "" if one is None or other is None else in_percent(one, other)
            yield Difference(f"variant {one_line(name)}", f"{shown[0]} → {shown[1]}{percent}")


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
