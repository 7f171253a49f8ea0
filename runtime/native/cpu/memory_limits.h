// How much memory the values of a run may take: sizes that a request leads to are compared with it before the system is
// asked, which grants more than it has and ends the process when the pages are written.
//
// Threading: all functions may be called from any thread.
#ifndef HETEROCC_CPU_MEMORY_LIMITS_H_
#define HETEROCC_CPU_MEMORY_LIMITS_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace heterocc::cpu {

// The most bytes of one value: HETEROCC_MEMORY_MB, else the memory of the machine or of the container.
size_t LargestValue();

// Bytes that the system and the container have left now.
size_t AvailableMemory();

// The product of a number of bytes and a size; the largest number if it exceeds that, or if the size is negative.
size_t Times(size_t bytes, int64_t size);

// Throws an input error, which names `kernel` as the writer of the value unless it is empty, for more than
// LargestValue.
void CheckSize(size_t bytes, const std::string& kernel = {});

// Memory of Heap for a value of a run. Throws as CheckSize does, and std::bad_alloc if there is no memory.
void* TakeForRun(size_t bytes, const std::string& kernel = {});

}  // namespace heterocc::cpu

#endif  // HETEROCC_CPU_MEMORY_LIMITS_H_
