"""Standard output of the commands: plain text and JSON, with a failure to write as an error."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from heterocc.artifacts.errors import HeteroccError, InternalError, OutputFileError
from heterocc.artifacts.text.one_line import one_line
from heterocc.artifacts.text.printable import encodes_all, printable, printable_json


@contextmanager
def stdout_errors() -> Iterator[None]:
    """Turn a failure to write to standard output into OutputFileError (HC111), except BrokenPipeError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        abandon_stdout()
        raise OutputFileError(
            f"cannot write to standard output: {error.strerror or error}", hint="redirect the output to another place"
        ) from error


def abandon_stdout() -> None:
    """Discard the rest of standard output, so that the interpreter does not fail on exit."""
    with contextlib.suppress(OSError, ValueError):
        handle = os.open(os.devnull, os.O_WRONLY)
        os.dup2(handle, sys.stdout.fileno())
        os.close(handle)


def flush_stdout() -> None:
    """Write what standard output has buffered. Raises as `stdout_errors` does."""
    with stdout_errors():
        if sys.stdout is not None:
            sys.stdout.flush()


def print_json(data: Any) -> None:
    """Print data as JSON on standard output; equal data prints equal text."""
    text = json.dumps(data, indent=2, ensure_ascii=not encodes_all(sys.stdout), allow_nan=False)
    with stdout_errors():
        print(printable_json(text))


def print_plain(text: str) -> None:
    """Print text on standard output without markup, wrapping or control characters."""
    with stdout_errors():
        print(printable(text))


def print_line(text: str) -> None:
    """Print one line on standard output; line breaks in names are escaped."""
    print_plain(one_line(text))


def internal_error(error: Exception) -> HeteroccError:
    """The typed error for an unexpected exception."""
    message = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
    return InternalError(message, hint="a heterocc bug; run again with HETEROCC_DEBUG=1 for the traceback")
