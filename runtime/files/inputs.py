"""Files of a run's inputs: npz, npy and raw bytes."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heterocc.artifacts.dtypes import NARROW
from heterocc.artifacts.errors import FeedError, FileMissingError, UsageError
from heterocc.artifacts.files.filetype import HEAD, file_kind
from heterocc.artifacts.files.reading import note_read
from heterocc.artifacts.manifest import TensorSpec
from heterocc.artifacts.reader import open_bundle
from heterocc.runtime.execute.narrow import narrow_dtype
from heterocc.runtime.feeds import native
from heterocc.runtime.files.outputs import NAMES, read_names
from heterocc.runtime.plan.schedule import numpy_dtype

Array = np.ndarray[Any, Any]


def read_inputs(bundle: Path, session: Any, given: Sequence[str], seed: int) -> dict[str, Array]:
    """The inputs of a run by name: from the files in `given`, else seeded values.

    Without `given`, seed 0 returns the bundle's golden inputs, if it has them; any other seed draws new inputs from
    their values, which the model is known to accept. Without golden inputs, floats are standard normal.
    Raises FeedError (HC110), FileMissingError (HC101) or UsageError (HC120).
    """
    specs: dict[str, TensorSpec] = {s.name: s for s in session.inputs}
    if given:
        return read_files(specs, given)
    golden = golden_inputs(bundle, session.bundle.digest)
    return {name: _seeded(spec, golden.get(name), seed) for name, spec in specs.items()}


def golden_inputs(bundle: Path, digest: str) -> dict[str, Array]:
    """The golden inputs in the bundle with this digest by input name; empty if it has none."""
    with open_bundle(bundle, expect_digest=digest) as opened:
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
        f"input '{spec.name}' is {spec.dtype}, and the bundle has no golden inputs to draw values from",
        hint="give it with --inputs",
    )


def draw_narrow(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Array:
    """Random values of a dtype that numpy lacks: uniform 4-bit integers, standard normal floats."""
    if dtype.endswith("int4"):
        low = 0 if dtype == "uint4" else -8
        return rng.integers(low, low + 16, shape).astype(np.int8).astype(narrow_dtype(dtype))
    return np.asarray(rng.standard_normal(shape).astype(np.float32)).astype(narrow_dtype(dtype))


def read_files(specs: Mapping[str, TensorSpec], given: Sequence[str]) -> dict[str, Array]:
    """Read inputs from `in.npz`, `NAME=file.npy`, `NAME=file.bin`, or a directory of .npy files.

    A single input needs no NAME. No dtype is ever cast.
    """
    feed: dict[str, Array] = {}
    for text in given:
        name, path = _split(text, specs)
        if path.suffix.lower() == ".npz":
            feed.update({name: _with_meaning(array, specs.get(name)) for name, array in read_npz(path).items()})
            continue
        if path.is_dir():
            feed.update(_read_folder(path))
            continue
        if name is None:
            raise UsageError(
                f"'{text}' does not name its input",
                where="--inputs",
                hint=f"write NAME={text}; inputs: {', '.join(specs)}",
            )
        if name not in specs:
            raise FeedError(f"there is no input '{name}'", where="--inputs", hint=f"inputs: {', '.join(specs)}")
        feed[name] = _read_array(path, specs[name])
    return feed


def read_npz(path: Path) -> dict[str, Array]:
    """All arrays of an .npz file, in native byte order; FileMissingError or FeedError when it cannot be read."""
    note_read(path, "the file of inputs")
    try:
        # numpy.load is not used, because it confuses names that end in .npy.
        with zipfile.ZipFile(path) as archive:
            names = read_names(archive.read(NAMES)) if NAMES in archive.namelist() else {}
            members = [m for m in archive.namelist() if m != NAMES]
            return {names.get(m, m.removesuffix(".npy")): _read_member(archive, m) for m in members}
    except OSError as error:
        raise FileMissingError(f"cannot read inputs: {error.strerror or error}", where=str(path)) from error
    except Exception as error:
        # numpy and zipfile raise ValueError, BadZipFile, EOFError or KeyError, depending on the damage.
        with path.open("rb") as stream:
            kind = file_kind(stream.read(HEAD))
        found = f"it is {kind}" if kind and not zipfile.is_zipfile(path) else str(error)
        raise FeedError(f"not an .npz file of plain arrays: {found}", where=str(path)) from error


def _read_member(archive: zipfile.ZipFile, member: str) -> Array:
    with archive.open(member) as stream:
        return native(np.lib.format.read_array(stream, allow_pickle=False))


def _read_folder(folder: Path) -> dict[str, Array]:
    """The arrays that `write_outputs` wrote into a directory."""
    try:
        listed = folder / NAMES
        names = read_names(listed.read_bytes()) if listed.is_file() else {}
    except (OSError, ValueError) as error:
        raise FeedError(f"{NAMES} cannot be read: {error}", where=str(folder)) from error
    files = sorted(folder.glob("*.npy"))
    return {names.get(file.name, file.stem): _read_array(file, None) for file in files}


def input_files(given: Sequence[str]) -> dict[str | os.PathLike[str], str]:
    """The files named by `--inputs`, with their role."""
    return {text.rpartition("=")[2]: "a file of inputs" for text in given}


def _split(text: str, specs: Mapping[str, TensorSpec]) -> tuple[str | None, Path]:
    name, sign, path = text.rpartition("=")
    if sign:
        return name, Path(path)
    return (next(iter(specs)) if len(specs) == 1 else None), Path(text)


def _read_array(path: Path, spec: TensorSpec | None) -> Array:
    """The array in an .npy file, or in a file of raw bytes of the input `spec`."""
    note_read(path, "a file of inputs")
    try:
        if spec is None or path.suffix == ".npy":
            with path.open("rb") as stream:
                return _with_meaning(native(np.lib.format.read_array(stream, allow_pickle=False)), spec)
        data = path.read_bytes()
    except OSError as error:
        what = "inputs" if spec is None else f"input '{spec.name}'"
        raise FileMissingError(f"cannot read {what}: {error.strerror}", where=str(path)) from error
    except Exception as error:
        # numpy raises ValueError, TypeError, EOFError or MemoryError, depending on the damage.
        raise FeedError(f"not a plain .npy file: {error}", where=str(path)) from error
    dtype = narrow_dtype(spec.dtype) if spec.dtype in NARROW else numpy_dtype(spec.dtype)
    if dtype is None:
        raise FeedError(
            f"input '{spec.name}' is {spec.dtype}, which raw bytes cannot represent",
            where=str(path),
            hint="give it as .npy",
        )
    shape = tuple(d for d in spec.shape or () if d is not None)
    expected = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if len(data) != expected:
        raise FeedError(
            f"{len(data)} bytes for input '{spec.name}', which is {spec.dtype}{list(shape)} ({expected} bytes)",
            where=str(path),
        )
    return np.frombuffer(data, dtype).reshape(shape)


def _with_meaning(array: Array, spec: TensorSpec | None) -> Array:
    """Restore the dtype of an array whose dtype numpy lacks, which .npy stores as raw bytes."""
    if spec is None or spec.dtype not in NARROW or array.dtype.kind != "V":
        return array
    dtype = narrow_dtype(spec.dtype)
    return array.view(dtype) if array.dtype.itemsize == dtype.itemsize else array
