// Translation of a function of TVM's virtual machine to a program.
#include "straight_reader.h"

#include <algorithm>
#include <optional>

namespace heterocc::cpu {

using tvm::ffi::Any;
using tvm::ffi::Array;
using tvm::ffi::Function;
using tvm::ffi::Module;
using tvm::runtime::vm::Instruction;
using tvm::runtime::vm::Opcode;
using tvm::runtime::vm::VMExecutable;
using tvm::runtime::vm::VMFuncInfo;

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

// The axis along which a kernel of this name appends rows, `append2.` and the names of nodes: see written.py.
std::optional<int64_t> AppendsAlong(const std::string& name) {
  const std::string start = "append";
  const size_t stop = name.find('.');
  if (name.compare(0, start.size(), start) != 0 || stop == std::string::npos || stop == start.size()) return {};
  int64_t axis = 0;
  for (size_t i = start.size(); i < stop; ++i) {
    if (name[i] < '0' || name[i] > '9' || axis > 99) return {};
    axis = axis * 10 + (name[i] - '0');
  }
  return axis;
}

}  // namespace

std::unique_ptr<Program> Reader::Read(const std::string& name) {
  const auto place = code_.func_map.find(name);
  Require(place != code_.func_map.end());
  const VMFuncInfo& function = code_.func_table[static_cast<size_t>(place->second)];
  Require(function.kind == VMFuncInfo::FuncKind::kVMFunc && function.num_args >= 1);
  program_->inputs = function.num_args - 1;
  program_->uses.resize(static_cast<size_t>(program_->inputs));
  program_->input_types.resize(static_cast<size_t>(program_->inputs), DLDataType{kDLOpaqueHandle, 0, 0});
  program_->input_ranks.resize(static_cast<size_t>(program_->inputs), -1);
  program_->are_shapes.resize(static_cast<size_t>(program_->inputs), false);
  for (int64_t i = 0; i < program_->inputs; ++i) {
    registers_[i].kind = Held::kInput;
    registers_[i].index = i;
  }
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

void Reader::Call(const Instruction& call) {
  const VMFuncInfo& function = code_.func_table[static_cast<size_t>(call.func_idx)];
  Require(function.kind == VMFuncInfo::FuncKind::kPackedFunc);
  const Arguments arguments(call.args, call.args + call.num_args);
  using Member = Held (Reader::*)(const Arguments&);
  static const std::unordered_map<std::string, Member> known = {
      {"vm.builtin.alloc_shape_heap", &Reader::AllocTable},
      {"vm.builtin.check_tensor_info", &Reader::CheckTensor},
      {"vm.builtin.check_shape_info", &Reader::CheckShape},
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
void Reader::Hold(const Held& held, int64_t step) {
  for (const Held& part : held.parts) Hold(part, step);
  if (held.room < 0) return;
  int64_t& count = holders_[static_cast<size_t>(held.room)];
  count += step;
  if (count == 0) Add(Step::kGive).index = held.room;
}

Step& Reader::Add(Step::Kind kind) {
  Step& step = program_->steps.emplace_back();
  step.kind = kind;
  return step;
}

Held Reader::Value(const Argument& argument) {
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

Held Reader::Value(const Argument& argument, Held::Kind kind) {
  Held held = Value(argument);
  Require(held.kind == kind);
  return held;
}

void Reader::Kernel(const std::string& name, const Arguments& arguments) {
  const auto first = static_cast<int64_t>(program_->arguments.size());
  for (const Argument& argument : arguments) LayOut(argument);
  Step& step = Add(Step::kCall);
  step.index = FunctionOf(name);
  step.first = first;
  step.count = static_cast<int64_t>(arguments.size());
  if (const std::optional<int64_t> axis = AppendsAlong(name)) {
    appending_.emplace_back(static_cast<int64_t>(program_->steps.size()) - 1, *axis);
  }
}

// Lays an argument of a kernel out.
void Reader::LayOut(const Argument& argument) {
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
      Require(!program_->are_shapes[static_cast<size_t>(held.index)]);
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

int64_t Reader::FunctionOf(const std::string& name) {
  const auto [place, is_new] = functions_.emplace(name, static_cast<int64_t>(program_->functions.size()));
  if (is_new) {
    program_->functions.push_back(FoundFunction(code_, name));
    program_->names.push_back(name);
  }
  return place->second;
}

Function FoundFunction(const VMExecutable& code, const std::string& name) {
  for (const Any& import : code.imports()) {
    if (const auto function = import.cast<Module>()->GetFunction(name, true)) return *function;
  }
  const std::optional<Function> found = Function::GetGlobal(name);
  Require(found.has_value());
  return *found;
}

void Reader::Return(const Held& tuple) {
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
  if (appends_) FindAppends();
}

std::unique_ptr<Program> Read(const Module& executable, const std::string& name, const Array<Any>& weights,
                              bool appends) {
  if (std::string(executable->kind()) != "relax.VMExecutable") return nullptr;
  try {
    return Reader(executable, weights, appends).Read(name);
  } catch (const Unknown&) {
    return nullptr;
  }
}

}  // namespace heterocc::cpu
