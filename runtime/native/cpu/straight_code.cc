#include "straight_code.h"

#include <tvm/ffi/error.h>
#include <tvm/ffi/reflection/registry.h>

#include <atomic>
#include <new>

#include "heap.h"

namespace heterocc::cpu {
namespace {

using tvm::ffi::Any;
using tvm::ffi::AnyView;
using tvm::ffi::Array;
using tvm::ffi::Function;
using tvm::ffi::Module;
using tvm::ffi::PackedArgs;
using tvm::ffi::Tensor;

// The memory of results, for as long as one of them is used.
struct Block {
  void* data;
  std::atomic<int64_t> users{0};
};

// An allocator of tensors that lie in a block.
class InBlock {
 public:
  InBlock(Block* block, void* data, uint64_t byte_offset) : block_(block), data_(data), byte_offset_(byte_offset) {}

  void AllocData(DLTensor* tensor) {
    ++block_->users;
    tensor->data = data_;
    tensor->byte_offset = byte_offset_;
  }

  void FreeData(DLTensor*) {
    if (--block_->users > 0) return;
    Heap::Global().Give(block_->data);
    delete block_;
  }

 private:
  Block* block_;
  void* data_;
  uint64_t byte_offset_;
};

// Gives back the memory of a run that ends, well or not.
class Rooms {
 public:
  explicit Rooms(std::vector<Room>* rooms) : rooms_(rooms) {}
  ~Rooms() {
    for (Room& room : *rooms_) Give(&room);
  }
  Rooms(const Rooms&) = delete;
  Rooms& operator=(const Rooms&) = delete;

  void Take(Room* room, size_t bytes) {
    Give(room);
    room->data = Heap::Global().Take(bytes);
    if (room->data == nullptr) throw std::bad_alloc();
    room->bytes = bytes;
  }

  static void Give(Room* room) {
    if (room->data != nullptr) Heap::Global().Give(room->data);
    room->data = nullptr;
  }

 private:
  std::vector<Room>* rooms_;
};

size_t Bytes(const DLTensor& tensor) {
  size_t count = 1;
  for (int axis = 0; axis < tensor.ndim; ++axis) count *= static_cast<size_t>(tensor.shape[axis]);
  return count * ((tensor.dtype.bits * tensor.dtype.lanes + 7) / 8);
}

void CheckFits(size_t bytes, size_t room) {
  if (bytes > room) TVM_FFI_THROW(ValueError) << "a value of " << bytes << " bytes in memory of " << room;
}

DLTensor* TensorOf(const TVMFFIAny& value) {
  if (value.type_index == kTVMFFITensor) return &reinterpret_cast<Slot*>(value.v_obj)->tensor;
  return value.type_index == kTVMFFIDLTensorPtr ? static_cast<DLTensor*>(value.v_ptr) : nullptr;
}

class Runner {
 public:
  Runner(Program* program, const AnyView* inputs) : program_(*program), inputs_(inputs), rooms_(&program->rooms) {}

  bool Run(Any* results) {
    if (!SetInputs()) return false;
    for (const Step& step : program_.steps) {
      if (!Perform(step)) return false;
    }
    *results = Results();
    return true;
  }

 private:
  bool SetInputs() {
    for (size_t i = 0; i < program_.uses.size(); ++i) {
      const TVMFFIAny given = inputs_[i].CopyToTVMFFIAny();
      const DLTensor* const tensor = TensorOf(given);
      if (tensor == nullptr || tensor->ndim != program_.input_ranks[i]) return false;
      const DLDataType& wanted = program_.input_types[i];
      const DLDataType& found = tensor->dtype;
      if (found.code != wanted.code || found.bits != wanted.bits || found.lanes != wanted.lanes) return false;
      for (int64_t place : program_.uses[i]) program_.arguments[static_cast<size_t>(place)] = given;
    }
    return true;
  }

