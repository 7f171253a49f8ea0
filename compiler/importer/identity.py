"""The identity of an imported model: a digest of all that its results follow from."""

from __future__ import annotations

import hashlib
import json

from heterocc.compiler.importer.model import ImportedModel


def model_digest(model: ImportedModel) -> str:
    """A digest of all that ONNX Runtime computes from: nodes, types, constants, and the names and sizes of inputs."""
    named = {t.name for t in model.proto.graph.initializer if t.external_data}
    weights = {name: array for name, array in model.weights.items() if name in named}
    model.digests.compute(weights.values())
    facts = {
        "weights": sorted((n, str(a.dtype), a.shape, model.digests.of(a)) for n, a in weights.items()),
        "sources": sorted(model.sources.items()),
        "samples": sorted(model.samples.items()),
        "symbols": symbol_facts(model),
    }
    found = hashlib.sha256(json.dumps(facts).encode())
    found.update(model.proto.SerializeToString(deterministic=True))
    return found.hexdigest()


def symbol_facts(model: ImportedModel) -> object:
    """The sizes of a model that are known only at run time, and all that is known of them, as JSON-compatible data."""
    symbols = model.symbols
    if symbols is None:
        return None
    return {
        "names": symbols.names,
        "sizes": sorted((name, size.text) for name, size in symbols.sizes.items()),
        "limits": sorted((name, limit.size.text, limit.most) for name, limit in symbols.limits.items()),
        "fresh": sorted(symbols.fresh.items()),
        "contents": sorted(
            (name, array.shape, [None if size is None else size.text for size in array.reshape(-1)])
            for name, array in symbols.contents.items()
        ),
        "filled": sorted(symbols.filled),
        "pins": sorted((name, pin.number) for name, pin in symbols.pins.items()),
        "ranges": sorted((name, found.min, found.max) for name, found in symbols.ranges.items()),
        "steps": sorted(symbols.steps.items()),
        "floors": sorted(symbols.floors.items()),
        "branches": (sorted(symbols.branches.decided.items()), sorted(symbols.branches.needed.items())),
    }
