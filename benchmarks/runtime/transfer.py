"""Cost of transfers: our runtime's copies against the raw ones of each API, and the gain by overlap.

    python benchmarks/runtime/transfer.py [--sizes 4K,64K,1M,16M,64M] [--seconds 0.5] [--json FILE]

For every OpenCL, Vulkan and CUDA device here. Ours is what a session does for a transfer: start the copy between host
memory that the driver pinned and the device, and wait for it. Raw is the API called directly, with everything allocated
before. The two, and a memcpy of as many bytes as the limit of a software device, take turns; the least time counts.

Devices that share the host's memory (PoCL, lavapipe) copy nothing in a session; here they pass for discrete ones.

Then a model of two branches, one on the device and one on the CPU, each with one core: as the runtime orders it,
against the same with the host waiting after every step.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

for _api in ("OPENCL", "VULKAN"):  # before any plug-in is loaded
    os.environ.setdefault(f"HETEROCC_{_api}_FAULT", "discrete")
os.environ.setdefault("POCL_MAX_PTHREAD_COUNT", "1")
os.environ.setdefault("LP_NUM_THREADS", "1")

import numpy as np  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.transfers.overlap import Overlap, measure_overlap  # noqa: E402
from benchmarks.transfers.raw_copy import ACROSS, DOWN, RAW, UP  # noqa: E402
from heterocc.runtime.execute.cuda_streams import CudaStreams  # noqa: E402
from heterocc.runtime.execute.memory import Allocations, aligned_bytes, device_tensor, host_tensor  # noqa: E402
from heterocc.runtime.execute.pinned import pinned_bytes  # noqa: E402
from heterocc.runtime.execute.transfer import bind_copy  # noqa: E402
from heterocc.runtime.machine.devices import inventory  # noqa: E402
from heterocc.runtime.machine.found import FoundDevice  # noqa: E402
from heterocc.runtime.plan.steps import HOST, Copy, Space  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
APIS = ("opencl", "vulkan", "cuda")


@dataclass(frozen=True, slots=True)
class Transfer:
    """Least times in microseconds for `nbytes` in one direction, and of a memcpy of as many."""

    device: str
    direction: str
    nbytes: int
    ours: float
    raw: float
    memcpy: float

    @property
    def ratio(self) -> float:
        """Our time over the raw one."""
        return self.ours / self.raw

    def bandwidth(self, time: float) -> float:
        """GB/s for a time in microseconds."""
        return self.nbytes / time / 1e3


def parse_sizes(text: str) -> list[int]:
    """`4K,1M` as bytes."""
    unit = {"K": 1 << 10, "M": 1 << 20}
    return [int(t[:-1]) * unit[t[-1]] if t[-1] in unit else int(t) for t in text.upper().split(",")]


def least(calls: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Least time of each call in microseconds, all taking turns."""
    best = dict.fromkeys(calls, float("inf"))
    end = perf_counter() + seconds * len(calls)
    rounds = 0
    while rounds < 20 or perf_counter() < end:
        for name, call in calls.items():
            start = perf_counter()
            call()
            best[name] = min(best[name], (perf_counter() - start) * 1e6)
        rounds += 1
    return best


def our_copies(space: Space, size: int) -> dict[str, Callable[[], object]]:
    """The runtime's copies with host memory that it pins, and between two tensors of the device."""
    pinned = pinned_bytes(space, size)
    host = host_tensor(aligned_bytes(size) if pinned is None else pinned)
    count = Allocations()
    here, there = (device_tensor(space, (size,), "uint8", count) for _ in range(2))
    bind = CudaStreams().copy if space.backend == "cuda" else bind_copy
    starts = {
        UP: bind(Copy(0, HOST, space), {(0, HOST): host, (0, space): here}),
        DOWN: bind(Copy(0, space, HOST), {(0, HOST): host, (0, space): here}),
        ACROSS: bind(Copy(0, HOST, space), {(0, HOST): here, (0, space): there}),
    }
    return {direction: partial(_copy_and_wait, start) for direction, start in starts.items()}


def _copy_and_wait(start: Callable[[], Callable[[], object]]) -> None:
    start()()


def measure(device: FoundDevice, size: int, seconds: float) -> list[Transfer]:
    """All directions for one size."""
    source, target = aligned_bytes(size), aligned_bytes(size)
    source.fill(1)
    ours, found = our_copies(Space(device.backend, device.index), size), []
    with RAW[device.backend](device.index, size) as raw:
        for direction in (UP, DOWN, ACROSS):
            calls = {
                "ours": ours[direction],
                "raw": raw[direction],
                "memcpy": partial(np.copyto, target, source),
            }
            found.append(Transfer(device.label, direction, size, **least(calls, seconds)))
    return found


def table(rows: list[Transfer]) -> str:
    """The transfers as text."""
    header = ("device", "direction", "bytes", "ours us", "raw us", "ratio", "ours GB/s", "raw GB/s", "memcpy GB/s")
    cells = [header] + [
        (t.device, t.direction, str(t.nbytes), f"{t.ours:.1f}", f"{t.raw:.1f}", f"{t.ratio:.2f}",
         *(f"{t.bandwidth(time):.2f}" for time in (t.ours, t.raw, t.memcpy)))
        for t in rows
    ]  # fmt: skip
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = (
        "  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in cells
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sizes", type=parse_sizes, default="4K,64K,1M,16M,64M")
    parser.add_argument("--seconds", type=float, default=0.5, help="per call, size and direction")
    parser.add_argument("--json", type=Path, default=RESULTS / "transfer.json")
    options = parser.parse_args()
    devices = [d for d in inventory().devices if d.backend in APIS]
    rows = [row for device in devices for size in options.sizes for row in measure(device, size, options.seconds)]
    print(table(rows))
    overlaps: list[Overlap] = [measure_overlap(device.label) for device in devices]
    for overlap in overlaps:
        print(overlap)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    found = {
        "devices": {d.label: d.to_json() for d in devices},
        "transfers": [asdict(row) | {"ratio": row.ratio} for row in rows],
        "overlap": [asdict(overlap) for overlap in overlaps],
    }
    options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
