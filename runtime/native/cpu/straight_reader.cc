// Translation of a function of TVM's virtual machine to a program.
#include <tvm/runtime/base.h>
// After what it needs but does not include:
#include <tvm/runtime/vm/executable.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <unordered_map>

#include "heap.h"
#include "straight_code.h"

namespace heterocc::cpu {

Slot* Program::AddSlot(int64_t rank, DLDataType dtype) {
  Slot& slot = slots.emplace_back();
  slot.extents.resize(static_cast<size_t>(rank));
  slot.strides.resize(static_cast<size_t>(rank));
  slot.head.type_index = kTVMFFITensor;
  slot.head.combined_ref_count = TVMFFIObject{}.combined_ref_count;
  slot.tensor.device = {kDLCPU, 0};
  slot.tensor.ndim = static_cast<int32_t>(rank);
  slot.tensor.dtype = dtype;
  slot.tensor.shape = slot.extents.data();
  slot.tensor.strides = slot.strides.data();
  return &slot;
}

namespace {

using tvm::ffi::Any;
using tvm::ffi::Array;
using tvm::ffi::Function;
using tvm::ffi::Module;
using tvm::ffi::Tensor;
using tvm::runtime::vm::ExecWord;
using tvm::runtime::vm::Instruction;
using tvm::runtime::vm::Opcode;
using tvm::runtime::vm::VMExecutable;
using tvm::runtime::vm::VMFuncInfo;

// An allocator of tensors on the heap.
struct OnHeap {
  void AllocData(DLTensor* tensor) {
    tensor->data = Heap::Global().Take(tvm::ffi::GetDataSize(*tensor));
    if (tensor->data == nullptr) throw std::bad_alloc();
  }
  void FreeData(DLTensor* tensor) { Heap::Global().Give(tensor->data); }
};

// Thrown within this file: the function has something that programs lack.
struct Unknown {};

void Require(bool holds) {
  if (!holds) throw Unknown{};
}

// What a register holds while the function is read.
struct Held {
  enum Kind { kNothing, kInput, kWeights, kObject, kTable, kShape, kRoom, kTensor, kNumber, kTuple } kind = kNothing;
  int64_t index = 0;        // the input, object, room or slot
  int64_t room = -1;        // of a tensor
  std::vector<Size> sizes;  // of a shape; one of a number
  std::vector<Held> parts;  // of a tuple
};

class Reader {
 public:
  Reader(const Module& executable, const Array<Any>& weights)
      : code_(static_cast<const VMExecutable&>(*executable.operator->())), weights_(weights) {
    program_->executable = executable;
  }

  std::unique_ptr<Program> Read(const std::string& name) {
    const auto place = code_.func_map.find(name);
    Require(place != code_.func_map.end());
    const VMFuncInfo& function = code_.func_table[static_cast<size_t>(place->second)];
    Require(function.kind == VMFuncInfo::FuncKind::kVMFunc && function.num_args >= 1);
    program_->inputs = function.num_args - 1;
    program_->uses.resize(static_cast<size_t>(program_->inputs));
    program_->input_types.resize(static_cast<size_t>(program_->inputs), DLDataType{kDLOpaqueHandle, 0, 0});
    program_->input_ranks.resize(static_cast<size_t>(program_->inputs), -1);
    for (int64_t i = 0; i < program_->inputs; ++i) registers_[i] = Input(i);
    registers_[program_->inputs].kind = Held::kWeights;
    for (int64_t i = function.start_instr; i < function.end_instr; ++i) {
      const Instruction instruction = code_.GetInstruction(i);
      if (instruction.op == Opcode::Ret) {
        Require(i == function.end_instr - 1);
        Return(registers_[instruction.result]);
        return std::move(program_);
      }
      Require(instruction.op == Opcode::Call);
      Call(instruction);
    }
    throw Unknown{};
  }

 private:
  using Arguments = std::vector<Instruction::Arg>;

  static Held Input(int64_t index) {
    Held held;
    held.kind = Held::kInput;
    held.index = index;
    return held;
  }

