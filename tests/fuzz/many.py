"""Counts mutants of every reader: `python -m tests.fuzz.many [READER …] [--count 100000] [--seconds S] [--out FILE]`.

Each reader gets the mutants 0 to `--count` - 1 of its seeds (structured.py, model_mutations.py), in processes of some
thousand, with limits on the address space (MEMORY beside the process's own), on processor time (SECONDS a mutant) and,
for a deadlock, on time. Anything but a result or a typed error ends the command with the number of the mutant.
Readers in C++ run under AddressSanitizer and UndefinedBehaviorSanitizer (`scripts/fuzz.sh build` first; needs clang).
FILE (build/fuzz/many.json) keeps the counts, so that the command continues where it ended: by a fault, by `--seconds`
or by a signal. `import` is not among the readers by default, because it takes an hour: it also places or compiles some.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from tests.fuzz import structured

ROOT = Path(__file__).parents[2]
PART, IMPORTED = 5000, 500
"""Mutants of a part, and models of a part of `import`, which take ten times as long."""
SECONDS = 10
"""Of processor time that a mutant may take."""
PATIENCE = 3600
"""Seconds of the clock for a part: it may be stopped for a while."""
MEMORY = 256 << 20
"""Bytes of address space that all mutants of a part may take beside what the process has at its start."""

Mutate = Callable[[bytes, random.Random], bytes]

TEXTUAL: Mapping[str, Mutate] = {
    "bundle": structured.zip_mutant,
    "manifest": structured.json_mutant,
    "signatures": structured.text_mutant,
    "keys": structured.text_mutant,
    "npy": structured.npy_mutant,
    "npz": structured.npz_mutant,
    "affinity": structured.text_mutant,
    "device-toml": structured.text_mutant,
    "device-json": structured.json_mutant,
    "costs": structured.json_mutant,
    "request": structured.request_mutant,
    "message": structured.damage,
}
"""Targets of targets.py, called in the process of the part, and changes of their seeds."""

NATIVE: Mapping[str, Callable[[bytes], structured.Items]] = {
    "vulkan_module": structured.vulkan_module,
    "opencl_module": structured.opencl_module,
    "opencl_binaries": structured.opencl_binaries,
}
"""Readers in C++ and the parts of their seeds."""

PARSED = ("model", "onnx-wire")
"""Targets of targets.py whose seeds are those of model_mutations.py."""

READERS = (*TEXTUAL, *NATIVE, *PARSED, "import")
"""`import` reads external data, too."""


@dataclass
class Count:
    """The mutants of a reader: how many, how many it refused, the slowest in seconds, the growth of memory in MiB."""

    mutants: int = 0
    refused: int | None = 0
    slowest: float | None = 0.0
    memory: int | None = 0

    def add(self, other: Count) -> None:
        self.mutants += other.mutants
        for name, merge in (("refused", sum), ("slowest", max), ("memory", max)):
            values = (getattr(self, name), getattr(other, name))
            setattr(self, name, None if None in values else merge(values))  # type: ignore[operator]


# ---- a part, in a process of its own -------------------------------------------------------------------------------


def limit(memory: int) -> None:
    """Restrict this process to `memory` bytes beside its own."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory,) * 2)


