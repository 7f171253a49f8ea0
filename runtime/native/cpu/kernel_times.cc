#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace heterocc::cpu {
namespace {

namespace ffi = tvm::ffi;
using ffi::Any;
using ffi::Function;
using ffi::PackedArgs;

// What TVM's virtual machine passes to an observer before the arguments of a call, which it makes before and after
// each.
enum Place { kFunction, kSymbol, kBefore, kLeast = 4 };

constexpr std::string_view kOwnFunctions = "vm.builtin.";

bool IsKernel(PackedArgs arguments) {
  if (arguments.size() < kLeast) return false;
  const auto symbol = arguments[kSymbol].cast<ffi::String>();
  return std::string_view(symbol.data(), symbol.size()).substr(0, kOwnFunctions.size()) != kOwnFunctions;
}

// See cpu_api.kernels_only.
Function KernelsOnly(const Function& observer) {
  return Function::FromPacked([observer](PackedArgs arguments, Any* result) {
    if (IsKernel(arguments)) {
      observer.CallPacked(arguments, result);
    } else {
      *result = 0;
    }
  });
}

// The calls of kernels since they were taken last.
struct Times {
  std::unordered_map<std::string, size_t> numbers;
  ffi::Array<ffi::String> symbols;
  std::vector<int64_t> sums;   // of each symbol: nanoseconds and calls
  std::vector<int64_t> calls;  // of the first ones, one by one: the symbol's number, begin and end
  std::vector<int64_t> begun;
};

int64_t Now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

ffi::Bytes BytesOf(const std::vector<int64_t>& numbers) {
  return ffi::Bytes(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(int64_t));
}

// See cpu_api.kernel_times. The functions are for one thread at a time.
ffi::Array<Function> KernelTimes(int64_t most) {
  const auto times = std::make_shared<Times>();
  Function observe = Function::FromPacked([times, most](PackedArgs arguments, Any* result) {
    *result = 0;
    if (!IsKernel(arguments)) return;
    if (arguments[kBefore].cast<bool>()) {
      times->begun.push_back(Now());
      return;
    }
    const int64_t end = Now();
    if (times->begun.empty()) return;
    const int64_t begin = times->begun.back();
    times->begun.pop_back();
    const auto symbol = arguments[kSymbol].cast<ffi::String>();
    const auto [found, is_new] =
        times->numbers.try_emplace(std::string(symbol.data(), symbol.size()), times->symbols.size());
    if (is_new) {
      times->symbols.push_back(symbol);
      times->sums.resize(times->sums.size() + 2);
    }
    times->sums[2 * found->second] += end - begin;
    times->sums[2 * found->second + 1] += 1;
    if (times->calls.size() < 3 * static_cast<size_t>(most)) {
      times->calls.insert(times->calls.end(), {static_cast<int64_t>(found->second), begin, end});
    }
  });
  Function take = Function::FromPacked([times](PackedArgs, Any* result) {
    *result = ffi::Array<Any>{times->symbols, BytesOf(times->sums), BytesOf(times->calls)};
    times->sums.assign(times->sums.size(), 0);
    times->calls.clear();
    times->begun.clear();  // of kernels that failed
  });
  return {observe, take};
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef()
      .def("heterocc.cpu.kernels_only", KernelsOnly)
      .def("heterocc.cpu.kernel_times", KernelTimes);
}

}  // namespace
}  // namespace heterocc::cpu
