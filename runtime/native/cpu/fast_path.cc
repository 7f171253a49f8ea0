#include "fast_path.h"

#include <sys/mman.h>
#include <tvm/ffi/c_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

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

constexpr char kRunnerName[] = "heterocc.runner";
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
};

struct Output {
  Value value;
  std::vector<intptr_t> extents;
  Store* store;
};

struct Runner {
  const Python* python;
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  std::vector<void*> calls;
  std::vector<Object*> given;  // the inputs of the run under way
  std::vector<Object*> results;
  bool busy = false;
};

// Drops a reference at the end of a block.
class Held {
 public:
  Held(const Python* python, Object* object) : python_(python), object_(object) {}
  ~Held() {
    if (object_ != nullptr) python_->Py_DecRef(object_);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  Object* get() const { return object_; }

 private:
  const Python* python_;
  Object* object_;
};

const Python* found_python = nullptr;

void FreeBlock(Object* capsule) {
  auto* const head = static_cast<BlockHead*>(found_python->PyCapsule_GetPointer(capsule, kBlockName));
  Store* const store = head->store;
  store->Give(head);
  store->Leave();
}

void FreeRunner(Object* capsule) {
  const auto* const runner = static_cast<Runner*>(found_python->PyCapsule_GetPointer(capsule, kRunnerName));
  const auto drop = [runner](const Value& value) {
    runner->python->Py_DecRef(value.name);
    runner->python->Py_DecRef(value.dtype);
  };
  for (const Input& input : runner->inputs) drop(input.value);
  for (const Output& output : runner->outputs) {
    drop(output.value);
    output.store->Leave();
  }
  delete runner;
}

// Whether an object is an array that code can read as this input.
bool Fits(const Python& python, const Input& input, const Object* object) {
  if (object->type != python.array_type) return false;
  const auto* const array = reinterpret_cast<const Array*>(object);
  return array->dtype == input.value.dtype && array->rank == input.value.rank &&
         (array->flags & (kContiguous | kAligned)) == (kContiguous | kAligned) &&
         std::equal(input.extents.begin(), input.extents.end(), array->extents);
}

// The inputs of a dictionary, each with a reference of the runner's. False if they are not exactly these.
bool TakeInputs(Runner* runner, Object* feed) {
  const Python& python = *runner->python;
  if (feed->type != python.dict_type || python.PyDict_Size(feed) != static_cast<intptr_t>(runner->inputs.size())) {
    return false;
  }
  for (const Input& input : runner->inputs) {
    Object* const found = python.PyDict_GetItemWithError(feed, input.value.name);
    if (found == nullptr || !Fits(python, input, found)) return false;
    python.Py_IncRef(found);
    runner->given.push_back(found);
  }
  return true;
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
  python.Py_IncRef(output.value.dtype);  // the array takes it
  Object* const array =
      python.PyArray_NewFromDescr(python.array_type, output.value.dtype, static_cast<int>(output.value.rank),
                                  output.extents.data(), nullptr, data, kContiguous | kAligned | kWriteable, nullptr);
  if (array == nullptr) {
    python.Py_DecRef(capsule);
    return nullptr;
  }
  if (python.PyArray_SetBaseObject(array, capsule) != 0) {  // takes the capsule, also if it fails
    python.Py_DecRef(array);
    return nullptr;
  }
  *output.value.pointer = data;
  return array;
}

bool MakeResults(Runner* runner) {
  for (const Output& output : runner->outputs) {
    Object* const array = NewResult(*runner->python, output);
    if (array == nullptr) return false;
    runner->results.push_back(array);
  }
  return true;
}

void PointAtInputs(const Runner& runner) {
  for (size_t i = 0; i < runner.inputs.size(); ++i) {
    const Value& value = runner.inputs[i].value;
    char* const data = reinterpret_cast<Array*>(runner.given[i])->data;
    if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(value.alignment) == 0) {
      *value.pointer = data;
    } else {
      std::memcpy(value.home, data, static_cast<size_t>(value.bytes));
    }
  }
}

