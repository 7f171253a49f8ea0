"""Proposals of shapes for dynamic inputs: plausible shapes with which ONNX Runtime can run the model, soon."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx

from heterocc.compiler.importer.draft.draft import Draft, value_of
from heterocc.compiler.importer.estimates.runs import MOST_WORK, Work
from heterocc.compiler.importer.shapes.expressions import size_of, word_for
from heterocc.compiler.importer.shapes.trials import Shapes, clock_of_this_thread, runner

SECONDS = 6.0
"""The time limit of all trials together in seconds of one core, which other processes do not add to, for a model whose
weights are real numbers."""
_CODES_IN_A_SECOND = 1 << 23
"""The bytes of other weights that a further second is for: each trial dequantises them, as nothing is optimised."""

MOST_AT_LEAST = Work(8 * MOST_WORK.flops, 4 * MOST_WORK.nbytes)
"""The most work of a trial of a model that has more than MOST_WORK at all sizes."""

_SIZES = ((224, 128), (256, 64), (640, 512), (32, 8), (512, 16), (28, 1), (96, 32), (299, 10))
"""The side of images in pixels and the length of sequences in one trial, most plausible first."""
_KERNEL = 3
"""The side of a kernel that is an input: one as large as an image takes gigabytes."""
_UNKNOWN_RANK = ((1, 3, 224, 224), (1, 128), (1, 3, 224), (1,))
_SMALLER = (129, 128, 97, 96, 65, 64, 33, 32, 17, 16, 9, 8, 5, 4, 2, 1)
"""Sizes in place of those with which a run would be too much work: odd ones first, as fewer mistakes hide in them."""
_MOST_SMALLER = 4
"""How many of them are tried."""
_FRACTIONS = _SMALLER[_SMALLER.index(65) :]
"""Those that are tried after a run that took too long."""
_MOST_HINTS = 6
_HOPS = 4
"""The largest distance in nodes from an input to a weight that suggests its dimensions."""

_PARTS = (16, 9)
"""The sizes of two names in a trial in which a third one is their sum: keys of earlier tokens and new ones, say."""
_MOST_NAMES = 5
"""The most names in a model for which such sums are tried."""


class Samples(Mapping[str, tuple[int, ...]]):
    """Shapes of inputs, which are found when they are read first: a query reads none."""

    def __init__(self, find: Callable[[], Mapping[str, tuple[int, ...]]]) -> None:
        self._find: Callable[[], Mapping[str, tuple[int, ...]]] | None = find
        self._found: Mapping[str, tuple[int, ...]] = {}
        self._lock = threading.Lock()

    def _shapes(self) -> Mapping[str, tuple[int, ...]]:
        with self._lock:
            if self._find is not None:
                self._found, self._find = self._find(), None  # what it was found from is not needed longer
        return self._found

    def __getitem__(self, name: str) -> tuple[int, ...]:
        return self._shapes()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes())

    def __len__(self) -> int:
        return len(self._shapes())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class Proposals:
    """Shapes of the dynamic inputs of a model as it was read, before an import changes it."""

    def __init__(self, draft: Draft) -> None:
        """`draft` has the requested shapes; later changes of it have no effect."""
        self._proto = draft.to_proto()
        del self._proto.graph.value_info[:]
        # A default may be the shape or the axes of a node: a drawn one would fit no size.
        self._weights = {**draft.defaults, **draft.weights}
        copy = Draft(self._proto, self._weights)
        self._dynamic = [i for i in copy.graph.input if i.type.HasField("tensor_type") and not value_of(i).is_static]
        self._hints = _weights_near(copy, self._dynamic)[:_MOST_HINTS]
        self._expected: dict[str, int] = {}
        codes = sum(array.nbytes for array in self._weights.values() if array.dtype.kind != "f")
        self._seconds = SECONDS + codes / _CODES_IN_A_SECOND

    def fix(self, sizes: Mapping[str, int]) -> None:
        """Set dimensions of which the import has found the size that they need to have, by their names."""
        for info in self._dynamic:
            for dim in info.type.tensor_type.shape.dim:
                if dim.dim_param in sizes:
                    dim.dim_value = sizes[dim.dim_param]

    def expect(self, sizes: Mapping[str, int]) -> None:
        """Try only these sizes of dimensions, by their names."""
        self._expected.update(sizes)

    def first(self, work: Callable[[Shapes], Work]) -> Shapes | None:
        """The first shapes with which ONNX Runtime runs the model; None if none are found in time.

        `work` estimates a run. Shapes with which it exceeds MOST_WORK are not tried: smaller sizes take their place. If
        a run takes too long all the same, much smaller ones have as much time again. A model that takes more at all
        sizes is tried at its smallest.
        """
        run = runner(self._proto, self._weights)
        if run is None:
            return None
        clock = clock_of_this_thread()
        deadline = clock() + self._seconds
        tried: list[Shapes] = []
        for shapes, smaller in self._affordable(work):
            if shapes not in tried:
                tried.append(shapes)
                if run(shapes, deadline - clock()):
                    return shapes
            if clock() > deadline:
                until = clock() + self._seconds
                some = itertools.islice(smaller, _MOST_SMALLER)
                return next((s for s in some if clock() < until and run(s, until - clock())), None)
        return None

    def _affordable(self, work: Callable[[Shapes], Work]) -> Iterator[tuple[Shapes, Iterator[Shapes]]]:
        """Shapes to try, and in place of each, where its run takes too long, others of a fraction of the work."""
        kernels = {node.input[1] for node in self._proto.graph.node if "Conv" in node.op_type and len(node.input) > 1}
        known: dict[str, Work] = {}
        smallest: list[Shapes] = []
        some_fit = False

        def fits(shapes: Shapes, most: Work = MOST_WORK) -> bool:
            nonlocal some_fit
            text = repr(shapes)
            if text not in known:
                known[text] = work(shapes)
            some_fit |= known[text].within(MOST_WORK)
            return known[text].within(most)

        for candidate in _candidates(self._dynamic, self._hints):
            sizes = replace(candidate, named={**candidate.named, **self._expected})
            smallest += self._at_most(_SMALLER[-1:], sizes, kernels)
            shapes = sizes.shapes(self._dynamic, kernels)
            every = filter(fits, self._at_most(_SMALLER, sizes, kernels))
            fractions = filter(fits, self._at_most(_FRACTIONS, sizes, kernels))
            if fits(shapes):
                yield shapes, fractions
                continue
            for others in itertools.islice(every, _MOST_SMALLER):
                yield others, fractions
        if not some_fit:
            yield from ((shapes, iter(())) for shapes in smallest if fits(shapes, MOST_AT_LEAST))

    def _at_most(self, sides: Sequence[int], sizes: _Sizes, kernels: Collection[str]) -> Iterator[Shapes]:
        return (sizes.at_most(side).shapes(self._dynamic, kernels) for side in sides)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The sizes of one trial: of the sides of images, of sequences, of channels and of inputs of unknown rank.

    `named` are sizes of names, whatever they are of. With `states` the only dimension of a state is the batch.
    """

    pixels: int
    steps: int
    channels: int
    unknown: tuple[int, ...] = _UNKNOWN_RANK[0]
    named: Mapping[str, int] = field(default_factory=dict)
    states: bool = False

    def at_most(self, side: int) -> _Sizes:
        """These sizes, none larger than this, but for channels."""
        return replace(self, pixels=min(self.pixels, side), steps=min(self.steps, side))

    def shapes(self, dynamic: Sequence[onnx.ValueInfoProto], kernels: Collection[str]) -> Shapes:
        """A shape for each input, with a batch of 1."""
        found = _filled(dynamic, self.pixels, self.steps, self.channels, kernels, self.named)
        found.update((i.name, list(self.unknown)) for i in dynamic if value_of(i).shape is None)
        if self.states:
            for state in filter(_is_state, dynamic):
                found[state.name][1] = 1
        return found


