// The heap as an allocator of TVM's virtual machine.
#ifndef HETEROCC_CPU_ALLOCATOR_H_
#define HETEROCC_CPU_ALLOCATOR_H_

#include <cstdint>

namespace heterocc::cpu {

// Adds the allocator to those of TVM's memory manager for the CPU, unless it is there, and returns the number of its
// type, which virtual machines that are to use it are initialised with. TVM's own allocators stay as they are.
int32_t AddAllocator();

}  // namespace heterocc::cpu

#endif  // HETEROCC_CPU_ALLOCATOR_H_
