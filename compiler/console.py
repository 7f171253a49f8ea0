"""The terminal: progress on standard error, results on standard output, errors in one form."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from heterocc.artifacts.errors import HeteroccError, InternalError
from heterocc.compiler.progress import Lines, bar
from heterocc.compiler.report import Progress, Reporter

_PIPE_WIDTH = 200
"""Columns of a table that goes to a file or a pipe, where rich would assume 80."""


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(stderr=stderr, highlight=False, soft_wrap=True, width=width)


out = _console(stderr=False)
err = _console(stderr=True)


class ConsoleReporter(Reporter):
    """Shows progress, and warnings and notes as they come; `quiet` leaves only warnings."""

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__()
        self._quiet = quiet
        self._lines = Lines(err)

    def note(self, text: str) -> None:
        """Print a note once."""
        if text not in self.notes and not self._quiet:
            err.print(f"[cyan]note:[/] {escape(text)}")
        super().note(text)

    def warn(self, text: str) -> None:
        """Print a warning once."""
        if text not in self.warnings:
            err.print(f"[yellow]warning:[/] {escape(text)}")
        super().warn(text)

    @contextmanager
    def stage(self, title: str, total: int | None = None) -> Iterator[Progress]:
        """A progress bar on a terminal, a line every few seconds elsewhere, nothing where it is to be quiet."""
        if self._quiet:
            yield Progress()
            return
        with bar(err, title, total) if err.is_terminal else self._lines.stage(title, total) as progress:
            yield progress


def print_json(data: Any) -> None:
    """Print data as JSON on standard output, the same for the same data."""
    print(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def print_plain(text: str) -> None:
    """Print text on standard output without markup and without wrapping."""
    print(text)


@contextmanager
def errors(as_json: bool = False) -> Iterator[None]:
    """Turn every exception into an explained error and an exit code; a traceback only with HETEROCC_DEBUG=1."""
    try:
        yield
    except HeteroccError as error:
        fail(error, as_json)
    except (typer.Exit, typer.Abort, KeyboardInterrupt):
        raise
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nothing is left to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except Exception as error:
        if os.environ.get("HETEROCC_DEBUG"):
            raise
        message = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
        fail(InternalError(message, hint="a heterocc bug; run again with HETEROCC_DEBUG=1 for the traceback"), as_json)


def fail(error: HeteroccError, as_json: bool) -> NoReturn:
    """Print an error, on standard output too where JSON is wanted, and leave with its exit code."""
    if as_json:
        print_json({"error": error.to_json()})
    head, *rest = str(error).split("\n")
    kind, _, message = head.partition(": ")
    err.print(f"[bold red]{escape(kind)}[/]: {escape(message)}")
    for line in rest:
        err.print(escape(line))
    raise typer.Exit(error.exit_code) from error
