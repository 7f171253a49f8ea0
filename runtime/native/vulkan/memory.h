// Memory of a device: tensors are ranges of a few large blocks, each one VkDeviceMemory under one VkBuffer.
//
// A freed range may be reused at once, while commands still use it: commands run in order, and before the host accesses
// it, it must wait for `Allocation::last_use`, which is kept with the range.
//
// Ownership: a Heap owns its blocks; allocations must be freed before its end.
// Threading: not thread-safe; guarded by the queue's lock.
#ifndef HETEROCC_VULKAN_MEMORY_H_
#define HETEROCC_VULKAN_MEMORY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "logical_device.h"

namespace heterocc::vulkan_plugin {

// The free ranges of a block, by offset; adjacent ranges are merged.
class FreeRanges {
 public:
  explicit FreeRanges(uint64_t size) : size_(size) { Give(0, size, 0); }

  // Takes `size` bytes of the smallest sufficient range; false if there is none. Sets `last_use` to the range's.
  bool Take(uint64_t size, uint64_t* offset, uint64_t* last_use);
  void Give(uint64_t offset, uint64_t size, uint64_t last_use);

  // Whether the whole block is free; if so, `LastUse` is that of the block.
  bool Whole() const { return free_.size() == 1 && free_.begin()->second.size == size_; }
  uint64_t LastUse() const { return free_.begin()->second.last_use; }

 private:
  struct Range {
    uint64_t size;
    uint64_t last_use;
  };
  uint64_t size_;
  std::map<uint64_t, Range> free_;
};

struct Block;

// A range of a block.
struct Allocation {
  VkBuffer buffer = VK_NULL_HANDLE;
  uint64_t offset = 0;    // within `buffer`
  uint64_t size = 0;      // bytes, a multiple of the device's alignment
  char* host = nullptr;   // host address; null if the host cannot access it
  bool cached = false;    // the host reads it as fast as its own memory
  uint64_t address = 0;   // unique in the memory of a queue, host addresses included; for detection of overlaps
  uint64_t last_use = 0;  // serial of the last submission that uses it
  Block* block = nullptr;
};

// The purpose of memory.
enum class Placement {
  kDevice,   // tensors: device memory, mapped if the device is unified
  kStaging,  // copies to and from the host: host memory, mapped
};

class Heap {
 public:
  Heap(const LogicalDevice& device, Placement placement);
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // Throws a `memory` error with the requested size and the limit.
  Allocation Allocate(uint64_t nbytes, uint64_t alignment);

  // A buffer over host memory that the caller keeps until it is freed. Throws if the device cannot import it.
  Allocation Import(void* host, uint64_t nbytes);

  // Frees a range; `completed` is the last serial that the device has finished.
  void Free(const Allocation& allocation, uint64_t completed);

  // Returns blocks to the driver that are free and idle, all but one of those for small tensors unless `all` is set.
  // Returns the bytes.
  uint64_t Collect(uint64_t completed, bool all);

  // Bytes of all blocks, and of the allocated ranges; borrowed memory is not counted.
  uint64_t Held() const;
  uint64_t Used() const { return used_; }

 private:
  Block* NewBlock(uint64_t size, bool dedicated);
  void Destroy(Block* block);
  uint32_t MemoryType(uint32_t allowed) const;

  const LogicalDevice& device_;
  const Placement placement_;
  std::vector<std::unique_ptr<Block>> blocks_;
  uint64_t used_ = 0;
  uint64_t next_block_size_;
  uint64_t next_address_ = uint64_t{1} << 62;  // above all host addresses
};

}  // namespace heterocc::vulkan_plugin

#endif  // HETEROCC_VULKAN_MEMORY_H_
