"""Several loaded variants that share the requests of a session, for `MULTI`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from heterocc.artifacts.bundle import Bundle
from heterocc.artifacts.errors import DeviceError, DeviceLostError
from heterocc.runtime.feeds import Array, Feed
from heterocc.runtime.loading.loaded import Loaded, Results
from heterocc.runtime.select.each import select_each
from heterocc.runtime.select.opening import LoadOptions, open_first
from heterocc.runtime.select.request import DeviceRequest
from heterocc.runtime.select.select import Selection, shown

Note = Callable[[str], None]
T = TypeVar("T")


class Spread:
    """Runs each request on the member with the fewest runs in progress, the first listed among equals. Thread-safe.

    If a device fails (DeviceError), the request is repeated on the other members, once on each, and the first error is
    raised if all fail. A member whose device was lost gets no more requests. Other errors belong to the request.
    """

    def __init__(self, members: Sequence[Loaded], note: Note) -> None:
        """`note` receives a warning when a member fails for the first time, and when its device is lost."""
        self.members = tuple(members)
        # A list as a counter: append and pop are atomic, and no lock can be held by another thread at a fork.
        self._busy: tuple[list[None], ...] = tuple([] for _ in members)
        self._note = note
        self._failed: set[int] = set()
        self._lost: set[int] = set()

    @property
    def current(self) -> Loaded:
        """The first member that can be used."""
        return self.members[self._usable()[0]]

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.members[0].closed

    def lanes(self) -> tuple[Lane, ...]:
        """The members, each as a member of a queue of requests that tries this one first."""
        return tuple(Lane(self, number) for number in range(len(self.members)))

    def usable(self, number: int) -> bool:
        """Whether a member should get requests: its device is there, or all are lost."""
        return number in self._usable()

    def run(self, feed: Feed, out: Mapping[str, Array] | None = None) -> Results:
        """Run the model, as `Session.run` does."""
        return self._spread(lambda member: member.run(feed, out))

    def run_list(self, names: Sequence[str] | None, feed: Feed) -> list[Any]:
        """The outputs with these names, in this order; None means all."""
        return self._spread(lambda member: member.run_list(names, feed))

    def run_on(self, number: int, feed: Feed, out: Mapping[str, Array] | None) -> Results:
        """Run on this member, or if its device fails, on the others."""
        order = [number, *(i for i in self._order() if i != number)]
        return self._try_each(order, lambda member: member.run(feed, out))

    def close(self) -> None:
        """Close all members."""
        for member in self.members:
            member.close()

    def _usable(self) -> list[int]:
        every = range(len(self.members))
        return [i for i in every if i not in self._lost] or list(every)

    def _order(self) -> list[int]:
        return sorted(self._usable(), key=lambda i: len(self._busy[i]))

    def _spread(self, call: Callable[[Loaded], T]) -> T:
        return self._try_each(self._order(), call)

    def _try_each(self, order: Sequence[int], call: Callable[[Loaded], T]) -> T:
        for member in self.members:
            member.alive()  # a closed session or a forked child does not mean that a device failed
        first: DeviceError | None = None
        for i in order:
            self._busy[i].append(None)
            try:
                return call(self.members[i])
            except DeviceError as error:
                first = first or error
                self._report(i, error, repeated=len(order) > 1)
            finally:
                self._busy[i].pop()
        assert first is not None
        raise first

    def _report(self, number: int, error: DeviceError, *, repeated: bool) -> None:
        """Note the first failure of a member, and its loss."""
        lost = isinstance(error, DeviceLostError)
        if number in (self._lost if lost else self._failed) or not repeated:
            return
        (self._lost if lost else self._failed).add(number)
        name = shown(self.members[number].variant)
        after = "gets no more requests" if lost else "its later failures are not noted"
        self._note(f"a request was repeated elsewhere, for {name} failed and {after}: {error.message} ({error.code})")


class Lane:
    """One member of a Spread, as a member of a queue of requests."""

    __slots__ = ("_number", "_spread")

    def __init__(self, spread: Spread, number: int) -> None:
        self._spread = spread
        self._number = number

    @property
    def usable(self) -> bool:
        """Whether it should get requests."""
        return self._spread.usable(self._number)

    def run(self, feed: Feed, out: Mapping[str, Array] | None = None) -> Results:
        """Run on this member, or if its device fails, on the others."""
        return self._spread.run_on(self._number, feed, out)


def open_several(
    bundle: Bundle, asked: DeviceRequest, options: LoadOptions, note: Note
) -> tuple[Spread, tuple[str, ...]]:
    """Load the variants of `MULTI`, and give notes on them. Those that fail to load are skipped with a note.

    Raises the errors of `select_each`, and the first error if none can be loaded.
    """
    selections, notes = select_each(bundle.manifest, asked, bundle.path, allow_native=options.allow_native)
    members: list[Loaded] = []
    said = list(notes)
    first: DeviceError | None = None
    for selection in selections:
        try:
            opened = open_first(bundle, selection, options)
        except DeviceError as error:
            first = first or error
            said.append(_skipped(selection, error))
        else:
            members.append(Loaded(bundle, opened, profile=options.profile))
            said += opened.notes
    if not members:
        assert first is not None
        raise first
    return Spread(members, note), tuple(dict.fromkeys(said))


def _skipped(selection: Selection, error: DeviceError) -> str:
    return f"MULTI skipped {shown(selection.variants[0])}, which cannot be loaded: {error.message} ({error.code})"
