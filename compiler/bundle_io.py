"""Files that go into and come out of a run: npz, npy and raw bytes."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heterocc.artifacts.errors import FeedError, FileMissingError, OutputFileError, UsageError
from heterocc.artifacts.manifest import TensorSpec
from heterocc.artifacts.reader import open_bundle
from heterocc.artifacts.tensors import NARROW, is_narrow
from heterocc.compiler.files import atomic_write
from heterocc.runtime.narrow import narrow_dtype

Array = np.ndarray[Any, Any]


def read_inputs(bundle: Path, session: Any, given: Sequence[str], seed: int) -> dict[str, Array]:
    """The feed of a run: the files in `given`, or the bundle's golden inputs' kind of seeded values.

    Without `given`, seed 0 gives the bundle's golden inputs when it has them, any other seed draws afresh from their
    values, which the model is known to accept; without golden inputs floats are standard normal.
    Raises FeedError, FileMissingError or UsageError.
    """
    specs: dict[str, TensorSpec] = {s.name: s for s in session.inputs}
    if given:
        return read_files(specs, given)
    golden = golden_inputs(bundle)
    return {name: _seeded(spec, golden.get(name), seed) for name, spec in specs.items()}


def golden_inputs(bundle: Path) -> dict[str, Array]:
    """The golden inputs in a bundle, by input name; empty where it has none."""
    with open_bundle(bundle) as opened:
        golden = opened.manifest.golden
        if golden is None:
            return {}
        return {name: opened.array(member).copy() for name, member in golden.inputs.items()}


def _seeded(spec: TensorSpec, golden: Array | None, seed: int) -> Array:
    if golden is not None and seed == 0:
        return golden
    if spec.shape is None or any(d is None for d in spec.shape):
        raise FeedError(f"input '{spec.name}' has no fixed shape", hint="give it with --inputs")
    rng = np.random.default_rng([seed, zlib.crc32(spec.name.encode())])
    shape = tuple(int(d) for d in spec.shape if d is not None)
    if spec.dtype in NARROW:
        return draw_narrow(shape, spec.dtype, rng)
    if golden is not None and golden.size:
        return np.asarray(rng.choice(golden.ravel(), shape)).astype(golden.dtype)
    if spec.dtype.startswith("float"):
        return np.asarray(rng.standard_normal(shape)).astype(spec.dtype)
    raise FeedError(
        f"input '{spec.name}' is {spec.dtype} and the bundle has no golden inputs to draw from",
        hint="give it with --inputs",
    )


def draw_narrow(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Array:
    """Values of a dtype that numpy lacks: 4-bit integers any, floats standard normal."""
    if dtype.endswith("int4"):
        low = 0 if dtype == "uint4" else -8
        return rng.integers(low, low + 16, shape).astype(np.int8).astype(narrow_dtype(dtype))
    return np.asarray(rng.standard_normal(shape).astype(np.float32)).astype(narrow_dtype(dtype))


def read_files(specs: Mapping[str, TensorSpec], given: Sequence[str]) -> dict[str, Array]:
    """Read inputs from `in.npz`, `NAME=file.npy`, `NAME=file.bin`; one input needs no NAME. No dtype is ever cast."""
    feed: dict[str, Array] = {}
    for text in given:
        name, path = _split(text, specs)
        if path.suffix == ".npz":
            feed.update({name: _with_meaning(array, specs.get(name)) for name, array in read_npz(path).items()})
            continue
        if name is None:
            raise UsageError(
                f"'{text}' does not say which input it is for", where="--inputs", hint=f"one of: {', '.join(specs)}"
            )
        if name not in specs:
            raise FeedError(f"there is no input '{name}'", where="--inputs", hint=f"inputs: {', '.join(specs)}")
        feed[name] = _read_array(path, specs[name])
    return feed


def read_npz(path: Path) -> dict[str, Array]:
    """All arrays of an .npz file; FileMissingError or FeedError when it cannot be read."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except OSError as error:
        raise FileMissingError(f"cannot read inputs: {error.strerror or error}", where=str(path)) from error
    except Exception as error:
        # numpy raises ValueError, BadZipFile, EOFError or KeyError, by the way in which the file is broken.
        raise FeedError(f"not an .npz file of plain arrays: {error}", where=str(path)) from error


def _split(text: str, specs: Mapping[str, TensorSpec]) -> tuple[str | None, Path]:
    name, sign, path = text.rpartition("=")
    if sign:
        return name, Path(path)
    return (next(iter(specs)) if len(specs) == 1 else None), Path(text)


def _read_array(path: Path, spec: TensorSpec) -> Array:
    try:
        if path.suffix == ".npy":
            return _with_meaning(np.load(path, allow_pickle=False), spec)
        data = path.read_bytes()
    except OSError as error:
        raise FileMissingError(f"cannot read input '{spec.name}': {error.strerror}", where=str(path)) from error
    except ValueError as error:
        raise FeedError(f"not a plain .npy file: {error}", where=str(path)) from error
    shape = tuple(d for d in spec.shape or () if d is not None)
    dtype = narrow_dtype(spec.dtype) if spec.dtype in NARROW else np.dtype(spec.dtype)
    expected = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if len(data) != expected:
        raise FeedError(
            f"{len(data)} bytes for input '{spec.name}', which is {spec.dtype}{list(shape)} ({expected} bytes)",
            where=str(path),
        )
    return np.frombuffer(data, dtype).reshape(shape)


def _with_meaning(array: Array, spec: TensorSpec | None) -> Array:
    """An array of a dtype that numpy lacks, which .npy holds as bytes without a meaning."""
    if spec is None or spec.dtype not in NARROW or array.dtype.kind != "V":
        return array
    dtype = narrow_dtype(spec.dtype)
    return array.view(dtype) if array.dtype.itemsize == dtype.itemsize else array


def check_writable(target: Path) -> None:
    """Refuse an output path that cannot be written before anything is run."""
    parent = target if target.is_dir() else target.parent
    if not parent.is_dir():
        raise OutputFileError(f"there is no directory '{parent}'", where=str(target), hint="create it first")
    if not os.access(parent, os.W_OK):
        raise OutputFileError("no permission to write there", where=str(target))


def write_outputs(target: Path, results: Mapping[str, Any]) -> None:
    """Write outputs to `out.npz`, or one .npy per output into a directory; all or nothing per file."""
    opaque = [name for name, value in results.items() if not isinstance(value, np.ndarray)]
    if opaque:
        raise OutputFileError(
            f"output '{opaque[0]}' is no tensor and cannot be stored as .npy", where=str(target), hint="use --json"
        )
    narrow = [name for name, value in results.items() if is_narrow(value)]
    if narrow:
        raise OutputFileError(
            f"output '{narrow[0]}' is {results[narrow[0]].dtype}, which .npy has no form for",
            where=str(target),
            hint="use --json",
        )
    if target.suffix == ".npz":
        buffer = io.BytesIO()
        np.savez(buffer, **dict(results))
        atomic_write(target, buffer.getvalue())
        return
    if not target.is_dir():
        raise OutputFileError(
            "neither an .npz file nor a directory", where=str(target), hint="name a file ending in .npz"
        )
    for name, value in results.items():
        buffer = io.BytesIO()
        np.save(buffer, value, allow_pickle=False)
        safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in name)
        atomic_write(target / f"{safe}.npy", buffer.getvalue())