// Calls the code, without the interpreter's lock. False if it failed.
bool Call(const Runner& runner) {
  void* const state = runner.python->PyEval_SaveThread();
  int failed = 0;
  for (size_t i = 0; i < runner.calls.size() && failed == 0; ++i) {
    TVMFFIAny result{};
    failed = TVMFFIFunctionCall(runner.calls[i], nullptr, 0, &result);
    if (failed == 0 && result.type_index >= kTVMFFIStaticObjectBegin) TVMFFIObjectDecRef(result.v_obj);
  }
  if (failed != 0) {
    TVMFFIObjectHandle error = nullptr;
    TVMFFIErrorMoveFromRaised(&error);
    if (error != nullptr) TVMFFIObjectDecRef(error);
  }
  runner.python->PyEval_RestoreThread(state);
  return failed == 0;
}

// The dictionary of the results; nullptr with an exception if memory runs out.
Object* Results(const Runner& runner) {
  const Python& python = *runner.python;
  Object* const results = python.PyDict_New();
  if (results == nullptr) return nullptr;
  for (size_t i = 0; i < runner.outputs.size(); ++i) {
    if (python.PyDict_SetItem(results, runner.outputs[i].value.name, runner.results[i]) != 0) {
      python.Py_DecRef(results);
      return nullptr;
    }
  }
  return results;
}

// The values are in the context's memory again, and the runner holds no arrays.
void Clean(Runner* runner) {
  for (const Input& input : runner->inputs) *input.value.pointer = input.value.home;
  for (const Output& output : runner->outputs) *output.value.pointer = output.value.home;
  for (Object* object : runner->given) runner->python->Py_DecRef(object);
  for (Object* object : runner->results) runner->python->Py_DecRef(object);
  runner->given.clear();
  runner->results.clear();
}

Object* Run(Object* self, Object* feed) {
  const Python& python = *found_python;
  auto* const runner = static_cast<Runner*>(python.PyCapsule_GetPointer(self, kRunnerName));
  Object* found = nullptr;
  if (!runner->busy) {
    runner->busy = true;
    if (TakeInputs(runner, feed) && MakeResults(runner)) {
      PointAtInputs(*runner);
      if (Call(*runner)) found = Results(*runner);
    }
    Clean(runner);
    runner->busy = false;
  }
  if (found != nullptr) return found;
  if (python.PyErr_Occurred() != nullptr) python.PyErr_Clear();
  python.Py_IncRef(python.none);
  return python.none;
}

Method run_method{"run", Run, kOneArgument, "Run a context on a dictionary of arrays; None if Python must do it."};

}  // namespace

Object* NewRunner(const Python* python, const Value* inputs, int64_t input_count, const Value* outputs,
                  int64_t output_count, void* const* calls, int64_t call_count) {
  found_python = python;
  auto* const runner = new Runner{python, {}, {}, {calls, calls + call_count}, {}, {}};
  const auto kept = [python](const Value& value) {
    python->Py_IncRef(value.name);
    python->Py_IncRef(value.dtype);
    return std::vector<intptr_t>(value.extents, value.extents + value.rank);
  };
  for (int64_t i = 0; i < input_count; ++i) runner->inputs.push_back({inputs[i], kept(inputs[i])});
  for (int64_t i = 0; i < output_count; ++i) {
    const size_t bytes = sizeof(BlockHead) + static_cast<size_t>(outputs[i].bytes);
    runner->outputs.push_back({outputs[i], kept(outputs[i]), new Store{python, bytes, {}}});
  }
  Object* const capsule = python->PyCapsule_New(runner, kRunnerName, FreeRunner);
  if (capsule == nullptr) return nullptr;
  Object* const function = python->PyCFunction_NewEx(&run_method, capsule, nullptr);
  python->Py_DecRef(capsule);
  return function;
}

}  // namespace heterocc::cpu
