// The reader of a function of TVM's virtual machine, which makes a program of it.
//
// straight_reader.cc follows the instructions, straight_values.cc has what functions of the machine put in registers,
// and straight_appends.cc finds the kernels that append rows. Threading: one reader by one thread.
#ifndef HETEROCC_CPU_STRAIGHT_READER_H_
#define HETEROCC_CPU_STRAIGHT_READER_H_

#include <tvm/runtime/base.h>
// After what it needs but does not include:
#include <tvm/runtime/vm/executable.h>

#include <map>
#include <optional>
#include <string>
#include <unordered_map>

#include "straight_code.h"

namespace heterocc::cpu {

// Thrown by a reader: the function has something that programs lack.
struct Unknown {};

inline void Require(bool holds) {
  if (!holds) throw Unknown{};
}

// A kernel of an executable or a function of the runtime, by its name. Throws Unknown.
tvm::ffi::Function FoundFunction(const tvm::runtime::vm::VMExecutable& code, const std::string& name);

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
  Reader(const tvm::ffi::Module& executable, const tvm::ffi::Array<tvm::ffi::Any>& weights, bool appends)
      : code_(static_cast<const tvm::runtime::vm::VMExecutable&>(*executable.operator->())),
        weights_(weights),
        appends_(appends) {
    program_->executable = executable;
  }

  // Throws Unknown.
  std::unique_ptr<Program> Read(const std::string& name);

 private:
  using Argument = tvm::runtime::vm::Instruction::Arg;
  using Arguments = std::vector<Argument>;

  void Call(const tvm::runtime::vm::Instruction& call);
  void Hold(const Held& held, int64_t step);
  Step& Add(Step::Kind kind);
  Held Value(const Argument& argument);
  Held Value(const Argument& argument, Held::Kind kind);
  void Kernel(const std::string& name, const Arguments& arguments);
  void LayOut(const Argument& argument);
  int64_t FunctionOf(const std::string& name);
  void Return(const Held& tuple);

  Held AllocTable(const Arguments& arguments);
  Held CheckTensor(const Arguments& arguments);
  Held CheckShape(const Arguments& arguments);
  Held CheckTuple(const Arguments& arguments);
  Held MatchShape(const Arguments& arguments);
  Held MakeShape(const Arguments& arguments);
  Held MakeNumber(const Arguments& arguments);
  Held AllocRoom(const Arguments& arguments);
  Held AllocTensor(const Arguments& arguments);
  Held Reshape(const Arguments& arguments);
  Held View(const Arguments& arguments);
  Held ViewOf(const Held& source, const Argument& offset, const Held& shape, DLDataType dtype);
  Held Place(Step step, const Argument& offset, const Held& shape, DLDataType dtype, int64_t room);
  Held Item(const Arguments& arguments);
  Held Object(const tvm::ffi::Any& object);
  Held Constants(tvm::runtime::vm::ExecWord number, const tvm::ffi::Any& constant);
  Held Tuple(const Arguments& arguments);
  Held Nothing(const Arguments& arguments);
  int64_t Source(const Held& held) const;
  DLDataType TypeOf(const Held& held) const;
  void SetSizes(Step* step, const std::vector<Size>& sizes);

  void FindAppends();
  void FindAppend(const Step& call, int64_t axis);

  static int64_t Number(const Argument& argument) {
    Require(argument.kind() == tvm::runtime::vm::Instruction::ArgKind::kImmediate);
    return argument.value();
  }

  template <typename T>
  T Constant(const Argument& argument) const {
    Require(argument.kind() == tvm::runtime::vm::Instruction::ArgKind::kConstIdx);
    const std::optional<T> found = code_.constants[static_cast<size_t>(argument.value())].template as<T>();
    Require(found.has_value());
    return *found;
  }

  const tvm::runtime::vm::VMExecutable& code_;
  const tvm::ffi::Array<tvm::ffi::Any>& weights_;
  const bool appends_;
  std::unique_ptr<Program> program_ = std::make_unique<Program>();
  std::map<tvm::runtime::vm::ExecWord, Held> registers_;
  std::unordered_map<std::string, int64_t> functions_;
  std::unordered_map<tvm::runtime::vm::ExecWord, Held> constants_;
  std::vector<int64_t> holders_;                        // by room
  std::vector<std::pair<int64_t, int64_t>> appending_;  // the steps that call kernels which append, and their axes
};

}  // namespace heterocc::cpu

#endif  // HETEROCC_CPU_STRAIGHT_READER_H_
