"""A loaded variant of a bundle: checks feeds, runs, and frees its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from heterocc.artifacts.errors import FeedError, UsageError
from heterocc.artifacts.manifest import TensorSpec, Variant
from heterocc.artifacts.reader import Bundle
from heterocc.runtime import forks
from heterocc.runtime.execute.cuda_streams import device_keeper
from heterocc.runtime.execute.loaded_code import close_unloaded
from heterocc.runtime.feeds import Array, FeedCheck, check_out, nearest
from heterocc.runtime.pool import ContextPool
from heterocc.runtime.runs import Runs
from heterocc.runtime.select.opening import Opened
from heterocc.runtime.select.select import labels

Feed = Mapping[str, Any]
Results = dict[str, Any]


class Loaded:
    """A variant with its code, weights and contexts. Thread-safe. The bundle must stay open until `close`."""

    usable = True

    def __init__(self, bundle: Bundle, opened: Opened) -> None:
        variant, model = opened.variant, bundle.manifest.model
        self.variant = variant
        self.in_specs = _named(variant, variant.inputs, [t.name for t in model.inputs])
        self.out_specs = _named(variant, variant.outputs, [t.name for t in model.outputs])
        self.check = FeedCheck(self.in_specs, bundle.path)
        self.runs = Runs(bundle, variant, [s.name for s in self.out_specs])
        self.allocations = opened.pool.chain.allocations
        self._where = bundle.path
        self._every = range(len(self.out_specs))
        self._generation = forks.generation
        self._portable = opened.pool.chain.portable
        self._pool: ContextPool | None = opened.pool

    @property
    def current(self) -> Loaded:
        """Itself: the variant that runs."""
        return self

    @property
    def devices(self) -> tuple[str, ...]:
        """The labels of the variant's devices, as given to the compile."""
        return labels(self.variant)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._pool is None

    def run(self, feed: Feed, out: Mapping[str, Array] | None = None) -> Results:
        """Run the model, as `Session.run` does."""
        arrays, targets = self.check(feed), self._targets(out) if out else {}
        results = self.runs.run(self.pool(), arrays, self._every, targets)
        return {s.name: result for s, result in zip(self.out_specs, results, strict=True)}

    def run_list(self, names: Sequence[str] | None, feed: Feed) -> list[Any]:
        """The outputs with these names, in this order; None means all."""
        known = [s.name for s in self.out_specs]
        for name in names or ():
            if name not in known:
                raise FeedError(f"the model has no output '{name}'", where=self._where, hint=nearest(name, known))
        wanted = self._every if names is None else [known.index(name) for name in names]
        arrays = self.check(feed)
        return self.runs.run(self.pool(), arrays, wanted, {})

    def pool(self) -> ContextPool:
        """The variant's contexts. Raises UsageError after `close`, and DeviceError in a child that cannot use them."""
        if self._pool is None:
            raise UsageError("the session is closed", where=self._where)
        if self._generation != forks.generation:
            self._go_on_in_child()
        return self._pool

    def _go_on_in_child(self) -> None:
        forks.check_interrupted(self._where)
        if not self._portable:
            raise forks.refusal(
                "this process was forked from the one that loaded the session, and lacks its threads and drivers",
                f"{self._where}, on {','.join(self.devices)}",
            )
        self._generation = forks.generation

    def close(self) -> None:
        """Free code, buffers and weights. Runs in progress finish; later ones raise UsageError."""
        pool, self._pool = self._pool, None
        here = self._generation == forks.generation or (self._portable and not forks.interrupted())
        if pool is None or not here:
            return
        entered = forks.enter()
        try:
            with device_keeper(self.variant)():
                pool.close()
                del pool  # and with it the weights
            close_unloaded()
        finally:
            if entered:
                forks.leave()

    def _targets(self, out: Mapping[str, Array]) -> Mapping[str, Array]:
        specs = {s.name: s for s in self.out_specs}
        for name, array in out.items():
            if name not in specs:
                raise FeedError(f"the model has no output '{name}'", where=self._where, hint=nearest(name, specs))
            check_out(name, array, specs[name], self._where)
        return out


def _named(variant: Variant, values: Sequence[int], names: Sequence[str]) -> tuple[TensorSpec, ...]:
    """The variant's specs under the model's names."""
    return tuple(variant.values[v].model_copy(update={"name": n}) for v, n in zip(values, names, strict=True))
