#include "joined_code.h"

#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "straight_reader.h"

namespace heterocc::cpu {
namespace {

using tvm::ffi::Any;
using tvm::ffi::AnyView;
using tvm::ffi::Array;
using tvm::ffi::Function;
using tvm::ffi::Module;
using tvm::runtime::vm::ExecWord;
using tvm::runtime::vm::Instruction;
using tvm::runtime::vm::Opcode;
using tvm::runtime::vm::VMExecutable;
using tvm::runtime::vm::VMFuncInfo;

class JoinedReader {
 public:
  JoinedReader(const Module& executable, const Array<Any>& weights)
      : module_(executable), code_(static_cast<const VMExecutable&>(*executable.operator->())), weights_(weights) {
    joined_->executable = executable;
  }

  // Throws Unknown.
  std::unique_ptr<Joined> Read(const std::string& name) {
    const auto place = code_.func_map.find(name);
    Require(place != code_.func_map.end());
    const VMFuncInfo& function = code_.func_table[static_cast<size_t>(place->second)];
    Require(function.kind == VMFuncInfo::FuncKind::kVMFunc && function.num_args >= 1);
    joined_->inputs = function.num_args - 1;
    joined_->registers = function.register_file_size;
    end_ = function.end_instr;
    std::map<int64_t, int64_t> starts;  // of instructions among the turns
    for (at_ = function.start_instr; at_ < end_; ++at_) {
      starts[at_] = static_cast<int64_t>(joined_->turns.size());
      Follow(code_.GetInstruction(at_));
    }
    for (Turn& turn : joined_->turns) {
      if (turn.kind != Turn::kJump && turn.kind != Turn::kBranch) continue;
      const auto start = starts.find(turn.next);
      Require(start != starts.end());
      turn.next = start->second;
    }
    Require(!joined_->turns.empty() && joined_->turns.back().kind == Turn::kReturn);
    return std::move(joined_);
  }

 private:
  void Follow(const Instruction& instruction) {
    switch (instruction.op) {
      case Opcode::Call:
        Call(instruction);
        return;
      case Opcode::Ret:
        Add(Turn::kReturn).arguments = {Register(instruction.result)};
        return;
      case Opcode::Goto:
        Add(Turn::kJump).next = at_ + instruction.pc_offset;
        return;
      case Opcode::If: {
        Turn& turn = Add(Turn::kBranch);
        turn.arguments = {Register(instruction.cond)};
        turn.next = at_ + instruction.false_offset;
        return;
      }
    }
    throw Unknown{};
  }

  void Call(const Instruction& call) {
    const VMFuncInfo& function = code_.func_table[static_cast<size_t>(call.func_idx)];
    std::vector<int64_t> arguments;
    for (Instruction::Arg* given = call.args; given != call.args + call.num_args; ++given) {
      arguments.push_back(Value(*given));
    }
    const int64_t target = call.dst == Instruction::kVoidRegister ? -1 : Register(call.dst);
    if (function.kind == VMFuncInfo::FuncKind::kVMFunc) {
      CallProgram(function.name, std::move(arguments), target);
      return;
    }
    Require(function.kind == VMFuncInfo::FuncKind::kPackedFunc);
    const bool copies = function.name == "vm.builtin.copy";
    if (copies || function.name == "vm.builtin.read_if_cond") {
      Require(arguments.size() == 1);
      Turn& turn = Add(copies ? Turn::kCopy : Turn::kRead);
      turn.arguments = std::move(arguments);
      turn.targets = {target};
      return;
    }
    Turn& turn = Add(Turn::kCall);
    turn.index = FunctionOf(function.name);
    turn.arguments = std::move(arguments);
    turn.targets = {target};
  }

  // A call of straight code, and the instructions after it that take its results apart.
  void CallProgram(const std::string& name, std::vector<int64_t> arguments, int64_t whole) {
    Require(!arguments.empty() && arguments.back() == joined_->inputs && whole >= 0);
    arguments.pop_back();
    std::unique_ptr<Program> program = heterocc::cpu::Read(module_, name, weights_, /*appends=*/false);
    Require(program != nullptr);
    Require(program->inputs == static_cast<int64_t>(arguments.size()));
    std::vector<int64_t> targets(program->results.size(), -1);
    bool is_dropped = false;
    while (!is_dropped && at_ + 1 < end_) {
      const Instruction next = code_.GetInstruction(at_ + 1);
      if (next.op != Opcode::Call || next.dst == Instruction::kVoidRegister) break;
      const std::string& called = code_.func_table[static_cast<size_t>(next.func_idx)].name;
      if (called == "vm.builtin.null_value" && next.dst == whole) {
        is_dropped = true;
      } else {
        if (called != "vm.builtin.tuple_getitem" || next.num_args != 2 || Value(next.args[0]) != whole) break;
        const auto item = static_cast<size_t>(next.args[1].value());
        Require(item < targets.size() && targets[item] < 0);
        targets[item] = Register(next.dst);
      }
      ++at_;
    }
    // The last one has written the outputs, and returns nothing.
    Require(is_dropped || targets.empty());
    Turn& turn = Add(Turn::kProgram);
    turn.index = static_cast<int64_t>(joined_->programs.size());
    turn.arguments = std::move(arguments);
    turn.targets = std::move(targets);
    joined_->programs.push_back(std::move(program));
    if (is_dropped) return;
    Turn& empty = Add(Turn::kCopy);
    empty.arguments = {ConstantOf(Array<Any>())};
    empty.targets = {whole};
  }

