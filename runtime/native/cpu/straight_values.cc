// What the registers of TVM's virtual machine hold, for the translation of its code to a program.
#include <algorithm>
#include <cstring>
#include <new>
#include <optional>

#include "heap.h"
#include "straight_reader.h"

namespace heterocc::cpu {

using tvm::ffi::Any;
using tvm::ffi::Tensor;
using tvm::runtime::vm::ExecWord;
using tvm::runtime::vm::Instruction;

namespace {

// An allocator of tensors on the heap.
struct OnHeap {
  void AllocData(DLTensor* tensor) {
    tensor->data = Heap::Global().Take(tvm::ffi::GetDataSize(*tensor));
    if (tensor->data == nullptr) throw std::bad_alloc();
  }
  void FreeData(DLTensor* tensor) { Heap::Global().Give(tensor->data); }
};

}  // namespace

Held Reader::AllocTable(const Arguments& arguments) {
  Require(program_->table.empty());
  const int64_t size = Number(arguments.at(1));
  program_->table.resize(static_cast<size_t>(size / 8 + 1));
  Slot* const slot = program_->AddSlot(1, DLDataType{kDLInt, 64, 1});
  *slot->tensor.shape = size;
  *slot->tensor.strides = 1;
  slot->tensor.data = program_->table.data()->sizes;
  Held held;
  held.kind = Held::kTable;
  held.index = static_cast<int64_t>(program_->slots.size()) - 1;
  return held;
}

// Weights are what the code was made for: the bundle's manifest says so.
Held Reader::CheckTensor(const Arguments& arguments) {
  const Held held = Value(arguments.at(0));
  if (held.kind == Held::kObject) return {};
  Require(held.kind == Held::kInput && arguments.size() == 4);
  program_->input_ranks[static_cast<size_t>(held.index)] = Number(arguments[1]);
  program_->input_types[static_cast<size_t>(held.index)] = Constant<DLDataType>(arguments[2]);
  return {};
}

Held Reader::CheckShape(const Arguments& arguments) {
  const Held held = Value(arguments.at(0), Held::kInput);
  program_->are_shapes[static_cast<size_t>(held.index)] = true;
  program_->input_ranks[static_cast<size_t>(held.index)] = Number(arguments.at(1));
  return {};
}

Held Reader::CheckTuple(const Arguments& arguments) {
  const Held held = Value(arguments.at(0));
  const bool is_known = held.kind == Held::kTuple;  // of no weights, which code makes itself
  Require(is_known || held.kind == Held::kWeights);
  Require(Number(arguments.at(1)) == static_cast<int64_t>(is_known ? held.parts.size() : weights_.size()));
  return {};
}

Held Reader::MatchShape(const Arguments& arguments) {
  const Held held = Value(arguments.at(0));
  if (held.kind == Held::kObject) return {};
  Require(held.kind == Held::kInput || held.kind == Held::kTensor);
  const int64_t rank = Number(arguments.at(2));
  const auto first = static_cast<int64_t>(program_->matches.size());
  for (int64_t axis = 0; axis < rank; ++axis) {
    const int64_t kind = Number(arguments.at(static_cast<size_t>(3 + 2 * axis)));
    Require(kind >= Match::kEqualsNumber && kind <= Match::kEqualsStored);
    program_->matches.push_back(
        {static_cast<Match::Kind>(kind), Number(arguments.at(static_cast<size_t>(4 + 2 * axis)))});
  }
  Step& step = Add(Step::kMatch);
  step.source = Source(held);
  step.first = first;
  step.count = rank;
  return {};
}

Held Reader::MakeShape(const Arguments& arguments) {
  const int64_t rank = Number(arguments.at(1));
  Held held;
  held.kind = Held::kShape;
  for (int64_t axis = 0; axis < rank; ++axis) {
    const auto place = static_cast<size_t>(2 + 2 * axis);
    held.sizes.push_back({Number(arguments.at(place)) == 1, Number(arguments.at(place + 1))});
  }
  return held;
}

Held Reader::MakeNumber(const Arguments& arguments) {
  Held held;
  held.kind = Held::kNumber;
  held.sizes.push_back({Number(arguments.at(1)) == 1, Number(arguments.at(2))});
  return held;
}

Held Reader::AllocRoom(const Arguments& arguments) {
  const Held shape = Value(arguments.at(1), Held::kShape);
  Require(Number(arguments.at(2)) <= 0);
  const auto dtype = Constant<DLDataType>(arguments.at(3));
  Held held;
  held.kind = Held::kRoom;
  held.index = held.room = static_cast<int64_t>(program_->rooms.size());
  program_->rooms.push_back({static_cast<size_t>((dtype.bits * dtype.lanes + 7) / 8), nullptr, 0});
  holders_.push_back(0);
  Step& step = Add(Step::kTake);
  step.index = held.room;
  SetSizes(&step, shape.sizes);
  return held;
}

Held Reader::AllocTensor(const Arguments& arguments) {
  const Held room = Value(arguments.at(0), Held::kRoom);
  Require(arguments.size() == 4);
  Step step{Step::kPlace};
  step.source = room.room;
  return Place(step, arguments[1], Value(arguments[2], Held::kShape), Constant<DLDataType>(arguments[3]), room.room);
}

Held Reader::Reshape(const Arguments& arguments) {
  const Held source = Value(arguments.at(0));
  return ViewOf(source, Argument::Immediate(0), Value(arguments.at(1), Held::kShape), TypeOf(source));
}

Held Reader::View(const Arguments& arguments) {
  Require(arguments.size() == 4);
  return ViewOf(Value(arguments[0]), arguments[3], Value(arguments[1], Held::kShape),
                Constant<DLDataType>(arguments[2]));
}

Held Reader::ViewOf(const Held& source, const Argument& offset, const Held& shape, DLDataType dtype) {
  Require(source.kind == Held::kInput || source.kind == Held::kTensor);
  Require(source.kind == Held::kTensor || !program_->are_shapes[static_cast<size_t>(source.index)]);
  Step step{Step::kView};
  step.source = Source(source);
  return Place(step, offset, shape, dtype, source.room);
}

Held Reader::Place(Step step, const Argument& offset, const Held& shape, DLDataType dtype, int64_t room) {
  const auto rank = static_cast<int64_t>(shape.sizes.size());
  Held held;
  held.kind = Held::kTensor;
  held.index = step.index = static_cast<int64_t>(program_->slots.size());
  held.room = room;
  step.offset = offset.kind() == Instruction::ArgKind::kImmediate ? Size{false, offset.value()}
                                                                  : Value(offset, Held::kNumber).sizes[0];
  SetSizes(&step, shape.sizes);
  Slot* const slot = program_->AddSlot(rank, dtype);
  step.has_fixed_shape = std::none_of(shape.sizes.begin(), shape.sizes.end(), [](Size s) { return s.computed; });
  int64_t stride = 1;
  for (int64_t axis = rank - 1; step.has_fixed_shape && axis >= 0; --axis) {
    slot->tensor.shape[axis] = shape.sizes[static_cast<size_t>(axis)].value;
    slot->tensor.strides[axis] = stride;
    stride *= slot->tensor.shape[axis];
  }
  program_->steps.push_back(step);
  return held;
}

Held Reader::Item(const Arguments& arguments) {
  const Held tuple = Value(arguments.at(0));
  const auto place = static_cast<size_t>(Number(arguments.at(1)));
  if (tuple.kind == Held::kTuple) return tuple.parts.at(place);
  Require(tuple.kind == Held::kWeights && place < weights_.size());
  return Object(weights_[static_cast<int64_t>(place)]);
}

Held Reader::Object(const Any& object) {
  Require(object.type_index() == kTVMFFITensor);
  Held held;
  held.kind = Held::kObject;
  held.index = static_cast<int64_t>(program_->objects.size());
  program_->objects.push_back(object);
  return held;
}

// A constant as kernels expect tensors: at an aligned address, unlike what is read from a file.
Held Reader::Constants(ExecWord number, const Any& constant) {
  const auto found = constants_.find(number);
  if (found != constants_.end()) return found->second;
  const auto tensor = constant.as<Tensor>();
  Require(tensor.has_value() && tensor->IsContiguous());
  const DLTensor& given = *tensor->GetDLTensorPtr();
  Require(given.device.device_type == kDLCPU);
  const Tensor copy = Tensor::FromNDAlloc(OnHeap(), tensor->shape(), given.dtype, given.device);
  std::memcpy(copy.data_ptr(), static_cast<const char*>(given.data) + given.byte_offset, tvm::ffi::GetDataSize(given));
  return constants_[number] = Object(copy);
}

Held Reader::Tuple(const Arguments& arguments) {
  Held held;
  held.kind = Held::kTuple;
  for (const Argument& argument : arguments) held.parts.push_back(Value(argument));
  return held;
}

Held Reader::Nothing(const Arguments&) {
  return {};
}

int64_t Reader::Source(const Held& held) const {
  return held.kind == Held::kInput ? held.index - program_->inputs : held.index;
}

DLDataType Reader::TypeOf(const Held& held) const {
  Require(held.kind == Held::kInput || held.kind == Held::kTensor);  // others are numbered apart
  return held.kind == Held::kInput ? program_->input_types.at(static_cast<size_t>(held.index))
                                   : program_->slots.at(static_cast<size_t>(held.index)).tensor.dtype;
}

void Reader::SetSizes(Step* step, const std::vector<Size>& sizes) {
  step->first = static_cast<int64_t>(program_->sizes.size());
  step->count = static_cast<int64_t>(sizes.size());
  program_->sizes.insert(program_->sizes.end(), sizes.begin(), sizes.end());
}

}  // namespace heterocc::cpu
