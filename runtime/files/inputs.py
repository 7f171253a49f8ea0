"""Files of a run's inputs: .npz (`npz.py`), .npy and raw bytes."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from heterocc.artifacts.dtypes import NARROW, container
from heterocc.artifacts.errors import FeedError, FileMissingError, HeteroccError, ShapeOptionError, UsageError
from heterocc.artifacts.files.opening import open_file
from heterocc.artifacts.files.reading import note_read
from heterocc.artifacts.files.source import reading_hint
from heterocc.artifacts.foreign import pass_foreign
from heterocc.artifacts.reader import open_bundle
from heterocc.runtime.execute.narrow import narrow_dtype
from heterocc.runtime.feeds import TensorInfo, dimensions, native, nearest
from heterocc.runtime.files.npz import Tensor, header_of, read_npz
from heterocc.runtime.files.outputs import NAMES, read_names
from heterocc.runtime.files.sequences import gathered
from heterocc.runtime.plan.schedule import numpy_dtype
from heterocc.runtime.session import Session

Array = np.ndarray[Any, Any]


def read_inputs(
    bundle: Path,
    session: Session,
    given: Sequence[str],
    seed: int,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The inputs of a run by name: from the files in `given`, else seeded values.

    Without `given`, seed 0 returns the bundle's golden inputs, if it has them; any other seed draws new inputs from
    their values, which the model is known to accept. Without golden inputs, floats are standard normal. `shapes` and
    `dims` select the shapes of seeded inputs, if the bundle allows several.
    Raises FeedError (HC110), FileMissingError (HC101), ShapeOptionError (HC106) or UsageError (HC120).
    """
    infos = {s.name: s for s in session.inputs}
    if given:
        if shapes or dims:
            raise UsageError(
                "shapes are given for inputs that are read from files", where="--inputs", hint="leave one of them out"
            )
        return read_files(infos, given, [info.name for info in session.replaceable])
    goldens = golden_inputs(bundle, session.bundle.digest)
    wanted = request_shapes(session, goldens, shapes or {}, dims or {})
    fitting = next((g for g in goldens if all(g[n].shape == shape for n, shape in wanted.items() if n in g)), None)
    golden = fitting if fitting is not None else goldens[0] if goldens else {}
    return {name: _seeded(info, wanted.get(name), golden.get(name), seed) for name, info in infos.items()}


def golden_inputs(bundle: Path, digest: str) -> list[dict[str, Array]]:
    """The golden inputs in the bundle with this digest by input name, for each of the shapes that have some."""
    with open_bundle(bundle, expect_digest=digest) as opened:
        return [
            {name: opened.array(member).copy() for name, member in golden.inputs.items()}
            for golden in opened.manifest.all_goldens
        ]


def request_shapes(
    session: Session,
    goldens: Sequence[Mapping[str, Array]],
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, int],
) -> dict[str, tuple[int, ...]]:
    """The shapes of seeded inputs by name: as requested, else those of the bundle's first variant or golden inputs.

    Inputs whose shape is not known are left out. Raises ShapeOptionError (HC106) for an unknown name or another rank.
    """
    infos = {info.name: info for info in session.inputs}
    named = dict.fromkeys(d for info in infos.values() for d in info.shape or () if isinstance(d, str))
    for kind, found, known in (("input", shapes, infos), ("dynamic dimension", dims, named)):
        for name in found:
            if name not in known:
                raise ShapeOptionError(
                    f"the bundle has no {kind} '{name}'", where=str(session.bundle.path), hint=nearest(name, known)
                )
    sizes = dict(dims)
    for name, shape in shapes.items():
        want = infos[name].shape
        if want is not None and len(want) != len(shape):
            raise ShapeOptionError(
                f"shape {name}={','.join(map(str, shape))} has {dimensions(len(shape))}, the input has {len(want)}",
                where=str(session.bundle.path),
            )
        sizes.update((d, size) for d, size in zip(want or (), shape, strict=False) if isinstance(d, str))
    found_shapes: dict[str, tuple[int, ...]] = {}
    first = session.variants[0]
    for (name, info), value in zip(infos.items(), first.inputs, strict=True):
        base: Sequence[int | str | None] | None = first.values[value].shape
        if name in shapes:
            found_shapes[name] = tuple(shapes[name])
            continue
        if base is None or any(not isinstance(d, int) for d in base):
            base = goldens[0][name].shape if goldens and name in goldens[0] else base
        if base is None:
            continue
        places = zip(info.shape or base, base, strict=True)
        filled = [sizes.get(dim, size) if isinstance(dim, str) else size for dim, size in places]
        numbers = tuple(size for size in filled if isinstance(size, int))
        if len(numbers) == len(filled):
            found_shapes[name] = numbers
    return found_shapes


def _seeded(info: TensorInfo, shape: tuple[int, ...] | None, golden: Array | None, seed: int) -> Array:
    if golden is not None and (seed == 0 or container(info.dtype)) and shape in (None, golden.shape):
        return golden
    if container(info.dtype):
        raise FeedError(
            f"input '{info.name}' is {info.dtype}, which cannot be drawn at random",
            hint=f"give it with --inputs: an .npz file with the arrays '{info.name}[0]', '{info.name}[1]', …",
        )
    if shape is None:
        raise FeedError(f"input '{info.name}' has no fixed shape", hint="give it with --inputs or --shape")
    rng = np.random.default_rng([seed, zlib.crc32(info.name.encode())])
    if info.dtype in NARROW:
        return draw_narrow(shape, info.dtype, rng)
    if golden is not None and golden.size:
        return np.asarray(rng.choice(golden.ravel(), shape)).astype(golden.dtype)
    if info.dtype.startswith("float"):
        return np.asarray(rng.standard_normal(shape)).astype(info.dtype)
    raise FeedError(
        f"input '{info.name}' is {info.dtype}, and the bundle has no golden inputs to draw values from",
        hint="give it with --inputs",
    )


