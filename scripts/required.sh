#!/usr/bin/env bash
# Print what the tests must find here, as HETEROCC_REQUIRE takes it: the drivers and tools that scripts/setup.sh installs
# and that are installed (aarch64: an emulator of 64-bit ARM; browser: Chromium with Playwright), and an NVIDIA GPU. A test of theirs that is skipped is an
# error then.
set -euo pipefail

installed() {
  dpkg -s "$@" >/dev/null 2>&1
}

found=()
if command -v c++ >/dev/null; then # the plug-ins are built here
  installed pocl-opencl-icd ocl-icd-libopencl1 opencl-c-headers && found+=(opencl)
  installed mesa-vulkan-drivers libvulkan1 libvulkan-dev && found+=(vulkan)
fi
installed spirv-tools && found+=(spirv-val)
installed qemu-user && found+=(aarch64)
if installed chromium && .venv/bin/python -c 'import playwright, viztracer' 2>/dev/null; then found+=(browser); fi
nvidia-smi -L >/dev/null 2>&1 && found+=(cuda)
(IFS=, && echo "${found[*]-}")
