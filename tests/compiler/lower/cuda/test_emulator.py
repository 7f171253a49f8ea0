"""The stand-in for CUDA's driver detects errors that fail on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compiler.lower import cuda_emulated

pytestmark = pytest.mark.xdist_group("cuda emulator")  # one process builds what the tests share

LAUNCH = """
import ctypes, sys
folder, library, blocks, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
driver, runtime = ctypes.CDLL('libcuda.so.1'), ctypes.CDLL(folder + '/libcudart.so.13')
class Config(ctypes.Structure):
    _fields_ = [('dims', ctypes.c_uint * 6), ('shared', ctypes.c_uint), ('stream', ctypes.c_void_p),
                ('attributes', ctypes.c_void_p), ('count', ctypes.c_uint)]
image = b'\\x7fELF' + bytes(60) + library.encode() + b'\\0'
module, function, memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
assert driver.cuModuleLoadData(ctypes.byref(module), image) == 0
assert driver.cuModuleGetFunction(ctypes.byref(function), module, b'k') == 0
assert runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(4096)) == 0
config = Config((ctypes.c_uint * 6)(1, blocks, 1, threads, 1, 1))
arguments = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
status = driver.cuLaunchKernelEx(ctypes.byref(config), function, arguments, None)
status = status or driver.cuStreamSynchronize(None)
found = (ctypes.c_int * 128)()
if not status:
    driver.cuMemcpyAsync(ctypes.c_uint64(ctypes.addressof(found)), ctypes.c_uint64(memory.value), ctypes.c_size_t(512),
                         None)
print('right' if list(found) == [63 - i % 64 for i in range(128)] else 'wrong', status)
"""

SWAP = """
  __shared__ int s[64];
  s[threadIdx.x] = threadIdx.x;
  {between}
  a[blockIdx.y * 64 + threadIdx.x] = s[63 - threadIdx.x];
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    cuda_emulated.build_driver(folder)
    return folder


@pytest.mark.parametrize(
    ("body", "blocks", "expected"),
    [
        (SWAP.replace("{between}", "__syncthreads();"), 2, "right 0"),
        (SWAP.replace("{between}", ""), 2, "wrong 0"),
        (SWAP.replace("{between}", "if (threadIdx.x < 32) __syncthreads();"), 2, "wrong 719"),
        (SWAP.replace("{between}", "if (threadIdx.x < 32) __syncthreads();\n else __syncthreads();"), 2, "wrong 719"),
        ("*(int4*)(a + 1) = int4{1, 2, 3, 4};", 2, None),
        ("a[0] = 0;", 65536, "wrong 1"),
        ("a[0] = 0;", 0, "wrong 1"),
    ],
    ids=["barrier", "no barrier", "half a barrier", "two barriers", "address", "large grid", "empty grid"],
)
def test_what_a_gpu_does_not_forgive_is_found(
    body: str, blocks: int, expected: str | None, driver: Path, tmp_path: Path
) -> None:
    """`expected` is whether the numbers are right, and CUDA's error; None if the process stops, as a kernel would."""
    source = f'extern "C" __global__ void __launch_bounds__(64) k(int* __restrict__ a) {{\n{body}\n}}\n'
    library = cuda_emulated.build_kernels(source, tmp_path, driver)
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH, str(driver), str(library), str(blocks), "64"],
        env={**os.environ, **cuda_emulated.environment(driver)},
        capture_output=True,
        text=True,
        check=False,
    )
    if expected is None:
        assert done.returncode < 0
    else:
        assert done.stdout.strip() == expected, done.stderr
