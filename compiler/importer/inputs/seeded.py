"""Seeded inputs, drawn from the domains that the model implies."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from heterocc.artifacts.dtypes import NARROW, container
from heterocc.artifacts.errors import Hint, InputError
from heterocc.compiler.importer.inputs.domains import Domains, draw
from heterocc.compiler.symbolic.containers import Elements, elements_of
from heterocc.passes.graph import Value
from heterocc.runtime.files.inputs import draw_narrow

DRAWS = 4
"""The number of ways to draw an input of unknown domain, tried in order if the results of earlier ones show little.

In order, floats are standard normal, from 0 to 1, from 0 to 255, and small; integers are 1, 1, 0 and 2.
"""


_TEXTS = ("a", "Text", "of words", "1")
"""Texts that the model does not say."""

SIZES = (2, 1, 3, 4)
"""Sizes of tensors in sequences that the model does not say, by way."""


def draw_inputs(
    proto: onnx.ModelProto,
    inputs: Mapping[str, Value],
    constants: Mapping[str, np.ndarray[Any, Any]],
    seed: int,
    *,
    sources: Mapping[str, str] | None = None,
    way: int = 0,
) -> dict[str, Any]:
    """Draw an array for each graph input, three for a sequence: the same for the same seed, name and `way`.

    Inputs with a known domain (see Domains) are drawn from it. Of the others, floats are standard normal, booleans and
    8-bit integers uniform, texts short words, and other integers 1, which is valid as a mask, a length and a count;
    another `way` draws floats and integers as DRAWS describes. `sources` are the model's own names of inputs. Optional
    inputs are there; sizes of tensors in sequences that the model does not say are 2, or those of SIZES for another
    `way`.

    Raises InputError for an input whose type cannot be drawn (map, sequence of tensors of unknown rank).
    """
    domains = Domains(proto, constants, inputs)
    names = sources or {}
    held = {info.name: elements_of(info.type) for info in proto.graph.input}
    return {
        name: _draw_all(value, held.get(name), names.get(name, name), domains, seed, way)
        for name, value in inputs.items()
    }


def _draw_all(
    value: Value, held: Elements | None, source: str, domains: Domains, seed: int, way: int
) -> np.ndarray[Any, Any] | list[np.ndarray[Any, Any]]:
    kind = container(value.dtype)
    if kind is None or held is None or held.shape is None:
        return _draw(value, source, domains, seed, way)
    shape = tuple(SIZES[way] if size is None else size.number for size in held.shape)
    tensors = [Value(f"{value.name}.{number}", kind.dtype, shape) for number in range(3)]
    drawn = [_draw(tensor, source, domains, seed, way) for tensor in tensors]
    return drawn if kind.sequence else drawn[0]


def _draw(value: Value, source: str, domains: Domains, seed: int, way: int) -> np.ndarray[Any, Any]:
    if not value.is_static and (not value.is_opaque or value.dtype == "string"):
        raise InputError(
            f"input '{source}' has dynamic dimensions, and no shapes were found with which ONNX Runtime runs the model",
            hint=Hint("give inputs in a file: inputs='in.npz'", "give inputs with --inputs"),
        )
    shape = value.numbers
    if (value.is_opaque and value.dtype not in (*NARROW, "string")) or shape is None:
        raise InputError(
            f"inputs of type {value.dtype} cannot be drawn at random",
            where=f"input '{source}'",
            hint=Hint("give it in a file: inputs='in.npz'", "give it with --inputs"),
        )
    # Each input has its own stream, so that adding an input does not change the others.
    rng = np.random.default_rng([seed, zlib.crc32(value.name.encode()), *([way] if way else [])])
    if value.dtype in NARROW:
        return draw_narrow(shape, value.dtype, rng)
    known = domains.of(value, source)
    if known is not None:
        return draw(known, shape, value.dtype, rng)
    if value.dtype.startswith("float"):
        return _reals(shape, rng, way).astype(value.dtype)
    if value.dtype == "string":
        return rng.choice(np.array(_TEXTS), shape).astype(object)
    if value.dtype == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if value.dtype in ("uint8", "int8"):
        low, high = (0, 256) if value.dtype == "uint8" else (-128, 128)
        return rng.integers(low, high, shape).astype(value.dtype)
    return np.full(shape, (1, 1, 0, 2)[way], value.dtype)


def _reals(shape: tuple[int, ...], rng: np.random.Generator, way: int) -> np.ndarray[Any, Any]:
    if way in (1, 2):
        return np.asarray(rng.uniform(0.0, (1.0, 255.0)[way - 1], shape))
    return np.asarray(rng.standard_normal(shape) * (0.01 if way else 1.0))
