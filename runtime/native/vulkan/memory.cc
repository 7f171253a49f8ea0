#include "memory.h"

#include <algorithm>
#include <iterator>

#include "error.h"
#include "fault.h"

namespace heterocc::vulkan_plugin {
namespace {

constexpr uint64_t kMinAlignment = 64;
constexpr uint64_t kFirstBlock = uint64_t{4} << 20;
constexpr uint64_t kLargestBlock = uint64_t{64} << 20;

// Tensors larger than this part of a block get a separate block, which is returned to the driver when they are freed.
constexpr uint64_t kSharedPart = 4;

// Memory types for features that the plug-in does not use.
constexpr VkMemoryPropertyFlags kSpecial = VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT | VK_MEMORY_PROPERTY_PROTECTED_BIT |
                                           VK_MEMORY_PROPERTY_DEVICE_COHERENT_BIT_AMD |
                                           VK_MEMORY_PROPERTY_DEVICE_UNCACHED_BIT_AMD;

constexpr VkMemoryPropertyFlags kMapped = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;

uint64_t RoundUp(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

VkBufferCreateInfo StorageBuffer(uint64_t size) {
  VkBufferCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
  info.size = size;
  info.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
  info.sharingMode = VK_SHARING_MODE_EXCLUSIVE;
  return info;
}

}  // namespace

bool FreeRanges::Take(uint64_t size, uint64_t* offset, uint64_t* last_use) {
  auto best = free_.end();
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    if (range->second.size >= size && (best == free_.end() || range->second.size < best->second.size)) best = range;
  }
  if (best == free_.end()) return false;
  *offset = best->first;
  *last_use = best->second.last_use;
  const Range rest{best->second.size - size, best->second.last_use};
  free_.erase(best);
  if (rest.size != 0) free_.emplace(*offset + size, rest);
  return true;
}

void FreeRanges::Give(uint64_t offset, uint64_t size, uint64_t last_use) {
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + size) {
    size += next->second.size;
    last_use = std::max(last_use, next->second.last_use);
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second.size == offset) {
      before->second.size += size;
      before->second.last_use = std::max(last_use, before->second.last_use);
      return;
    }
  }
  free_.emplace_hint(next, offset, Range{size, last_use});
}

struct Block {
  explicit Block(uint64_t size, bool dedicated) : size(size), dedicated(dedicated), ranges(size) {}

  const uint64_t size;
  const bool dedicated;   // for one tensor only
  bool imported = false;  // of the host's memory
  FreeRanges ranges;
  VkDeviceMemory memory = VK_NULL_HANDLE;
  VkBuffer buffer = VK_NULL_HANDLE;
  char* host = nullptr;
  bool cached = false;
  uint64_t address = 0;
};

Heap::Heap(const LogicalDevice& device, Placement placement)
    : device_(device), placement_(placement), next_block_size_(kFirstBlock) {}

Heap::~Heap() {
  for (const std::unique_ptr<Block>& block : blocks_) Destroy(block.get());
}

Allocation Heap::Allocate(uint64_t nbytes, uint64_t alignment) {
  const DeviceInfo& info = device_.info();
  const uint64_t unit = std::max({kMinAlignment, alignment, info.offset_alignment});
  const uint64_t size = RoundUp(std::max<uint64_t>(nbytes, 1), unit);
  const std::string context = Bytes(nbytes) + " on '" + info.name + "'";
  if (nbytes > info.max_alloc) {
    Throw(ErrorClass::kMemory, "a buffer of " + context + " is over the device's limit of " + Bytes(info.max_alloc));
  }
  if (Faults::Global().AllocFails()) Check(VK_ERROR_OUT_OF_DEVICE_MEMORY, "vkAllocateMemory", context);
  uint64_t offset = 0;
  uint64_t last_use = 0;
  Block* chosen = nullptr;
  const bool dedicated = size > next_block_size_ / kSharedPart && size > kLargestBlock / kSharedPart;
  for (const std::unique_ptr<Block>& block : blocks_) {
    if (dedicated || block->dedicated || !block->ranges.Take(size, &offset, &last_use)) continue;
    // Blocks start aligned and ranges are multiples of the units requested so far; for a larger unit a range may be
    // misaligned.
    if (offset % unit == 0) {
      chosen = block.get();
      break;
    }
    block->ranges.Give(offset, size, last_use);
  }
  if (chosen == nullptr) {
    chosen = NewBlock(dedicated ? size : std::max(size, next_block_size_), dedicated);
    chosen->ranges.Take(size, &offset, &last_use);
    if (!dedicated) next_block_size_ = std::min(2 * next_block_size_, kLargestBlock);
  }
  Allocation result;
  result.buffer = chosen->buffer;
  result.offset = offset;
  result.size = size;
  result.host = chosen->host == nullptr ? nullptr : chosen->host + offset;
  result.cached = chosen->cached;
  result.address = chosen->address + offset;
  result.last_use = last_use;
  result.block = chosen;
  used_ += size;
  return result;
}

