"""What the parts of a session share: a bundle and what runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from heterocc.artifacts.bundle import Bundle
from heterocc.artifacts.errors import UsageError
from heterocc.artifacts.files.closing import Closing
from heterocc.runtime.loading.loaded import Loaded
from heterocc.runtime.loading.runners import Runner
from heterocc.runtime.shapes import Ready

T = TypeVar("T")


class Running(Closing):
    """Base class of a session's parts, which have no constructors of their own."""

    _bundle: Bundle
    _runner: Runner

    @property
    def _loaded(self) -> Loaded:
        return self._runner.current

    @property
    def _members(self) -> tuple[Loaded, ...]:
        return self._runner.members

    def _alive(self) -> Ready:
        """The first variant of what runs. Raises UsageError if the session is closed."""
        return self._using(Loaded.alive)

    def _using(self, call: Callable[[Loaded], T]) -> T:
        """Call with what runs, the first of several; again if it was replaced and closed meanwhile."""
        while True:
            loaded = self._loaded
            try:
                return call(loaded)
            except UsageError:
                if loaded is self._loaded:
                    raise
