"""A loaded variant that is replaced: by a better one when that is loaded, or by the next when its device is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from heterocc.artifacts.bundle import Bundle
from heterocc.artifacts.errors import DeviceLostError, HeteroccError, UsageError
from heterocc.artifacts.frozen import replaced
from heterocc.artifacts.manifest import Variant
from heterocc.runtime import forks
from heterocc.runtime.feeds import Array, Feed
from heterocc.runtime.loading.loaded import Loaded, Results
from heterocc.runtime.select.opening import LoadOptions, Opened, open_first, open_variant
from heterocc.runtime.select.request import AUTO, FIRST, DeviceRequest, parse_request
from heterocc.runtime.select.select import Selection, select_variants, shown

Note = Callable[[str], None]
T = TypeVar("T")


class Changing:
    """Runs every request on the variant that is in use. Thread-safe.

    With `fallback`, a run whose device is lost is repeated on the next variant that can be loaded and needs no lost
    device; this happens once.
    """

    usable = True

    def __init__(self, bundle: Bundle, opened: Opened, options: LoadOptions, note: Note) -> None:
        self.current = Loaded(bundle, opened, profile=options.profile)
        self._bundle = bundle
        self._options = options
        self._note = note
        self._lock = threading.Lock()
        self._loader: threading.Thread | None = None
        self._better: Selection | None = None
        self._next: tuple[Variant, ...] | None = None

    @property
    def members(self) -> tuple[Loaded, ...]:
        """The variant that is in use."""
        return (self.current,)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.current.closed

    def run(self, feed: Feed, out: Mapping[str, Array] | None = None) -> Results:
        """Run the model, as `Session.run` does."""
        return self._on_current(lambda loaded: loaded.run(feed, out))

    def run_list(self, names: Sequence[str] | None, feed: Feed) -> list[Any]:
        """The outputs with these names, in this order; None means all."""
        return self._on_current(lambda loaded: loaded.run_list(names, feed))

    def fall_back_to(self, variants: Sequence[Variant]) -> None:
        """If a device is lost, go on with the first of these variants that needs no lost device and can be loaded."""
        self._next = tuple(variants)

    def switch_to(self, selection: Selection) -> None:
        """After `begin`, load the first of these variants that can be loaded on another thread, and then use it."""
        self._better = selection

    def begin(self) -> None:
        """Start that thread, if there is a better variant."""
        if self._better is not None:
            self._loader = threading.Thread(target=self._load_better, args=(self._better,), name="heterocc-load")
            self._loader.start()

    def wait_switched(self, timeout: float | None) -> bool:
        """Wait until the loading on another thread has ended, well or not; False if the time was over before."""
        loader = self._loader
        if loader is None:
            return True
        loader.join(timeout)
        return not loader.is_alive()

    def close(self) -> None:
        """Wait for the loading thread, then close the variant."""
        if self._loader is not threading.current_thread():
            self.wait_switched(None)
        self.current.close()

    def _on_current(self, call: Callable[[Loaded], T]) -> T:
        while True:
            loaded = self.current
            try:
                return call(loaded)
            except UsageError:
                if loaded is self.current:
                    raise
                # It was closed because it was replaced after this thread had read it.
            except DeviceLostError as error:
                if not self._replace_lost(loaded, error):
                    raise

    def _replace_lost(self, lost: Loaded, error: DeviceLostError) -> bool:
        """Whether the request should be repeated: another variant is in use now."""
        with self._lock:
            if self.current is not lost:
                return True
            choices, self._next = self._next, None
            gone = {(d.backend, d.index) for d in lost.variant.devices if d.backend not in ("cpu", "ort")}
            rest = tuple(
                v
                for v in choices or ()
                if v is not lost.variant and gone.isdisjoint((d.backend, d.index) for d in v.devices)
            )
            if not rest:
                return False
            try:
                opened = self._open(Selection("first", rest))
            except HeteroccError as failure:
                self._note(f"no other variant can be loaded: {failure.message} ({failure.code})")
                return False
            self._use(opened)
            self._note(
                f"goes on with {shown(opened.variant)}, because {shown(lost.variant)} failed: "
                f"{error.message} ({error.code})"
            )
            return True

    def _load_better(self, selection: Selection) -> None:
        start = time.perf_counter()
        before = shown(self.current.variant)
        try:
            opened = self._open(selection)
        except HeteroccError as error:
            self._note(f"stays on {before}: {error.message} ({error.code})")
            return
        with self._lock:
            self._use(opened)
        for note in opened.notes:
            self._note(note)
        self._note(f"switched from {before} to {shown(opened.variant)} after {time.perf_counter() - start:.2f} s")

    def _open(self, selection: Selection) -> Opened:
        """Load a variant and make it ready for runs."""
        with forks.working(self._bundle.path):
            opened = open_first(self._bundle, selection, self._options)
        verification = self._bundle.start_verification()
        opened.pool.chain.arranging.start(verification)
        self._bundle.verify_weights()
        opened.pool.chain.arranging.wait()
        return opened

    def _use(self, opened: Opened) -> None:
        replacement = Loaded(self._bundle, opened, profile=self._options.profile)
        old, self.current = self.current, replacement
        old.close()  # its runs in progress finish


def open_changing(
    bundle: Bundle,
    asked: DeviceRequest,
    options: LoadOptions,
    note: Note,
    *,
    start: str | None,
    fallback: bool,
) -> tuple[Changing, tuple[str, ...]]:
    """Load a variant that may be replaced, and give notes on it.

    With `start`, that variant is loaded first, and the better ones of AUTO on another thread. With `fallback`, the
    bundle's other variants replace it when its device is lost.
    """
    manifest, where = bundle.manifest, bundle.path
    if start is not None and not asked.is_automatic:
        raise UsageError("start is the variant before that of AUTO", where=where, hint="load it with devices='AUTO'")
    better: Selection | None = None
    if start is None:
        opened = open_variant(bundle, asked, options)
        notes = opened.notes
    else:
        wish = select_variants(manifest, asked, where, allow_native=options.allow_native)
        first = select_variants(manifest, parse_request(start), where, allow_native=options.allow_native)
        opened = open_first(bundle, first, options)
        notes = opened.notes
        names = [v.name for v in wish.variants]
        above = wish.variants[: names.index(opened.variant.name)] if opened.variant.name in names else wish.variants
        if above:
            better = replaced(wish, variants=above)
            notes = (*notes, f"{shown(opened.variant)} runs until {shown(above[0])} is loaded")
        else:
            notes = (*notes, f"AUTO would choose {shown(opened.variant)} too")
    changing = Changing(bundle, opened, options, note)
    if fallback:
        order = AUTO if asked.is_automatic else FIRST
        every = select_variants(manifest, order, where, allow_native=options.allow_native).variants
        changing.fall_back_to(every)
    if better is not None:
        changing.switch_to(better)
    return changing, notes
