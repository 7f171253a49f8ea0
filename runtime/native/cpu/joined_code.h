// Code of a partition with branches and loops, run without TVM's virtual machine.
//
// The entry of such a partition calls functions of straight code (compiler/lower/cpu/programs/bytecode.py) and moves
// values between registers. A call of one in the machine takes a microsecond, mostly for frames and lists of its
// registers: longer than all of a loop's turn in which little is computed. Here the straight code is programs, whose
// results are put in the entry's registers.
//
// Ownership and threading: as those of programs.
#ifndef HETEROCC_CPU_JOINED_CODE_H_
#define HETEROCC_CPU_JOINED_CODE_H_

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "straight_code.h"

namespace heterocc::cpu {

// One step of an entry. Arguments are registers, or constants if they are negative: -1 is the first.
struct Turn {
  enum Kind { kProgram, kCall, kCopy, kRead, kBranch, kJump, kReturn } kind;
  int64_t index = 0;               // of the program or function
  std::vector<int64_t> arguments;  // of kCopy, kRead, kBranch and kReturn: one
  std::vector<int64_t> targets;    // registers, -1 for a value that nobody reads
  int64_t next = 0;                // of kJump; of kBranch: if the number is 0
};

struct Joined {
  tvm::ffi::ObjectRef executable;
  int64_t inputs = 0;  // without the weights
  int64_t registers = 0;
  std::vector<Turn> turns;
  std::vector<std::unique_ptr<Program>> programs;
  std::vector<tvm::ffi::Function> functions;
  std::vector<tvm::ffi::Any> constants;
};

// The function `name` of an executable of TVM's virtual machine, whose last parameter is the tuple `weights`; nullptr
// if it has something that is not known here, or calls code that is no program.
std::unique_ptr<Joined> ReadJoined(const tvm::ffi::Module& executable, const std::string& name,
                                   const tvm::ffi::Array<tvm::ffi::Any>& weights);

// Runs an entry on its inputs, which are compact. False if a program does not take what it is given. Throws what
// programs throw.
bool Run(Joined* joined, const tvm::ffi::AnyView* inputs, tvm::ffi::Any* result);

}  // namespace heterocc::cpu

#endif  // HETEROCC_CPU_JOINED_CODE_H_
