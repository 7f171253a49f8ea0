"""One choice of devices, loaded: checks feeds, runs, and frees its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from heterocc.artifacts.bundle import Bundle
from heterocc.artifacts.errors import BundleError, FeedError, UsageError
from heterocc.artifacts.manifest import Variant
from heterocc.runtime import forks
from heterocc.runtime.binding import Binding
from heterocc.runtime.execute.cuda_streams import device_keeper
from heterocc.runtime.execute.loaded_code import close_unloaded
from heterocc.runtime.feeds import Array, Feed, FeedCheck, InputCheck, TensorInfo, nearest
from heterocc.runtime.loading.empty import EmptyResults
from heterocc.runtime.loading.replacing import ReplacingRuns
from heterocc.runtime.select.opening import Opened
from heterocc.runtime.select.select import labels
from heterocc.runtime.shapes import Ready, ShapeVariants, named
from heterocc.runtime.sizes import input_places
from heterocc.runtime.targets import check_out

Results = dict[str, Any]


def _defaults(bundle: Bundle, infos: Sequence[TensorInfo]) -> dict[str, Any]:
    """The values of inputs that a run may leave out. Raises BundleError if one is not of the input's type."""
    found = {}
    for name, member in bundle.manifest.model.defaults.items():
        check = InputCheck(next(info for info in infos if info.name == name), bundle.path)
        try:
            found[name] = check(bundle.array(member).copy())
        except FeedError as error:
            raise BundleError(f"the default of {error.message}", where=bundle.path) from error
    return found


