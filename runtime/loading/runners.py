"""What runs the requests of a session: one variant, one that may be replaced, or several."""

from __future__ import annotations

from collections.abc import Sequence

from heterocc.artifacts.bundle import Bundle
from heterocc.artifacts.errors import UsageError, note_text
from heterocc.runtime import forks
from heterocc.runtime.loading.changing import Changing, Note, open_changing
from heterocc.runtime.loading.loaded import Loaded
from heterocc.runtime.loading.several import Spread, open_several
from heterocc.runtime.select.opening import LoadOptions, open_variant
from heterocc.runtime.select.request import DeviceRequest

Runner = Loaded | Changing | Spread


class Notes:
    """The notes of a session. Those on changes after the load are logged as warnings. Thread-safe."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._first: tuple[str, ...] = ()
        self._later: list[str] = []

    @property
    def all(self) -> tuple[str, ...]:
        """The notes of the load, then the later ones in order."""
        return (*self._first, *self._later)

    def put_first(self, notes: Sequence[str]) -> None:
        """Set the notes of the load."""
        self._first = tuple(notes)

    def add(self, text: str) -> None:
        """Add a note on a change, and log it."""
        self._later.append(note_text(text))
        import logging  # not at the top: a program that logs nothing else would import it for this alone

        logging.getLogger("heterocc.runtime").warning("%s: %s", self._where, note_text(text))


def open_runner(
    bundle: Bundle,
    asked: DeviceRequest,
    options: LoadOptions,
    note: Note,
    *,
    start: str | None,
    fallback: bool,
) -> tuple[Runner, tuple[str, ...]]:
    """Load what the arguments of `load` ask for, and give notes on it. `note` receives notes on later changes."""
    with forks.working(bundle.path):
        if asked.is_multi:
            if start is not None or fallback:
                raise UsageError(
                    f"MULTI cannot be combined with {'start' if start is not None else 'fallback'}",
                    where=bundle.path,
                    hint="MULTI repeats the requests of a failed device on the others; leave the argument out",
                )
            return open_several(bundle, asked, options, note)
        if start is not None or fallback:
            return open_changing(bundle, asked, options, note, start=start, fallback=fallback)
        opened = open_variant(bundle, asked, options)
        return Loaded(bundle, opened, profile=options.profile), opened.notes
