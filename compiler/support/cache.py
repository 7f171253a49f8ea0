"""Results of trial lowerings, cached as records on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from heterocc.compiler.files.records import DiskRecords, cache_dir


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a trial: None if the node lowers, else the reason why it does not."""

    reason: str | None


class Answers:
    """A store of answers by key, which is a SHA-256 in hexadecimal, on disk under `root`; without one it keeps none."""

    def __init__(self, root: Path | None = None) -> None:
        self._records = None if root is None else DiskRecords(root, "support")

    @property
    def failure(self) -> str | None:
        """The reason why the last answer could not be stored, or None."""
        return None if self._records is None else self._records.failure

    def get(self, key: str) -> Answer | None:
        """The stored answer; None for a missing, damaged or foreign file."""
        record = None if self._records is None else self._records.read(key)
        if record is None or "reason" not in record:
            return None
        reason = record["reason"]
        return Answer(reason) if reason is None or isinstance(reason, str) else None

    def put(self, key: str, answer: Answer) -> None:
        """Store an answer; a failure is not an error."""
        if self._records is not None:
            self._records.write(key, {"reason": None if answer.reason is None else answer.reason[:500]})


def open_cache() -> Answers:
    """The cache selected by the environment (`HETEROCC_CACHE`)."""
    return Answers(cache_dir())