def peak() -> int:
    """The most resident memory so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def seeded(name: str, number: int, seeds: list[bytes], mutate: Mutate) -> bytes:
    """The mutant of a number."""
    rng = random.Random(f"{name} {number}")
    return mutate(rng.choice(seeds), rng)


def part_in_process(name: str, first: int, count: int, at: Path) -> Count:
    """Call a target with mutants; `at` has the number of the one at work."""
    from tests.fuzz import model_mutations, targets

    if name in PARSED:
        make = lambda number: model_mutations.mutant(number)[1]  # noqa: E731
    else:
        make = partial(seeded, name, seeds=targets.TARGETS[name].seeds(), mutate=TEXTUAL[name])
    targets.run(name, make(0))  # loads what is loaded once
    found, before = Count(count), peak()
    limit(MEMORY)
    for number in range(first, first + count):
        data = make(number)
        at.write_text(str(number), encoding="ascii")
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # ends the process
        start = time.process_time()
        accepted = targets.run(name, data)
        found.slowest = max(found.slowest or 0, time.process_time() - start)
        signal.setitimer(signal.ITIMER_PROF, 0)
        found.refused = (found.refused or 0) + (not accepted)
    found.memory = peak() - before
    return found


def part_native(name: str, first: int, count: int) -> Count:
    """Give mutants to the program of scripts/fuzz.sh, whose sanitizers end it with the file's name."""
    from tests.fuzz.native_seeds import SEEDS

    seeds = SEEDS[name]()
    mutate: Mutate = lambda data, rng: structured.fields_mutant(NATIVE[name](data), rng)  # noqa: E731
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        for number in range(first, first + count):
            (folder / f"{number:06d}").write_bytes(seeded(name, number, seeds, mutate))
        program = [ROOT / "build" / "fuzz" / f"{name}.run", "-runs=0", f"-timeout={PATIENCE}"]
        limits = [f"-rss_limit_mb={MEMORY >> 20}", f"-artifact_prefix={ROOT}/build/fuzz/{name}-"]
        start = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([*program, *limits, folder], capture_output=True, text=True, check=False)
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode != 0 or end.ru_utime - start.ru_utime > SECONDS:
            raise SystemExit(done.stderr[-4000:])
    finally:
        shutil.rmtree(folder)
    # An upper bound: the time of all of them, the memory of the sanitizers included.
    return Count(count, None, end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime, end.ru_maxrss >> 10)


def part_imported(first: int, count: int) -> Count:
    """Import models, fifty in a process."""
    from tests.fuzz import model_mutations

    kept = ROOT / "build" / "fuzz" / "import"
    kept.mkdir(parents=True, exist_ok=True)
    _, refused, failures = model_mutations.try_all(first, count, kept)
    if failures:
        raise SystemExit(f"{len(failures)} models, in {kept}")
    return Count(count, refused, None, None)


def part(name: str, first: int, count: int, at: Path) -> Count:
    """One part, in this process."""
    if name in NATIVE:
        return part_native(name, first, count)
    if name == "import":
        return part_imported(first, count)
    return part_in_process(name, first, count, at)


# ---- all of them ---------------------------------------------------------------------------------------------------


def run_part(name: str, first: int, count: int) -> Count:
    """A part in a process of its own. Raises SystemExit with the mutant that ended it."""
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder) / "at"
        command = [sys.executable, "-m", "tests.fuzz.many", "--part", name, str(first), str(count), str(at)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
        if done.returncode != 0:
            number = at.read_text(encoding="ascii") if at.exists() else f"{first} to {first + count - 1}"
            said = f"{done.stdout[-3000:]}\n{done.stderr[-4000:]}"
            raise SystemExit(f"{name}: mutant {number}: exit status {done.returncode}\n{said}")
    return Count(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Run what is left, reader by reader."""
    if sys.argv[1:2] == ["--part"]:
        name, first, count, at = sys.argv[2:6]
        print(json.dumps(asdict(part(name, int(first), int(count), Path(at)))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readers", nargs="*", metavar="READER", help=", ".join(READERS))
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "fuzz" / "many.json")
    options = parser.parse_args()
    if unknown := set(options.readers) - set(READERS):
        parser.error(f"no reader is named {', '.join(sorted(unknown))}")
    end = time.monotonic() + options.seconds
    counts = {n: Count(**c) for n, c in json.loads(options.out.read_text()).items()} if options.out.exists() else {}
    for name in options.readers or (r for r in READERS if r != "import"):
        found, most = counts.setdefault(name, Count()), IMPORTED if name == "import" else PART
        while found.mutants < options.count and time.monotonic() < end:
            found.add(run_part(name, found.mutants, min(most, options.count - found.mutants)))
            options.out.parent.mkdir(parents=True, exist_ok=True)
            changed = options.out.with_suffix(".new")
            changed.write_text(json.dumps({n: asdict(c) for n, c in counts.items()}, indent=1), encoding="utf-8")
            changed.replace(options.out)
        print(f"{name:16} {found.mutants:7} mutants, {found.refused} refused, {found.slowest} s, {found.memory} MiB")


if __name__ == "__main__":
    main()
