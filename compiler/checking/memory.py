"""What earlier compiles computed with ONNX Runtime, on disk: test vectors of models, and partitions that were right.

A record is found only if all that it follows from is the same: see `Memory`, and the reasons in
docs/decisions/0033-partitions-are-kept-without-weights.md.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from heterocc.artifacts.dtypes import is_narrow
from heterocc.artifacts.errors import NativePluginError
from heterocc.compiler.checking.vectors import Vectors
from heterocc.compiler.checking.verdict import Right, Verdict
from heterocc.compiler.devices.host import host_cpu
from heterocc.compiler.files.blobs import DiskBlobs, open_blobs
from heterocc.compiler.files.records import toolchain_digest
from heterocc.compiler.importer.digests import digest
from heterocc.compiler.importer.identity import model_digest
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.lower.arranged import elements
from heterocc.compiler.lower.backend import LoweredPartition, PartitionJob
from heterocc.runtime.fault_variables import WRONG_KERNEL, honoured
from heterocc.runtime.native import cpu_api

SOURCES = ("compiler/build", "compiler/checking")
"""The folders below `heterocc` that determine a verdict beside those of the toolchain."""

MOST_BYTES = 32 << 20
"""The limit on the inputs and outputs that are stored for a model."""

BACKENDS = ("cpu", "ort")
"""Back ends whose verdicts are remembered: they use no driver, which may change while its version does not."""

_FAULT = re.compile(r"HETEROCC_[A-Z]+_FAULT")


def open_memory(model: ImportedModel, inputs: Path | None, seed: int, *, reads: bool = True) -> Memory | None:
    """The memory for a model with the inputs of a file, or seeded ones; `reads` as for Memory.

    None if there is no cache, if failures are simulated, or if the file is a pipe or cannot be read.
    """
    cache = open_blobs()
    simulated = honoured() or os.environ.get(WRONG_KERNEL) or any(map(_FAULT.fullmatch, os.environ))
    if cache is None or simulated or (inputs is not None and not inputs.is_file()):
        return None
    try:
        given = None if inputs is None else _digest_of_file(inputs)
    except OSError:  # reading the inputs raises an error that says more
        return None
    return Memory(cache, _key("vectors", machine=_machine(), model=model_digest(model), inputs=given, seed=seed), reads)


def _digest_of_file(path: Path) -> str:
    """SHA-256 of a file, which may be larger than memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class Memory:
    """The vectors of a model, and the verdicts on its partitions for these.

    `key` is a digest of the imported model with all constants, of the file of inputs or the seed, of the sources of
    heterocc, of the versions of its libraries, and of the machine. Without `reads` nothing is read, only stored.
    """

    cache: DiskBlobs
    key: str
    reads: bool = True

    def vectors(self) -> Vectors | None:
        """The vectors that an earlier compile found; None if there are none."""
        content = self.cache.read(self.key) if self.reads else None
        return None if content is None else _vectors(content)

    def keep_vectors(self, found: Vectors) -> None:
        """Store vectors, unless they are large or not all of them are plain tensors."""
        content = _content(found)
        if content is not None:
            self.cache.write({self.key: content})

    def of_branch(self, name: str) -> Memory:
        """The memory for the same inputs, of which one of this name chooses another branch."""
        return replace(self, key=_key("branch", vectors=self.key, name=name))

    def has_same_meaning(self, source: str) -> bool:
        """Whether an earlier compile found that the imported model computes what the file of this digest does."""
        return self.reads and self.cache.read(self._meaning_key(source)) is not None

    def keep_same_meaning(self, source: str) -> None:
        """Store that the imported model computes what the file of this digest does."""
        self.cache.write({self._meaning_key(source): b"same"})

    def _meaning_key(self, source: str) -> str:
        return _key("meaning", vectors=self.key, source=source)

    def verdict(self, job: PartitionJob, lowered: LoweredPartition) -> Right | None:
        """The verdict of an earlier compile on the same code with the same weights; None if there is none."""
        if not self.reads or job.device.backend not in BACKENDS:
            return None
        content = self.cache.read(self._verdict_key(job, lowered))
        return None if content is None else Right(unseen=tuple(json.loads(content)))

    def keep_verdict(self, job: PartitionJob, lowered: LoweredPartition, verdict: Verdict) -> None:
        """Store a verdict if the partition is right. Costs of half precision and binaries are found anew each time."""
        if job.device.backend not in BACKENDS or not isinstance(verdict, Right):
            return
        if verdict.cost is None and not verdict.binaries:
            self.cache.write({self._verdict_key(job, lowered): json.dumps(verdict.unseen).encode()})

    def _verdict_key(self, job: PartitionJob, lowered: LoweredPartition) -> str:
        for number, array in enumerate(lowered.params):
            if number not in lowered.digests:
                lowered.digests[number] = digest(elements(array))
        device = job.device
        return _key(
            "verdict",
            vectors=self.key,
            device=(device.name, device.target_json(), sorted(device.dtypes), sorted(device.properties.items())),
            job=(job.nodes, job.inputs, job.outputs, job.sizes),
            code=hashlib.sha256(lowered.code).hexdigest(),
            form=(lowered.kind, lowered.alignment, lowered.param_names, lowered.cpu_features, lowered.requires),
            params=[(p.dtype.name, p.shape, lowered.digests[n]) for n, p in enumerate(lowered.params)],
        )


def _key(kind: str, **facts: object) -> str:
    return hashlib.sha256(f"{kind}\n{toolchain_digest(*SOURCES)}\n{json.dumps(facts)}".encode()).hexdigest()


@functools.cache
def _machine() -> tuple[object, ...]:
    """What results depend on beside versions: the CPU, its cores, the C library, and the native plug-in."""
    cpu = host_cpu()
    try:
        plugin = hashlib.sha256(cpu_api.PLUGIN.find_library().read_bytes()).hexdigest()
    except NativePluginError:
        plugin = "none"
    library = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else ""
    return cpu.arch, cpu.name, sorted(cpu.features), cpu.cores, library, plugin


def _content(found: Vectors) -> bytes | None:
    arrays = (*found.inputs.values(), *found.outputs.values())
    if not all(isinstance(a, np.ndarray) and not a.dtype.hasobject and not is_narrow(a) for a in arrays):
        return None
    if sum(a.nbytes for a in arrays) > MOST_BYTES:
        return None
    head = json.dumps(
        {
            "inputs": list(found.inputs),
            "outputs": list(found.outputs),
            "blind": dict(found.blind),
            "random": dict(found.random),
        }
    ).encode()
    file = io.BytesIO()
    file.write(len(head).to_bytes(8, "little") + head)
    for array in arrays:
        np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def _vectors(content: bytes) -> Vectors:
    """The vectors of a file, which the cache found undamaged."""
    file = io.BytesIO(content)
    head: Mapping[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    inputs, outputs = (
        {name: np.lib.format.read_array(file, allow_pickle=False) for name in head[part]}
        for part in ("inputs", "outputs")
    )
    return Vectors(inputs, outputs, head["blind"], head["random"])
