"""Compute the table of forms and show the rows that differ from the files; `--bless` writes them.

python -m tests.compiler.lower.cpu.forms           # shows what changed; exits with 1 if anything did
python -m tests.compiler.lower.cpu.forms --bless   # writes it
"""

from __future__ import annotations

import argparse
import sys

from tests.compiler.lower.cpu.forms.files import BLESS, FOLDER, changes, groups, path_of, read, write
from tests.compiler.lower.cpu.forms.shapes import every_shape
from tests.compiler.lower.cpu.forms.table import table


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog=BLESS.removesuffix(" --bless"), description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--bless", action="store_true", help="write the files of the table")
    bless = parser.parse_args().bless
    shapes, cores = every_shape(), groups()
    changed = 0
    for name, core in cores.items():
        forms = table(shapes, core)
        rows = changes(name, read(path_of(name)), forms)
        changed += len(rows)
        print("\n".join(rows), end="\n" if rows else "")
        if bless:
            write(path_of(name), forms, core)
    for path in FOLDER.glob("*.txt"):
        if path.stem not in cores:
            print(f"{path.name} is of no core of its own")
            changed += 1
            if bless:
                path.unlink()
    return 0 if bless else min(changed, 1)


if __name__ == "__main__":
    sys.exit(main())