Block* Heap::NewBlock(uint64_t size, bool dedicated) {
  const DeviceFunctions& vk = device_.vk();
  const std::string context = Bytes(size) + " on '" + device_.info().name + "'";
  auto block = std::make_unique<Block>(size, dedicated);
  const VkBufferCreateInfo info = StorageBuffer(size);
  try {
    Check(vk.vkCreateBuffer(device_.handle(), &info, nullptr, &block->buffer), "vkCreateBuffer", context);
    VkMemoryRequirements needs{};
    vk.vkGetBufferMemoryRequirements(device_.handle(), block->buffer, &needs);
    VkMemoryAllocateInfo allocate{};
    allocate.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO;
    allocate.allocationSize = needs.size;
    allocate.memoryTypeIndex = MemoryType(needs.memoryTypeBits);
    Check(vk.vkAllocateMemory(device_.handle(), &allocate, nullptr, &block->memory), "vkAllocateMemory", context);
    Check(vk.vkBindBufferMemory(device_.handle(), block->buffer, block->memory, 0), "vkBindBufferMemory", context);
    const VkMemoryPropertyFlags flags = device_.info().memory_types.memoryTypes[allocate.memoryTypeIndex].propertyFlags;
    if ((flags & kMapped) == kMapped && (placement_ == Placement::kStaging || device_.info().unified)) {
      void* host = nullptr;
      Check(vk.vkMapMemory(device_.handle(), block->memory, 0, VK_WHOLE_SIZE, 0, &host), "vkMapMemory", context);
      block->host = static_cast<char*>(host);
      block->cached = (flags & VK_MEMORY_PROPERTY_HOST_CACHED_BIT) != 0;
    }
  } catch (...) {
    Destroy(block.get());
    throw;
  }
  block->address = block->host != nullptr ? reinterpret_cast<uint64_t>(block->host) : next_address_;
  if (block->host == nullptr) next_address_ += RoundUp(size, kLargestBlock);
  blocks_.push_back(std::move(block));
  return blocks_.back().get();
}

Allocation Heap::Import(void* host, uint64_t nbytes) {
  const DeviceInfo& info = device_.info();
  const DeviceFunctions& vk = device_.vk();
  const std::string context = Bytes(nbytes) + " of host memory on '" + info.name + "'";
  if (nbytes > info.max_alloc) {
    Throw(ErrorClass::kMemory, "a buffer of " + context + " is over the device's limit of " + Bytes(info.max_alloc));
  }
  // Whole pages are imported; the buffer covers the caller's part of them.
  const auto begin = reinterpret_cast<uint64_t>(host);
  const uint64_t start = begin / info.import_alignment * info.import_alignment;
  const uint64_t end = RoundUp(begin + nbytes, info.import_alignment);
  constexpr auto kHandle = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;
  auto block = std::make_unique<Block>(nbytes, true);
  block->imported = true;
  try {
    VkMemoryHostPointerPropertiesEXT usable{};
    usable.sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT;
    Check(vk.vkGetMemoryHostPointerPropertiesEXT(device_.handle(), kHandle, reinterpret_cast<void*>(start), &usable),
          "vkGetMemoryHostPointerPropertiesEXT", context);
    VkExternalMemoryBufferCreateInfo external{};
    external.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO;
    external.handleTypes = kHandle;
    VkBufferCreateInfo create = StorageBuffer(RoundUp(nbytes, 4));
    create.pNext = &external;
    Check(vk.vkCreateBuffer(device_.handle(), &create, nullptr, &block->buffer), "vkCreateBuffer", context);
    VkMemoryRequirements needs{};
    vk.vkGetBufferMemoryRequirements(device_.handle(), block->buffer, &needs);
    const uint32_t types = needs.memoryTypeBits & usable.memoryTypeBits;
    if (types == 0 || (begin - start) % needs.alignment != 0) {
      Check(VK_ERROR_INVALID_EXTERNAL_HANDLE, "vkGetBufferMemoryRequirements", context);
    }
    VkImportMemoryHostPointerInfoEXT import{};
    import.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT;
    import.handleType = kHandle;
    import.pHostPointer = reinterpret_cast<void*>(start);
    VkMemoryAllocateInfo allocate{};
    allocate.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO;
    allocate.pNext = &import;
    allocate.allocationSize = end - start;
    while ((types >> allocate.memoryTypeIndex & 1) == 0) ++allocate.memoryTypeIndex;
    Check(vk.vkAllocateMemory(device_.handle(), &allocate, nullptr, &block->memory), "vkAllocateMemory", context);
    Check(vk.vkBindBufferMemory(device_.handle(), block->buffer, block->memory, begin - start), "vkBindBufferMemory",
          context);
  } catch (...) {
    Destroy(block.get());
    throw;
  }
  Allocation result;
  result.buffer = block->buffer;
  result.size = RoundUp(nbytes, 4);
  result.host = static_cast<char*>(host);
  result.cached = true;
  result.address = begin;
  result.block = block.get();
  uint64_t unused = 0;
  block->ranges.Take(nbytes, &unused, &unused);
  blocks_.push_back(std::move(block));
  return result;
}

