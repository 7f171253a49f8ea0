"""Run kernels of the kernel suite on Oclgrind, which reports data races of work items and accesses out of bounds.

python scripts/sanitize/kernel_races.py LOG SETTING [FAMILY …]      every case of the families, as the setting schedules
python scripts/sanitize/kernel_races.py LOG unguarded               kernels without barriers, which must be reported

A driver that runs the work items of a group one after the other, as PoCL does, gives right results with a barrier
missing. `LOG` is where Oclgrind writes; scripts/sanitize.sh starts this with Oclgrind as the only OpenCL driver.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from heterocc.compiler.lower.opencl import source  # noqa: E402
from tests.compiler.lower.kernel_case import Case, batch  # noqa: E402
from tests.compiler.lower.kernel_cases import FAMILIES  # noqa: E402
from tests.compiler.lower.kernel_devices import SETTINGS, Setting  # noqa: E402
from tests.compiler.lower.kernel_diff import differences  # noqa: E402

SHARING = ("ReduceSum_0", "even", "tall")
"""Cases whose kernels share memory within a group of `opencl-gpu`."""

UNKNOWN = ("Abs_int8", "Abs_int32", "Abs_int64")
"""Cases left out: clang makes `llvm.abs` of them, which Oclgrind 21.10 does not know."""


def length(log: Path) -> int:
    """Bytes that Oclgrind has written."""
    return log.stat().st_size if log.is_file() else 0


def fitting(setting: Setting, families: Sequence[str]) -> list[Case]:
    """The cases of families that the simulated device takes; it has no halves."""
    cases = [case for family in families for case in FAMILIES[family]]
    taken = [c for c in cases if c.dtypes <= setting.device.dtypes and "opencl" not in c.refused]
    return [c for c in taken if c.name not in UNKNOWN]


def faulty(log: Path, setting: Setting, cases: Iterable[Case]) -> list[str]:
    """The cases that are wrong or of which Oclgrind had something to say. Prints a line for each case."""
    found = []
    for case in cases:
        before = length(log)
        result = differences(batch([case]), setting)
        verdict = "reported" if length(log) > before else "wrong" if result.wrong else "clean"
        print(f"{setting.name}: {case.name} [{', '.join(result.rules[case.name])}]: {verdict}", flush=True)
        if verdict != "clean":
            found.append(case.name)
    return found


def all_clean(log: Path, setting: Setting, families: Sequence[str]) -> bool:
    """Whether no case of the families, or of all, has a fault."""
    cases = fitting(setting, families or tuple(FAMILIES))
    found = faulty(log, setting, cases)
    print(f"{setting.name}: {len(cases)} cases, with faults {len(found)} {' '.join(found)}")
    return not found


def missing_barriers_are_reported(log: Path) -> bool:
    """Whether kernels that share memory are reported if the barriers between their steps are missing."""
    complete = source.complete
    source.complete = lambda code: complete(code).replace("barrier(CLK_LOCAL_MEM_FENCE);", "")
    setting = next(s for s in SETTINGS if s.name == "opencl-gpu")
    cases = [c for c in fitting(setting, ("products", "reductions")) if c.name in SHARING]
    reported = faulty(log, setting, cases)
    print(f"without barriers: {len(reported)} of {len(SHARING)} kernels reported or wrong")
    return sorted(reported) == sorted(SHARING) and length(log) > 0


def main(log: Path, name: str, families: Sequence[str]) -> int:
    """The exit status."""
    if name == "unguarded":
        return 0 if missing_barriers_are_reported(log) else 1
    setting = next(s for s in SETTINGS if s.name == name)
    return 0 if all_clean(log, setting, families) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