  void Call(const Instruction& call) {
    const VMFuncInfo& function = code_.func_table[static_cast<size_t>(call.func_idx)];
    Require(function.kind == VMFuncInfo::FuncKind::kPackedFunc);
    const Arguments arguments(call.args, call.args + call.num_args);
    using Member = Held (Reader::*)(const Arguments&);
    static const std::unordered_map<std::string, Member> known = {
        {"vm.builtin.alloc_shape_heap", &Reader::AllocTable},
        {"vm.builtin.check_tensor_info", &Reader::CheckTensor},
        {"vm.builtin.check_tuple_info", &Reader::CheckTuple},
        {"vm.builtin.match_shape", &Reader::MatchShape},
        {"vm.builtin.make_shape", &Reader::MakeShape},
        {"vm.builtin.make_prim_value", &Reader::MakeNumber},
        {"vm.builtin.alloc_storage", &Reader::AllocRoom},
        {"vm.builtin.alloc_tensor", &Reader::AllocTensor},
        {"vm.builtin.reshape", &Reader::Reshape},
        {"runtime.TVMTensorCreateView", &Reader::View},
        {"vm.builtin.tuple_getitem", &Reader::Item},
        {"vm.builtin.make_tuple", &Reader::Tuple},
        {"vm.builtin.null_value", &Reader::Nothing},
    };
    const auto found = known.find(function.name);
    Held result;
    if (found != known.end()) {
      result = (this->*found->second)(arguments);
    } else {
      Require(function.name.rfind("vm.", 0) != 0 && function.name.rfind("runtime.", 0) != 0);
      Kernel(function.name, arguments);
    }
    if (call.dst == Instruction::kVoidRegister) return;
    Hold(result, 1);  // before the other is dropped: both may lie in one room
    Hold(registers_[call.dst], -1);
    registers_[call.dst] = result;
  }

  // Counts the registers that need a room, which is given back after its last.
  void Hold(const Held& held, int64_t step) {
    for (const Held& part : held.parts) Hold(part, step);
    if (held.room < 0) return;
    int64_t& count = holders_[static_cast<size_t>(held.room)];
    count += step;
    if (count == 0) Add(Step::kGive).index = held.room;
  }

  Step& Add(Step::Kind kind) {
    Step& step = program_->steps.emplace_back();
    step.kind = kind;
    return step;
  }

  Held Value(const Instruction::Arg& argument) {
    if (argument.kind() == Instruction::ArgKind::kRegister) return registers_[argument.value()];
    Require(argument.kind() == Instruction::ArgKind::kConstIdx);
    const Any& constant = code_.constants[static_cast<size_t>(argument.value())];
    const auto shape = constant.as<tvm::ffi::Shape>();
    if (!shape) return Constants(argument.value(), constant);
    Held held;
    held.kind = Held::kShape;
    for (int64_t extent : *shape) held.sizes.push_back({false, extent});
    return held;
  }

  Held Value(const Instruction::Arg& argument, Held::Kind kind) {
    Held held = Value(argument);
    Require(held.kind == kind);
    return held;
  }

  static int64_t Number(const Instruction::Arg& argument) {
    Require(argument.kind() == Instruction::ArgKind::kImmediate);
    return argument.value();
  }

  template <typename T>
  T Constant(const Instruction::Arg& argument) const {
    Require(argument.kind() == Instruction::ArgKind::kConstIdx);
    const std::optional<T> found = code_.constants[static_cast<size_t>(argument.value())].template as<T>();
    Require(found.has_value());
    return *found;
  }

