#!/usr/bin/env bash
# Coverage-guided fuzzing of the readers of files and bytes: atheris for those in Python, libFuzzer with AddressSanitizer
# and UndefinedBehaviorSanitizer for those in C++ (needs clang). The extra heterocc[fuzz] has atheris.
#
#   scripts/fuzz.sh [SECONDS [TARGET...]]
#   scripts/fuzz.sh build                     only builds the programs of the readers in C++, into build/fuzz
#
# SECONDS (60) is the time for each target. Inputs that reach new code are kept in build/fuzz/TARGET, so that the next run
# continues there. A fault ends the script; its input is build/fuzz/TARGET/crash-*: fix the cause, and add the input as
# hexadecimal digits to tests/fuzz/corpus/TARGET.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
shift || true
python=.venv/bin/python
export PYTHONPATH=$PWD
clang=$(command -v clang++ || ls /usr/lib/llvm-*/bin/clang++ 2>/dev/null | tail -1 || true)
native=(opencl_module vulkan_module opencl_binaries request_data)
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  mapfile -t targets < <("$python" -c 'from tests.fuzz.targets import TARGETS; print("\n".join(TARGETS))')
  targets+=("${native[@]}")
fi

build() {
  local name=$1 api=${1%%_*} flags=(-std=c++17 -g -O1 -fno-sanitize-recover=undefined) tvm ffi
  if [ -z "$clang" ]; then
    echo "fuzz: $name is left out: no clang++ was found (Debian: clang)"
    return 1
  fi
  tvm=$("$python" -c "import importlib.util as u; print(u.find_spec('tvm').submodule_search_locations[0])")
  ffi=$("$python" -c "import importlib.util as u; print(u.find_spec('tvm_ffi').submodule_search_locations[0])")
  local label=OpenCL sources=(common/reader.cc common/error.cc common/kernel_arguments.cc common/sha256.cc)
  case $name in
  opencl_module) sources+=(opencl/module_format.cc) ;;
  opencl_binaries) sources+=(opencl/binary_package.cc) ;;
  request_data) sources=(cpu/element_writer.cc cpu/json_scanner.cc cpu/json_tensors.cc cpu/wire_tensors.cc) ;;
  vulkan_module) label=Vulkan sources+=(vulkan/module_format.cc vulkan/spirv.cc) ;;
  esac
  mkdir -p build/fuzz
  "$clang" "${flags[@]}" -fsanitize=fuzzer,address,undefined -I runtime/native -I "$ffi/include" -I "$tvm/include" \
    -DHETEROCC_PLUGIN="${api}_plugin" -DHETEROCC_NAME="\"$api\"" -DHETEROCC_LABEL="\"$label\"" \
    -DCL_TARGET_OPENCL_VERSION=120 "${sources[@]/#/runtime/native/}" "tests/fuzz/native/$name.cc" \
    "$ffi/lib/libtvm_ffi.so" -Wl,-rpath,"$ffi/lib" -o "build/fuzz/$name.run"
}

if [ "$seconds" = build ]; then
  for target in "${native[@]}"; do build "$target"; done
  exit
fi

shown='Error|ERROR|SUMMARY|DONE|stat::number_of|stat::peak|crash-|^  File'
for target in "${targets[@]}"; do
  folder=build/fuzz/$target
  limits=("-max_total_time=$seconds" -print_final_stats=1)
  case " ${native[*]} " in
  *" $target "*)
    build "$target" || continue
    "$python" tests/fuzz/native_seeds.py "$target" "$folder"
    program=("build/fuzz/$target.run" "$folder" -timeout=10 -rss_limit_mb=4096 "-artifact_prefix=$folder/")
    ;;
  *)
    if ! "$python" -c 'import atheris' 2>/dev/null; then
      echo "fuzz: $target is left out: pip install 'heterocc[fuzz]'"
      continue
    fi
    program=("$python" tests/fuzz/guided.py "$target" "$folder")
    ;;
  esac
  echo "fuzz: $target"
  set +e
  "${program[@]}" "${limits[@]}" 2>&1 | grep -E "$shown"
  status=${PIPESTATUS[0]}
  set -e
  [ "$status" = 0 ] || exit "$status"
done
