// Whether a thread takes denormal numbers for zeros.
//
// An operation with a denormal operand or result takes many processors more than a hundred cycles. In the mode set here
// such operands count as zeros, and such results are zeros.
//
// Threading: the mode belongs to the calling thread.
#ifndef HETEROCC_CPU_DENORMALS_H_
#define HETEROCC_CPU_DENORMALS_H_

#include <cstdint>

namespace heterocc::cpu {

// Everything that the processor keeps of a thread's floating-point mode: rounding, traps, and seen exceptions, too.
using FloatMode = uint64_t;

FloatMode CurrentMode();
void SetMode(FloatMode mode);

// The mode with denormal numbers kept, or taken for zeros.
FloatMode WithDenormals(FloatMode mode, bool kept);

// Keeps denormal numbers, or takes them for zeros, until the end of a block, also if it ends by an exception.
class DenormalsInBlock {
 public:
  explicit DenormalsInBlock(bool kept) : before_(CurrentMode()) {
    const FloatMode wanted = WithDenormals(before_, kept);
    if (wanted != before_) SetMode(wanted);
  }
  ~DenormalsInBlock() { SetMode(before_); }
  DenormalsInBlock(const DenormalsInBlock&) = delete;
  DenormalsInBlock& operator=(const DenormalsInBlock&) = delete;

 private:
  const FloatMode before_;
};

}  // namespace heterocc::cpu

#endif  // HETEROCC_CPU_DENORMALS_H_
