"""Runs that replace initializers which the code of a bundle has as constants, in ONNX Runtime (decision 67)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from heterocc.artifacts.bundle import Bundle
from heterocc.artifacts.dtypes import NARROW
from heterocc.artifacts.errors import FeedError, Hint, UsageError
from heterocc.artifacts.files.locks import renewed_lock
from heterocc.artifacts.manifest import Replacing
from heterocc.runtime import forks
from heterocc.runtime.execute.narrow import narrow_dtype
from heterocc.runtime.feeds import Array, Feed, FeedCheck, TensorInfo
from heterocc.runtime.select.opening import open_further
from heterocc.runtime.shapes import Ready, named
from heterocc.runtime.sizes import input_places


def constant_text(name: str) -> str:
    """That a run cannot replace a constant."""
    return f"'{name[:200]}' is a constant of the bundle, which runs replace in ONNX Runtime alone"


class ReplacingRuns:
    """The variant with these initializers as inputs, which is loaded by the first run that gives one. Thread-safe.

    A bundle without ONNX Runtime has none, and refuses such a run.
    """

    def __init__(self, bundle: Bundle, defaults: Mapping[str, Any], *, profile: bool) -> None:
        """`defaults` are the values of the model's own inputs that a run may leave out."""
        self._bundle = bundle
        self._defaults = defaults
        self._profile = profile
        self._names = frozenset(bundle.manifest.model.held)
        self._lock = renewed_lock()
        self._closed = False
        self._loaded: tuple[Ready, FeedCheck] | None = None

    @property
    def ready(self) -> tuple[Ready, ...]:
        """The variant, if it is loaded."""
        return () if self._loaded is None else (self._loaded[0],)

    def takes(self, feed: Feed) -> bool:
        """Whether a feed gives one of the initializers."""
        return isinstance(feed, Mapping) and not self._names.isdisjoint(feed)

    def fitting(self, feed: Feed, first: Ready) -> tuple[Ready, list[Any]]:
        """The variant and its checked inputs. Raises FeedError, BundleHashError and the errors of `load`."""
        ready, check = self._get(feed, first)
        arrays = check(feed)
        if ready.conditions is not None:
            ready.conditions.check(arrays)
        return ready, arrays

    def bound(self, names: Iterable[str], first: Ready) -> tuple[Ready, tuple[TensorInfo, ...], Mapping[str, Any]]:
        """The variant for runs that give these, its inputs, and the values of those that a run may leave out.

        Raises as `fitting` does.
        """
        ready, check = self._get(names, first)
        return ready, tuple(each.info for each in check.checks), check.defaults

    def _get(self, names: Iterable[str], first: Ready) -> tuple[Ready, FeedCheck]:
        record = self._bundle.manifest.replacing
        if record is None:
            name = next(name for name in names if name in self._names)
            raise FeedError(
                constant_text(name),
                where=self._bundle.path,
                hint=Hint(
                    "leave it out, or compile the model with ORT, too: compile_model(…, devices='CPU,ORT')",
                    "leave it out, or compile the model with ORT, too: --devices CPU,ORT",
                ),
            )
        return self._loaded or self._load(record, first)

    def close(self) -> tuple[Ready, ...]:
        """Return what is loaded, which the caller closes. Waits for a load; a later one is refused."""
        with self._lock:
            loaded, self._loaded, self._closed = self.ready, None, True
        return loaded

    def _load(self, record: Replacing, first: Ready) -> tuple[Ready, FeedCheck]:
        with self._lock, forks.working(self._bundle.path):
            if self._closed:
                raise UsageError("the session is closed", where=self._bundle.path)
            if self._loaded is None:
                self._bundle.verify_weights()
                names = [spec.name for spec in (*self._bundle.manifest.model.inputs, *record.inputs)]
                variant = record.variant
                infos = [
                    TensorInfo.of_input(spec, input_places((variant,), place, spec.shape))
                    for place, spec in enumerate(named(variant, variant.inputs, names))
                ]
                check = FeedCheck(infos, self._bundle.path, {**self._defaults, **self._values(record, infos)})
                pool = open_further(self._bundle, variant, [first.pool.chain], profile=self._profile)
                self._loaded = Ready.of(self._bundle, variant, pool, names), check
            return self._loaded

    def _values(self, record: Replacing, infos: Sequence[TensorInfo]) -> dict[str, Array]:
        dtypes = {info.name: info.dtype for info in infos}
        found: dict[str, Array] = {}
        for name, default in record.defaults.items():
            if isinstance(default, str):
                found[name] = self._bundle.array(default)
                continue
            stored = self._bundle.weights_view(default)
            found[name] = stored.view(narrow_dtype(dtypes[name])) if dtypes[name] in NARROW else stored
        return found
