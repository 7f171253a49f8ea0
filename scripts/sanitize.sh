#!/usr/bin/env bash
# Run the native plug-ins and the kernels under checkers:
#
#   asan      AddressSanitizer, its leak detector and UndefinedBehaviorSanitizer on the plug-ins' tests; needs g++
#   valgrind  memcheck on loading, running, closing and the end of the process, per API; needs g++, valgrind
#   layers    Khronos' validation layer, that of synchronisation too, on all that tests of the runtime do with Vulkan;
#             needs vulkan-validationlayers
#   races     every kernel of the kernel suite on Oclgrind, which tells data races between work items; needs oclgrind
#
#   scripts/sanitize.sh [asan|valgrind|layers|races|all] [pytest arguments, of asan and layers]
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
  cmake -S runtime/native -B "$folder" -DPython_EXECUTABLE="$PWD/$python" -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="$flags" >/dev/null
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
    tests/runtime/execute/test_fast_path.py tests/runtime/execute/test_any_size.py \
    tests/runtime/execute/test_straight.py tests/runtime/execute/test_appended.py tests/compiler/lower/cpu/programs/test_sequences.py \
    tests/runtime/serve/test_tensors.py \
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

layers() {
  local folder=$PWD/build/layers reader status=0
  mkdir -p "$folder"
  cat >"$folder/vk_layer_settings.txt" <<END
khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.log_filename = $folder/pipe
khronos_validation.report_flags = error,warn,info
khronos_validation.enables = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT
END
  # Tests start processes, each of which would begin a file anew: all write to one pipe, which is held open for them.
  rm -f "$folder/pipe"
  mkfifo "$folder/pipe"
  exec 9<>"$folder/pipe"
  cat <&9 >"$folder/said.txt" &
  reader=$!
  echo "sanitize: what tests of the runtime do with Vulkan under the validation layer"
  VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation VK_LAYER_SETTINGS_PATH=$folder/vk_layer_settings.txt \
    "$python" -m pytest -q -p no:cacheprovider -m 'not slow and not models' tests/runtime -k 'vulkan or VULKAN or discrete' \
    "$@" || status=$?
  sleep 1
  kill "$reader"
  exec 9>&-
  echo "sanitize: $(grep -c 'Khronos Validation Layer Active' "$folder/said.txt") processes had the layer"
  grep -q 'Khronos Validation Layer Active' "$folder/said.txt" || {
    echo "sanitize: the validation layer was not there; it is in Debian's vulkan-validationlayers" >&2
    return 1
  }
  ! grep -E '\((WARN|ERROR) / ' "$folder/said.txt" && return "$status"
}

races() {
  local folder=$PWD/build/races simulator setting
  simulator=$(ls /usr/lib/oclgrind/liboclgrind-rt-icd.so /usr/local/lib/liboclgrind-rt-icd.so 2>/dev/null | head -1)
  mkdir -p "$folder/vendors"
  echo "${simulator:?Oclgrind is not there; it is in the Debian package of this name}" >"$folder/vendors/oclgrind.icd"
  for setting in unguarded pocl opencl-gpu opencl-least; do
    echo "sanitize: kernels for $setting on Oclgrind"
    rm -f "$folder/$setting.log"
    OCL_ICD_VENDORS=$folder/vendors HETEROCC_CACHE=$folder/cache OCLGRIND_DATA_RACES=1 OCLGRIND_CHECK_API=1 \
      OCLGRIND_LOG=$folder/$setting.log "$python" "$rules/kernel_races.py" "$folder/$setting.log" "$setting" |
      { grep -v ': clean$' || true; }
  done
}

case $part in
asan) asan "$@" ;;
valgrind) memcheck ;;
layers) layers "$@" ;;
races) races ;;
all)
  asan "$@"
  memcheck
  layers "$@"
  races
  ;;
*)
  echo "usage: scripts/sanitize.sh [asan|valgrind|layers|races|all] [pytest arguments]" >&2
  exit 2
  ;;
esac
