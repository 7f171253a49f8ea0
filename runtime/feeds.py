"""Checks of a session's inputs before a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn, SupportsIndex, overload

import numpy as np

from heterocc.artifacts.dtypes import NARROW, Container, container, is_text
from heterocc.artifacts.errors import FeedError, Hint
from heterocc.artifacts.frozen import frozen
from heterocc.artifacts.manifest import TensorSpec
from heterocc.runtime.plan.schedule import numpy_dtype
from heterocc.runtime.sizes import Place, Sizes

Array = np.ndarray[Any, Any]

Feed = Mapping[str, Any] | Array | Sequence[Any]
"""Arrays by name of input, the array of the only input, or arrays in the order of the inputs."""


@frozen
class TensorInfo:
    """A model input or output: `dtype` is numpy's name, or ONNX's type text.

    A dynamic dimension in `shape` is its name, or None if it has none. `sizes` has the allowed sizes of each dynamic
    dimension of an input, and None for the others. A sequence or an optional value has no shape; `elements` is that of
    its tensors, as far as it is known.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None
    sizes: tuple[Sizes | None, ...] = ()
    elements: tuple[int | None, ...] | None = None

    @classmethod
    def of(cls, spec: TensorSpec) -> TensorInfo:
        """From a manifest record."""
        return cls(spec.name, spec.dtype, spec.shape, elements=spec.elements)

    @classmethod
    def of_input(cls, spec: TensorSpec, places: Sequence[Place] | None) -> TensorInfo:
        """From a manifest record, and the dimensions of the input over all variants."""
        if places is None:
            return cls.of(spec)
        sizes = tuple(place.sizes for place in places)
        return cls(
            spec.name,
            spec.dtype,
            tuple(place.dim for place in places),
            sizes if any(s is not None for s in sizes) else (),
        )

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype} {self.shape_text()}"

    def shape_text(self) -> str:
        """`[batch (1 or 8), 3, ?]`, or `any shape`; `of [3, ?]` if its tensors have shapes of this form."""
        if self.elements is not None:
            return f"of [{', '.join('?' if dim is None else str(dim) for dim in self.elements)}]"
        if self.shape is None:
            return "any shape"
        sizes = self.sizes or (None,) * len(self.shape)
        dims = (
            ("?" if dim is None else str(dim)) + (f" ({allowed})" if allowed is not None else "")
            for dim, allowed in zip(self.shape, sizes, strict=True)
        )
        return f"[{', '.join(dims)}]"


class Tensors(tuple[TensorInfo, ...]):
    """The inputs or outputs of a model, in its order; also by name: `session.inputs["image"]`."""

    __slots__ = ()

    @overload
    def __getitem__(self, key: str | SupportsIndex, /) -> TensorInfo: ...
    @overload
    def __getitem__(self, key: slice, /) -> tuple[TensorInfo, ...]: ...

    def __getitem__(self, key: Any, /) -> Any:
        """The tensor of a name or place. Raises KeyError, which names the one that is spelled alike, or IndexError."""
        if not isinstance(key, str):
            return super().__getitem__(key)
        for info in self:
            if info.name == key:
                return info
        hint = nearest(key, [info.name for info in self])
        raise KeyError(f"no tensor '{key}'" + (f"; {hint}" if hint else ""))


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the most similar known name, or the known names."""
    import difflib  # not at the top: only errors need it

    names = list(known)
    # The time grows with both; what a client sends must not keep a service from others.
    close = difflib.get_close_matches(name, names[:200], 1, 0.5) if len(name) <= 200 else []
    if close:
        return f"did you mean '{close[0]}'?"
    shown = ", ".join(f"'{n}'" for n in names[:8]) + (", …" if len(names) > 8 else "")
    return f"known names: {shown}" if names else "the model has none"


def native(array: Array) -> Array:
    """The array in this machine's byte order; a copy only if it is in the other."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


