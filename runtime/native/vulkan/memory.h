// Memory of a device: tensors are ranges of a few large blocks, each one VkDeviceMemory under one VkBuffer.
//
// A freed range may be given out again at once, while commands still use it: commands run in order, and whoever touches
// it from the host must first wait for `Allocation::last_use`, which travels with the range.
//
// Ownership: a Heap owns its blocks; allocations must be given back before it goes.
// Threading: none of its own; the queue's lock guards it.
#ifndef HETEROCC_VULKAN_MEMORY_H_
#define HETEROCC_VULKAN_MEMORY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "logical_device.h"

namespace heterocc::vulkan_plugin {

// The free ranges of a block, by offset; neighbours are joined.
class FreeRanges {
 public:
  explicit FreeRanges(uint64_t size) : size_(size) { Give(0, size, 0); }

  // Takes `size` bytes of the smallest range that has them; false where none has. `last_use` is the range's.
  bool Take(uint64_t size, uint64_t* offset, uint64_t* last_use);
  void Give(uint64_t offset, uint64_t size, uint64_t last_use);

  // Whether all is free; then `LastUse` is that of the block.
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
  char* host = nullptr;   // where the host sees it, if it does
  bool cached = false;    // the host also reads it as fast as its own
  uint64_t address = 0;   // unique among the memory of a queue, host addresses included: tells overlaps
  uint64_t last_use = 0;  // serial of the last submission that uses it
  Block* block = nullptr;
};

// What memory is for.
enum class Placement {
  kDevice,   // tensors: the device's own, mapped where the device is unified
  kStaging,  // copies to and from the host: the host's, mapped
};

class Heap {
 public:
  Heap(const LogicalDevice& device, Placement placement);
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // Throws a `memory` error that says what was asked for and what the limit is.
  Allocation Allocate(uint64_t nbytes, uint64_t alignment);

  // A buffer over host memory that the caller keeps until it is freed. Throws where the device cannot have that.
  Allocation Import(void* host, uint64_t nbytes);

  // Gives a range back; `completed` is the serial that the device has finished.
  void Free(const Allocation& allocation, uint64_t completed);

  // Returns blocks to the driver that are free and idle, all but one of those for small tensors unless `all` is set.
  // Gives the bytes.
  uint64_t Collect(uint64_t completed, bool all);

  // Bytes of all blocks, and those given out; memory of others is not counted.
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