  Turn& Add(Turn::Kind kind) {
    Turn& turn = joined_->turns.emplace_back();
    turn.kind = kind;
    return turn;
  }

  int64_t Register(ExecWord number) const {
    Require(number >= 0 && number < joined_->registers);
    return number;
  }

  int64_t ConstantOf(Any constant) {
    joined_->constants.push_back(std::move(constant));
    return -static_cast<int64_t>(joined_->constants.size());
  }

  int64_t Value(const Instruction::Arg& argument) {
    switch (argument.kind()) {
      case Instruction::ArgKind::kRegister:
        return Register(argument.value());
      case Instruction::ArgKind::kImmediate:
        return ConstantOf(Any(static_cast<int64_t>(argument.value())));
      case Instruction::ArgKind::kConstIdx: {
        const Any& constant = code_.constants[static_cast<size_t>(argument.value())];
        Require(constant.type_index() != kTVMFFITensor);  // not at an aligned address
        return ConstantOf(constant);
      }
      default:
        throw Unknown{};
    }
  }

  int64_t FunctionOf(const std::string& name) {
    const auto [place, is_new] = functions_.emplace(name, static_cast<int64_t>(joined_->functions.size()));
    if (is_new) joined_->functions.push_back(FoundFunction(code_, name));
    return place->second;
  }

  const Module& module_;
  const VMExecutable& code_;
  const Array<Any>& weights_;
  std::unique_ptr<Joined> joined_ = std::make_unique<Joined>();
  std::unordered_map<std::string, int64_t> functions_;
  int64_t at_ = 0;
  int64_t end_ = 0;
};

// The number or truth value in a tensor of one element; none if it has another type.
std::optional<int64_t> NumberIn(const AnyView& value) {
  const auto tensor = value.try_cast<DLTensor*>();
  if (!tensor) return {};
  const DLTensor& given = **tensor;
  if (given.dtype.lanes != 1 || given.dtype.code == kDLFloat) return {};
  const char* const data = static_cast<const char*>(given.data) + given.byte_offset;
  switch (given.dtype.bits) {
    case 8:
      return *reinterpret_cast<const int8_t*>(data);
    case 32:
      return *reinterpret_cast<const int32_t*>(data);
    case 64:
      return *reinterpret_cast<const int64_t*>(data);
    default:
      return {};
  }
}

class JoinedRunner {
 public:
  JoinedRunner(const Joined& joined, const AnyView* inputs)
      : joined_(joined), registers_(static_cast<size_t>(joined.registers)) {
    for (int64_t i = 0; i <= joined.inputs; ++i) registers_[static_cast<size_t>(i)] = inputs[i];
  }

  bool Run(Any* result) {
    size_t place = 0;
    while (true) {
      const Turn& turn = joined_.turns[place++];
      switch (turn.kind) {
        case Turn::kProgram:
          if (!RunProgram(turn)) return false;
          break;
        case Turn::kCall: {
          LayOut(turn);
          Any found;
          const Function& function = joined_.functions[static_cast<size_t>(turn.index)];
          function.CallPacked(views_.data(), static_cast<int32_t>(views_.size()), &found);
          if (turn.targets[0] >= 0) At(turn.targets[0]) = std::move(found);
          break;
        }
        case Turn::kCopy:
          if (turn.targets[0] >= 0) At(turn.targets[0]) = Value(turn.arguments[0]);
          break;
        case Turn::kRead: {
          const std::optional<int64_t> number = NumberIn(Value(turn.arguments[0]));
          if (!number) return false;
          At(turn.targets[0]) = *number;
          break;
        }
        case Turn::kBranch: {
          const auto number = Value(turn.arguments[0]).as<int64_t>();
          if (!number) return false;
          if (*number == 0) place = static_cast<size_t>(turn.next);
          break;
        }
        case Turn::kJump:
          place = static_cast<size_t>(turn.next);
          break;
        case Turn::kReturn:
          *result = Value(turn.arguments[0]);
          return true;
      }
    }
  }

 private:
  bool RunProgram(const Turn& turn) {
    LayOut(turn);
    results_.clear();
    if (!heterocc::cpu::Run(joined_.programs[static_cast<size_t>(turn.index)].get(), views_.data(), &results_)) {
      return false;
    }
    for (size_t i = 0; i < turn.targets.size(); ++i) {
      if (turn.targets[i] >= 0) At(turn.targets[i]) = std::move(results_[i]);
    }
    return true;
  }

  void LayOut(const Turn& turn) {
    views_.clear();
    for (int64_t argument : turn.arguments) views_.push_back(AnyView(Value(argument)));
  }

  Any& At(int64_t number) { return registers_[static_cast<size_t>(number)]; }

  const Any& Value(int64_t argument) const {
    return argument >= 0 ? registers_[static_cast<size_t>(argument)]
                         : joined_.constants[static_cast<size_t>(-argument - 1)];
  }

  const Joined& joined_;
  std::vector<Any> registers_;
  std::vector<AnyView> views_;
  std::vector<Any> results_;
};

}  // namespace

std::unique_ptr<Joined> ReadJoined(const Module& executable, const std::string& name, const Array<Any>& weights) {
  if (std::string(executable->kind()) != "relax.VMExecutable") return nullptr;
  try {
    return JoinedReader(executable, weights).Read(name);
  } catch (const Unknown&) {
    return nullptr;
  }
}

bool Run(Joined* joined, const AnyView* inputs, Any* result) {
  return JoinedRunner(*joined, inputs).Run(result);
}

}  // namespace heterocc::cpu
