"""Logs as one JSON object per line on standard error."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class JsonFormatter(logging.Formatter):
    """The record's time in UTC, level, logger and message, and the fields given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields.update((key, value) for key, value in vars(record).items() if key not in _STANDARD)
        if record.exc_info and record.name.startswith("opentelemetry."):
            fields["reason"] = str(record.exc_info[1])  # a receiver that does not answer is not a bug
        elif record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


class Flood(logging.Filter):
    """Lets a few warnings and errors of one place in the code pass in some seconds, and counts the others.

    The next one that passes has their number as `left_out`. What a client can cause, it can cause often.
    """

    def __init__(self, most: int = 20, seconds: float = 10.0) -> None:
        super().__init__()
        self._most = most
        self._seconds = seconds
        self._places: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record passes."""
        if record.levelno < logging.WARNING:
            return True
        place = (record.pathname, record.lineno)
        began, count = self._places.get(place, (record.created, 0))
        if record.created - began >= self._seconds:
            if count > self._most:
                record.left_out = count - self._most
            began, count = record.created, 0
        self._places[place] = (began, count + 1)
        return count < self._most


def log_to_stderr() -> None:
    """Write this process's log as JSON: everything of the service, and warnings of other libraries."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(Flood())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("heterocc.runtime.serve").setLevel(logging.INFO)
    logging.captureWarnings(True)
