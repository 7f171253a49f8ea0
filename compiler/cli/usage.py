"""Usage errors of the command line (an unknown option, a missing argument, a bad value) as heterocc's errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from heterocc.artifacts.errors import UsageError
from heterocc.compiler.cli.console import fail

_TyperUsageError: Any = typer.BadParameter.__base__
"""The base class of typer's usage errors; its module differs between releases of typer."""

_UNREADABLE = "is not readable"
"""The end of typer's message about a file."""

_PERMISSION = "give your user the permission to read it"

_SENTENCE = ": Input should be "
"""The beginning of typer's sentences about a value, behind the option's name."""

_PARSER = ", unable to parse"
"""The beginning of what they say of typer's own parser."""


class Commands(TyperGroup):
    """A group whose usage errors are HC120, printed as JSON too if `--json` is among the arguments."""

    _as_json = False
    _path = "heterocc"

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> Any:
        """Parse the options before the command."""
        self._as_json = _wants_json(args)
        self._path = " ".join(["heterocc", *[word for word in args[:1] if word in self.commands]])
        with self._explained():
            return super().make_context(info_name, args, *rest, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Parse the command's own options and run it."""
        with self._explained():
            return super().invoke(ctx)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except _TyperUsageError as error:
            text = error.format_message().strip()
            if not text:  # `heterocc` alone, which prints the help
                raise
            fail(_as_ours(error, text, self._path), self._as_json)


def _wants_json(arguments: Sequence[str]) -> bool:
    """Return whether `--json` is among the arguments before `--`."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in options


def _as_ours(error: Any, text: str, path: str) -> UsageError:
    command = path if error.ctx is None else error.ctx.command_path
    message = " ".join(text.split()).rstrip(".")
    message = message.replace(_SENTENCE, ": it must be ").partition(_PARSER)[0]
    hint = _PERMISSION if message.endswith(_UNREADABLE) else f"`{command} --help` shows the options"
    return UsageError(message[0].lower() + message[1:], where=command, hint=hint)