  Held AllocTable(const Arguments& arguments) {
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
  Held CheckTensor(const Arguments& arguments) {
    const Held held = Value(arguments.at(0));
    if (held.kind == Held::kObject) return {};
    Require(held.kind == Held::kInput && arguments.size() == 4);
    program_->input_ranks[static_cast<size_t>(held.index)] = Number(arguments[1]);
    program_->input_types[static_cast<size_t>(held.index)] = Constant<DLDataType>(arguments[2]);
    return {};
  }

  Held CheckTuple(const Arguments& arguments) {
    Value(arguments.at(0), Held::kWeights);
    Require(Number(arguments.at(1)) == static_cast<int64_t>(weights_.size()));
    return {};
  }

  Held MatchShape(const Arguments& arguments) {
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

  Held MakeShape(const Arguments& arguments) {
    const int64_t rank = Number(arguments.at(1));
    Held held;
    held.kind = Held::kShape;
    for (int64_t axis = 0; axis < rank; ++axis) {
      const auto place = static_cast<size_t>(2 + 2 * axis);
      held.sizes.push_back({Number(arguments.at(place)) == 1, Number(arguments.at(place + 1))});
    }
    return held;
  }

  Held MakeNumber(const Arguments& arguments) {
    Held held;
    held.kind = Held::kNumber;
    held.sizes.push_back({Number(arguments.at(1)) == 1, Number(arguments.at(2))});
    return held;
  }

  Held AllocRoom(const Arguments& arguments) {
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

  Held AllocTensor(const Arguments& arguments) {
    const Held room = Value(arguments.at(0), Held::kRoom);
    Require(arguments.size() == 4);
    Step step{Step::kPlace};
    step.source = room.room;
    return Place(step, arguments[1], Value(arguments[2], Held::kShape), Constant<DLDataType>(arguments[3]), room.room);
  }

  Held Reshape(const Arguments& arguments) {
    const Held source = Value(arguments.at(0));
    return ViewOf(source, Instruction::Arg::Immediate(0), Value(arguments.at(1), Held::kShape), TypeOf(source));
  }

  Held View(const Arguments& arguments) {
    Require(arguments.size() == 4);
    return ViewOf(Value(arguments[0]), arguments[3], Value(arguments[1], Held::kShape),
                  Constant<DLDataType>(arguments[2]));
  }

  Held ViewOf(const Held& source, const Instruction::Arg& offset, const Held& shape, DLDataType dtype) {
    Require(source.kind == Held::kInput || source.kind == Held::kTensor);
    Step step{Step::kView};
    step.source = Source(source);
    return Place(step, offset, shape, dtype, source.room);
  }

  Held Place(Step step, const Instruction::Arg& offset, const Held& shape, DLDataType dtype, int64_t room) {
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

  Held Item(const Arguments& arguments) {
    const Held tuple = Value(arguments.at(0));
    const auto place = static_cast<size_t>(Number(arguments.at(1)));
    if (tuple.kind == Held::kTuple) return tuple.parts.at(place);
    Require(tuple.kind == Held::kWeights && place < weights_.size());
    return Object(weights_[static_cast<int64_t>(place)]);
  }

  Held Object(const Any& object) {
    Require(object.type_index() == kTVMFFITensor);
    Held held;
    held.kind = Held::kObject;
    held.index = static_cast<int64_t>(program_->objects.size());
    program_->objects.push_back(object);
    return held;
  }

  // A constant as kernels expect tensors: at an aligned address, unlike what is read from a file.
  Held Constants(ExecWord number, const Any& constant) {
    const auto found = constants_.find(number);
    if (found != constants_.end()) return found->second;
    const auto tensor = constant.as<Tensor>();
    Require(tensor.has_value() && tensor->IsContiguous());
    const DLTensor& given = *tensor->GetDLTensorPtr();
    Require(given.device.device_type == kDLCPU);
    const Tensor copy = Tensor::FromNDAlloc(OnHeap(), tensor->shape(), given.dtype, given.device);
    std::memcpy(copy.data_ptr(), static_cast<const char*>(given.data) + given.byte_offset,
                tvm::ffi::GetDataSize(given));
    return constants_[number] = Object(copy);
  }

  Held Tuple(const Arguments& arguments) {
    Held held;
    held.kind = Held::kTuple;
    for (const Instruction::Arg& argument : arguments) held.parts.push_back(Value(argument));
    return held;
  }

  Held Nothing(const Arguments&) { return {}; }

  void Kernel(const std::string& name, const Arguments& arguments) {
    const auto first = static_cast<int64_t>(program_->arguments.size());
    for (const Instruction::Arg& argument : arguments) Argument(argument);
    Step& step = Add(Step::kCall);
    step.index = FunctionOf(name);
    step.first = first;
    step.count = static_cast<int64_t>(arguments.size());
  }

  // Lays an argument of a kernel out.
  void Argument(const Instruction::Arg& argument) {
    const auto place = static_cast<int64_t>(program_->arguments.size());
    TVMFFIAny& given = program_->arguments.emplace_back();
    given.type_index = kTVMFFIInt;
    if (argument.kind() == Instruction::ArgKind::kImmediate) {
      given.v_int64 = argument.value();
      return;
    }
    const Held held = Value(argument);
    switch (held.kind) {
      case Held::kInput:
        program_->uses[static_cast<size_t>(held.index)].push_back(place);
        return;
      case Held::kObject:
        given = tvm::ffi::AnyView(program_->objects[static_cast<size_t>(held.index)]).CopyToTVMFFIAny();
        return;
      case Held::kTable:
      case Held::kTensor:
        given.type_index = kTVMFFITensor;
        given.v_obj = &program_->slots[static_cast<size_t>(held.index)].head;
        return;
      case Held::kNumber: {
        Step& step = Add(Step::kNumber);
        step.offset = held.sizes[0];
        step.index = place;
        return;
      }
      default:
        throw Unknown{};
    }
  }

  int64_t FunctionOf(const std::string& name) {
    const auto [place, is_new] = functions_.emplace(name, static_cast<int64_t>(program_->functions.size()));
    if (is_new) {
      std::optional<Function> found;
      for (const Any& import : code_.imports()) {
        if (const auto function = import.cast<Module>()->GetFunction(name, true)) found = *function;
        if (found) break;
      }
      if (!found) found = Function::GetGlobal(name);
      Require(found.has_value());
      program_->functions.push_back(*found);
    }
    return place->second;
  }

  void Return(const Held& tuple) {
    Require(tuple.kind == Held::kTuple);
    for (const Held& part : tuple.parts) {
      if (part.kind == Held::kInput) {
        program_->results.push_back({Result::kInput, part.index, -1});
      } else if (part.kind == Held::kObject) {
        program_->results.push_back({Result::kObject, part.index, -1});
      } else {
        Require(part.kind == Held::kTensor && part.room >= 0);  // a view of an input would not keep it
        program_->results.push_back({Result::kSlot, part.index, part.room});
      }
    }
    for (int64_t rank : program_->input_ranks) Require(rank >= 0);
  }

  int64_t Source(const Held& held) const {
    return held.kind == Held::kInput ? held.index - program_->inputs : held.index;
  }

  DLDataType TypeOf(const Held& held) const {
    return held.kind == Held::kInput ? program_->input_types.at(static_cast<size_t>(held.index))
                                     : program_->slots.at(static_cast<size_t>(held.index)).tensor.dtype;
  }

  void SetSizes(Step* step, const std::vector<Size>& sizes) {
    step->first = static_cast<int64_t>(program_->sizes.size());
    step->count = static_cast<int64_t>(sizes.size());
    program_->sizes.insert(program_->sizes.end(), sizes.begin(), sizes.end());
  }

  const VMExecutable& code_;
  const Array<Any>& weights_;
  std::unique_ptr<Program> program_ = std::make_unique<Program>();
  std::map<ExecWord, Held> registers_;
  std::unordered_map<std::string, int64_t> functions_;
  std::unordered_map<ExecWord, Held> constants_;
  std::vector<int64_t> holders_;  // by room
};

}  // namespace

std::unique_ptr<Program> Read(const Module& executable, const std::string& name, const Array<Any>& weights) {
  if (std::string(executable->kind()) != "relax.VMExecutable") return nullptr;
  try {
    return Reader(executable, weights).Read(name);
  } catch (const Unknown&) {
    return nullptr;
  }
}

}  // namespace heterocc::cpu
