#include "straight_code.h"

#include <tvm/ffi/error.h>
#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "heap.h"
#include "input_error.h"
#include "joined_code.h"
#include "memory_limits.h"
#include "row_memory.h"

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

  void Take(Room* room, size_t bytes, const std::string& kernel) {
    Give(room);
    room->data = TakeForRun(bytes, kernel);
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
  auto bytes = static_cast<size_t>((tensor.dtype.bits * tensor.dtype.lanes + 7) / 8);
  for (int axis = 0; axis < tensor.ndim; ++axis) bytes = Times(bytes, tensor.shape[axis]);
  return bytes;
}

void CheckFits(size_t bytes, size_t room) {
  if (bytes > room) ThrowInputError("a value's size exceeds the memory that was computed for it with these inputs");
}

DLTensor* TensorOf(const TVMFFIAny& value) {
  if (value.type_index == kTVMFFITensor) return &reinterpret_cast<Slot*>(value.v_obj)->tensor;
  return value.type_index == kTVMFFIDLTensorPtr ? static_cast<DLTensor*>(value.v_ptr) : nullptr;
}

// The memory of rows that a run appends.
struct Appended {
  std::shared_ptr<RowMemory> memory;  // null if the result is a tensor of its own
  int64_t start = 0;
  bool is_claimed = false;  // the rows from `start` on, in the memory of the input
};

class Runner {
 public:
  Runner(Program* program, const AnyView* inputs)
      : program_(*program), inputs_(inputs), rooms_(&program->rooms), appended_(program->appends.size()) {}