def _candidates(dynamic: Sequence[onnx.ValueInfoProto], hints: Sequence[int]) -> Iterator[_Sizes]:
    some_are_states = len({_is_state(i) for i in dynamic}) == 2
    for sizes in _plausible(dynamic, hints):
        yield sizes
        if some_are_states:
            yield replace(sizes, states=True)


def _is_state(info: onnx.ValueInfoProto) -> bool:
    """Whether an input may be the state of layers: `[layers, ?, numbers]`, of a dimension without a name."""
    dims = info.type.tensor_type.shape.dim
    return [bool(d.dim_value) for d in dims] == [True, False, True] and not dims[1].dim_param


def _plausible(dynamic: Sequence[onnx.ValueInfoProto], hints: Sequence[int]) -> Iterator[_Sizes]:
    stated, others = _sums(dynamic)
    yield from (_Sizes(*_SIZES[0], 3, named=named) for named in stated)
    yield _Sizes(*_SIZES[0], 3)
    yield from (_Sizes(*_SIZES[0], 3, named=named) for named in others)
    for known in (0, *hints):
        for channels in (3, 1):
            for pixels, steps in _SIZES if not known else ((224, known), (known, known)):
                yield _Sizes(pixels, steps, channels)
                if all(not _is_image(i) for i in dynamic):
                    break
    if any(value_of(i).shape is None for i in dynamic):
        yield from (_Sizes(224, 128, 3, shape) for shape in _UNKNOWN_RANK)
    yield from (_Sizes(pixels, steps, 3) for pixels, steps in _SIZES)


