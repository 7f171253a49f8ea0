"""Coverage-guided fuzzing of one target by atheris: `guided.py TARGET FOLDER [options of libFuzzer]`.

Inputs that reach new code are kept in FOLDER, which begins with the target's seeds. A fault ends the process, and
the input is in FOLDER/crash-*.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

# atheris instruments what Python's own finder finds, so not through the finder of an editable install.
sys.meta_path[:] = [finder for finder in sys.meta_path if "_editable_" not in type(finder).__module__]
sys.path.insert(0, str(Path(__file__).parents[2] / ".pkgroot"))

with atheris.instrument_imports(include=["heterocc"]):
    from tests.fuzz import targets

MEMORY_MB = 4096
SECONDS = 10
"""Of one input."""


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate((*targets.TARGETS[name].seeds(), *targets.corpus(name))):
        (folder / f"seed-{number}").write_bytes(data)
    limits = [f"-rss_limit_mb={MEMORY_MB}", f"-timeout={SECONDS}", f"-artifact_prefix={folder}/"]
    atheris.Setup([sys.argv[0], str(folder), *limits, *sys.argv[3:]], lambda data: targets.run(name, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
