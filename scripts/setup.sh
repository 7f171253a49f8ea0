#!/usr/bin/env bash
# Set up all that `make demo` and `make test` need: Debian packages (as root), a virtual environment, heterocc itself.
set -euo pipefail
cd "$(dirname "$0")/.."

# OpenCL and Vulkan drivers for the CPU, their loaders, and the headers for our plug-ins; the tests check SPIR-V with
# spirv-tools, and run code for 64-bit ARM with qemu-user. None of them is needed for CPU-only use.
packages=(pocl-opencl-icd ocl-icd-libopencl1 opencl-c-headers
  mesa-vulkan-drivers libvulkan1 libvulkan-dev spirv-tools qemu-user)
missing=()
for package in "${packages[@]}"; do
  dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "setup: installing ${missing[*]}"
    (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}") \
      >/dev/null || echo "setup: apt-get failed; going on without ${missing[*]} (their devices and tests are left out)"
  else
    echo "setup: going on without ${missing[*]} (their devices and tests are left out); to have it: sudo apt-get install ${missing[*]}"
  fi
fi

python=${PYTHON:-python3}
if [ ! -x .venv/bin/python ]; then
  echo "setup: creating .venv"
  if ! "$python" -m venv .venv >/dev/null 2>&1; then
    # Debian splits ensurepip off into python3-venv: virtualenv from PyPI does without it.
    rm -rf .venv
    bootstrap=$(mktemp -d)
    trap 'rm -rf "$bootstrap"' EXIT
    "$python" -m pip install -q --target "$bootstrap" virtualenv
    PYTHONPATH="$bootstrap" "$python" -m virtualenv -q .venv
  fi
fi

extras=dev,linker
# NVIDIA's compiler and runtime library, where there is a GPU for them; TVM brings the rest.
if nvidia-smi -L >/dev/null 2>&1; then extras+=,cuda; fi

stamp=.venv/.heterocc-stamp
# An editable installation knows the modules by name: those that moved are not found.
modules=$(find package artifacts compiler passes runtime -name '*.py' | sort | sha256sum)
sources=$(find runtime/native passes/native -name '*.cc' -o -name '*.h' -o -name CMakeLists.txt | sort)
digest=$extras-$modules-$(cat pyproject.toml CMakeLists.txt scripts/setup.sh $sources | sha256sum)
if [ "$(cat "$stamp" 2>/dev/null)" != "$digest" ]; then
  echo "setup: installing heterocc and what it needs into .venv (a few minutes the first time)"
  .venv/bin/python -m pip install -q --disable-pip-version-check "scikit-build-core>=1.0" cmake ninja "apache-tvm==0.27.*"
  # heterocc-runtime owned a part of the files once: removed after heterocc is installed, it would take them.
  .venv/bin/python -m pip uninstall -q -y heterocc heterocc-runtime 2>/dev/null
  .venv/bin/python -m pip install -q --disable-pip-version-check --no-build-isolation -e ".[$extras]"
  # pip compiles the modules of an installation for Python, but not of an editable one: a compile would begin a second later.
  .venv/bin/python -m compileall -q package artifacts compiler passes runtime
  printf '%s\n' "$digest" >"$stamp"
fi
