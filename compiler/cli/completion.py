"""The words with which a shell completes options and arguments (`heterocc --install-completion`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import get_args

Completion = Callable[[str], list[str]]

_DEVICES = ("CPU", "GPU", "OPENCL", "VULKAN", "CUDA", "ORT")
"""Device names that mean the same on every machine; those of the machine take seconds to find."""


def policies(incomplete: str) -> list[str]:
    """The values of `--policy`."""
    from heterocc.passes.base import MEASURED, POLICIES

    return _beginning(incomplete, (*POLICIES, MEASURED))


def objectives(incomplete: str) -> list[str]:
    """The values of `--objective`."""
    from heterocc.passes.objective import OBJECTIVES

    return _beginning(incomplete, OBJECTIVES)


def stages(incomplete: str) -> list[str]:
    """The values of `--stop-after`."""
    from heterocc.compiler.options import Stage

    return _beginning(incomplete, get_args(Stage))


def devices(incomplete: str) -> list[str]:
    """Lists of devices that have one more device than what stands before the last comma or colon."""
    at = max(incomplete.rfind(","), incomplete.rfind(":")) + 1
    before, start = incomplete[:at], incomplete[at:]
    named = before.replace(":", ",").split(",")
    words = [*(() if before else ("AUTO", "AUTO:", "MULTI:")), *(name for name in _DEVICES if name not in named)]
    return [before + word for word in words if word.startswith(start)]


def peers(incomplete: str) -> list[str]:
    """Lists of peers for `--against` that have one more than what stands before the last comma, and models first."""
    from heterocc.runtime.cli.peers import PEERS

    before, comma, start = incomplete.rpartition(",")
    named = before.split(",")
    words = [f"{before}{comma}{name}" for name in PEERS if name not in named and name.startswith(start)]
    return words if comma else [*words, *files(".onnx")(incomplete)]


def words(*values: str) -> Completion:
    """The values of an option that has no others."""
    return lambda incomplete: _beginning(incomplete, values)


def files(*suffixes: str) -> Completion:
    """Paths of folders, and of files with one of the suffixes, as `.onnx`. A folder that alone matches is opened."""

    def complete(incomplete: str) -> list[str]:
        found = _matches(incomplete, suffixes)
        while len(found) == 1 and found[0].endswith("/") and (inside := _matches(found[0], suffixes)):
            found = inside
        return found

    return complete


def _matches(incomplete: str, suffixes: tuple[str, ...]) -> list[str]:
    folder, slash, start = incomplete.rpartition("/")
    before = folder + slash
    try:
        entries = sorted(Path(before or ".").expanduser().iterdir())
    except OSError:
        return []
    shown = [entry for entry in entries if start.startswith(".") or not entry.name.startswith(".")]
    names = (f"{e.name}/" if e.is_dir() else e.name for e in shown if e.is_dir() or e.suffix.lower() in suffixes)
    return [before + name for name in names if name.startswith(start)]


def _beginning(incomplete: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]