  bool Perform(const Step& step) {
    switch (step.kind) {
      case Step::kMatch:
        return Compare(step);
      case Step::kTake: {
        Room& room = program_.rooms[static_cast<size_t>(step.index)];
        int64_t count = 1;
        for (int64_t i = 0; i < step.count; ++i) count *= Value(program_.sizes[static_cast<size_t>(step.first + i)]);
        if (count < 0) TVM_FFI_THROW(ValueError) << "a value of a negative size";
        rooms_.Take(&room, static_cast<size_t>(count) * room.element_bytes);
        return true;
      }
      case Step::kGive:
        Rooms::Give(&program_.rooms[static_cast<size_t>(step.index)]);
        return true;
      case Step::kPlace: {
        const Room& room = program_.rooms[static_cast<size_t>(step.source)];
        DLTensor& tensor = program_.slots[static_cast<size_t>(step.index)].tensor;
        SetShape(step);
        const auto offset = static_cast<size_t>(Value(step.offset));
        CheckFits(offset + Bytes(tensor), room.bytes);
        tensor.data = static_cast<char*>(room.data) + offset;
        tensor.byte_offset = 0;
        return true;
      }
      case Step::kView: {
        const DLTensor& source = *Source(step.source);
        DLTensor& tensor = program_.slots[static_cast<size_t>(step.index)].tensor;
        SetShape(step);
        const auto offset = static_cast<size_t>(Value(step.offset));
        CheckFits(offset + Bytes(tensor), Bytes(source));
        tensor.data = source.data;
        tensor.byte_offset = source.byte_offset + offset;
        return true;
      }
      case Step::kNumber:
        program_.arguments[static_cast<size_t>(step.index)].v_int64 = Value(step.offset);
        return true;
      case Step::kCall: {
        const Function& function = program_.functions[static_cast<size_t>(step.index)];
        const auto* const arguments =
            reinterpret_cast<const AnyView*>(&program_.arguments[static_cast<size_t>(step.first)]);
        Any ignored;
        function.CallPacked(arguments, static_cast<int32_t>(step.count), &ignored);
        return true;
      }
    }
    return false;
  }

  int64_t Value(const Size& size) const { return size.computed ? program_.At(size.value) : size.value; }

  // A slot of the program; a negative number is an input.
  const DLTensor* Source(int64_t number) const {
    if (number >= 0) return &program_.slots[static_cast<size_t>(number)].tensor;
    return TensorOf(inputs_[number + program_.inputs].CopyToTVMFFIAny());
  }

  bool Compare(const Step& step) {
    const DLTensor& tensor = *Source(step.source);
    if (tensor.ndim != step.count) return false;
    for (int64_t axis = 0; axis < step.count; ++axis) {
      const Match& match = program_.matches[static_cast<size_t>(step.first + axis)];
      const int64_t extent = tensor.shape[axis];
      if (match.kind == Match::kStore) program_.At(match.value) = extent;
      if (match.kind == Match::kEqualsNumber && extent != match.value) return false;
      if (match.kind == Match::kEqualsStored && extent != program_.At(match.value)) return false;
    }
    return true;
  }

  void SetShape(const Step& step) {
    if (step.has_fixed_shape) return;
    Slot& slot = program_.slots[static_cast<size_t>(step.index)];
    int64_t stride = 1;
    for (int64_t axis = step.count - 1; axis >= 0; --axis) {
      const int64_t extent = Value(program_.sizes[static_cast<size_t>(step.first + axis)]);
      if (extent < 0) TVM_FFI_THROW(ValueError) << "a value of a negative size";
      slot.tensor.shape[axis] = extent;
      slot.tensor.strides[axis] = stride;
      stride *= extent;
    }
  }

  Any Results() {
    std::vector<Block*> blocks(program_.rooms.size(), nullptr);
    Array<Any> found;
    found.reserve(static_cast<int64_t>(program_.results.size()));
    for (const Result& result : program_.results) {
      const auto index = static_cast<size_t>(result.index);
      if (result.kind == Result::kInput) {
        found.push_back(Any(inputs_[index]));
      } else if (result.kind == Result::kObject) {
        found.push_back(program_.objects[index]);
      } else {
        Block*& block = blocks[static_cast<size_t>(result.room)];
        Room& room = program_.rooms[static_cast<size_t>(result.room)];
        if (block == nullptr) {
          block = new Block{room.data};
          room.data = nullptr;  // the block's, which has no user only until the next line
        }
        const DLTensor& tensor = program_.slots[index].tensor;
        const tvm::ffi::ShapeView shape(tensor.shape, static_cast<size_t>(tensor.ndim));
        const InBlock memory(block, tensor.data, tensor.byte_offset);
        found.push_back(Tensor::FromNDAlloc(memory, shape, tensor.dtype, tensor.device));
      }
    }
    return found;
  }

  Program& program_;
  const AnyView* inputs_;
  Rooms rooms_;
};

// See cpu_api.straight.
Any NewProgram(const Module& executable, const tvm::ffi::String& name, const Array<Any>& weights,
               const Function& machine) {
  std::shared_ptr<Program> program = Read(executable, name, weights);
  if (program == nullptr) return nullptr;
  return Function::FromPacked([program, machine](PackedArgs arguments, Any* results) {
    if (arguments.size() != program->inputs + 1 || !Run(program.get(), arguments.data(), results)) {
      machine.CallPacked(arguments, results);  // which says what is wrong
    }
  });
}

}  // namespace

bool Run(Program* program, const AnyView* inputs, Any* results) {
  return Runner(program, inputs).Run(results);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("heterocc.cpu.straight", NewProgram);
}

}  // namespace heterocc::cpu