def _sums(dynamic: Sequence[onnx.ValueInfoProto]) -> tuple[list[Mapping[str, int]], list[Mapping[str, int]]]:
    """Sizes of names of which one is the sum of two others, as in decoders: if it is called a total, and if not."""
    stated: list[Mapping[str, int]] = []
    others: list[Mapping[str, int]] = []
    dims = [d.dim_param for i in dynamic for d in i.type.tensor_type.shape.dim[1:] if d.dim_param]
    each = {name: name for name in dims if "batch" not in name.lower()}
    alike = _alike(dynamic)
    # Few trials are possible in time: one size for all caches is more plausible than another for each.
    for first in ({name: alike.get(name, name) for name in each}, each):
        names = list(dict.fromkeys(first.values()))
        if len(names) > _MOST_NAMES:
            continue
        for total in names:
            for parts in itertools.combinations([name for name in names if name != total], 2):
                sizes = {**dict(zip(parts, _PARTS, strict=True)), total: sum(_PARTS)}
                every = {name: sizes[other] for name, other in first.items() if other in sizes}
                (stated if "total" in total.lower() else others).append(every)
    return stated, others


def _alike(dynamic: Sequence[onnx.ValueInfoProto]) -> dict[str, str]:
    """The first of the names at one place of inputs of three dimensions and more whose other sizes are equal, by name.

    Exporters give each cache of keys and values a name of its own.
    """
    first: dict[tuple[object, ...], str] = {}
    found: dict[str, str] = {}
    for info in dynamic:
        dims = info.type.tensor_type.shape.dim
        for axis in range(1, len(dims)) if len(dims) > 2 else ():
            name = dims[axis].dim_param
            if name:
                found.setdefault(name, first.setdefault((axis, *(d.dim_value for d in dims)), name))
    return found


def _is_image(info: onnx.ValueInfoProto) -> bool:
    return len(value_of(info).shape or ()) == 4


def _has_channels_last(shape: Sequence[int | str | None]) -> bool:
    """Whether only the last dimension of an image is fixed, to a number of channels."""
    return shape[3] in (1, 2, 3, 4) and not any(isinstance(size, int) for size in shape[1:3])


def _filled(
    dynamic: Sequence[onnx.ValueInfoProto],
    pixels: int,
    steps: int,
    channels: int,
    kernels: Collection[str],
    named: Mapping[str, int],
) -> Shapes:
    """A shape for each input, with a batch of 1 and these sizes; equal symbols get equal sizes.

    `kernels` are inputs that convolutions take as weights; `named` are sizes of symbols.
    """
    symbols = dict(named)
    found: Shapes = {}
    names = {d.dim_param for i in dynamic for d in i.type.tensor_type.shape.dim}

    def order(info: onnx.ValueInfoProto) -> tuple[bool, bool]:
        """Kernels first, so that a name that an image has, too, gets the small size; expressions of names last."""
        dims = [d.dim_param for d in info.type.tensor_type.shape.dim if d.dim_param]
        return any(word_for(d, names - {d}) for d in dims), info.name not in kernels

    for info in sorted(dynamic, key=order):
        value = value_of(info)
        if value.shape is None:
            continue
        dims: list[int] = []
        for index, (size, dim) in enumerate(zip(value.shape, info.type.tensor_type.shape.dim, strict=True)):
            if not isinstance(size, int):
                if index == 0 or "batch" in dim.dim_param.lower():
                    size = 1
                elif info.name in kernels and index > 1:
                    size = _KERNEL
                elif _is_image(info):
                    size = channels if index == 1 and not _has_channels_last(value.shape) else pixels
                else:
                    size = steps
                if any(c.isalnum() for c in dim.dim_param) and dim.dim_param != "None":
                    size = symbols.setdefault(dim.dim_param, size_of(dim.dim_param, symbols) or size)
            dims.append(size)
        found[info.name] = dims
    return found


def _weights_near(draft: Draft, dynamic: Sequence[onnx.ValueInfoProto]) -> list[int]:
    """Dimensions of weights near the inputs, nearest first, as they may be lengths or numbers of channels."""
    reached = {i.name for i in dynamic}
    sizes: dict[int, None] = {}
    reading: dict[str, list[int]] = {}
    for index, node in enumerate(draft.graph.node):
        for name in node.input:
            reading.setdefault(name, []).append(index)
    for _ in range(_HOPS):
        readers = [draft.graph.node[i] for i in sorted({i for name in reached for i in reading.get(name, ())})]
        for node in readers:
            for name in node.input:
                if name in draft.weights and draft.weights[name].ndim > 1:
                    sizes.update(dict.fromkeys(int(d) for d in draft.weights[name].shape if d > 1))
        reached |= {o for n in readers for o in n.output}
    return list(sizes)