def draw_narrow(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Array:
    """Random values of a dtype that numpy lacks: uniform 4-bit integers, standard normal floats."""
    if dtype.endswith("int4"):
        low = 0 if dtype == "uint4" else -8
        return rng.integers(low, low + 16, shape).astype(np.int8).astype(narrow_dtype(dtype))
    return np.asarray(rng.standard_normal(shape).astype(np.float32)).astype(narrow_dtype(dtype))


def read_files(
    specs: Mapping[str, Tensor], given: Sequence[str], others: Collection[str] | None = ()
) -> dict[str, Any]:
    """Read inputs from `in.npz`, `NAME=file.npy`, `NAME=file.bin`, or a directory of .npy files.

    A single input needs no NAME. No dtype is ever cast. `sequences` says how arrays are called that are sequences.
    An .npz file may have arrays of the names in `others`; without these any, which are not read.
    """
    feed: dict[str, Array] = {}
    for text in given:
        name, path = _split(text, specs)
        if path.suffix.lower() == ".npz":
            arrays = read_npz(path, specs, others)
            feed.update({name: _with_meaning(array, specs.get(name)) for name, array in arrays.items()})
            continue
        if path.is_dir():
            feed.update(_read_folder(path, specs))
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
    return gathered(((name, spec.dtype) for name, spec in specs.items()), feed)


def _read_folder(folder: Path, specs: Mapping[str, Tensor]) -> dict[str, Array]:
    """The arrays that `write_outputs` wrote into a directory."""
    try:
        listed = folder / NAMES
        names = read_names(listed.read_bytes()) if listed.is_file() else {}
    except (OSError, ValueError) as error:
        pass_foreign(error)
        raise FeedError(f"{NAMES} cannot be read: {error}", where=str(folder)) from error
    files = {names.get(file.name, file.stem): file for file in sorted(folder.glob("*.npy"))}
    return {name: _read_array(file, specs.get(name)) for name, file in files.items()}


def input_files(given: Sequence[str]) -> dict[str | os.PathLike[str], str]:
    """The files named by `--inputs`, with their role."""
    return {text.rpartition("=")[2]: "a file of inputs" for text in given}


def _split(text: str, specs: Mapping[str, Tensor]) -> tuple[str | None, Path]:
    name, sign, path = text.rpartition("=")
    if sign:
        return name, Path(path)
    return (next(iter(specs)) if len(specs) == 1 else None), Path(text)


def _read_array(path: Path, spec: Tensor | None) -> Array:
    """The array in an .npy file, or in a file of raw bytes of the input `spec`."""
    note_read(path, "a file of inputs")
    try:
        if spec is None or path.suffix == ".npy":
            with open_file(path) as stream:
                if path.is_file():
                    header_of(stream).require_fits(spec, path, path.stat().st_size)
                    stream.seek(0)
                return _with_meaning(native(np.lib.format.read_array(stream, allow_pickle=False)), spec)
        with open_file(path) as stream:
            expected = _raw_bytes(spec, path)
            data = stream.read(expected + 1)
            longer = len(data) + _rest(stream) - expected
    except HeteroccError:
        raise
    except OSError as error:
        pass_foreign(error)
        what = "inputs" if spec is None else f"input '{spec.name}'"
        text = f"cannot read {what}: {error.strerror}"
        raise FileMissingError(text, where=str(path), hint=reading_hint(error)) from error
    except Exception as error:
        pass_foreign(error)
        # numpy raises ValueError, TypeError, EOFError or MemoryError, depending on the damage.
        raise FeedError(f"not a plain .npy file: {error}", where=str(path)) from error
    if longer:
        raise FeedError(
            f"{expected + longer} bytes for input '{spec.name}', which is {spec.dtype}{list(spec.shape or ())} "
            f"({expected} bytes)",
            where=str(path),
        )
    return np.frombuffer(data, _raw_dtype(spec)).reshape([int(d) for d in spec.shape or () if isinstance(d, int)])


def _raw_dtype(spec: Tensor) -> np.dtype[Any] | None:
    return narrow_dtype(spec.dtype) if spec.dtype in NARROW else numpy_dtype(spec.dtype)


def _raw_bytes(spec: Tensor, path: Path) -> int:
    """The bytes of an input in a file of raw bytes; FeedError if these cannot represent it."""
    dtype = _raw_dtype(spec)
    if dtype is None:
        raise FeedError(
            f"input '{spec.name}' is {spec.dtype}, which raw bytes cannot represent",
            where=str(path),
            hint="give it as .npy",
        )
    sizes = [d for d in spec.shape or () if isinstance(d, int)]
    if spec.shape is None or len(sizes) < len(spec.shape):
        raise FeedError(
            f"input '{spec.name}' has dynamic dimensions, and raw bytes have no shape",
            where=str(path),
            hint="give it as .npy",
        )
    return math.prod(sizes) * dtype.itemsize


def _rest(stream: IO[bytes]) -> int:
    """The bytes of a file that have not been read."""
    read = stream.tell()
    return max(0, stream.seek(0, os.SEEK_END) - read)


def _with_meaning(array: Array, spec: Tensor | None) -> Array:
    """Restore the dtype of an array whose dtype numpy lacks, which .npy stores as raw bytes."""
    if spec is None or spec.dtype not in NARROW or array.dtype.kind != "V":
        return array
    dtype = narrow_dtype(spec.dtype)
    return array.view(dtype) if array.dtype.itemsize == dtype.itemsize else array
