"""The terminal: progress on standard error, results on standard output, errors in one form."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.text import Text

from heterocc.artifacts.errors import HeteroccError, command_form
from heterocc.artifacts.text.one_line import one_line
from heterocc.artifacts.text.printable import printable
from heterocc.compiler.api.collection import collecting_rarely
from heterocc.compiler.api.progress import Progress, Reporter
from heterocc.compiler.cli.progress import Lines, bar
from heterocc.compiler.files import programs, scratch
from heterocc.runtime.cli.output import abandon_stdout, flush_stdout, internal_error, print_json, stdout_errors
from heterocc.runtime.cli.process import end_on_signals, is_ending, prepare_streams, yield_to_signal

_PIPE_WIDTH = 200
"""Columns of a table that is written to a file or a pipe; rich would assume 80."""


class _Terminal(Console):
    """A console that removes control characters from everything it prints.

    Markup is enabled for standard error only, whose lines this module writes. Standard output is plain text.
    """

    def __init__(self, *, stderr: bool) -> None:
        stream = sys.stderr if stderr else sys.stdout
        width = None if stream is not None and stream.isatty() else _PIPE_WIDTH
        super().__init__(stderr=stderr, highlight=False, soft_wrap=True, width=width, markup=stderr, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Make a string, such as a table cell, printable before its width is measured."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render any object with printable text; everything that is printed passes here."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print. A failure to write is an error on standard output, and is ignored on standard error."""
        if is_ending():  # a progress bar is redrawn from another thread
            return
        if self.stderr:
            with contextlib.suppress(OSError):
                super().print(*objects, **options)
            return
        with stdout_errors():
            super().print(*objects, **options)

    def on_broken_pipe(self) -> None:
        """Let `errors` handle it, as for every other output."""
        raise BrokenPipeError


out = _Terminal(stderr=False)
err = _Terminal(stderr=True)


class ConsoleReporter(Reporter):
    """A reporter that shows progress, notes and warnings immediately; with `quiet`, warnings only."""

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__()
        self._quiet = quiet
        self._lines = Lines(err)

    def note(self, text: str) -> None:
        """Print a note once."""
        text = one_line(command_form(text))
        if text not in self.notes and not self._quiet:
            err.print(f"[cyan]note:[/] {escape(text)}")
        super().note(text)

    def warn(self, text: str) -> None:
        """Print a warning once."""
        text = one_line(command_form(text))
        if text not in self.warnings:
            err.print(f"[yellow]warning:[/] {escape(text)}")
        super().warn(text)

    @contextmanager
    def stage(self, title: str, total: int | None = None) -> Iterator[Progress]:
        """A progress bar on a terminal, a line every few seconds elsewhere, nothing if quiet."""
        if self._quiet:
            yield Progress()
            return
        with bar(err, title, total) if err.is_terminal else self._lines.stage(title, total) as progress:
            yield progress


@contextmanager
def errors(as_json: bool = False) -> Iterator[None]:
    """Print every exception as an error and exit with its code; show a traceback only with HETEROCC_DEBUG=1."""
    try:
        try:
            yield
        finally:
            flush_stdout()
    except HeteroccError as error:
        fail(error, as_json)
    except (typer.Exit, typer.Abort, KeyboardInterrupt):
        raise
    except BrokenPipeError:
        # The reader of the output is gone (`| head`), which is not an error.
        abandon_stdout()
        raise typer.Exit(0) from None
    except Exception as error:
        if os.environ.get("HETEROCC_DEBUG"):
            raise
        fail(internal_error(error), as_json)


def fail(error: HeteroccError, as_json: bool) -> NoReturn:
    """Print an error, as JSON on standard output too if `as_json`, and exit with its code."""
    yield_to_signal()
    if as_json:
        with contextlib.suppress(HeteroccError):  # standard output may be what failed
            print_json({"error": error.to_json()})
    head, *rest = error.command_text().split("\n")
    kind, _, message = head.partition(": ")
    err.print(f"[bold red]{escape(kind)}[/]: {escape(message)}")
    for line in rest:
        err.print(escape(line))
    raise typer.Exit(error.exit_code) from error


def run(command: Callable[[], object]) -> NoReturn:
    """Run the command line as a process: prepare streams, handle signals and failures outside `errors`, and exit."""
    prepare_streams()
    end_on_signals(_print_end, programs.kill_all, scratch.remove_all)
    code = 0
    try:
        # Help and the version are also written to standard output, which may be full.
        with collecting_rarely(), errors(), stdout_errors():
            command()
    except typer.Exit as done:
        code = done.exit_code
    _exit(code)


def _exit(code: int) -> NoReturn:
    """End the process. The system frees its memory at once; after a compile Python takes a third of a second for it."""
    if [thread for thread in threading.enumerate() if not thread.daemon] != [threading.main_thread()]:
        sys.exit(code)  # waits for the others
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    os._exit(code)


def _print_end(text: str) -> None:
    if err.is_terminal:
        err.show_cursor(True)  # a progress bar hid it
    with contextlib.suppress(OSError, ValueError):
        # Not sys.stderr, which a progress bar takes over.
        print(f"\n{text}" if err.is_terminal else text, file=sys.__stderr__, flush=True)
