#include "fast_sizes.h"

#include <tvm/ffi/any.h>
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "feed_runner.h"
#include "heap.h"
#include "row_memory.h"

namespace heterocc::cpu {
namespace {

using tvm::ffi::Any;
using tvm::ffi::AnyView;
using tvm::ffi::Function;
using tvm::ffi::Tensor;
using ResultList = tvm::ffi::Array<Any>;

constexpr char kResultName[] = "heterocc.sized_result";

struct Input {
  SizedInput value;
  std::vector<Dimension> dimensions;
  bool is_lengthened = false;  // by code, which appends rows
  // Of the run under way.
  std::vector<int64_t> extents, strides;
  DLTensor tensor;
  Object* given = nullptr;
  void* copy = nullptr;  // of an array at an address that code cannot read
};

struct Output {
  SizedOutput value;
};

void FreeResult(Object* capsule) {
  delete static_cast<Tensor*>(interpreter->PyCapsule_GetPointer(capsule, kResultName));
}

bool IsAligned(const Input& input) {
  return reinterpret_cast<uintptr_t>(input.tensor.data) % static_cast<uintptr_t>(input.value.alignment) == 0;
}

// Whether rows may be appended to an array with these flags, of which the tensor has the address and sizes. To a
// caller's view of a state none may: the result of a run is an array of its own, and such views are read-only.
bool MayLengthen(const Input& input, int flags) {
  const bool is_writeable = (flags & kWriteable) != 0;
  if ((flags & kContiguous) != 0) return is_writeable || RowMemory::Of(input.tensor) == nullptr;
  if (!is_writeable || !IsAligned(input)) return false;
  const std::shared_ptr<RowMemory> memory = RowMemory::Of(input.tensor);
  return memory != nullptr && memory->Holds(input.tensor);
}

// An array over the memory of a result; nullptr, maybe with an exception, if it is not the caller's alone, as an input
// or a weight that is a result, or not what the output is.
Object* NewArray(const Python& python, const SizedOutput& output, Any result) {
  if (result.type_index() != kTVMFFITensor) return nullptr;
  const DLTensor& tensor = *TVMFFITensorGetDLTensorPtr(AnyView(result).CopyToTVMFFIAny().v_obj);
  auto owner = std::move(result).cast<Tensor>();
  const DLDataType& type = tensor.dtype;
  // One reference is the list's of results, the other one `owner`'s.
  if (owner.use_count() != 2 || tensor.data == nullptr || type.code != output.type.code ||
      type.bits != output.type.bits || type.lanes != 1) {
    return nullptr;
  }
  const std::vector<intptr_t> extents(tensor.shape, tensor.shape + tensor.ndim);
  std::vector<intptr_t> strides;  // of rows in memory with room for more
  if (!IsCompact(tensor)) {
    for (int32_t axis = 0; axis < tensor.ndim; ++axis) strides.push_back(tensor.strides[axis] * (type.bits / 8));
  }
  char* const data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  auto* const kept = new Tensor(std::move(owner));
  Object* const capsule = python.PyCapsule_New(kept, kResultName, FreeResult);
  if (capsule == nullptr) {
    delete kept;
    return nullptr;
  }
  return ArrayOver(python, output.dtype, extents, strides.empty() ? nullptr : strides.data(), data, capsule);
}

struct Runner : FeedRunner<Runner> {
  static constexpr char kName[] = "heterocc.sized_runner";

  std::vector<Input> inputs;
  std::vector<Output> outputs;
  std::vector<int64_t> sizes;  // by symbol; negative before the first dimension of a run that has it
  SizeConditions conditions;
  std::vector<AnyView> arguments;
  Function function;
  Any weights;

  using FeedRunner::FeedRunner;

  ~Runner() {
    for (const Input& input : inputs) DropNames(*python, input.value);
    for (const Output& output : outputs) DropNames(*python, output.value);
  }

  bool Take(Object* feed) {
    for (int64_t& size : sizes) size = -1;
    return TakeArrays(*python, feed, &inputs,
                      [this](Input* input, const Object* found) { return Fits(input, found); }) &&
           conditions.Hold(sizes);
  }

  Object* Results() {
    Any results;
    if (!Call(&results)) return nullptr;
    const auto arrays = results.as<ResultList>();
    if (!arrays) return nullptr;
    return NewDictionary(*python, &outputs, [this, &arrays](Output* output) {
      return NewArray(*python, output->value, (*arrays)[output->value.place]);
    });
  }

  void Clean() {
    for (Input& input : inputs) {
      if (input.copy != nullptr) Heap::Global().Give(std::exchange(input.copy, nullptr));
      if (input.given != nullptr) python->Py_DecRef(std::exchange(input.given, nullptr));
    }
  }

