"""Which runs of a session native code made from a feed to results, without Python code between them."""

from __future__ import annotations

from typing import Any

import pytest

from heterocc.runtime import Session


def runs_of(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each run from now on was native."""
    runs = session._runner.current.alive().runs
    native, seen = runs.run_fast, []

    def watched(*arguments: Any) -> Any:
        found = native(*arguments)
        seen.append(found is not None)
        return found

    monkeypatch.setattr(runs, "run_fast", watched)
    return seen
