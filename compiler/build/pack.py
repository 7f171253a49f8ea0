"""Packing of built plans into a bundle's manifest, members and weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from heterocc.artifacts import manifest as m
from heterocc.artifacts.dtypes import is_narrow
from heterocc.artifacts.errors import InternalError, InvalidGraphError
from heterocc.artifacts.signing.keys import SigningKey
from heterocc.artifacts.text.names import file_name
from heterocc.artifacts.version import __version__
from heterocc.artifacts.weights.weight_file import Draft
from heterocc.artifacts.writer import BundleWriter
from heterocc.compiler.api.progress import Progress
from heterocc.compiler.build.conditions import conditions_of, ends
from heterocc.compiler.build.sharing import Stored, plain_weights
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.host import target_arch
from heterocc.compiler.importer.digests import digest
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.lower.arranged import Deferred, Elements, elements
from heterocc.compiler.lower.backend import LoweredPartition, PartitionJob
from heterocc.runtime.fault_variables import honoured
from heterocc.runtime.machine.ranking import GPU_BACKENDS

_CLEAR = "compile with HETEROCC_CACHE=off"


@dataclass(frozen=True, slots=True)
class Piece:
    """A lowered partition, ready to pack; `checked` if its results were compared with ONNX Runtime's.

    `binaries` are the driver's binaries of its kernels, if the bundle is to hold them.
    """

    job: PartitionJob
    lowered: LoweredPartition
    checked: bool = False
    binaries: bytes = b""


@dataclass(frozen=True, slots=True)
class VariantParts:
    """The contents of a variant of the bundle: pieces in run order, the plan as text, its record as JSON, and notes.

    `model` is the model at the variant's shapes; None is that of the bundle. `choice` is the name of an earlier variant
    that this one extends by other shapes. `bounds` are the least and largest sizes of its dynamic dimensions.
    """

    name: str
    devices: tuple[TargetDevice, ...]
    pieces: tuple[Piece, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    plan: str
    summary: str
    notes: tuple[str, ...] = ()
    model: ImportedModel | None = None
    choice: str | None = None
    bounds: Mapping[str, m.Range] = field(default_factory=dict)
    record: str = ""


@dataclass(frozen=True, slots=True)
class GoldenVectors:
    """Inputs and ONNX Runtime's outputs for them, by name of the imported graph; tensors only.

    `rtol`, `atol`, `steps` and `snr` are the tolerances of the manifest.
    """

    seed: int
    inputs: Mapping[str, np.ndarray[Any, Any]]
    outputs: Mapping[str, np.ndarray[Any, Any]]
    rtol: float
    atol: float
    steps: int
    snr: float | None


@cache
def _version(package: str) -> str:
    return metadata.version(package)


def pack(
    path: Path,
    model: ImportedModel,
    variants: Sequence[VariantParts],
    *,
    goldens: Sequence[GoldenVectors] = (),
    replacing: VariantParts | None = None,
    texts: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    key: SigningKey | None = None,
    durable: bool = True,
    draft: Draft | None = None,
    into: Draft | None = None,
) -> m.Manifest:
    """Write the bundle; `texts` are further members such as `.dot` graphs. `progress` counts `weights_of(variants)`.
    `replacing` is the variant in which initializers that are constants of the others are inputs.
    With `key` the bundle is signed. `durable`, `draft` and `into` are as for BundleWriter.

    The same input gives the same bytes. Raises OutputFileError (HC111) if the file cannot be written.
    """
    sequences = any(piece.lowered.sequences for parts in variants for piece in parts.pieces)
    inputs, outputs = ends(
        model.dimensions,
        [_specs(parts.model or model, parts.inputs, sequences=sequences) for parts in variants],
        [_specs(parts.model or model, parts.outputs, sequences=sequences) for parts in variants],
    )
    with BundleWriter(path, durable=durable, draft=draft, into=into) as writer:
        codes: dict[tuple[str, int, str], str] = {}
        added = () if replacing is None else (replacing,)
        every = [piece.lowered for parts in (*variants, *added) for piece in parts.pieces]
        plain = dict(zip(every, plain_weights(every, model.digests), strict=True))
        records = tuple(
            _variant(writer, parts.model or model, parts, codes, plain, progress or Progress()) for parts in variants
        )
        others = None if replacing is None else _replacing(writer, model, replacing, codes, plain)
        for name, text in sorted((texts or {}).items()):
            writer.add_member(name, text)
        stored = tuple(_golden(writer, model, golden, number) for number, golden in enumerate(goldens))
        kinds = {lowered.kind for lowered in every}
        return writer.finish(
            producer=m.Producer(
                heterocc=__version__,
                tvm=_version("apache-tvm") if "tvm" in kinds else None,
                onnxruntime=_version("onnxruntime") if "onnx" in kinds else None,
            ),
            model=m.ModelInfo(
                name=model.name,
                sha256=model.sha256,
                opsets=dict(sorted(model.opsets.items())),
                inputs=inputs,
                outputs=outputs,
                classes=dict(model.classes),
                defaults={
                    model.sources[name]: writer.add_array(f"defaults/{number}.npy", array)
                    for number, (name, array) in enumerate(sorted(model.defaults.items()))
                },
                held=model.held,
                compressed=_compressed(model),
            ),
            variants=records,
            golden=stored[0] if stored else None,
            goldens=stored[1:],
            faults=honoured(),
            replacing=others,
            key=key,
        )


def _replacing(
    writer: BundleWriter,
    model: ImportedModel,
    parts: VariantParts,
    codes: dict[tuple[str, int, str], str],
    plain: Mapping[LoweredPartition, Stored],
) -> m.Replacing:
    """The variant for runs that replace initializers which are constants of the others, with their values."""
    own = parts.model or model
    held = {own.sources[name]: name for name in own.graph.inputs if own.sources[name] in model.held}
    ordered = [name for name in own.graph.inputs if name not in held.values()]
    first = {own.sources[name]: name for name in ordered}
    inputs = (*(first[model.sources[name]] for name in model.graph.inputs), *(held[name] for name in model.held))
    variant = _variant(writer, own, replace(parts, inputs=inputs, choice=None), codes, plain, Progress())
    specs = _specs(own, [held[name] for name in model.held], sequences=False)
    defaults: dict[str, int | str] = {}
    for number, (source, name) in enumerate(held.items()):
        array = own.defaults[name]
        if array.dtype == object:
            defaults[source] = writer.add_array(f"defaults/held{number}.npy", array)
        else:
            stored = array.view(f"u{array.itemsize}") if is_narrow(array) else array
            defaults[source] = writer.add_weight(stored)
    return m.Replacing(inputs=specs, defaults=defaults, variant=variant)


def _compressed(model: ImportedModel) -> m.Compressed | None:
    form = model.compressed
    return None if form is None else m.Compressed(form=str(form), keep=tuple(sorted(form.keep)))


def weights_of(variants: Sequence[VariantParts]) -> int:
    """The number of weights of all partitions, with repetitions."""
    return sum(len(piece.lowered.params) for parts in variants for piece in parts.pieces)


def half_nodes(variants: Sequence[VariantParts]) -> tuple[str, ...]:
    """The nodes that any variant computes in half precision."""
    return _nodes_of([p.job for parts in variants for p in parts.pieces if p.job.device.half])


def paired_nodes(variants: Sequence[VariantParts]) -> tuple[str, ...]:
    """The nodes that any variant computes with products of factors rounded to bfloat16."""
    return _nodes_of([p.job for parts in variants for p in parts.pieces if p.job.device.rounds_products])


def _nodes_of(halved: Sequence[PartitionJob]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for job in halved for name in job.nodes))


def _specs(model: ImportedModel, names: Sequence[str], *, sequences: bool) -> tuple[m.TensorSpec, ...]:
    """The records of values; with `sequences` they say what sequences hold, which only code of version 6 has."""
    values = [model.graph.values[name] for name in names]
    for name in (model.sources.get(v.name, v.name) for v in values):
        if not 1 <= len(name) <= m.MAX_NAME:
            raise InvalidGraphError(
                f"an input or output has a name of {len(name)} characters, but a bundle allows 1 to {m.MAX_NAME}",
                where=f"{model.name}: '{name[:60]}…'",
                hint="rename it in the model",
            )
    inputs = frozenset(model.graph.inputs)
    return tuple(
        m.TensorSpec(
            name=model.sources.get(v.name, v.name),
            dtype=v.dtype,
            shape=model.input_shape(v.name) if v.name in inputs else model.known_dims(v),
            elements=model.elements(v.name) if sequences else None,
        )
        for v in values
    )


def _variant(
    writer: BundleWriter,
    model: ImportedModel,
    parts: VariantParts,
    codes: dict[tuple[str, int, str], str],
    plain: Mapping[LoweredPartition, Stored],
    progress: Progress,
) -> m.Variant:
    """A variant's record; `codes` has the members of code by device and hash, so that variants share them.

    `plain` are the weights that are stored in another layout than the code reads.
    """
    folder = file_name(parts.name)
    names = (*parts.inputs, *parts.outputs, *(v for p in parts.pieces for v in (*p.job.inputs, *p.job.outputs)))
    values = tuple(dict.fromkeys(names))
    index = {name: i for i, name in enumerate(values)}
    used = (
        tuple(d for d in parts.devices if any(p.job.device.name == d.name for p in parts.pieces)) or parts.devices[:1]
    )
    device_index = {d.name: i for i, d in enumerate(used)}
    partitions = []
    for piece in parts.pieces:
        job, lowered = piece.job, piece.lowered
        suffix = "onnx" if lowered.kind == "onnx" else "so"
        key = job.device.backend, job.device.index, hashlib.sha256(lowered.code + piece.binaries).hexdigest()
        if key not in codes:
            codes[key] = writer.add_member(f"code/{folder}/{job.name}.{suffix}", lowered.code)
        params = []
        for weight in _stored(writer, lowered, plain[lowered]):
            params.append(weight)
            progress.step()
        partitions.append(
            m.Partition(
                name=job.name,
                device=device_index[job.device.name],
                kind=lowered.kind,
                code=codes[key],
                binaries=writer.add_member(f"{codes[key]}.binaries", piece.binaries) if piece.binaries else None,
                alignment=lowered.alignment,
                inputs=tuple(index[v] for v in job.inputs),
                outputs=tuple(index[v] for v in job.outputs),
                params=tuple(params),
                param_names=lowered.param_names,
                layouts={str(number): found.layout for number, found in plain[lowered].items()},
                sequences=lowered.sequences,
                nodes=tuple(model.graph.node_by_name[n].label for n in job.nodes),
                kernels=tuple(_kernel(model, k.symbol, k.nodes, k.outputs) for k in lowered.kernels),
                checked=piece.checked,
            )
        )
    if parts.record:
        writer.add_member(f"plan/{folder}.json", parts.record)
    return m.Variant(
        name=parts.name,
        devices=tuple(_device(d, [p for p in parts.pieces if p.job.device.name == d.name]) for d in used),
        values=_specs(model, values, sequences=any(piece.lowered.sequences for piece in parts.pieces)),
        inputs=tuple(index[v] for v in parts.inputs),
        outputs=tuple(index[v] for v in parts.outputs),
        constants={
            str(index[v]): writer.add_weight(model.weights[v])
            for v in dict.fromkeys(parts.outputs)
            if v in model.graph.constants
        },
        partitions=tuple(partitions),
        plan=writer.add_member(f"plan/{folder}.txt", parts.plan),
        summary=parts.summary,
        notes=parts.notes,
        shapes_of=parts.choice,
        bounds=_bounds(model, parts),
        conditions=conditions_of(model, _relying(parts)),
        rooms=_rooms(model, parts, index),
    )


def _relying(parts: VariantParts) -> Iterator[tuple[str, bool]]:
    """The nodes, and whether code runs them."""
    return ((name, piece.lowered.kind == "tvm") for piece in parts.pieces for name in piece.job.nodes)


def _stored(writer: BundleWriter, lowered: LoweredPartition, plain: Stored) -> Iterator[int]:
    """Store the weights of a partition, and give their indices.

    Those with a digest from an earlier compile are not made as long as the bundle that is replaced has them.
    """
    every = [_to_store(lowered, plain, number) for number in range(len(lowered.params))]
    first = 0
    if any(isinstance(stored, Deferred) for stored in every):
        for number, stored in enumerate(every):
            if not isinstance(stored, Deferred):
                array, sha256, _ = _made(lowered, plain, number)
                yield writer.add_weight(array, sha256=sha256)
                continue
            known = writer.add_known_weight(stored.dtype.name, stored.shape, stored.nbytes, stored.sha256)
            if known is None:
                first = number
                break
            yield known
        else:
            return
    if every:
        rest = _made_ahead(lowered, plain, first)
        yield from (writer.add_weight(array, sha256=sha256) for array, sha256 in rest)


def _made_ahead(lowered: LoweredPartition, plain: Stored, first: int) -> Iterator[tuple[np.ndarray[Any, Any], str]]:
    """The weights to store for a partition from the number `first` on, with their digests.

    Each is made while the one before is written, and while it is written itself, a digest that is known from an earlier
    compile is proven. Raises InternalError after a weight that has another digest.
    """
    last = len(lowered.params) - 1
    with ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(_made, lowered, plain, first)
        for number in range(first, last + 1):
            array, sha256, proven = ahead.result()
            proof = None if proven else pool.submit(_prove, array, sha256)
            if number < last:
                ahead = pool.submit(_made, lowered, plain, number + 1)
            yield array, sha256
            if proof is not None:
                proof.result()


def _made(lowered: LoweredPartition, plain: Stored, number: int) -> tuple[np.ndarray[Any, Any], str, bool]:
    """A weight to store for a partition, its digest, and whether this was computed from these bytes."""
    stored = _to_store(lowered, plain, number)
    known = None if number in plain else lowered.digests.get(number)
    array = elements(stored)
    found = stored.sha256 if isinstance(stored, Deferred) else known or digest(array)
    if number not in plain:
        lowered.digests[number] = found
    return array, found, not isinstance(stored, Deferred)


def _to_store(lowered: LoweredPartition, plain: Stored, number: int) -> Elements:
    """A weight as the bundle has it."""
    return plain[number].source if number in plain else lowered.params[number]


def _prove(array: np.ndarray[Any, Any], sha256: str) -> None:
    """Raise InternalError unless an array has this digest: the check of an earlier compile was one of such weights."""
    if digest(array) != sha256:
        raise InternalError("a weight is not as it was when its partition was kept", hint=_CLEAR)


def _bounds(model: ImportedModel, parts: VariantParts) -> dict[str, m.Range]:
    """The sizes of named dimensions that a variant takes: those that were requested and that compiled code allows."""
    # Code in ONNX has no limits of its own, but those of what the import assumed.
    limited = [piece for piece in parts.pieces if model.assumes or piece.lowered.kind == "tvm"]
    values = {v for piece in limited for v in piece.job.inputs}
    names = {d for v in values for d in model.graph.values[v].shape or () if isinstance(d, str)}
    if model.symbols is not None:  # what follows from these may have become constants, so that no code depends on them
        names |= model.symbols.floors.keys() | model.symbols.filled
    allowed = {name: model.bounds[name] for name in sorted(names & model.bounds.keys())}
    return m.within_both(parts.bounds, allowed)


def _rooms(model: ImportedModel, parts: VariantParts, index: Mapping[str, int]) -> dict[str, int]:
    """The most bytes of dynamic values that code for GPUs reads, by their numbers."""
    jobs = [piece.job for piece in parts.pieces if piece.job.device.backend in GPU_BACKENDS]
    read = dict.fromkeys(v for job in jobs for v in job.inputs if not model.graph.values[v].is_static)
    return {str(index[v]): model.most_bytes(v) or 0 for v in read}


def _kernel(model: ImportedModel, symbol: str, nodes: tuple[str, ...], outputs: tuple[str, ...]) -> m.Kernel:
    found = [model.graph.node_by_name[n] for n in nodes]
    return m.Kernel(
        symbol=symbol,
        nodes=tuple(n.label for n in found),
        op_types=tuple(dict.fromkeys(n.op_type for n in found)),
        outputs=outputs,
    )


def _device(device: TargetDevice, pieces: Sequence[Piece]) -> m.Device:
    compiled = [p.lowered for p in pieces if p.lowered.kind == "tvm"]
    features = sorted({f for lowered in compiled for f in lowered.cpu_features})
    return m.Device(
        name=device.name,
        backend=device.backend,
        index=device.index,
        target=device.target_json(),
        arch=_host_arch(device) if compiled else None,
        cpu_features=tuple(features),
        requires=tuple(sorted({r for lowered in compiled for r in lowered.requires})),
        properties=dict(sorted(device.properties.items())),
    )


def _host_arch(device: TargetDevice) -> str:
    if device.backend == "cpu":
        return target_arch(device.target)
    import platform

    return platform.machine()


def _golden(writer: BundleWriter, model: ImportedModel, golden: GoldenVectors, number: int) -> m.Golden:
    folder = f"golden/{number + 1}" if number else "golden"

    def store(kind: str, arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, str]:
        names = {}
        for i, (name, array) in enumerate(arrays.items()):
            names[model.sources.get(name, name)] = writer.add_array(f"{folder}/{kind}{i}.npy", array)
        return names

    return m.Golden(
        seed=golden.seed,
        inputs=store("input", golden.inputs),
        outputs=store("output", golden.outputs),
        rtol=golden.rtol,
        atol=golden.atol,
        steps=golden.steps,
        snr=golden.snr,
    )
