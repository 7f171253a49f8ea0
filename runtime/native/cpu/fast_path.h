// Runs of a context from a dictionary of arrays to a dictionary of arrays, for contexts in which only CPU code touches
// the inputs and outputs: no Python code between the two, and no copy.
//
// Ownership: a runner holds its values' names and dtypes; the context that owns it keeps the code and the memory that
// the values point to. Results own their memory, which goes back to the runner when they are freed, or to the system
// if the runner is gone.
//
// Threading: with the interpreter's lock held; it is released while code runs. One run of a runner at a time.
#ifndef HETEROCC_CPU_FAST_PATH_H_
#define HETEROCC_CPU_FAST_PATH_H_

#include <cstdint>

#include "python.h"

namespace heterocc::cpu {

// An input or output; runtime/native/cpu_runner.py has the same structure.
struct Value {
  Object* name;
  Object* dtype;
  int64_t rank;
  const int64_t* extents;
  int64_t bytes;
  void** pointer;     // the data pointer of the tensor that code reads or writes
  void* home;         // what it points to otherwise: memory of the context
  int64_t alignment;  // what code requires of addresses, in bytes: a power of two
};

// Returns a function of one argument, or nullptr with an exception. Given a dictionary of exactly these inputs, each a
// plain array of its dtype and shape, the function runs `calls` (functions of tvm_ffi, without arguments) in order and
// returns a dictionary of the outputs. For any other argument it returns None, as if it had not been called; also if
// a call fails, because a run in Python then says why. `python` must outlive the function.
Object* NewRunner(const Python* python, const Value* inputs, int64_t input_count, const Value* outputs,
                  int64_t output_count, void* const* calls, int64_t call_count);

}  // namespace heterocc::cpu

#endif  // HETEROCC_CPU_FAST_PATH_H_
