// Runs of code whose values have sizes known only at run time, from a dictionary of arrays to a dictionary of arrays:
// as in fast_path.h, for contexts that are one call of a function of CPU code.
//
// Ownership: a runner holds its values' names and dtypes, the function and the weights. Results own their memory.
//
// Threading: with the interpreter's lock held; it is released while code runs. One run of a runner at a time.
#ifndef HETEROCC_CPU_FAST_SIZES_H_
#define HETEROCC_CPU_FAST_SIZES_H_

#include <dlpack/dlpack.h>

#include <cstdint>

#include "python.h"
#include "size_conditions.h"

namespace heterocc::cpu {

// The manifest's Range of sizes: the multiples of `step` from `min` to `max`, which is negative if there is no limit.
struct Range {
  int64_t min, max, step;

  bool Contains(int64_t size) const { return size >= min && (max < 0 || size <= max) && size % step == 0; }
};

// The sizes that a dimension of an input may have. Dimensions of one `symbol` have the same size; it is negative for a
// dimension of its own. runtime/native/cpu_sizes.py has the same structures.
struct Dimension {
  Range range;
  int64_t symbol;
};

struct SizedInput {
  Object* name;
  Object* dtype;
  DLDataType type;
  int64_t rank;
  const Dimension* dimensions;
  int64_t alignment;  // what code requires of addresses, in bytes: a power of two
};

struct SizedOutput {
  Object* name;
  Object* dtype;
  DLDataType type;
  int64_t place;  // among the function's results
};

// Returns a function of one argument, or nullptr with an exception. Given a dictionary of exactly these inputs, each a
// plain array of its dtype and of sizes that it may have, it calls `function` (of tvm_ffi) with them, in this order,
// and with `weights`, and returns a dictionary of the outputs. For any other argument it returns None, as if it had not
// been called; also if the sizes do not meet the conditions of these tokens, or if the call fails, because a run in
// Python then says why. The inputs numbered in `lengthened`, to which code appends rows, may also be the first rows of
// a RowMemory, as outputs may then. `python` must outlive the function.
Object* NewSizedRunner(const Python* python, const SizedInput* inputs, int64_t input_count, const SizedOutput* outputs,
                       int64_t output_count, const SizeToken* tokens, int64_t token_count, void* function,
                       void* weights, const int64_t* lengthened, int64_t lengthened_count);

}  // namespace heterocc::cpu

#endif  // HETEROCC_CPU_FAST_SIZES_H_
