"""Lowered partitions, kept on disk by all that their code depends on.

A file holds the code, and for each of its weights the constant of the model that it is made from: packed weights would
fill the cache. docs/decisions/0033-partitions-are-kept-without-weights.md has the reasons.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np

from heterocc.artifacts.dtypes import CARRIED
from heterocc.artifacts.errors import HeteroccError, InternalError
from heterocc.artifacts.manifest import Layout
from heterocc.artifacts.packed import PackedArray
from heterocc.artifacts.records import MalformedError, Record
from heterocc.compiler.build.sharing import GROWTH, LEAST
from heterocc.compiler.devices.host import host_cpu
from heterocc.compiler.files.blobs import DiskBlobs
from heterocc.compiler.files.records import toolchain_digest
from heterocc.compiler.importer.digests import digest
from heterocc.compiler.importer.draft.draft import reads
from heterocc.compiler.importer.identity import symbol_facts
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.lower.arranged import Arranged, Deferred, Elements, elements, in_layout
from heterocc.compiler.lower.backend import Dumps, KernelInfo, LoweredPartition, PartitionJob, Tuned
from heterocc.compiler.lower.codegen.link import find_linker
from heterocc.compiler.lower.kernels.transposed import before_transposing, contiguous, in_order, of_transposed
from heterocc.runtime.execute.narrow import carried
from heterocc.runtime.fault_variables import WRONG_KERNEL

MOST_BYTES = 1 << 20
"""The limit on weights that are stored because no constant of the model gives them."""

MOST_AXES = 4
"""Constants with more axes are not searched for transposed weights."""

_KEPT = ("cpu", "opencl", "vulkan")
"""Back ends whose code follows from the job and this installation alone."""

_Array = np.ndarray[Any, Any]


class _Param(Record):
    """A weight of the code: the constant `weight`, transposed to `order`, in `layout`; or bytes of the file.

    `source` is the shape of the constant's copy before the layout, `source_sha256` its digest, `sha256` that of the
    weight.
    """

    dtype: str
    shape: tuple[int, ...]
    sha256: str
    weight: str | None = None
    order: tuple[int, ...] | None = None
    source: tuple[int, ...] = ()
    source_sha256: str = ""
    layout: Layout | None = None
    nbytes: int = 0


class _Kernel(Record):
    symbol: str
    nodes: tuple[str, ...]
    outputs: tuple[str, ...]


class _Tuned(Record):
    kernel: str
    nodes: tuple[str, ...]
    schedule: str
    changed: bool
    candidates: int
    before: float
    after: float


class _Kept(Record):
    """What a file holds beside the bytes that follow: those of stored weights, then the code."""

    param_names: tuple[str, ...]
    params: tuple[_Param, ...]
    kernels: tuple[_Kernel, ...]
    cpu_features: tuple[str, ...]
    requires: tuple[str, ...]
    alignment: Literal[1, 64]
    sequences: bool = False
    tuned: tuple[_Tuned, ...] = ()


def lower_kept(
    job: PartitionJob, cache: DiskBlobs | None, lower: Callable[[PartitionJob], LoweredPartition]
) -> LoweredPartition:
    """Lower a partition, or read its code from the cache and make its weights.

    Code that is wrong on purpose, that reads strings, whose kernels are chosen by timing on a GPU, or which another
    compiler has a part in (nvcc's for CUDA, ONNX Runtime) is not kept.
    """
    if cache is None or job.device.backend not in _KEPT or job.device.tunes or os.environ.get(WRONG_KERNEL):
        return lower(job)
    try:
        weights = _Weights(job)
        key = _key(job, weights.digests)
    except (HeteroccError, TypeError):  # lowering raises an error that says more
        return lower(job)
    content = cache.read(key)
    known = None if content is None else _read(content, job, lower)
    if known is not None:
        return known
    lowered = lower(job)
    content = _content(lowered, weights)
    if content is not None:
        cache.write({key: content})
    return lowered


def _key(job: PartitionJob, digests: Mapping[str, str]) -> str:
    """A digest of all that the code of a partition depends on; `digests` are those of its constants."""
    device, model = job.device, job.model
    target = dict(device.target or host_cpu().target)
    facts = {
        "toolchain": toolchain_digest("compiler/build/kept.py"),
        "linker": find_linker(str(target.get("mtriple") or "") or None).command,
        "target": {name: str(value) for name, value in sorted(target.items())},
        "device": (device.name, sorted(device.dtypes), sorted(device.properties.items())),
        "kind": (device.backend, device.target_json(), device.software, device.unit, device.static_shapes_only),
        "job": (job.name, job.nodes, job.inputs, job.outputs, job.sizes),
        "planned": sorted((name, found.min, found.max) for name, found in model.planned.items()),
        "values": _values(job),
        "symbols": symbol_facts(model),
        "caches": model.caches,
        "weights": sorted(digests.items()),
        "tuned": job.tuning is not None,
    }
    digest = hashlib.sha256(b"partition\n" + json.dumps(facts).encode())
    digest.update(model.subgraph(job.nodes, job.inputs, job.outputs).SerializeToString(deterministic=True))
    return digest.hexdigest()


def _values(job: PartitionJob) -> list[tuple[str, str, Any]]:
    """The types of all values that the nodes read and write."""
    graph = job.model.graph
    nodes = [graph.node_by_name[name] for name in job.nodes]
    names = (*job.inputs, *job.outputs, *(v for n in nodes for v in (*n.inputs, *n.outputs)))
    found = (graph.values[name] for name in dict.fromkeys(names) if name in graph.values)
    return [(value.name, value.dtype, value.shape) for value in found]


class _Weights:
    """The constants of a partition, with their digests."""

    def __init__(self, job: PartitionJob) -> None:
        model = job.model
        inputs = (v for name in job.nodes for v in reads(model.protos[name]))
        names = dict.fromkeys(v for v in (*inputs, *job.outputs) if v in model.weights)
        self.arrays: dict[str, _Array] = {name: _as_coded(model.weights[name]) for name in names}
        if any(array.dtype.hasobject for array in self.arrays.values()):
            raise TypeError("strings have no digest")
        model.digests.compute(self.arrays.values())
        self.digests = {name: f"{a.dtype} {a.shape} {model.digests.of(a)}" for name, a in self.arrays.items()}
        self.digest, self.compute = model.digests.of, model.digests.compute
        placed = ((name, a) for name, a in reversed(self.arrays.items()) if not isinstance(a, PackedArray))
        self._by_place = {_place(a): name for name, a in placed if a.flags.c_contiguous}
        self._by_content: dict[tuple[str, str], str] = {}
        for name, array in self.arrays.items():
            self._by_content.setdefault((array.dtype.name, self.digests[name].rsplit(" ", 1)[1]), name)

    def find(self, given: _Array, array: _Array) -> tuple[str, tuple[int, ...] | None] | None:
        """The constant that has the elements of an array in order, or in the order of other axes; None if none has.

        The array is a copy of `given` in row-major order, or this itself.
        """
        known = self._viewed(given)
        if known is not None:
            return known
        name = self._by_content.get((array.dtype.name, self.digest(array)))
        if name is not None:
            return name, None
        flat = np.ascontiguousarray(array).reshape(-1)
        for name, constant in self.arrays.items():
            if constant.size != array.size or constant.dtype != array.dtype or not 2 <= constant.ndim <= MOST_AXES:
                continue
            for order in itertools.permutations(range(constant.ndim)):
                turned = constant.transpose(order)
                if turned.flat[1] == flat[1] and turned.flat[-2] == flat[-2] and _same(in_order(constant, order), flat):
                    return name, order
        return None

    def _viewed(self, array: _Array) -> tuple[str, tuple[int, ...] | None] | None:
        """The constant whose memory an array is, and the order of its axes there; None if it is in none."""
        constant, order = before_transposing(array)
        name = self._by_place.get(_place(constant)) if constant.flags.c_contiguous else None
        if name is None or (order is not None and self.arrays[name].shape != constant.shape):
            return None
        return name, order


def _place(array: _Array) -> tuple[int, int, str]:
    """Where the elements of an array are, and their type."""
    return array.ctypes.data, array.nbytes, array.dtype.name


def _as_coded(array: _Array) -> _Array:
    """A constant as compiled code has it: those of dtypes that numpy lacks as integers."""
    return carried(array, array.dtype.name) if array.dtype.name in CARRIED else array


def _same(array: _Array, flat: _Array) -> bool:
    return bool(np.array_equal(np.ascontiguousarray(array).reshape(-1).view(np.uint8), flat.view(np.uint8)))


def _content(lowered: LoweredPartition, weights: _Weights) -> bytes | None:
    """The file of a partition; None if too many of its weights cannot be made from the model's constants."""
    params: list[_Param] = []
    stored: list[bytes] = []
    weights.compute(array for array in lowered.params if isinstance(array, np.ndarray))
    for number, array in enumerate(map(elements, lowered.params)):
        arranged = lowered.arranged[number] if lowered.arranged else None
        lowered.digests[number] = weights.digest(array)
        param = _param(array, arranged, weights)
        if param is None:
            param = _Param(
                dtype=array.dtype.name, shape=array.shape, sha256=lowered.digests[number], nbytes=array.nbytes
            )
            stored.append(array.tobytes())
            if arranged is not None or sum(map(len, stored)) > MOST_BYTES:
                return None
        params.append(param)
    kept = _Kept(
        param_names=lowered.param_names,
        params=tuple(params),
        kernels=tuple(_Kernel(symbol=k.symbol, nodes=k.nodes, outputs=k.outputs) for k in lowered.kernels),
        cpu_features=lowered.cpu_features,
        requires=lowered.requires,
        alignment=lowered.alignment,
        sequences=lowered.sequences,
        tuned=tuple(
            _Tuned(
                kernel=k.kernel,
                nodes=k.nodes,
                schedule=k.schedule,
                changed=k.changed,
                candidates=k.candidates,
                before=k.before,
                after=k.after,
            )
            for k in lowered.tuned
        ),
    )
    head = kept.model_dump_json().encode()
    return b"".join([len(head).to_bytes(8, "little"), head, *stored, lowered.code])


def _param(array: _Array, arranged: Arranged | None, weights: _Weights) -> _Param | None:
    given = array if arranged is None else elements(arranged.source)
    source = contiguous(given)
    found = weights.find(given, source) if source.size > 2 else None
    if found is None:
        return None
    name, order = found
    if arranged is not None and not arranged.proven:
        made = in_layout(source, arranged.layout)
        if made is None or not _same(made, array.reshape(-1)):
            return None
    return _Param(
        dtype=array.dtype.name,
        shape=array.shape,
        weight=name,
        order=order,
        source=source.shape,
        source_sha256=weights.digest(source),
        layout=None if arranged is None else arranged.layout,
        sha256=weights.digest(array),
    )


def _read(
    content: bytes, job: PartitionJob, lower: Callable[[PartitionJob], LoweredPartition]
) -> LoweredPartition | None:
    """The partition that a file holds; None if it is not as this version writes it."""
    size = int.from_bytes(content[:8], "little")
    try:
        kept = _Kept.model_validate_json(content[8 : 8 + size])
        made = list(_made(kept.params, content[8 + size :], job.model))
    except (MalformedError, KeyError, ValueError, TypeError):
        return None
    start = 8 + size + sum(param.nbytes for param in kept.params)
    found = LoweredPartition(
        kind="tvm",
        code=content[start:],
        params=tuple(array for array, _ in made),
        param_names=kept.param_names,
        kernels=tuple(KernelInfo(k.symbol, k.nodes, k.outputs) for k in kept.kernels),
        cpu_features=kept.cpu_features,
        requires=kept.requires,
        alignment=kept.alignment,
        sequences=kept.sequences,
        dumps=Dumps(lambda: lower(job).dumps),
        tuned=tuple(
            Tuned(k.kernel, k.nodes, k.schedule, k.changed, k.candidates, k.before, k.after, remembered=True)
            for k in kept.tuned
        ),
        arranged=tuple(arranged for _, arranged in made),
    )
    found.digests.update((number, param.sha256) for number, param in enumerate(kept.params))
    return found


def _made(
    params: tuple[_Param, ...], stored: bytes, model: ImportedModel
) -> Iterator[tuple[Elements, Arranged | None]]:
    """The weights of the code. Raises ValueError if one is not as it was."""
    start = 0
    for param in params:
        dtype = np.dtype(param.dtype)
        if param.weight is None:
            yield np.frombuffer(stored[start : start + param.nbytes], dtype).reshape(param.shape), None
            start += param.nbytes
            continue
        constant = _as_coded(model.weights[param.weight])
        source: Elements = constant.reshape(param.source) if param.order is None else _turned(constant, param)
        if param.layout is None:
            yield constant.reshape(param.shape) if param.order is None else source, None
            continue
        array = Deferred(dtype, param.shape, param.sha256, partial(_packed, constant, source, param))
        if param.layout.matrix is not None and (source.nbytes < LEAST or array.nbytes <= GROWTH * source.nbytes):
            # It is stored in this layout, and another CPU may round its elements in another way.
            made = array.make()
            if digest(made) != param.sha256:
                raise ValueError("a weight is not as it was")
            yield made, Arranged(source, param.layout, proven=True)
        else:
            yield array, Arranged(source, param.layout, proven=True)


def _turned(constant: _Array, param: _Param) -> Deferred:
    """A constant with its axes in another order."""
    order = param.order or ()
    return Deferred(
        constant.dtype, param.source, param.source_sha256, lambda: in_order(constant, order).reshape(param.source)
    )


def _packed(constant: _Array, source: Elements, param: _Param) -> _Array:
    """A weight in a layout, from the constant itself if its axes need not be put in order before."""
    assert param.layout is not None
    direct = None if param.order is None else of_transposed(param.layout, constant.shape, param.order)
    if direct is not None and constant.flags.c_contiguous:
        made = in_layout(constant, direct)
    else:
        made = in_layout(elements(source), param.layout)
    if made is None:
        raise InternalError("a layout that was tried when a partition was kept does not fit its weight")
    return made.reshape(param.shape)
