"""What `--help` shows beside the options: the groups of the options, and examples."""

from __future__ import annotations

SIZES = "Sizes"
DEVICES = "Devices"
PLACEMENT = "Placement"
CHECKS = "Checks and measurements"
INSIGHT = "What else is printed or written"
"""Groups of options. Those that most people need have none: they come first, under `Options`."""


def examples(*commands: str, note: str = "") -> str:
    """The end of a command's help: a note, and a line for each example."""
    return "\n\n".join([*([note, ""] if note else []), "Examples:", *(f"[cyan]{command}[/]" for command in commands)])