class Loaded:
    """A variant with its code, weights and contexts, and those for further shapes of inputs, loaded when needed.

    Thread-safe. The bundle must stay open until `close`.
    """

    usable = True

    def __init__(self, bundle: Bundle, opened: Opened, *, profile: bool = False) -> None:
        """`profile` measures times in variants for further shapes, too; that of `opened` is decided already."""
        variant, model = opened.variant, bundle.manifest.model
        first = Ready.of(bundle, variant, opened.pool)
        self.variant = variant
        self.variants = bundle.manifest.with_shapes(variant)
        self.inputs = tuple(
            TensorInfo.of_input(spec, input_places(self.variants, place, declared.shape))
            for place, (spec, declared) in enumerate(
                zip(named(variant, variant.inputs, [t.name for t in model.inputs]), model.inputs, strict=True)
            )
        )
        self.outputs = tuple(map(TensorInfo.of, first.outputs))
        self.allocations = opened.pool.chain.allocations
        self._bundle = bundle
        self._names = tuple(t.name for t in model.outputs)
        self._every = range(len(self._names))
        self._name = self._names[0] if len(self._names) == 1 else None
        self.defaults = _defaults(bundle, self.inputs)
        """The values of inputs that a run may leave out."""
        self._check = FeedCheck(self.inputs, bundle.path, self.defaults)
        self._replacing = ReplacingRuns(bundle, self.defaults, profile=profile) if model.held else None
        self._shapes: ShapeVariants | None = None
        if len(self.variants) > 1:
            self._shapes = ShapeVariants(bundle, first, self.inputs, profile=profile)
            self.outputs = tuple(map(TensorInfo.of, model.outputs))
        self._generation = forks.generation
        self._first: Ready | None = first
        self._last: Ready | None = first
        self._quick: Ready | None = first if self._shapes is None or self._shapes.is_sure(variant) else None
        """The variant of the last run, if native code may try it without a look at the shapes of a feed."""

    @property
    def current(self) -> Loaded:
        """Itself: what runs."""
        return self

    @property
    def members(self) -> tuple[Loaded, ...]:
        """Itself, as the only one."""
        return (self,)

    @property
    def last_variant(self) -> Variant:
        """The record of the variant of the last run."""
        last = self._last
        return self.variant if last is None else last.variant

    @property
    def devices(self) -> tuple[str, ...]:
        """The labels of the variant's devices, as given to the compile."""
        return labels(self.variant)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._first is None

    def run(self, feed: Feed, out: Mapping[str, Array] | None = None) -> Results:
        """Run the model, as `Session.run` does."""
        if out is not None and not isinstance(out, Mapping):
            raise FeedError(
                f"out must be a mapping from names of outputs to arrays, got {type(out).__name__}",
                where=self._bundle.path,
                hint=f"run(feed, out={{{self._names[0]!r}: array}})" if self._names else "leave it out",
            )
        if not out:
            found = self._run_fast(feed)
            if found is not None:
                return found
        try:
            ready, arrays = self.fitting(feed)
        except FeedError:
            empty = None if out else self._empty_results.of(feed)
            if empty is None:
                raise
            return dict(zip(self._names, empty, strict=True))
        results = ready.runs.run(ready.pool, arrays, self._every, self._targets(ready, out) if out else {})
        if self._name is not None:
            return {self._name: results[0]}
        return dict(zip(self._names, results, strict=True))

    def run_list(self, names: Sequence[str] | None, feed: Feed) -> list[Any]:
        """The outputs with these names, in this order; None means all."""
        known = self._names
        if isinstance(names, str):
            raise FeedError(
                f"the names of the outputs are a list, not the text '{names}'",
                where=self._bundle.path,
                hint=f"run(['{names}'], feed), or run(None, feed) for all",
            )
        if names is not None and not isinstance(names, (list, tuple)):
            names = self._listed(names)
        for name in names or ():
            if name not in known:
                raise FeedError(
                    f"the model has no output '{name}'", where=self._bundle.path, hint=nearest(str(name), known)
                )
        wanted = self._every if names is None else [known.index(name) for name in names]
        if names is None:
            found = self._run_fast(feed)
            if found is not None:
                return list(found.values())
        try:
            ready, arrays = self.fitting(feed)
        except FeedError:
            empty = self._empty_results.of(feed)
            if empty is None:
                raise
            return [empty[number] for number in wanted]
        return ready.runs.run(ready.pool, arrays, wanted, {})

    @cached_property
    def _empty_results(self) -> EmptyResults:
        """What answers requests without elements that code refuses, made when there is the first of them."""
        return EmptyResults(self.variants, self.inputs, self._bundle.path, self.defaults)

    def _listed(self, names: Any) -> list[Any]:
        """Names in another form than a list. Raises FeedError for anything else, such as the array of an input."""
        if isinstance(names, Iterable) and not hasattr(names, "__dlpack__"):
            return list(names)
        raise FeedError(
            f"the names of the outputs must be a list, got {type(names).__name__}",
            where=self._bundle.path,
            hint="run(names, feed), or run(None, feed) for all; several inputs are one list: run([a, b])",
        )

    def _run_fast(self, feed: Feed) -> Results | None:
        """All outputs, in the model's order, if native code can take this feed. Raises the errors of `alive`."""
        self.alive()
        quick = self._quick
        if quick is None or not quick.runs.fast:
            return None
        return quick.runs.run_fast(quick.pool, feed)

    def alive(self) -> Ready:
        """The first variant. Raises UsageError after `close`, and DeviceError in a child that cannot use it."""
        first = self._first
        if first is None:
            raise UsageError("the session is closed", where=self._bundle.path)
        if self._generation != forks.generation:
            self._go_on_in_child(first)
        return first

    def last(self) -> Ready:
        """The variant of the last run. Raises the errors of `alive`."""
        first = self.alive()
        return self._last or first

    def all_ready(self) -> tuple[Ready, ...]:
        """The variants that are loaded so far. Raises the errors of `alive`."""
        return self._ready(self.alive())

    def fitting(self, feed: Feed) -> tuple[Ready, list[Any]]:
        """The variant for the shapes of a feed, and the checked inputs. Raises FeedError and the errors of `alive`."""
        if self._replacing is not None and self._replacing.takes(feed):
            return self._replacing.fitting(feed, self.alive())
        arrays = self._check(feed)
        return self._fitting(arrays), arrays

    def matching(self, shapes: Mapping[str, Sequence[int]] | None) -> Ready:
        """The first variant of static shapes with these shapes of inputs; None means the first of all.

        Raises FeedError if there is none, and the errors of `alive`.
        """
        first = self.alive()
        if not shapes:
            return first
        variants = self._shapes or ShapeVariants(self._bundle, first, self.inputs, profile=False)
        return variants.matching(shapes)

    def bind(
        self, alive: Callable[[], object], shapes: Mapping[str, Sequence[int]] | None, replacing: Sequence[str]
    ) -> Binding:
        """A binding, as `Session.bind` makes it, which calls `alive` before each run."""
        if replacing and shapes is not None:
            raise UsageError("bind takes either shapes or constants to replace", where=self._bundle.path)
        infos: Sequence[TensorInfo] = self.inputs
        values: Mapping[str, Any] = self.defaults
        if replacing:
            ready, infos, values = self._with_constants(replacing)
        else:
            ready = self.matching(shapes)
        shown = {*(info.name for info in self.inputs), *replacing}
        with forks.working(self._bundle.path):
            return Binding(
                ready.pool.new(),
                zip(infos, ready.variant.inputs, strict=True),
                zip(self.outputs, ready.variant.outputs, strict=True),
                alive,
                ready.runs.run_on,
                self._bundle.path,
                values,
                shown,
            )

    def _with_constants(self, names: Sequence[str]) -> tuple[Ready, Sequence[TensorInfo], Mapping[str, Any]]:
        """The variant for runs that give these constants, all of its inputs, and the values of those with one."""
        known, where = self._bundle.manifest.model.held, self._bundle.path
        if isinstance(names, str):
            raise FeedError(
                f"constants to replace are a list, not the text '{names}'", where=where, hint=f"['{names}']"
            )
        for name in names:
            if self._replacing is None or name not in known:
                hint = nearest(str(name), known)
                raise FeedError(f"'{name}' is not a constant that can be replaced", where=where, hint=hint)
        assert self._replacing is not None
        return self._replacing.bound(names, self.alive())

    def close(self) -> None:
        """Free code, buffers and weights. Runs in progress finish; later ones raise UsageError."""
        first, self._first, self._last, self._quick = self._first, None, None, None
        if first is None:
            return
        every = (first,) if self._shapes is None else self._shapes.close()
        every += () if self._replacing is None else self._replacing.close()
        here = self._generation == forks.generation or (_portable(every) and not forks.interrupted())
        if not here:
            return
        entered = forks.enter()
        try:
            with device_keeper(self.variant)():
                for ready in every:
                    ready.pool.close()
                del first, every, ready  # and with them the weights
            close_unloaded()
        finally:
            if entered:
                forks.leave()

    def _fitting(self, arrays: Sequence[Any]) -> Ready:
        """The variant for the shapes of checked inputs. Raises FeedError if they do not meet its conditions."""
        found = self.alive()
        if self._shapes is not None:
            self._last = found = self._shapes.of(arrays)
            self._quick = found if self._shapes.is_sure(found.variant) else None
            if self._first is None:  # closed meanwhile, which must not keep the weights
                self._last = self._quick = None
        if found.conditions is not None:
            found.conditions.check(arrays)
        return found

    def _ready(self, first: Ready) -> tuple[Ready, ...]:
        every = (first,) if self._shapes is None else self._shapes.ready
        return every if self._replacing is None else (*every, *self._replacing.ready)

    def _go_on_in_child(self, first: Ready) -> None:
        forks.check_interrupted(self._bundle.path)
        if not _portable(self._ready(first)):
            raise forks.refusal(
                "this process was forked from the one that loaded the session, and lacks its threads and drivers",
                f"{self._bundle.path}, on {','.join(self.devices)}",
            )
        self._generation = forks.generation

    def _targets(self, ready: Ready, out: Mapping[str, Array]) -> Mapping[str, Array]:
        specs = {s.name: s for s in ready.outputs}
        for name, array in out.items():
            if name not in specs:
                raise FeedError(f"the model has no output '{name}'", where=self._bundle.path, hint=nearest(name, specs))
            check_out(name, array, specs[name], self._bundle.path)
        return out


def _portable(every: Sequence[Ready]) -> bool:
    return all(ready.pool.chain.portable for ready in every)
