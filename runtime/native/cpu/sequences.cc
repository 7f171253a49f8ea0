#include "sequences.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>
#include <tvm/runtime/memory/memory_manager.h>
#include <tvm/runtime/tensor.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "allocator.h"
#include "input_error.h"

namespace heterocc::cpu {
namespace {

namespace ffi = tvm::ffi;
using tvm::runtime::Tensor;
using tvm::runtime::memory::AllocatorType;
using tvm::runtime::memory::MemoryManager;

using Sequence = ffi::Array<Tensor>;

[[noreturn]] void Fail(const ffi::String& node, const std::string& message) {
  ThrowInputError(std::string(node) + ": " + message);
}

Tensor NewTensor(const std::vector<int64_t>& shape, DLDataType dtype) {
  const DLDevice device{kDLCPU, 0};
  const auto type = static_cast<AllocatorType>(AddAllocator());
  return MemoryManager::GetOrCreateAllocator(device, type)->Empty(ffi::Shape(shape), dtype, device);
}

std::vector<int64_t> ShapeOf(const Tensor& tensor) {
  return {tensor->shape, tensor->shape + tensor->ndim};
}

char* DataOf(const Tensor& tensor) {
  return static_cast<char*>(tensor->data) + tensor->byte_offset;
}

size_t BytesOf(DLDataType dtype) {
  return static_cast<size_t>(dtype.bits * dtype.lanes + 7) / 8;
}

size_t Product(const std::vector<int64_t>& shape, size_t first, size_t last) {
  size_t product = 1;
  for (size_t axis = first; axis < last; ++axis) product *= static_cast<size_t>(shape[axis]);
  return product;
}

std::string Text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t axis = 0; axis < shape.size(); ++axis) text += (axis ? ", " : "") + std::to_string(shape[axis]);
  return text + "]";
}

int64_t ElementOf(const Tensor& tensor, int64_t number) {
  const char* const data = DataOf(tensor);
  return tensor->dtype.bits == 32 ? reinterpret_cast<const int32_t*>(data)[number]
                                  : reinterpret_cast<const int64_t*>(data)[number];
}

// A place in a sequence of `size` elements; negative ones count from the end. `places` are those that are allowed.
int64_t PlaceOf(int64_t place, int64_t size, int64_t places, const ffi::String& node) {
  if (place < -size || place >= places) {
    Fail(node, "index " + std::to_string(place) + " is out of range for a sequence of " + std::to_string(size) +
                   (size == 1 ? " tensor" : " tensors"));
  }
  return place < 0 ? place + size : place;
}

Tensor At(const Sequence& sequence, const Tensor& index, const ffi::String& node) {
  const auto size = static_cast<int64_t>(sequence.size());
  return sequence[PlaceOf(ElementOf(index, 0), size, size, node)];
}

Sequence Insert(const Sequence& sequence, const Tensor& tensor, const ffi::Optional<Tensor>& position,
                const ffi::String& node) {
  const auto size = static_cast<int64_t>(sequence.size());
  const int64_t place = position.has_value() ? PlaceOf(ElementOf(position.value(), 0), size, size + 1, node) : size;
  std::vector<Tensor> tensors(sequence.begin(), sequence.end());
  tensors.insert(tensors.begin() + place, tensor);
  return {tensors.begin(), tensors.end()};
}

Sequence Erase(const Sequence& sequence, const ffi::Optional<Tensor>& position, const ffi::String& node) {
  const auto size = static_cast<int64_t>(sequence.size());
  const int64_t place = PlaceOf(position.has_value() ? ElementOf(position.value(), 0) : -1, size, size, node);
  std::vector<Tensor> tensors(sequence.begin(), sequence.end());
  tensors.erase(tensors.begin() + place);
  return {tensors.begin(), tensors.end()};
}

Tensor Length(const Sequence& sequence) {
  Tensor length = NewTensor({}, {kDLInt, 64, 1});
  *reinterpret_cast<int64_t*>(DataOf(length)) = static_cast<int64_t>(sequence.size());
  return length;
}

// The lengths of the pieces of an axis of `size`.
std::vector<int64_t> Lengths(int64_t size, const ffi::Optional<Tensor>& split, const ffi::String& node) {
  if (split.has_value() && split.value()->ndim == 1) {
    const Tensor& given = split.value();
    std::vector<int64_t> lengths;
    int64_t sum = 0;
    for (int64_t i = 0; i < given->shape[0]; ++i) {
      lengths.push_back(ElementOf(given, i));
      if (lengths.back() < 0) Fail(node, "the length of a piece is " + std::to_string(lengths.back()));
      if (lengths.back() > size - sum) sum = size + 1;
      if (sum > size) break;
      sum += lengths.back();
    }
    if (sum != size) {
      Fail(node, "the lengths of the pieces have another sum than the size of the axis, " + std::to_string(size));
    }
    return lengths;
  }
  const int64_t step = split.has_value() ? ElementOf(split.value(), 0) : 1;
  if (step < 1) Fail(node, "the length of a piece is " + std::to_string(step));
  std::vector<int64_t> lengths;
  for (int64_t start = 0; start < size; start += std::min(step, size - start)) {
    lengths.push_back(std::min(step, size - start));
  }
  return lengths;
}