 private:
  // Whether a dimension may have this size, which its symbol then has.
  bool MayBe(const Dimension& dimension, int64_t size) {
    if (!dimension.range.Contains(size)) return false;
    if (dimension.symbol < 0) return true;
    int64_t& known = sizes[static_cast<size_t>(dimension.symbol)];
    if (known < 0) known = size;
    return known == size;
  }

  // Whether an object is an array that code can read as this input, of which its tensor then has the sizes.
  bool Fits(Input* input, const Object* object) {
    if (object->type != python->array_type) return false;
    const auto* const array = reinterpret_cast<const Array*>(object);
    if (array->dtype != input->value.dtype || array->rank != input->value.rank || (array->flags & kAligned) == 0) {
      return false;
    }
    const bool is_contiguous = (array->flags & kContiguous) != 0;
    if (!is_contiguous && !input->is_lengthened) return false;
    const int64_t bytes = input->value.type.bits / 8;
    int64_t stride = 1;
    for (size_t axis = input->dimensions.size(); axis-- > 0;) {
      const int64_t size = array->extents[axis];
      if (!MayBe(input->dimensions[axis], size)) return false;
      input->extents[axis] = size;
      input->strides[axis] = is_contiguous ? stride : array->strides[axis] / bytes;
      stride *= size;
    }
    input->tensor.data = array->data;
    return !input->is_lengthened || MayLengthen(*input, array->flags);
  }

  // Points the tensors of arrays at addresses that code cannot read at copies.
  void PointAtCopies() {
    for (Input& input : inputs) {
      if (IsAligned(input)) continue;
      size_t bytes = static_cast<size_t>(input.value.type.bits) / 8;
      for (int64_t extent : input.extents) bytes *= static_cast<size_t>(extent);
      input.copy = Heap::Global().Take(bytes);
      if (input.copy == nullptr) throw std::bad_alloc();
      std::memcpy(input.copy, input.tensor.data, bytes);
      input.tensor.data = input.copy;
    }
  }

  // Calls the code, without the interpreter's lock. False if it failed.
  bool Call(Any* results) {
    void* const state = python->PyEval_SaveThread();
    bool worked = true;
    try {
      PointAtCopies();
      function.CallPacked(arguments.data(), static_cast<int32_t>(arguments.size()), results);
    } catch (const std::exception&) {
      worked = false;
    }
    python->PyEval_RestoreThread(state);
    return worked;
  }
};

// An object of tvm_ffi, with a reference to it.
Any Held(void* handle) {
  TVMFFIAny view{};
  view.type_index = static_cast<TVMFFIObject*>(handle)->type_index;
  view.v_obj = static_cast<TVMFFIObject*>(handle);
  return Any(AnyView::CopyFromTVMFFIAny(view));
}

}  // namespace

Object* NewSizedRunner(const Python* python, const SizedInput* inputs, int64_t input_count, const SizedOutput* outputs,
                       int64_t output_count, const SizeToken* tokens, int64_t token_count, void* function,
                       void* weights, const int64_t* lengthened, int64_t lengthened_count) {
  auto runner = std::make_unique<Runner>(python);
  runner->inputs.resize(static_cast<size_t>(input_count));
  int64_t symbols = 0;
  for (size_t i = 0; i < runner->inputs.size(); ++i) {
    Input& input = runner->inputs[i];
    input.value = inputs[i];
    input.dimensions.assign(inputs[i].dimensions, inputs[i].dimensions + inputs[i].rank);
    for (const Dimension& dimension : input.dimensions) {
      if (dimension.symbol >= symbols) symbols = dimension.symbol + 1;
    }
    input.extents.resize(input.dimensions.size());
    input.strides.resize(input.dimensions.size());
    input.tensor = {nullptr,
                    {kDLCPU, 0},
                    static_cast<int32_t>(inputs[i].rank),
                    inputs[i].type,
                    input.extents.data(),
                    input.strides.data(),
                    0};
    runner->arguments.emplace_back(&input.tensor);
    HoldNames(*python, inputs[i]);
  }
  for (int64_t i = 0; i < output_count; ++i) {
    runner->outputs.push_back({outputs[i]});
    HoldNames(*python, outputs[i]);
  }
  for (int64_t i = 0; i < lengthened_count; ++i)
    runner->inputs[static_cast<size_t>(lengthened[i])].is_lengthened = true;
  runner->sizes.resize(static_cast<size_t>(symbols));
  runner->conditions = SizeConditions(std::vector<SizeToken>(tokens, tokens + token_count));
  runner->function = Held(function).cast<Function>();
  runner->weights = Held(weights);
  runner->arguments.emplace_back(runner->weights);
  return Runner::NewFunction(std::move(runner));
}

}  // namespace heterocc::cpu