void Heap::Free(const Allocation& allocation, uint64_t completed) {
  Block* block = allocation.block;
  block->ranges.Give(allocation.offset, block->dedicated ? block->size : allocation.size, allocation.last_use);
  if (!block->imported) used_ -= allocation.size;
  if (block->ranges.Whole()) Collect(completed, false);
}

uint64_t Heap::Held() const {
  uint64_t total = 0;
  for (const std::unique_ptr<Block>& block : blocks_) total += block->imported ? 0 : block->size;
  return total;
}

uint64_t Heap::Collect(uint64_t completed, bool all) {
  uint64_t freed = 0;
  bool kept = all;
  const auto idle = [&](const std::unique_ptr<Block>& block) {
    if (!block->ranges.Whole() || block->ranges.LastUse() > completed) return false;
    if (!block->dedicated && !kept) {
      kept = true;
      return false;
    }
    if (!block->imported) freed += block->size;
    Destroy(block.get());
    return true;
  };
  blocks_.erase(std::remove_if(blocks_.begin(), blocks_.end(), idle), blocks_.end());
  if (blocks_.empty()) next_block_size_ = kFirstBlock;
  return freed;
}

void Heap::Destroy(Block* block) {
  const DeviceFunctions& vk = device_.vk();
  vk.vkDestroyBuffer(device_.handle(), block->buffer, nullptr);
  vk.vkFreeMemory(device_.handle(), block->memory, nullptr);  // unmaps it
}

uint32_t Heap::MemoryType(uint32_t allowed) const {
  constexpr VkMemoryPropertyFlags kLocal = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
  constexpr VkMemoryPropertyFlags kCached = VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
  struct Wish {
    VkMemoryPropertyFlags has;
    VkMemoryPropertyFlags lacks;
  };
  // Best first. Device memory that the host can also access is scarce on discrete devices, and not used.
  const std::vector<Wish> wishes =
      placement_ == Placement::kStaging ? std::vector<Wish>{{kMapped | kCached, 0}, {kMapped, 0}}
      : device_.info().unified
          ? std::vector<Wish>{{kLocal | kMapped | kCached, 0}, {kLocal | kMapped, 0}, {kLocal, 0}, {0, 0}}
          : std::vector<Wish>{{kLocal, VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT}, {kLocal, 0}, {0, 0}};
  const VkPhysicalDeviceMemoryProperties& types = device_.info().memory_types;
  for (const Wish& wish : wishes) {
    for (uint32_t i = 0; i < types.memoryTypeCount; ++i) {
      const VkMemoryPropertyFlags flags = types.memoryTypes[i].propertyFlags;
      if ((allowed >> i & 1) == 0 || (flags & kSpecial) != 0 || (flags & wish.has) != wish.has ||
          (flags & wish.lacks) != 0)
        continue;
      return i;
    }
  }
  Throw(ErrorClass::kMemory, "'" + device_.info().name + "' has no memory of the kind that is needed");
}

}  // namespace heterocc::vulkan_plugin