// The pieces of a tensor along an axis; without `keeps` they lack the axis, in which each has to be 1 long.
Sequence Split(const Tensor& data, const ffi::Optional<Tensor>& split, int64_t axis, int64_t keeps,
               const ffi::String& node) {
  const std::vector<int64_t> shape = ShapeOf(data);
  const auto place = static_cast<size_t>(axis);
  const size_t outer = Product(shape, 0, place);
  const size_t row = Product(shape, place + 1, shape.size()) * BytesOf(data->dtype);
  const size_t pitch = row * static_cast<size_t>(shape[place]);
  std::vector<Tensor> pieces;
  const char* source = DataOf(data);
  for (const int64_t length : Lengths(shape[place], split, node)) {
    if (!keeps && length != 1) Fail(node, "a piece of length " + std::to_string(length) + " cannot lose its axis");
    std::vector<int64_t> dims = shape;
    dims[place] = length;
    if (!keeps) dims.erase(dims.begin() + axis);
    pieces.push_back(NewTensor(dims, data->dtype));
    const size_t bytes = row * static_cast<size_t>(length);
    char* const target = DataOf(pieces.back());
    for (size_t i = 0; bytes && i < outer; ++i) std::memcpy(target + i * bytes, source + i * pitch, bytes);
    source += bytes;
  }
  return {pieces.begin(), pieces.end()};
}

// All tensors joined along an axis, which is a new one with `stacks`. `axis` counts those of the result.
Tensor Join(const Sequence& sequence, int64_t axis, int64_t stacks, const ffi::String& node) {
  if (sequence.empty()) Fail(node, "the sequence has no tensors");
  const auto place = static_cast<size_t>(axis);
  std::vector<int64_t> whole = ShapeOf(sequence[0]);
  const std::vector<int64_t> first = whole;
  if (stacks) whole.insert(whole.begin() + axis, 0);
  whole[place] = 0;
  for (const Tensor& tensor : sequence) {
    std::vector<int64_t> shape = ShapeOf(tensor);
    bool same = shape.size() == first.size();
    for (size_t i = 0; same && i < shape.size(); ++i) same = shape[i] == first[i] || (!stacks && i == place);
    if (!same) Fail(node, "the tensors have the shapes " + Text(first) + " and " + Text(shape));
    whole[place] += stacks ? 1 : shape[place];
  }
  const DLDataType dtype = sequence[0]->dtype;
  Tensor joined = NewTensor(whole, dtype);
  const size_t outer = Product(whole, 0, place);
  const size_t row = Product(whole, place + 1, whole.size()) * BytesOf(dtype);
  const size_t pitch = row * static_cast<size_t>(whole[place]);
  char* target = DataOf(joined);
  for (const Tensor& tensor : sequence) {
    const size_t bytes = row * static_cast<size_t>(stacks ? 1 : tensor->shape[place]);
    const char* const source = DataOf(tensor);
    for (size_t i = 0; bytes && i < outer; ++i) std::memcpy(target + i * pitch, source + i * bytes, bytes);
    target += bytes;
  }
  return joined;
}

// As Join along a new axis; without tensors an empty one of this shape, of a type that TVM's text names.
Tensor Stack(const Sequence& sequence, int64_t axis, const ffi::Shape& empty, const ffi::String& dtype,
             const ffi::String& node) {
  if (!sequence.empty()) return Join(sequence, axis, 1, node);
  return NewTensor({empty.begin(), empty.end()}, ffi::StringToDLDataType(dtype));
}

Tensor Has(const ffi::Any& value) {
  Tensor there = NewTensor({}, {kDLBool, 8, 1});
  *DataOf(there) = value != nullptr;
  return there;
}

ffi::Any Get(const ffi::Any& value, const ffi::String& node) {
  if (value == nullptr) Fail(node, "the optional value is empty");
  return value;
}

// Ends the run unless a tensor has this shape, in which -1 is any size: code reads tensors as the compiler knows them.
void Check(const Tensor& tensor, const ffi::Shape& expected, const ffi::String& node) {
  const std::vector<int64_t> shape = ShapeOf(tensor);
  bool fits = shape.size() == expected.size();
  for (size_t axis = 0; fits && axis < shape.size(); ++axis) {
    fits = expected[axis] < 0 || expected[axis] == shape[axis];
  }
  if (!fits) Fail(node, "a tensor has the shape " + Text(shape) + ", which the code does not take");
}

}  // namespace

int32_t AddSequenceFunctions() {
  static const int32_t added = [] {
    try {
      ffi::reflection::GlobalDef()
          .def("heterocc.sequence.at", At)
          .def("heterocc.sequence.insert", Insert)
          .def("heterocc.sequence.erase", Erase)
          .def("heterocc.sequence.length", Length)
          .def("heterocc.sequence.split", Split)
          .def("heterocc.sequence.join", Join)
          .def("heterocc.sequence.stack", Stack)
          .def("heterocc.sequence.has", Has)
          .def("heterocc.sequence.get", Get)
          .def("heterocc.sequence.check", Check);
    } catch (const ffi::Error&) {  // exceptions must not leave the library
      return 0;
    }
    return 1;
  }();
  return added;
}

}  // namespace heterocc::cpu
