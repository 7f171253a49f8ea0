#include "fast_path.h"

#include <sys/mman.h>
#include <tvm/ffi/c_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "feed_runner.h"

namespace heterocc::cpu {
namespace {

// Of results: that of the vectors of any CPU, and of its lines of cache.
constexpr size_t kAlignment = 64;
// The memory of dropped results that is kept for later ones: a caller often holds the last result during a run. It is
// in the caches, and the system need not clear new pages.
constexpr size_t kKept = 2;
// The largest such memory: the system clears new pages at a few gigabytes a second, however many there are.
constexpr size_t kMaxKeptBytes = size_t{1} << 28;

// From this size on, memory is asked for in large pages, as numpy does: the first use of small ones takes longer than
// a simple operator.
constexpr size_t kLargeBytes = size_t{1} << 22;
constexpr size_t kPage = 4096;

constexpr char kBlockName[] = "heterocc.result";

// The memory of the results of one output. It ends with the runner and the last result.
struct Store {
  const Python* python;
  size_t bytes;
  std::vector<void*> idle;
  size_t users = 1;  // the runner, and results

  void* Take() {
    if (!idle.empty()) {
      void* const found = idle.back();
      idle.pop_back();
      return found;
    }
    if (bytes < kLargeBytes) return std::aligned_alloc(kAlignment, RoundedUp(kAlignment));
    void* const found = std::aligned_alloc(kPage, RoundedUp(kPage));
    if (found != nullptr) madvise(found, RoundedUp(kPage), MADV_HUGEPAGE);  // without large pages it is as good
    return found;
  }

  size_t RoundedUp(size_t step) const { return (bytes + step - 1) / step * step; }

  void Give(void* block) {
    if (bytes <= kMaxKeptBytes && idle.size() < kKept) {
      idle.push_back(block);
    } else {
      std::free(block);
    }
  }

  void Leave() {
    if (--users > 0) return;
    for (void* block : idle) std::free(block);
    delete this;
  }
};

// Before each block: whose it is. A line of cache, so that the block stays aligned.
struct alignas(kAlignment) BlockHead {
  Store* store;
};

struct Input {
  Value value;
  std::vector<intptr_t> extents;
  Object* given = nullptr;  // of the run under way
};

struct Output {
  Value value;
  std::vector<intptr_t> extents;
  Store* store;
  Object* result = nullptr;  // of the run under way
};

void FreeBlock(Object* capsule) {
  auto* const head = static_cast<BlockHead*>(interpreter->PyCapsule_GetPointer(capsule, kBlockName));
  Store* const store = head->store;
  store->Give(head);
  store->Leave();
}

// Whether an object is an array that code can read as this input.
bool Fits(const Python& python, const Input& input, const Object* object) {
  if (object->type != python.array_type) return false;
  const auto* const array = reinterpret_cast<const Array*>(object);
  return array->dtype == input.value.dtype && array->rank == input.value.rank &&
         (array->flags & (kContiguous | kAligned)) == (kContiguous | kAligned) &&
         std::equal(input.extents.begin(), input.extents.end(), array->extents);
}

// A new array for an output, at which its tensor then points. nullptr with an exception if memory runs out.
Object* NewResult(const Python& python, const Output& output) {
  Store* const store = output.store;
  void* const memory = store->Take();
  if (memory == nullptr) return nullptr;
  auto* const head = new (memory) BlockHead{store};
  Object* const capsule = python.PyCapsule_New(head, kBlockName, FreeBlock);
  if (capsule == nullptr) {
    store->Give(head);
    return nullptr;
  }
  ++store->users;
  void* const data = head + 1;
  Object* const array = ArrayOver(python, output.value.dtype, output.extents, nullptr, data, capsule);
  if (array != nullptr) *output.value.pointer = data;
  return array;
}

struct Runner : FeedRunner<Runner> {
  static constexpr char kName[] = "heterocc.runner";

  std::vector<Input> inputs;
  std::vector<Output> outputs;
  std::vector<void*> calls;

  using FeedRunner::FeedRunner;

  ~Runner() {
    for (const Input& input : inputs) DropNames(*python, input.value);
    for (const Output& output : outputs) {
      DropNames(*python, output.value);
      output.store->Leave();
    }
  }

  bool Take(Object* feed) {
    return TakeArrays(*python, feed, &inputs,
                      [this](Input* input, const Object* found) { return Fits(*python, *input, found); });
  }

  Object* Results() {
    for (Output& output : outputs) {
      output.result = NewResult(*python, output);
      if (output.result == nullptr) return nullptr;
    }
    PointAtInputs();
    if (!Call()) return nullptr;
    return NewDictionary(*python, &outputs, [](Output* output) { return std::exchange(output->result, nullptr); });
  }

  // The values are in the context's memory again.
  void Clean() {
    for (Input& input : inputs) {
      *input.value.pointer = input.value.home;
      if (input.given != nullptr) python->Py_DecRef(std::exchange(input.given, nullptr));
    }
    for (Output& output : outputs) {
      *output.value.pointer = output.value.home;
      if (output.result != nullptr) python->Py_DecRef(std::exchange(output.result, nullptr));
    }
  }

 private:
  void PointAtInputs() const {
    for (const Input& input : inputs) {
      const Value& value = input.value;
      char* const data = reinterpret_cast<Array*>(input.given)->data;
      if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(value.alignment) == 0) {
        *value.pointer = data;
      } else {
        std::memcpy(value.home, data, static_cast<size_t>(value.bytes));
      }
    }
  }

  // Calls the code, without the interpreter's lock. False if it failed.
  bool Call() const {
    void* const state = python->PyEval_SaveThread();
    int failed = 0;
    for (size_t i = 0; i < calls.size() && failed == 0; ++i) {
      TVMFFIAny result{};
      failed = TVMFFIFunctionCall(calls[i], nullptr, 0, &result);
      if (failed == 0 && result.type_index >= kTVMFFIStaticObjectBegin) TVMFFIObjectDecRef(result.v_obj);
    }
    if (failed != 0) {
      TVMFFIObjectHandle error = nullptr;
      TVMFFIErrorMoveFromRaised(&error);
      if (error != nullptr) TVMFFIObjectDecRef(error);
    }
    python->PyEval_RestoreThread(state);
    return failed == 0;
  }
};

std::vector<intptr_t> Extents(const Value& value) {
  return {value.extents, value.extents + value.rank};
}

}  // namespace

Object* NewRunner(const Python* python, const Value* inputs, int64_t input_count, const Value* outputs,
                  int64_t output_count, void* const* calls, int64_t call_count) {
  auto runner = std::make_unique<Runner>(python);
  runner->calls.assign(calls, calls + call_count);
  for (int64_t i = 0; i < input_count; ++i) {
    HoldNames(*python, inputs[i]);
    runner->inputs.push_back({inputs[i], Extents(inputs[i])});
  }
  for (int64_t i = 0; i < output_count; ++i) {
    HoldNames(*python, outputs[i]);
    const size_t bytes = sizeof(BlockHead) + static_cast<size_t>(outputs[i].bytes);
    runner->outputs.push_back({outputs[i], Extents(outputs[i]), new Store{python, bytes, {}}});
  }
  return Runner::NewFunction(std::move(runner));
}

}  // namespace heterocc::cpu