  ~Runner() {
    for (const Appended& rows : appended_) {
      if (rows.is_claimed && !is_done_) rows.memory->Unclaim(rows.start);
    }
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // `results` is a list to which they are added.
  template <typename List>
  bool Run(List* results) {
    if (!SetInputs()) return false;
    for (const Step& step : program_.steps) {
      if (!Perform(step)) return false;
    }
    AddResults(results);
    is_done_ = true;
    return true;
  }

 private:
  bool SetInputs() {
    for (size_t i = 0; i < program_.uses.size(); ++i) {
      const TVMFFIAny given = inputs_[i].CopyToTVMFFIAny();
      if (program_.are_shapes[i]) {
        if (given.type_index != kTVMFFIShape) return false;
        continue;  // its sizes are compared
      }
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
        if (room.append >= 0) return true;  // when its only tensor gets its shape
        size_t bytes = room.element_bytes;
        for (int64_t i = 0; i < step.count; ++i) {
          const int64_t count = Value(program_.sizes[static_cast<size_t>(step.first + i)]);
          if (count < 0) ThrowInputError("a size of the result of kernel '" + KernelAfter(step) + "' is negative");
          bytes = Times(bytes, count);
        }
        rooms_.Take(&room, bytes, bytes > LargestValue() ? KernelAfter(step) : "");
        return true;
      }
      case Step::kGive:
        Rooms::Give(&program_.rooms[static_cast<size_t>(step.index)]);
        return true;
      case Step::kPlace: {
        const Room& room = program_.rooms[static_cast<size_t>(step.source)];
        DLTensor& tensor = program_.slots[static_cast<size_t>(step.index)].tensor;
        SetShape(step);
        tensor.byte_offset = 0;
        if (room.append >= 0) {
          TakeRows(room.append);
          return true;
        }
        const auto offset = static_cast<size_t>(Value(step.offset));
        CheckFits(offset + Bytes(tensor), room.bytes);
        tensor.data = static_cast<char*>(room.data) + offset;
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

  // The name of the first kernel that runs after a step, which is the one that writes the memory taken in it.
  std::string KernelAfter(const Step& step) const {
    const Step* const end = program_.steps.data() + program_.steps.size();
    const Step* const call = std::find_if(&step, end, [](const Step& later) { return later.kind == Step::kCall; });
    return call == end ? std::string() : program_.names[static_cast<size_t>(call->index)];
  }

  // Sets the memory of a result of which an input is the first rows, and that of the input.
  void TakeRows(int64_t number) {
    const Append& append = program_.appends[static_cast<size_t>(number)];
    Appended& rows = appended_[static_cast<size_t>(number)];
    const DLTensor& past = *TensorOf(inputs_[append.input].CopyToTVMFFIAny());
    DLTensor& result = program_.slots[static_cast<size_t>(append.slot)].tensor;
    rows.start = past.shape[append.axis];
    int64_t past_room = rows.start;
    int64_t room = result.shape[append.axis];
    if (const std::shared_ptr<RowMemory> known = RowMemory::Of(past)) {
      const bool is_held = known->Holds(past, append.axis);
      if (is_held) past_room = known->room();
      rows.is_claimed = is_held && EndsAlike(append, rows.start) && known->Claim(Planes(past, append.axis), room);
      rows.memory = rows.is_claimed ? known : RowMemory::New(Planes(result, append.axis));
      result.data = rows.memory->data();
      room = rows.memory->room();
    } else {
      Room& own = program_.rooms[static_cast<size_t>(append.room)];
      rooms_.Take(&own, Bytes(result), "");
      result.data = own.data;
    }
    if (past_room == rows.start && !IsCompact(past)) TVM_FFI_THROW(ValueError) << "a tensor that is not compact";
    SetMemory(append.past, past, append.axis, rows.is_claimed ? 0 : past_room);
    SetMemory(append.memory, result, append.axis, room);
  }

  // Whether all items' new rows begin after so many earlier ones.
  bool EndsAlike(const Append& append, int64_t rows) const {
    if (append.starts < 0) return true;
    const DLTensor& starts = program_.slots[static_cast<size_t>(append.starts)].tensor;
    const auto* const first =
        reinterpret_cast<const int64_t*>(static_cast<const char*>(starts.data) + starts.byte_offset);
    return std::all_of(first, first + starts.shape[0], [&](int64_t start) { return start == rows; });
  }

  // Makes a slot a tensor with another size along an axis, at the same address.
  void SetMemory(int64_t slot, const DLTensor& like, int64_t axis, int64_t extent) {
    DLTensor& tensor = program_.slots[static_cast<size_t>(slot)].tensor;
    tensor.data = like.data;
    tensor.byte_offset = like.byte_offset;
    int64_t stride = 1;
    for (int64_t i = like.ndim - 1; i >= 0; --i) {
      tensor.shape[i] = i == axis ? extent : like.shape[i];
      tensor.strides[i] = stride;
      stride *= tensor.shape[i];
    }
  }

  int64_t Value(const Size& size) const { return size.computed ? program_.At(size.value) : size.value; }

  // A slot of the program; a negative number is an input.
  const DLTensor* Source(int64_t number) const {
    if (number >= 0) return &program_.slots[static_cast<size_t>(number)].tensor;
    return TensorOf(inputs_[number + program_.inputs].CopyToTVMFFIAny());
  }

  // The sizes of a slot, or of an input that is a tensor or sizes itself.
  tvm::ffi::ShapeView SizesOf(int64_t number) const {
    if (number < 0 && program_.are_shapes[static_cast<size_t>(number + program_.inputs)]) {
      const TVMFFIAny given = inputs_[number + program_.inputs].CopyToTVMFFIAny();
      const TVMFFIShapeCell& cell = *TVMFFIShapeGetCellPtr(given.v_obj);
      return {cell.data, cell.size};
    }
    const DLTensor& tensor = *Source(number);
    return {tensor.shape, static_cast<size_t>(tensor.ndim)};
  }

  bool Compare(const Step& step) {
    const tvm::ffi::ShapeView sizes = SizesOf(step.source);
    if (static_cast<int64_t>(sizes.size()) != step.count) return false;
    for (int64_t axis = 0; axis < step.count; ++axis) {
      const Match& match = program_.matches[static_cast<size_t>(step.first + axis)];
      const int64_t extent = sizes[static_cast<size_t>(axis)];
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
      if (extent < 0) ThrowInputError("a size of a value is negative with these inputs");
      slot.tensor.shape[axis] = extent;
      slot.tensor.strides[axis] = stride;
      stride *= extent;
    }
  }

  template <typename List>
  void AddResults(List* results) {
    std::vector<Block*> blocks(program_.rooms.size(), nullptr);
    List& found = *results;
    for (const Result& result : program_.results) {
      const auto index = static_cast<size_t>(result.index);
      if (result.kind == Result::kInput) {
        found.push_back(Any(inputs_[index]));
      } else if (result.kind == Result::kObject) {
        found.push_back(program_.objects[index]);
      } else if (const Appended* const rows = RowsOf(result)) {
        const Append& append = program_.appends[static_cast<size_t>(rows - appended_.data())];
        found.push_back(rows->memory->FirstRows(program_.slots[index].tensor, append.axis));
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
  }

  // The rows that a result is, if it shares their memory.
  const Appended* RowsOf(const Result& result) const {
    const int64_t append = program_.rooms[static_cast<size_t>(result.room)].append;
    if (append < 0) return nullptr;
    const Appended& rows = appended_[static_cast<size_t>(append)];
    return rows.memory == nullptr ? nullptr : &rows;
  }

  Program& program_;
  const AnyView* inputs_;
  Rooms rooms_;
  std::vector<Appended> appended_;
  bool is_done_ = false;
};

bool Run(Program* program, const AnyView* inputs, Any* results) {
  Array<Any> found;
  found.reserve(static_cast<int64_t>(program->results.size()));
  if (!Runner(program, inputs).Run(&found)) return false;
  *results = std::move(found);
  return true;
}

// Code as a function, which calls that of the machine for what the code does not take.
template <typename Code>
Function FunctionOf(const std::shared_ptr<Code>& code, const Function& machine) {
  return Function::FromPacked([code, machine](PackedArgs arguments, Any* results) {
    if (arguments.size() == code->inputs + 1 && Run(code.get(), arguments.data(), results)) return;
    machine.CallPacked(arguments, results);  // which says what is wrong
    for (int32_t i = 0; i < arguments.size(); ++i) {
      const DLTensor* const tensor = TensorOf(arguments[i].CopyToTVMFFIAny());
      // The machine would have read it as if it were.
      if (tensor != nullptr && !IsCompact(*tensor)) TVM_FFI_THROW(ValueError) << "a tensor that is not compact";
    }
  });
}

// See cpu_api.straight.
Any NewProgram(const Module& executable, const tvm::ffi::String& name, const Array<Any>& weights,
               const Function& machine) {
  std::vector<int64_t> lengthened;
  if (std::shared_ptr<Program> program = Read(executable, name, weights, /*appends=*/true)) {
    for (const Append& append : program->appends) lengthened.push_back(append.input);
    return Array<Any>{FunctionOf(program, machine), tvm::ffi::Shape(lengthened)};
  }
  if (std::shared_ptr<Joined> joined = ReadJoined(executable, name, weights)) {
    return Array<Any>{FunctionOf(joined, machine), tvm::ffi::Shape(lengthened)};
  }
  return nullptr;
}

// See cpu_api.bound.
Function NewBound(const Function& function, const Array<Any>& arguments) {
  const std::vector<AnyView> views(arguments.begin(), arguments.end());
  return Function::FromPacked([function, arguments, views](PackedArgs, Any* result) {
    function.CallPacked(views.data(), static_cast<int32_t>(views.size()), result);
  });
}

}  // namespace

bool Run(Program* program, const AnyView* inputs, std::vector<Any>* results) {
  return Runner(program, inputs).Run(results);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("heterocc.cpu.straight", NewProgram).def("heterocc.cpu.bound", NewBound);
}

}  // namespace heterocc::cpu
