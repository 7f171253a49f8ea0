// The functions of the plug-in. Those that loaded code calls for parallel loops in place of TVM's pool: one for each
// number of threads, so that sessions with different numbers need no thread-local state.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "allocator.h"
#include "arrange.h"
#include "denormals.h"
#include "fast_path.h"
#include "fast_sizes.h"
#include "heap.h"
#include "processor.h"
#include "request_data.h"
#include "sequences.h"
#include "thread_pool.h"

namespace {

using heterocc::cpu::kMostThreads;

template <int kThreads>
int Launch(heterocc::cpu::Task task, void* closure, int tasks) {
  return heterocc::cpu::RunRegion(task, closure, tasks, kThreads);
}

template <int... kIndex>
constexpr auto Entries(std::integer_sequence<int, kIndex...>) {
  using Entry = int (*)(heterocc::cpu::Task, void*, int);
  return std::array<Entry, sizeof...(kIndex)>{Launch<kIndex + 1>...};
}

constexpr auto kEntries = Entries(std::make_integer_sequence<int, kMostThreads>());

// The functions of Python's; `arrays` is the table of numpy's C API. nullptr if the process lacks one.
const heterocc::cpu::Python* FindPython(void** arrays) {
  static heterocc::cpu::Python python;
  static const bool found = python.Find(arrays);
  return found ? &python : nullptr;
}

}  // namespace

extern "C" {

// The function with the signature of TVMBackendParallelLaunch that uses up to `threads` threads.
__attribute__((visibility("default"))) void* heterocc_cpu_launcher(int32_t threads) {
  const int32_t index = std::clamp(threads, 1, kMostThreads) - 1;
  return reinterpret_cast<void*>(kEntries[static_cast<size_t>(index)]);
}

// See Arrange in arrange.h.
__attribute__((visibility("default"))) int32_t heterocc_cpu_arrange(const void* source, void* result, int32_t size,
                                                                    const heterocc::cpu::Block* blocks, int32_t count,
                                                                    const double* matrix, int32_t rows,
                                                                    int32_t threads) {
  return heterocc::cpu::Arrange(source, result, size, blocks, count, matrix, rows, threads);
}

// See Widen in arrange.h.
__attribute__((visibility("default"))) void heterocc_cpu_widen(const uint16_t* source, float* result, int64_t count,
                                                               int32_t format, int32_t threads) {
  heterocc::cpu::Widen(source, result, count, static_cast<heterocc::cpu::Format>(format), threads);
}

__attribute__((visibility("default"))) int32_t heterocc_cpu_workers() {
  return heterocc::cpu::Workers();
}

// The mode of the calling thread, see denormals.h, which then keeps denormal numbers or takes them for zeros.
__attribute__((visibility("default"))) uint64_t heterocc_cpu_keep_denormals(int32_t kept) {
  const heterocc::cpu::FloatMode before = heterocc::cpu::CurrentMode();
  heterocc::cpu::SetMode(heterocc::cpu::WithDenormals(before, kept != 0));
  return before;
}

__attribute__((visibility("default"))) void heterocc_cpu_set_mode(uint64_t mode) {
  heterocc::cpu::SetMode(mode);
}

// See AddAllocator in allocator.h.
__attribute__((visibility("default"))) int32_t heterocc_cpu_allocator() {
  return heterocc::cpu::AddAllocator();
}

// See AddSequenceFunctions in sequences.h. Returns 0 if TVM refuses the functions.
__attribute__((visibility("default"))) int32_t heterocc_cpu_add_sequences() {
  return heterocc::cpu::AddSequenceFunctions();
}

// See NewRunner in fast_path.h; `arrays` is the table of numpy's C API. nullptr, without an exception, if the process
// lacks a function of Python's.
__attribute__((visibility("default"))) void* heterocc_cpu_runner(void** arrays, const heterocc::cpu::Value* inputs,
                                                                 int64_t input_count,
                                                                 const heterocc::cpu::Value* outputs,
                                                                 int64_t output_count, void* const* calls,
                                                                 int64_t call_count) {
  const heterocc::cpu::Python* const python = FindPython(arrays);
  if (python == nullptr) return nullptr;
  return heterocc::cpu::NewRunner(python, inputs, input_count, outputs, output_count, calls, call_count);
}

// See NewSizedRunner in fast_sizes.h; the rest as above.
__attribute__((visibility("default"))) void* heterocc_cpu_sized_runner(
    void** arrays, const heterocc::cpu::SizedInput* inputs, int64_t input_count,
    const heterocc::cpu::SizedOutput* outputs, int64_t output_count, const heterocc::cpu::SizeToken* tokens,
    int64_t token_count, void* function, void* weights, const int64_t* lengthened, int64_t lengthened_count) {
  const heterocc::cpu::Python* const python = FindPython(arrays);
  if (python == nullptr) return nullptr;
  return heterocc::cpu::NewSizedRunner(python, inputs, input_count, outputs, output_count, tokens, token_count,
                                       function, weights, lengthened, lengthened_count);
}

// Bytes that the heap of allocator.h has from the system.
__attribute__((visibility("default"))) uint64_t heterocc_cpu_heap_bytes() {
  return heterocc::cpu::Heap::Global().reserved();
}

// See processor.h.
__attribute__((visibility("default"))) const char* heterocc_cpu_processor() {
  return heterocc::cpu::Processor().c_str();
}

// The functions of request_data.h, which write to `outcome`.
__attribute__((visibility("default"))) void heterocc_cpu_cut_json(const char* text, int64_t size,
                                                                  heterocc::cpu::Span* spans, int64_t room,
                                                                  heterocc::cpu::Outcome* outcome) {
  *outcome = heterocc::cpu::CutJson(text, size, spans, room);
}

__attribute__((visibility("default"))) void heterocc_cpu_read_json(const char* text, int64_t size, int32_t element,
                                                                   void* data, int64_t room,
                                                                   heterocc::cpu::Outcome* outcome) {
  *outcome = heterocc::cpu::ReadJson(text, size, {static_cast<heterocc::cpu::Element>(element), data, room});
}

__attribute__((visibility("default"))) void heterocc_cpu_read_contents(const uint8_t* message, int64_t size,
                                                                       int32_t field, int32_t element, void* data,
                                                                       int64_t room, heterocc::cpu::Outcome* outcome) {
  *outcome =
      heterocc::cpu::ReadContents(message, size, field, {static_cast<heterocc::cpu::Element>(element), data, room});
}

}  // extern "C"
