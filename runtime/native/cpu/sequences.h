// Sequences and optional values of tensors, as the entries of partitions hold them: the functions `heterocc.sequence.*`
// that their instructions call.
//
// A sequence is a tvm::ffi::Array of tensors on the CPU, which is never changed; an optional value is what it holds, or
// None. Tensors are shared, not copied. The last argument of functions that can fail is the node for the message.
//
// Threading: stateless; arrays and tensors count their references atomically.
#ifndef HETEROCC_CPU_SEQUENCES_H_
#define HETEROCC_CPU_SEQUENCES_H_

#include <cstdint>

namespace heterocc::cpu {

// Registers the functions with TVM, once for the process. Returns 1, or 0 if TVM refuses them.
int32_t AddSequenceFunctions();

}  // namespace heterocc::cpu

#endif  // HETEROCC_CPU_SEQUENCES_H_
