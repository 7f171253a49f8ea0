"""The files of the table of forms: one for each group of cores that have equal records, one line for each shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.compiler.lower.cpu.forms.table import CORES, Core, core_of

FOLDER = Path(__file__).parents[4] / "golden" / "forms"
BLESS = "python -m tests.compiler.lower.cpu.forms --bless"

_HEAD = "# Forms on {}; made by `{}`\n"


def groups() -> dict[str, Core]:
    """The cores of which each has a file, with the records that others may share."""
    found: dict[str, Core] = {}
    for name in CORES:
        core = core_of(name)
        if core not in found.values():
            found[name] = core
    return found


def path_of(name: str) -> Path:
    """The file of a core."""
    return FOLDER / f"{name}.txt"


def read(path: Path) -> dict[str, str]:
    """The forms in a file by the names of shapes; none if there is no file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return dict(line.split(": ", 1) for line in lines if not line.startswith("#"))


def write(path: Path, forms: Mapping[str, str], core: Core) -> None:
    """Write the file of a core, with the names of all that have the same record."""
    names = ", ".join(name for name in CORES if core_of(name) == core)
    text = _HEAD.format(names, BLESS) + "".join(f"{shape}: {form}\n" for shape, form in forms.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def changes(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The rows of a core that differ, as lines before and after."""
    found = []
    for shape in dict.fromkeys([*before, *after]):
        if before.get(shape) != after.get(shape):
            found += [f"- {name}, {shape}: {before[shape]}"] if shape in before else []
            found += [f"+ {name}, {shape}: {after[shape]}"] if shape in after else []
    return found


def complaint(lines: Sequence[str]) -> str:
    """What a test says of rows that differ."""
    rows = "\n".join(lines)
    return f"the table of forms changed:\n{rows}\nif that is intended: {BLESS}"
