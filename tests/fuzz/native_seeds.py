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
    "request_data": lambda: [
        b'\x09{"inputs": [{"name": "x", "data": [[1, -2.5e3], [0, 1]]}], "id": "\\ud83d\\ude00"}',
        b'\x0b["a\\u00e9\\n", ""]',
        b"\x04\x1a\x03\x07\x80\x01\x42\x02ab\x32\x04\0\0\x80\x3f",
    ],
}

if __name__ == "__main__":
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(SEEDS[sys.argv[1]]()):
        (folder / f"seed-{number}").write_bytes(data)
