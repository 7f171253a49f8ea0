// How much memory the values of a run may take: sizes that a request leads to are compared with it before the system is
// asked, which grants more than it has and ends the process when the pages are written.
//
// Threading: all functions may be called from any thread.
#ifndef HETEROCC_CPU_MEMORY_LIMITS_H_
#define HETEROCC_CPU_MEMORY_LIMITS_H_

#include <cstddef>
#include <string>

namespace heterocc::cpu {

// The most bytes of one value: HETEROCC_MEMORY_MB, else the memory of the machine or of the container.
size_t LargestValue();

// Bytes that the system and the container have left now.
size_t AvailableMemory();

// Memory of Heap for a value of a run. Throws an input error that names the kernel which writes the value, if `kernel`
// is not empty, for more bytes than LargestValue, and std::bad_alloc if there is no memory.
void* TakeForRun(size_t bytes, const std::string& kernel = {});

}  // namespace heterocc::cpu

#endif  // HETEROCC_CPU_MEMORY_LIMITS_H_