class InputCheck:
    """Turns one input of a feed into a numpy array of exactly the model's dtype and shape, or raises FeedError."""

    __slots__ = ("dtype", "info", "inside", "shape", "where")

    def __init__(self, info: TensorInfo, where: str, *, inside: bool = False) -> None:
        """`inside` says that the array is one of a sequence or an optional value."""
        self.inside = inside
        self.info = info
        self.where = where
        self.dtype = numpy_dtype(info.dtype)
        self.shape = info.shape if self.dtype is not None and _is_static(info.shape) else None

    def __call__(self, given: Any) -> Any:
        """The array itself, or a view of another library's tensor in host memory; native byte order, never a cast."""
        if isinstance(given, np.ndarray) and given.dtype == self.dtype and given.shape == self.shape:
            return given
        if self.dtype is None:
            return self._check_text_or_object(given)
        array = native(self._as_array(given))
        if array.dtype != self.dtype:
            self._refuse("dtype", self.info.dtype, array.dtype.name, self._dtype_hint(array))
        if not self.fits(array.shape):
            self._refuse_shape(array)
        return array

    def _as_array(self, given: Any) -> Array:
        if isinstance(given, (np.ndarray, np.generic)):
            return np.asarray(given)
        if not hasattr(given, "__dlpack__"):
            hint = f"convert it: np.asarray(value, dtype='{self.info.dtype}')"
            self._refuse("a numpy array", "", type(given).__name__, hint)
        try:
            return np.from_dlpack(given)
        except (BufferError, RuntimeError, TypeError) as error:
            got = f"{type(given).__name__} ({error})"
            if getattr(given, "requires_grad", False):
                self._refuse("a tensor without a gradient", "", got, "give tensor.detach()")
            if "bfloat16" in str(getattr(given, "dtype", "")):
                hint = f"numpy has no bfloat16: give tensor.float().numpy() as {self.info.dtype}"
                if self.info.dtype == "bfloat16":
                    hint = "give tensor.float().numpy().astype(ml_dtypes.bfloat16)"
                self._refuse("a tensor of a dtype that numpy has", "", got, hint)
            if str(getattr(given, "device", "")) == "cpu":
                hint = f"give a dense array of a dtype that numpy has, as {self.info.dtype}"
                self._refuse("a tensor that numpy can read", "", got, hint)
            self._refuse("a tensor in host memory", "", got, "copy it to the CPU first")

    def _check_text_or_object(self, given: Any) -> Any:
        if self.info.dtype in NARROW:
            return self._check_narrow(given)
        held = container(self.info.dtype)
        if held is not None:
            return self._check_contained(given, held)
        text = is_text(self.info.dtype)
        if text and not (isinstance(given, np.ndarray) and given.dtype.kind in "UOST"):
            self._refuse("a numpy array of strings", "", type(given).__name__, "np.array([...], dtype=object)")
        if text and not self.fits(given.shape):
            self._refuse("shape", self.info.shape_text(), str(list(given.shape)), None)
        return native(given) if isinstance(given, np.ndarray) else given

    def _check_contained(self, given: Any, held: Container) -> Any:
        """Check a sequence, a list or tuple of arrays, or an optional value, which may be None."""
        if held.optional and given is None:
            return None
        shape = self.info.elements
        if not held.sequence:
            return InputCheck(TensorInfo(self.info.name, held.dtype, shape), self.where, inside=True)(given)
        if not isinstance(given, (list, tuple)):
            kind = "a list of arrays or None" if held.optional else "a list of arrays"
            self._refuse(kind, "", type(given).__name__, f"its type is {self.info.dtype}")
        found = []
        for number, item in enumerate(given):
            check = InputCheck(TensorInfo(f"{self.info.name}[{number}]", held.dtype, shape), self.where, inside=True)
            found.append(check(item))
        return found

    def _check_narrow(self, given: Any) -> Array:
        """Check an array with a dtype of ml_dtypes, which numpy itself does not have."""
        if not isinstance(given, np.ndarray) or given.dtype.name != self.info.dtype:
            got = given.dtype.name if isinstance(given, np.ndarray) else type(given).__name__
            self._refuse("dtype", self.info.dtype, got, f"array.astype(ml_dtypes.{self.info.dtype})")
        if not self.fits(given.shape):
            self._refuse_shape(given)
        return given

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether the model takes an array of this shape here."""
        want = self.info.shape
        return want is None or (len(want) == len(shape) and self._wrong(shape) is None)

    def _wrong(self, shape: Sequence[int]) -> int | None:
        """The first dimension whose size is not allowed."""
        allowed = self.info.sizes
        for index, (want, size) in enumerate(zip(self.info.shape or (), shape, strict=True)):
            if want != size if isinstance(want, int) else allowed and size not in (allowed[index] or (size,)):
                return index
        return None

    def _refuse_shape(self, array: Array) -> NoReturn:
        want, sizes = self.info.shape or (), self.info.sizes
        wrong = self._wrong(array.shape) if len(want) == len(array.shape) else None
        allowed = sizes[wrong] if wrong is not None and sizes else None
        if wrong is None or allowed is None:
            self._refuse("shape", self.info.shape_text(), str(list(array.shape)), self._shape_hint(array))
        name, size = want[wrong], array.shape[wrong]
        label = f"dimension {wrong}" if name is None else f"dimension '{name}'"
        raise FeedError(
            f"{label} of input '{self.info.name}' must be {allowed}, got {size}",
            where=self.where,
            hint=another_size(self.info, wrong, size),
        )

    def _dtype_hint(self, array: Array) -> str:
        return f"cast it, if that is intended: array.astype('{self.info.dtype}')"

    def _shape_hint(self, array: Array) -> str | None:
        want = self.info.shape or ()
        given = [d for d in want if isinstance(d, int)]
        if len(array.shape) + 1 == len(want) and tuple(array.shape) == tuple(want[1:]) and want[0] == 1:
            return "the batch dimension is missing: array[None]"
        if len(given) == len(want) and sorted(given) == sorted(array.shape):
            return "the dimensions are in another order: np.transpose"
        if self.inside:
            return "these are the shapes that the model's type for it says"
        if len(want) != len(array.shape):
            if not want:
                return "give an array without dimensions" + (": array.reshape(())" if array.size == 1 else "")
            return f"give an array of {dimensions(len(want))}"
        return Hint(
            f"compile the model again for another size: compile_model(…, shapes={{'{self.info.name}': …}})",
            f"compile the model again for another size: --shape {self.info.name}=…",
        )

    def _refuse(self, what: str, expected: str, got: str, hint: str | None) -> NoReturn:
        wanted = f"{what} {expected}" if expected else what
        raise FeedError(
            f"input '{self.info.name}' must have {wanted}, got {got}"
            if expected
            else f"input '{self.info.name}' must be {wanted}, got {got}",
            where=self.where,
            hint=hint,
        )


class FeedCheck:
    """Checks a feed: all inputs are present, all names are known, and all dtypes and shapes are correct."""

    __slots__ = ("_expected", "_ties", "checks", "defaults", "names", "where")

    def __init__(self, infos: Sequence[TensorInfo], where: str, defaults: Mapping[str, Any] | None = None) -> None:
        """`defaults` are the values of inputs that a feed may leave out."""
        self.where = where
        self.defaults = dict(defaults or {})
        self.names = tuple(i.name for i in infos)
        self.checks = tuple(InputCheck(i, where) for i in infos)
        self._expected = tuple((c.info.name, c.dtype, c.shape) for c in self.checks)
        self._ties = _ties(infos)

    def __call__(self, feed: Feed) -> list[Any]:
        """The inputs in model order."""
        if type(feed) is dict and len(feed) == len(self.names):
            given = []
            for name, dtype, shape in self._expected:
                value = feed.get(name)
                if type(value) is not np.ndarray or value.dtype is not dtype or value.shape != shape:
                    break
                given.append(value)
            else:
                if self._ties:
                    self._check_ties(given)
                return given
        return self._converted(feed)

    def _converted(self, feed: Feed) -> list[Any]:
        """The inputs of a feed that needs conversions, or that is refused."""
        if not isinstance(feed, Mapping):
            feed = self._by_name(feed)
        if self.defaults:
            feed = {**self.defaults, **feed}
        if len(feed) != len(self.names):
            self._refuse_names(feed)
        try:
            given = [feed[name] for name in self.names]
        except KeyError:
            self._refuse_names(feed)
            raise
        given = [check(value) for check, value in zip(self.checks, given, strict=True)]
        if self._ties:
            self._check_ties(given)
        return given

    def _by_name(self, given: Any) -> Mapping[str, Any]:
        """A feed from the array of the only input, or from arrays in the order of the inputs."""
        hint = "session.run({" + ", ".join(f"'{n}': array" for n in self.names[:3]) + "})"
        if isinstance(given, (list, tuple)):
            values = given
        elif isinstance(given, (np.ndarray, np.generic)) or hasattr(given, "__dlpack__"):
            values = (given,)
        else:
            raise FeedError(
                f"inputs must be a mapping, an array, or a list of arrays, got {type(given).__name__}",
                where=self.where,
                hint=hint,
            )
        if values and all(isinstance(value, str) for value in values):
            raise FeedError(
                "a list of texts was given in place of arrays",
                where=self.where,
                hint=f"with names of outputs the inputs come second: session.run(names, inputs); or {hint}",
            )
        names = self.names
        if len(values) != len(names):  # those that have values of their own may be left out
            names = tuple(name for name in names if name not in self.defaults)
        if len(values) != len(names):
            inputs = "1 input" if len(self.names) == 1 else f"{len(self.names)} inputs"
            raise FeedError(
                f"the model has {inputs}, got {len(values)} array{'s' * (len(values) != 1)}",
                where=self.where,
                hint="the model's inputs: " + "; ".join(str(check.info) for check in self.checks),
            )
        return dict(zip(names, values, strict=True))

    def _check_ties(self, arrays: Sequence[Any]) -> None:
        for name, ((first, place), *others) in self._ties.items():
            size = arrays[first].shape[place]
            for other, index in others:
                there = arrays[other].shape[index]
                if there != size:
                    raise FeedError(
                        f"dimension '{name}' is {size} in '{self.names[first]}' and {there} in '{self.names[other]}'",
                        where=self.where,
                        hint="dimensions of one name have the same size in all inputs",
                    )

    def _refuse_names(self, feed: Mapping[str, Any]) -> None:
        for name in feed:
            if name not in self.names:
                raise FeedError(
                    f"the model has no input '{name}'", where=self.where, hint=nearest(str(name), self.names)
                )
        missing = [name for name in self.names if name not in feed]
        if missing:
            infos = {c.info.name: str(c.info) for c in self.checks}
            raise FeedError(
                f"input '{missing[0]}' is missing",
                where=self.where,
                hint="the model's inputs: " + "; ".join(infos[n] for n in self.names),
            )


def another_size(info: TensorInfo, place: int, size: int) -> Hint | str:
    """The hint for a size of an input's dimension for which the bundle has no code."""
    name = (info.shape or ())[place]
    sizes = info.sizes[place] if info.sizes else None
    allowed = None if sizes is None else sizes.range
    if isinstance(name, str) and allowed is not None:
        if size % allowed.step:
            near = max(size // allowed.step * allowed.step, allowed.min)
            return f"give a size such as {near} or {near + allowed.step}"
        if size == 0 or allowed.max is None:
            return f"give a size of {allowed.min} or more"
        low, high = min(size, allowed.min), max(size, allowed.max)
        again = f"give a size from {allowed.min} to {allowed.max}; if the model takes others, compile it again with "
        return Hint(f"{again}dims={{'{name}': ({low}, {high})}}", f"{again}--dim {name}={low}..{high}")
    if isinstance(name, str):
        return Hint(
            f"compile the model again for this size, too: hints={{'{name}': (…, {size})}}",
            f"compile the model again for this size, too: --hint {name}=…,{size}",
        )
    return Hint(
        f"compile the model again for this size, too: shape_sets=[{{'{info.name}': …}}, …]",
        f"compile the model again for this size, too: --shapes {info.name}=…",
    )


def dimensions(count: int) -> str:
    """`1 dimension`, `2 dimensions`."""
    return "1 dimension" if count == 1 else f"{count} dimensions"


def _ties(infos: Sequence[TensorInfo]) -> dict[str, list[tuple[int, int]]]:
    """The names of dimensions that occur more than once, with the numbers of their inputs and places."""
    found: dict[str, list[tuple[int, int]]] = {}
    for number, info in enumerate(infos):
        for place, dim in enumerate(info.shape or ()):
            if isinstance(dim, str):
                found.setdefault(dim, []).append((number, place))
    return {name: places for name, places in found.items() if len(places) > 1}


def _is_static(shape: Sequence[int | str | None] | None) -> bool:
    return shape is not None and all(isinstance(d, int) for d in shape)
