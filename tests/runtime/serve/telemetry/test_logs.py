"""Lines of the log."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from heterocc.runtime.serve.telemetry.logs import JsonFormatter


@pytest.mark.parametrize(
    ("logger", "field"),
    [("opentelemetry.sdk._shared_internal", "reason"), ("heterocc.runtime.serve.workers", "traceback")],
)
def test_a_receiver_of_spans_that_does_not_answer_is_one_sentence_and_a_bug_is_a_traceback(
    logger: str, field: str
) -> None:
    try:
        raise ConnectionError("connection refused")
    except ConnectionError:
        record = logging.LogRecord(logger, logging.ERROR, __file__, 1, "cannot send", (), sys.exc_info())
    line = json.loads(JsonFormatter().format(record))
    assert {"reason", "traceback"} & line.keys() == {field}
    assert line[field].endswith("connection refused") and ("Traceback" in line[field]) == (field == "traceback")
