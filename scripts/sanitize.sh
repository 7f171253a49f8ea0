#!/usr/bin/env bash
# Run the native plug-ins under memory checkers: AddressSanitizer, its leak detector and UndefinedBehaviorSanitizer on
# their tests; then valgrind's memcheck on loading, running, closing and the end of the process, per API. Needs g++ and,
# for the second part, valgrind.
#
#   scripts/sanitize.sh [asan|valgrind|all] [pytest arguments]
#
# What drivers, TVM and Python do is suppressed in scripts/sanitize/. Builds go to build/sanitize and build/valgrind; the
# installed plug-ins stay as they are.
set -euo pipefail
cd "$(dirname "$0")/.."

part=${1:-all}
shift || true
python=.venv/bin/python
rules=$PWD/scripts/sanitize

# plugins FOLDER FLAGS: builds the plug-ins where PYTHONPATH=FOLDER/site finds them before the installed ones.
plugins() {
  local folder=$1 flags=$2
  cmake -S . -B "$folder" -DPython_EXECUTABLE="$PWD/$python" -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="$flags" >/dev/null
  cmake --build "$folder" --parallel 2 | { grep -E 'warning:|error:' || true; }
  mkdir -p "$folder/site/heterocc/runtime/native"
  cp "$folder"/libheterocc_*.so "$folder/site/heterocc/runtime/native/"
}

asan() {
  local folder=$PWD/build/sanitize
  plugins "$folder" "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"
  # Exceptions are only intercepted where the C++ library is there when the sanitizer starts.
  local preload
  preload="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so) $(g++ -print-file-name=libstdc++.so)"
  # Left out: what builds the plug-ins itself, which the preloaded libraries break, and what measures the process's
  # memory, where AddressSanitizer keeps freed blocks to find their later use.
  echo "sanitize: tests of the plug-ins under AddressSanitizer and UndefinedBehaviorSanitizer"
  LD_PRELOAD="$preload" PYTHONPATH="$folder/site" PYTHONMALLOC=malloc \
    ASAN_OPTIONS="detect_leaks=1:allocator_may_return_null=1:detect_odr_violation=2:strict_string_checks=1" \
    LSAN_OPTIONS="suppressions=$rules/leaks.supp:print_suppressions=0:use_tls=0" \
    UBSAN_OPTIONS="print_stacktrace=1" \
    "$python" -m pytest -q -p no:cacheprovider tests/runtime/native \
    --ignore=tests/runtime/native/test_native_build.py -k 'not memory_does_not_grow' "$@"
}

memcheck() {
  local folder=$PWD/build/valgrind
  plugins "$folder" "-O1 -g"
  for api in opencl vulkan; do
    echo "sanitize: one load, run and close on $api under valgrind"
    PYTHONPATH="$folder/site" "$python" "$rules/load_run_close.py" compile "$folder/$api.hcb" "$api"
    # Nothing compiled outside: drivers would have used instructions that valgrind does not know.
    HETEROCC_CACHE=off MESA_SHADER_CACHE_DISABLE=1 POCL_CACHE_DIR="$folder/pocl" \
      PYTHONPATH="$folder/site" PYTHONMALLOC=malloc valgrind --quiet --error-exitcode=9 --num-callers=30 \
      --suppressions="$rules/memcheck.supp" --leak-check=no "$python" "$rules/load_run_close.py" run "$folder/$api.hcb"
  done
}

case $part in
asan) asan "$@" ;;
valgrind) memcheck ;;
all)
  asan "$@"
  memcheck
  ;;
*)
  echo "usage: scripts/sanitize.sh [asan|valgrind|all] [pytest arguments]" >&2
  exit 2
  ;;
esac
