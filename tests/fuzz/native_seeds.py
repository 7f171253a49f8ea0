"""Seeds of the native fuzzing targets: `native_seeds.py TARGET FOLDER` writes modules as the compiler would."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from tests.runtime.native import opencl_sample, vulkan_sample

SEEDS = {
    "vulkan_module": lambda: [
        vulkan_sample.module_bytes(),
        vulkan_sample.module_bytes(vulkan_sample.kernel_bytes(), vulkan_sample.kernel_bytes("other", shared=64)),
    ],
    "opencl_module": lambda: [opencl_sample.module_bytes()],
    "opencl_binaries": lambda: [
        b"HCLB" + struct.pack("<II", 1, 0),
        b"HCLB" + struct.pack("<II", 1, 1) + bytes(32) + struct.pack("<Q", 3) + b"abc",
    ],
}

if __name__ == "__main__":
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(SEEDS[sys.argv[1]]()):
        (folder / f"seed-{number}").write_bytes(data)
